#!/usr/bin/env bash
# Feeds the readers of checkpoints with made-up files under AddressSanitizer and
# UndefinedBehaviorSanitizer, for so many seconds each.
#   scripts/fuzz.sh [seconds]    default 60; what was found stays in build/fuzz/corpus
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}

scripts/setup.sh --tests
cmake -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMOEBLAS_CUDA=OFF -DMOEBLAS_FUZZ=ON \
  -DMOEBLAS_SANITIZE=address,undefined,fuzzer-no-link >/dev/null
cmake --build build/fuzz --target safetensors_fuzz config_fuzz fuzz_seeds
programs=build/fuzz/tests/checkpoints
corpus=build/fuzz/corpus
"$programs/fuzz_seeds" "$corpus"
for format in safetensors config; do
  log=build/fuzz/$format.log
  "$programs/${format}_fuzz" -dict=tests/checkpoints/fuzz/words.dict -max_len=16384 -timeout=10 \
    -rss_limit_mb=1024 -max_total_time="$seconds" -artifact_prefix="build/fuzz/$format-" \
    "$corpus/$format" >"$log" 2>&1 || { tail -n 40 "$log"; exit 1; }
  echo "$format: $(tail -n 1 "$log"), nothing found"
done
