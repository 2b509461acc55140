#!/usr/bin/env bash
# Prints the folder of a Python environment that holds what python/requirements-test.txt pins, and makes
# it where it is missing. It lies outside of the tree, so that other checkouts find it made.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=python/requirements-test.txt
key=$({ cat "$requirements"; python3 -c 'import sys; print(sys.version, sys.base_prefix)'; } | sha256sum)
environment=${XDG_CACHE_HOME:-$HOME/.cache}/moeblas/python-${key:0:16}
mkdir -p "$environment"
exec 9>"$environment.lock"
flock 9
if [[ ! -e $environment/complete ]]; then
  echo "installing $requirements into $environment" >&2
  python3 -m venv --clear "$environment" >&2
  "$environment/bin/pip" install --disable-pip-version-check -q -r "$requirements" --no-deps >&2
  touch "$environment/complete"
fi
echo "$environment"
