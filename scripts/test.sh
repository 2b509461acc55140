#!/usr/bin/env bash
# Sets up what is missing, builds, and passes the tests.
#   scripts/test.sh [preset]    release (default), debug, asan or tsan
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}

scripts/setup.sh --tests
# Code for the GPU at hand; where there is none, one architecture shows that it compiles.
architectures=90a-real
nvidia-smi -L >/dev/null 2>&1 && architectures=native
cmake --preset "$preset" -DMOEBLAS_CUDA_ARCHITECTURES="$architectures" >/dev/null
cmake --build --preset "$preset"
ctest --preset "$preset"
