#!/usr/bin/env bash
# Installs what building and testing need on Debian 12 or Ubuntu 24.04: nothing if all is there. Where it
# cannot (no apt-get, neither root nor sudo) it says what is missing and leaves it to CMake what that costs.
#   scripts/setup.sh [--tests] [--checks]
#     --tests   also what the tests need
#     --checks  also what the format check needs
set -euo pipefail

checks=0
packages=(g++ cmake ninja-build ccache libcli11-dev nlohmann-json3-dev)
for argument in "$@"; do
  case "$argument" in
    # GNUstep, its runtime (gobjc brings the headers) and libssl: the Metal backend's tests. qemu-user:
    # the kernels for AVX2 on a machine that has no more, and those for 64-bit Arm, with the cross compiler.
    --tests) packages+=(libgtest-dev pkg-config clang-19 libclang-rt-19-dev python3 python3-dev python3-venv
                        libgnustep-base-dev gobjc libssl-dev qemu-user g++-aarch64-linux-gnu) ;;
    # ruff comes from PyPI, pinned, into an environment of its own.
    --checks) packages+=(clang-format-19 python3 python3-venv) checks=1 ;;
    *) echo "setup.sh: unknown argument $argument" >&2; exit 2 ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
  as_root=()
  ((EUID == 0)) || as_root=(sudo)
  why_not=
  command -v apt-get >/dev/null || why_not="there is no apt-get"
  ((EUID == 0)) || command -v sudo >/dev/null || why_not=${why_not:-"neither root nor sudo"}
  if [[ $why_not ]]; then
    echo "setup.sh: cannot install ($why_not); expected, by the names of Debian's packages: ${missing[*]}" >&2
    [[ -z ${CI:-} ]] || exit 1
  else
    echo "installing: ${missing[*]}"
    "${as_root[@]}" apt-get -o Acquire::Retries=5 update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -o Acquire::Retries=5 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
fi
if ((checks)); then "$(dirname "$0")/python_env.sh" python/requirements-checks.txt >/dev/null; fi
