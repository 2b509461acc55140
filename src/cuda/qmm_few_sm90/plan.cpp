#include "cuda/qmm_few_sm90/plan.h"

#include <algorithm>
#include <string>

#include "cuda/one_matrix.h"
#include "cuda/qmv_sm90/operands.h"
#include "cuda/queue.h"

namespace moeblas::cuda {
namespace {

using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

// What a block may have on sm_90, less what it takes to begin at a multiple of 1024.
constexpr uint32_t kSharedBytes = 232448 - 1024;
// That run at once on an H100 and an H200.
constexpr uint32_t kBlocks = 132;
constexpr uint32_t kMostPasses = 4;
constexpr uint32_t kLeastSlices = 9;  // of fewer, half of the warps have none

constexpr uint32_t kMostKept = 64 << 10;  // bytes

uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

TensorMapShape codes_shape(const MatmulProblem& p, uint32_t slices, uint32_t rows) {
  static_assert(kFewPiece == kOneMatrixLine);
  TensorMapShape s = one_matrix_lines(p);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(p.w.values.row_stride), rows);
  s.add(static_cast<uint64_t>(p.k) / kFewSlice, kFewPiece, slices);
  return s;
}

}  // namespace

Reason plan_qmm_few_sm90(const MatmulProblem& p, QmmFewPlan& plan) {
  using Size = long long;
  if (!p.transpose) return Reason::of("w is packed along N");
  plan.format = one_matrix_format(p);
  if (plan.format == nullptr) {
    return Reason::of("not affine 4-bit with scales of bfloat16 in groups of 32 or more");
  }
  if (p.w.spec->mode == Mode::affine && p.options.precision == Precision::exact) {
    return Reason::of("precision is exact, and affine weights are rounded to 16 bits here");
  }
  if (p.batch.numel() != 1) return Reason::of("a batch of matrices");
  if (p.m > kFewTokens) return Reason::of("M = %lld, more than %u", Size{p.m}, kFewTokens);
  if (p.k < kLeastSlices * kFewSlice || p.k % kFewSlice != 0) {
    return Reason::of("K = %lld, not %u slices of %u or more", Size{p.k}, kLeastSlices, kFewSlice);
  }
  const auto slices = static_cast<uint32_t>(p.k / kFewSlice);
  constexpr uint32_t kMostSlices = kMostPasses * kFewBlocks * kFewWarps;
  if (slices > kMostSlices) {
    return Reason::of("K = %lld, more than %u", Size{p.k}, kMostSlices * kFewSlice);
  }
  if (p.n > int64_t{1} << 30) return Reason::of("N is beyond 2^30");
  const Matrices& x = p.x.values;
  if (!has_runs_of(8, x)) {
    return Reason::of("rows of x do not begin at multiples of 16 bytes");
  }
  if (p.out.col_stride != 1) return Reason::of("rows of out are not runs");
  QmmFewParams& q = plan.params;
  // Blocks of a cluster share what of x they have to load before they can begin.
  plan.parts = slices <= kFewWarps ? 8 : 16;
  const uint32_t tile_rows = kFewWarps / plan.parts * kFewTaskRows;
  q.tiles = ceil_div(static_cast<uint32_t>(p.n), tile_rows);
  plan.clusters = std::min(kBlocks / kFewBlocks, q.tiles);
  q.group = static_cast<uint32_t>(p.w.spec->group_size);
  q.scale_bytes = static_cast<uint32_t>(size_of(p.w.scales.dtype));
  q.slice_scales = kFewSlice / q.group * q.scale_bytes;
  // A box that begins elsewhere than at a multiple of 16 bytes of a row is an illegal instruction.
  const uint32_t in_16_bytes = ceil_div(16, q.slice_scales);
  q.passes = ceil_div(slices, kFewBlocks * kFewWarps);
  // Of mxfp4 in one pass they take longer, 4 rows of 8192^2 15.6 us for 15.1: x has to become
  // float16 first. In two, of 16384^2, 43.9 for 44.8.
  const bool late_mxfp4 = p.w.spec->mode == Mode::mxfp4 && q.passes > 1;
  plan.late_scales =
      late_mxfp4 || (p.w.spec->mode == Mode::affine && p.w.spec->group_size == kFewGroup);
  q.slices = ceil_div(ceil_div(slices, kFewBlocks * q.passes), in_16_bytes) * in_16_bytes;
  const uint32_t scales = plan.parts * q.slice_scales;  // of a row
  q.scale_row = std::min(scales, 128u);
  q.scale_boxes = scales / q.scale_row;
  q.scales_at = q.slices * tile_rows * kFewPiece;
  q.scales_at = ceil_div(q.scales_at, 1024) * 1024;
  const uint32_t of_scales = ceil_div(tile_rows * scales, 1024) * 1024;
  const uint32_t operands = p.w.spec->mode == Mode::affine ? 2 : 1;
  q.biases_at = q.scales_at + of_scales;
  q.stage_bytes = q.scales_at + operands * of_scales;
  q.box_bytes = q.slices * tile_rows * kFewPiece + operands * tile_rows * scales;
  const uint32_t ring = plan.parts == 8 ? FewMemory<8>::kRing : FewMemory<16>::kRing;
  const uint32_t sums = tile_rows * kFewTokens * 4 / kFewBlocks;  // of a tile
  const uint32_t kept = q.passes > 1 ? ceil_div(q.tiles, plan.clusters) * sums : 0;
  if (kept > kMostKept) {
    return Reason::of("N = %lld, whose sums do not wait in shared memory", Size{p.n});
  }
  // With four tiles of late mxfp4 on their way, not five, 4 rows of 16384^2 take 43.0 us for 43.9;
  // of affine weights it makes no difference.
  const uint32_t room = kSharedBytes - ring - kept;
  q.stages = std::min((late_mxfp4 ? std::min(room, kFewLateMxfp4Bytes) : room) / q.stage_bytes,
                      kFewMostStages);
  q.kept_at = ring + q.stages * q.stage_bytes;
  plan.shared_bytes = q.kept_at + kept + 1024;
  plan.codes = codes_shape(p, q.slices, tile_rows);
  if (const Reason r = why_no_tensor_map(plan.codes, "rows of codes")) return r;
  plan.x = one_matrix_rows(p, FewMemory<16>::kXTokens, q.slices * kFewXPieces);
  if (const Reason r = why_no_tensor_map(plan.x, "rows of x")) return r;
  if (const Reason r = why_no_scales(p, q.scale_row, tile_rows)) return r;
  plan.scales = one_matrix_scales(p, p.w.scales, q.scale_row, tile_rows);
  plan.biases =
      operands == 2 ? one_matrix_scales(p, p.w.biases, q.scale_row, tile_rows) : plan.scales;
  if (p.w.values.row_stride < p.k / 2) return Reason::of("rows of codes overlap");
  q.x = static_cast<const uint16_t*>(x.data);
  q.w = static_cast<const uint8_t*>(p.w.values.data);
  q.out = static_cast<uint16_t*>(p.out.data);
  q.x_row_stride = x.row_stride;
  q.out_row_stride = p.out.row_stride;
  q.w_row_stride = p.w.values.row_stride;
  q.w_scales = static_cast<const uint8_t*>(p.w.scales.data);
  q.w_biases = static_cast<const uint8_t*>(p.w.biases.data);
  q.scales_stride = p.w.scales.row_stride * q.scale_bytes;
  q.biases_stride = p.w.biases.row_stride * q.scale_bytes;
  q.tensor_scale = {p.w.tensor_scale.data, p.w.tensor_scale.stride, p.w.tensor_scale.host};
  q.m = static_cast<uint32_t>(p.m);
  q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k);
  return {};
}

Reason qmm_few_sm90_reject(const MatmulProblem& p) {
  QmmFewPlan plan;
  return plan_qmm_few_sm90(p, plan);
}

void qmm_few_sm90(const MatmulProblem& p, dispatch::Workspace) {
  QmmFewPlan plan;
  if (p.empty() || plan_qmm_few_sm90(p, plan)) return;  // selection has asked before
  Queue queue(p.op, p.device.id, p.options.stream);
  plan.params.x_rows = tensor_map(plan.x, p.op);
  plan.params.codes = tensor_map(plan.codes, p.op);
  plan.params.scales = tensor_map(plan.scales, p.op);
  plan.params.biases = tensor_map(plan.biases, p.op);
  const std::string name = std::string("qmm_few_sm90_") + plan.format +
                           (plan.late_scales ? "_late_" : "_") + std::to_string(plan.parts) +
                           (plan.params.passes > 1 ? "_passes" : "");
  queue.run_early(name.c_str(), plan.clusters * kFewBlocks, kFewThreads, plan.shared_bytes,
                  plan.params);
}

}  // namespace moeblas::cuda
