#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a GPU: builds, runs every kernel at its smallest shape
# under compute-sanitizer's four tools, row by row, then every operation over its generated cases
# against the CPU backend and float64, called and captured.
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
  logs=build/gpu/sanitizer
  rm -rf "$logs" && mkdir -p "$logs"
  tools=(racecheck memcheck initcheck synccheck)  # the slowest first
  mapfile -t rows < <("$binary" --rows)
  # A process for each tool and row, as many at a time as there are cores; the log tells how it ended.
  watch() {
    local log=$1/$3-$4.txt
    compute-sanitizer --tool "$3" --print-limit 20 --error-exitcode 9 "$2" --smallest --row "$4" \
      >"$log" 2>&1 || true
  }
  export -f watch
  for tool in "${tools[@]}"; do printf "$tool %s\n" "${rows[@]}"; done |
    xargs -P "$(nproc)" -L 1 bash -c 'watch "$@"' watch "$logs" "$binary"
  for tool in "${tools[@]}"; do
    clean=0 launches=0
    for row in "${rows[@]}"; do
      log=$logs/$tool-$row.txt
      launched=$(sed -n 's/^kernels launched: .*, \([0-9]*\) launches$/\1/p' "$log")
      launches=$((launches + ${launched:-0}))
      if [[ -n $launched ]] && grep -qE 'ERROR SUMMARY: 0 errors|\(0 errors, 0 warnings\)' "$log" &&
        grep -qx 'failures: 0' "$log"; then
        clean=$((clean + 1))
      else
        failed=1
        echo "$tool, $row:"
        grep -vE '^ +never' "$log" | sed -n 1,40p
      fi
    done
    # What no row's process launched.
    never=$(cat "$logs/$tool"-*.txt | sed -n 's/^  never: //p' | sort | uniq -c |
      awk -v rows="${#rows[@]}" '$1 == rows { printf " %s", $2 }')
    fact="clean in $clean of ${#rows[@]} rows, $launches launches; kernels never launched:${never:- none}"
    echo "$tool: $fact"
    facts+=(--fact "$tool=$fact")
  done
fi
"$binary" --cases "$cases" --commit "$commit" --json "$json" "${facts[@]}" || failed=1
exit $failed
