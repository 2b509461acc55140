#!/usr/bin/env bash
# Times on this machine's CPU what the README states of one, every answer checked; scripts/cpu_table.py
# writes the README's table from what comes out. Nothing else should run meanwhile: two threads are
# what the targets are for.
#
#   scripts/cpu_bench.sh [--out DIR] [--binary FILE] [--only NAME,NAME] [--seconds S]
#     --out      a JSON file for each name below (default docs/measurements/cpu)
#     --binary   a moeblas that is built already (default: builds one in build/release)
#     --only     these names alone
#     --seconds  of each row at most (default 0.4)
# The whole takes some six minutes; none of the names takes half a minute.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/docs/measurements/cpu binary= only= seconds=0.4
while [[ $# -gt 0 ]]; do
  case $1 in
    --out) out=$2 ;;
    --binary) binary=$2 ;;
    --only) only=,$2, ;;
    --seconds) seconds=$2 ;;
    *) echo "cpu_bench.sh: unknown argument $1" >&2; exit 2 ;;
  esac
  shift 2
done
if [[ -z $binary ]]; then
  cmake -S "$root" --preset release >/dev/null
  cmake --build "$root/build/release" --target moeblas_cli
  binary=$root/build/release/cli/moeblas
fi
mkdir -p "$out"
common=(--device cpu --threads 1,2)
. "$root/scripts/bench_names.sh"

formats=affine2-g64,affine3-g64,affine4-g64,affine5-g64,affine6-g64,affine8-g64,mxfp4,nvfp4,mxfp8
matrix=(--op quantized_matmul --shape dense-14336x4096)
experts=(--op gather_qmm --shape experts-128x768x2048)

measure decode "${matrix[@]}" --tokens 1 --format $formats --dtype bfloat16
measure decode_rows "${matrix[@]}" --tokens 2,4,8,16 --format affine4-g64,mxfp4 --dtype bfloat16
measure decode_dtypes "${matrix[@]}" --tokens 1 --format affine4-g64,mxfp4 --dtype float32,float16
measure decode_slices "${matrix[@]}" --tokens 1 --format $formats --dtype bfloat16 --row-pitch 2
measure decode_experts --op gather_qmm --shape experts-128x768x2048,experts-32x2880x2880 --tokens 1 \
  --format affine4-g64,mxfp4 --dtype bfloat16
measure few_rows_experts "${experts[@]}" --routing uniform --tokens 64,192 --format affine4-g64,mxfp4,mxfp8 \
  --dtype bfloat16
measure decode_floats --op gather_mm --shape experts-128x768x2048 --tokens 1 --dtype bfloat16,float32
measure prefill "${matrix[@]}" --tokens 512 --format $formats --dtype bfloat16
measure prefill_dtypes "${matrix[@]}" --tokens 512 --format affine4-g64,mxfp4 --dtype float32,float16
measure prefill_fast "${matrix[@]}" --tokens 512 --format affine4-g64,affine8-g64,mxfp4 --dtype bfloat16 \
  --precision fast
measure prefill_experts "${experts[@]}" --routing even --tokens 512,1024 --format affine4-g64,mxfp4 \
  --dtype bfloat16
measure prefill_experts_fast "${experts[@]}" --routing even --tokens 512,1024 --format affine4-g64 \
  --dtype bfloat16 --precision fast
measure prefill_floats --op gather_mm --shape experts-128x768x2048 --routing even --tokens 1024 \
  --dtype bfloat16,float32
measure layers --op moe_ffn --model qwen3-30b --routing even --tokens 1,512 --format affine4-g64 --dtype bfloat16
measure segmented --op segmented_mm --shape seg-1024x1024x4096x32 --dtype bfloat16,float32
measure qqmm --op qqmm --shape 512x4096x4096 --format mxfp4,nvfp4
measure conversions --op quantize,dequantize --shape dense-4096x4096 --dtype bfloat16 \
  --format $formats,affine4-g16
MOEBLAS_CPU_TIER=avx2 measure avx2_decode "${matrix[@]}" --tokens 1 --format affine4-g64,mxfp4 \
  --dtype bfloat16,float32
MOEBLAS_CPU_TIER=avx2 measure avx2_prefill "${matrix[@]}" --tokens 512 --format affine4-g64,mxfp4 \
  --dtype bfloat16,float32
end_of_names
