#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a GPU: builds, runs every kernel at its smallest shape
# under compute-sanitizer's four tools, then every operation over its generated cases against the CPU
# backend and float64, called and captured.
#   scripts/gpu_check.sh [--json FILE] [--cases N] [--binary FILE] [--commit ID] [--no-sanitizer]
#     --json     where to write what was found (default build/gpu/gpu_check.json)
#     --cases    seeds per operation (default 432, each format with each dtype and orientation)
#     --binary   a gpu_check that is built already
#     --commit   what the result says it is of (default: git's)
set -euo pipefail
cd "$(dirname "$0")/.."

json=build/gpu/gpu_check.json cases=432 binary= commit= sanitizer=1
while (($#)); do
  case "$1" in
    --json) json=$2; shift ;;
    --cases) cases=$2; shift ;;
    --binary) binary=$2; shift ;;
    --commit) commit=$2; shift ;;
    --no-sanitizer) sanitizer=0 ;;
    *) echo "gpu_check.sh: unknown argument $1" >&2; exit 2 ;;
  esac
  shift
done
[[ -n $commit ]] || commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
mkdir -p build/gpu "$(dirname "$json")"

if [[ -z $binary ]]; then
  cmake -S . -B build/gpu -G Ninja -DMOEBLAS_CUDA=ON -DMOEBLAS_GPU_CHECK=ON -DMOEBLAS_TOOLS=OFF \
    -DMOEBLAS_TESTS=OFF -DMOEBLAS_CUDA_ARCHITECTURES="${MOEBLAS_CUDA_ARCHITECTURES:-native}" >/dev/null
  cmake --build build/gpu --target gpu_check
  binary=build/gpu/tests/gpu/gpu_check
fi

facts=() failed=0
if ((sanitizer)); then
  tools=(memcheck racecheck initcheck synccheck)
  for tool in "${tools[@]}"; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$binary" --smallest \
      >"build/gpu/$tool.txt" 2>&1 &
  done
  for tool in "${tools[@]}"; do
    wait -n || failed=1
  done
  for tool in "${tools[@]}"; do
    log=build/gpu/$tool.txt
    summary=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | sed 's/^=* *//' || echo 'no summary')
    launches=$(grep 'kernels launched' "$log" || echo 'nothing launched')
    echo "$tool: $summary; $launches"
    facts+=(--fact "$tool=$summary; $launches")
    grep -qE 'SUMMARY: 0 (errors|hazards)' "$log" || { failed=1; grep -vE '^ +never' "$log" | sed -n 1,60p; }
  done
fi
"$binary" --cases "$cases" --commit "$commit" --json "$json" "${facts[@]}" || failed=1
exit $failed
