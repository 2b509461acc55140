#!/usr/bin/env bash
# Sets up what is missing, builds, and runs the product of a real model's expert layer on this
# machine: the answer is checked against float64, the speed printed.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cuda=(-DMOEBLAS_CUDA=OFF)
nvidia-smi -L >/dev/null 2>&1 && cuda=(-DMOEBLAS_CUDA=AUTO -DMOEBLAS_CUDA_ARCHITECTURES=native)
cmake --preset release -DMOEBLAS_TESTS=OFF "${cuda[@]}" -B build/demo >/dev/null
cmake --build build/demo
build/demo/cli/moeblas info
build/demo/examples/example_gather_qmm "$@"
