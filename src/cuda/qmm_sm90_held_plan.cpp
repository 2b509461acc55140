#include "cuda/qmm_sm90_held_plan.h"

#include <string>

#include "cuda/device.h"
#include "cuda/one_matrix.h"
#include "cuda/qmm_sm90_held_cut.h"
#include "cuda/qmm_sm90_layout.h"
#include "cuda/qmm_sm90_plan.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;
using dispatch::Matrices;

namespace {

bool is_of_its_format(const MatmulProblem& p) {
  return one_matrix_format(p) != nullptr && p.w.spec->mode == Mode::affine &&
         p.w.spec->group_size == 64;
}

TensorMapShape rows_shape(const MatmulProblem& p) {
  return one_matrix_rows(p, kHeldTokens, kHeldXPieces);
}
TensorMapShape codes_shape(const MatmulProblem& p, uint32_t slices) {
  TensorMapShape s = one_matrix_lines(p);
  s.add(kHeldPieces, kOneMatrixLine, kHeldPieces);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(p.w.values.row_stride), kHeldRows);
  s.add(static_cast<uint64_t>(p.k) / kHeldSlice, kHeldPieces * kOneMatrixLine, slices);
  return s;
}
TensorMapShape scales_shape(const MatmulProblem& p, const Matrices& m) {
  return one_matrix_scales(p, m, kHeldScaleBox, kHeldRows);
}

HeldCut cut_of(const MatmulProblem& p) {
  if (!is_of_its_format(p) || !qmm_sm90_shares(p)) return {};
  if (p.m < kHeldLeastTokens || p.m > kHeldTokens) return {};
  const Matrices& x = p.x.values;
  if (x.col_stride != 1 || x.row_stride < p.k) return {};
  const HeldCut cut = held_cut(p.n, p.k);
  if (cut.shares == 0) return {};
  if (why_no_tensor_map(rows_shape(p), "") || why_no_tensor_map(codes_shape(p, cut.slices), "")) {
    return {};
  }
  if (why_no_scales(p, kHeldScaleBox, kHeldRows)) return {};
  return cut;
}

}  // namespace

bool qmm_sm90_is_held(const MatmulProblem& p) { return cut_of(p).shares != 0; }

void qmm_sm90_run_held(const MatmulProblem& p, Queue& queue) {
  const HeldCut cut = cut_of(p);
  QmmHeldParams q{};
  q.x = tensor_map(rows_shape(p), p.op);
  q.codes = tensor_map(codes_shape(p, cut.slices), p.op);
  q.scales = tensor_map(scales_shape(p, p.w.scales), p.op);
  q.biases = tensor_map(scales_shape(p, p.w.biases), p.op);
  q.out = static_cast<uint16_t*>(p.out.data);
  q.out_row_stride = p.out.row_stride;
  q.x_rows = static_cast<const uint16_t*>(p.x.values.data);
  q.w = static_cast<const uint8_t*>(p.w.values.data);
  q.w_scales = static_cast<const uint8_t*>(p.w.scales.data);
  q.w_biases = static_cast<const uint8_t*>(p.w.biases.data);
  q.x_stride = p.x.values.row_stride;
  q.w_stride = p.w.values.row_stride;
  q.scales_stride = p.w.scales.row_stride * 2;
  q.biases_stride = p.w.biases.row_stride * 2;
  q.m = static_cast<uint32_t>(p.m);
  q.n = static_cast<uint32_t>(p.n);
  q.k = static_cast<uint32_t>(p.k);
  q.slices = cut.slices;
  q.wide_out = alignment(p.out) >= 4 && p.n % 2 == 0;
  const std::string name = "qmm_sm90_held_affine4_bf16_" + std::to_string(cut.shares);
  const uint32_t clusters = held_clusters(
      p.n, p.k, queue.clusters_at_once(name.c_str(), cut.shares, kHeldThreads, HeldMemory::kBytes));
  queue.run_early(name.c_str(), clusters * cut.shares, kHeldThreads, HeldMemory::kBytes, q);
}

}  // namespace moeblas::cuda
