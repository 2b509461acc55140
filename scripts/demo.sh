#!/usr/bin/env bash
# Sets up what is missing, builds the tool, and lets the trained model of models/ continue a text on
# the CPU, with the time of every operation.
#   scripts/demo.sh [prompt]
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cuda=(-DMOEBLAS_CUDA=OFF)
nvidia-smi -L >/dev/null 2>&1 && cuda=(-DMOEBLAS_CUDA=AUTO -DMOEBLAS_CUDA_ARCHITECTURES=native)
# Other compilers than those of CI warn of other things.
cmake --preset release -DMOEBLAS_WERROR=OFF -DMOEBLAS_TESTS=OFF "${cuda[@]}" -B build/demo >/dev/null
cmake --build build/demo --target moeblas_cli
build/demo/cli/moeblas info
echo
build/demo/cli/moeblas generate --model models/kjv-olmoe-8m-4bit \
  --prompt "${1:-And it came to pass}" --max-tokens 600 --temperature 0.7 --seed 1
