#!/usr/bin/env bash
# Sets up what is missing, builds, and passes the tests.
#   scripts/test.sh [preset]    release (default), debug, asan or tsan
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}

scripts/setup.sh --tests
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset"
ctest --preset "$preset"
