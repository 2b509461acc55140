#!/usr/bin/env bash
# Prints the folder of a Python environment that holds what requirements files pin, and makes it where it
# is missing. It lies outside of the tree, so that other checkouts find it made.
#   scripts/python_env.sh [FILE...]    (default python/requirements-test.txt)
set -euo pipefail
cd "$(dirname "$0")/.."

files=("$@")
((${#files[@]})) || files=(python/requirements-test.txt)
key=$({ cat "${files[@]}"; python3 -c 'import sys; print(sys.version, sys.base_prefix)'; } | sha256sum)
environment=${XDG_CACHE_HOME:-$HOME/.cache}/moeblas/python-${key:0:16}
mkdir -p "$environment"
exec 9>"$environment.lock"
flock 9
if [[ ! -e $environment/complete ]]; then
  echo "installing ${files[*]} into $environment" >&2
  python3 -m venv --clear "$environment" >&2
  install=("$environment/bin/pip" install --disable-pip-version-check --timeout 60 -q --no-deps "${files[@]/#/-r}")
  # PyPI has torch for CUDA only; the index of its builds for the CPU is asked where that fails. It is
  # asked for every package, and where it cannot be reached each retry is a wait.
  "${install[@]}" --retries 10 >&2 ||
    "${install[@]}" --retries 2 --extra-index-url https://download.pytorch.org/whl/cpu >&2
  touch "$environment/complete"
fi
echo "$environment"
