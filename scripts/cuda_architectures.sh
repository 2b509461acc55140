#!/usr/bin/env bash
# Compiles the CUDA backend for every architecture that it has code for somewhere, one after the
# other, and says how long each took and how large the library became.
#   scripts/cuda_architectures.sh [architecture...]    default: 80 89 90a 100a 120a
set -euo pipefail
cd "$(dirname "$0")/.."
(($#)) || set -- 80 89 90a 100a 120a

for architecture in "$@"; do
  build=build/cuda-$architecture
  cmake -S . -B "$build" -G Ninja -DMOEBLAS_CUDA=ON -DMOEBLAS_TESTS=OFF -DMOEBLAS_TOOLS=OFF \
    -DMOEBLAS_WERROR=ON -DMOEBLAS_CUDA_ARCHITECTURES="$architecture-real" >/dev/null
  start=$SECONDS
  cmake --build "$build" --target moeblas >/dev/null
  echo "sm_$architecture: $((SECONDS - start)) s, $(stat -Lc %s "$build/libmoeblas.so") bytes"
done
