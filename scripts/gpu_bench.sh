#!/usr/bin/env bash
# Times on a Hopper GPU what the README states of one, every answer checked; scripts/gpu_tables.py
# writes the README's tables from what comes out.
#
#   scripts/gpu_bench.sh [--out DIR] [--binary FILE] [--commit ID] [--only NAME,NAME] [--seconds S]
#     --out      a JSON file for each name below (default docs/measurements/h200)
#     --binary   a moeblas that is built already (default: builds one in build/gpu)
#     --commit   what it was built from, where git cannot be asked
#     --only     these names alone
#     --seconds  of each row at most (default 0.1)
# The whole takes some three minutes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/docs/measurements/h200 binary= commit= only= seconds=0.1
while [[ $# -gt 0 ]]; do
  case $1 in
    --out) out=$2 ;;
    --binary) binary=$2 ;;
    --commit) commit=$2 ;;
    --only) only=,$2, ;;
    --seconds) seconds=$2 ;;
    *) echo "gpu_bench.sh: unknown argument $1" >&2; exit 2 ;;
  esac
  shift 2
done
if [[ -z $binary ]]; then
  cmake -S "$root" -B "$root/build/gpu" -G Ninja -DMOEBLAS_CUDA=ON -DMOEBLAS_TESTS=OFF \
    -DMOEBLAS_CUDA_ARCHITECTURES=90a-real >/dev/null
  cmake --build "$root/build/gpu" --target moeblas_cli
  binary=$root/build/gpu/cli/moeblas
fi
mkdir -p "$out"
common=(--device cuda ${commit:+--commit "$commit"})
. "$root/scripts/bench_names.sh"

rested=(--rest 0.012 --repeats 9) # the clocks of a device that was idle before
sustained=(--heat 0.3)            # those that its power leaves it
widths=(affine2-g64 affine3-g64 affine5-g64 affine6-g64)
bytes=(affine4-g64 affine8-g64 mxfp4 nvfp4 mxfp8)
experts=(--op gather_qmm --projection gate_up)
matrix=(--op quantized_matmul)
shapes=(--op segmented_mm --shape 'seg-*')

measure decode_experts "${experts[@]}" --model qwen3-30b,mixtral,deepseek,gpt-oss-120b \
  --format affine4-g64,mxfp4 --tokens 1,8,16,64
measure decode_matrix "${matrix[@]}" --shape dense-4096,dense-8192,dense-16384 \
  --format "$(IFS=,; echo "${bytes[*]}")" --tokens 1,4,16
measure decode_widths "${matrix[@]}" --shape dense-8192,dense-16384 --tokens 1 \
  --format "$(IFS=,; echo "${widths[*]}"),affine4-g16"
measure decode_dtypes "${matrix[@]}" --shape dense-16384 --tokens 1 --format affine4-g64 \
  --dtype float16,float32
measure decode_slices "${experts[@]}" --model qwen3-30b,mixtral --format affine4-g64 --tokens 1,8 \
  --row-pitch 2
measure few_rows "${matrix[@]}" --shape dense-8192,dense-16384 --format affine4-g64,mxfp4 \
  --tokens 64,128,256 --rest 0.002
measure many_rows "${matrix[@]}" --shape 4096x8192x8192 "${rested[@]}" \
  --format "$(IFS=,; echo "${bytes[*]},${widths[*]}")"
measure many_rows_sm80 "${matrix[@]}" --shape 4096x8192x8192 "${rested[@]}" --kernel qmm_sm80 \
  --format "$(IFS=,; echo "${bytes[*]},${widths[*]}")"
measure prefill_qwen3 "${experts[@]}" --model qwen3-30b --routing even,uniform,skewed,zipf \
  --format affine4-g64,mxfp4 --tokens 512,1024,2048,4096,8192 "${rested[@]}"
measure prefill_mixtral "${experts[@]}" --model mixtral --routing even --format affine4-g64,mxfp4 \
  --tokens 128,256,512,1024,2048 "${rested[@]}"
measure prefill_others "${experts[@]}" --model deepseek,gpt-oss-120b --routing even \
  --format affine4-g64,mxfp4 --tokens 1024,2048,4096 "${rested[@]}"
measure prefill_sustained "${experts[@]}" --model qwen3-30b --routing even --format affine4-g64,mxfp4 \
  --tokens 2048,8192 "${sustained[@]}"
measure dense_experts --op gather_mm,grouped_mm --projection gate_up --model qwen3-30b \
  --routing even,uniform --tokens 1024,2048,4096,8192 "${rested[@]}"
measure segments --op grouped_qmm --projection gate_up --model qwen3-30b --routing even,uniform \
  --format affine4-g64,mxfp4 --tokens 1024,2048,4096,8192 "${rested[@]}"
measure layers --op moe_ffn --model qwen3-30b,mixtral,gpt-oss-120b,deepseek,olmoe \
  --format affine4-g64,mxfp4 --tokens 1,8,16,64
many_layers=(--op moe_ffn --model qwen3-30b,mixtral,gpt-oss-20b --format affine4-g64,mxfp4
  --tokens 2048,8192)
measure layers_many "${many_layers[@]}" "${rested[@]}"
measure layers_sustained "${many_layers[@]}" "${sustained[@]}"
measure segmented "${shapes[@]}" --dtype bfloat16,float32
measure segmented_cuts "${shapes[@]}" --dtype bfloat16,float32 --routing skewed
measure segmented_exact "${shapes[@]}" --dtype float32 --precision exact "${rested[@]}"
measure segmented_fast "${shapes[@]}" --dtype float32 --precision fast
measure segmented_training --op segmented_mm --shape 2048x7168x32768x8 --dtype bfloat16 "${rested[@]}"
measure qqmm --op qqmm --shape qqmm-16384 --format nvfp4,mxfp4,mxfp8
measure qqmm_fast --op qqmm --shape qqmm-16384 --format mxfp4 --precision fast
measure conversions --op quantize,dequantize --shape dense-8192 --dtype bfloat16 \
  --format "$(IFS=,; echo "${bytes[*]},${widths[*]}"),affine4-g16"
end_of_names
