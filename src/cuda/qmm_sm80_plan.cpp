#include "cuda/qmm_sm80_plan.h"

#include "cuda/qmm_sm80_shape.h"
#include "cuda/queue.h"
#include "simt/pairs_plan.h"
#include "simt/products.h"

namespace moeblas::cuda {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Reason;

constexpr int64_t kLongest = int64_t{1} << 30;

constexpr simt::TileSize kTile = {kQmmSm80Rows, kQmmSm80Cols, kQmmSm80Threads};

// In the order of formats::AllFormats.
constexpr const char* kPackedNames[] = {"qmm_sm80_affine2", "qmm_sm80_affine3", "qmm_sm80_affine4",
                                        "qmm_sm80_affine5", "qmm_sm80_affine6", "qmm_sm80_affine8",
                                        "qmm_sm80_mxfp4",   "qmm_sm80_mxfp8",   "qmm_sm80_nvfp4"};

bool is_dense(const MatmulProblem& p) { return p.w.form == Form::dense; }

const char* kernel_of(const MatmulProblem& p) {
  if (!is_dense(p)) return kPackedNames[simt::weight_format(p)];
  return p.dtype() == DType::f16 ? "qmm_sm80_dense_f16" : "qmm_sm80_dense_bf16";
}

}  // namespace

Reason qmm_sm80_reject(const MatmulProblem& p) {
  if (!is_dense(p)) {
    if (p.dtype() == DType::f16) {
      return Reason::of("x is float16, whose range decoded weights may leave");
    }
    if (p.w.spec->mode == Mode::affine && p.options.precision == Precision::exact) {
      return Reason::of("precision is exact, and affine weights are rounded to bfloat16 here");
    }
    const auto& factor = p.w.tensor_scale;
    if (p.w.spec->mode != Mode::nvfp4 && (factor.data != nullptr || factor.host != 1.0f)) {
      return Reason::of(
          "a tensor_scale, which the scales of this format may need to stay in range");
    }
    const int unit = p.w.spec->bits % 4 == 0 ? 16 : 4;
    if (p.transpose && simt::row_alignment(p.w.values) < unit) {
      return Reason::of("rows of codes begin at addresses that %d does not divide", unit);
    }
    if (p.transpose && p.k % 32 != 0) {
      return Reason::of("K = %lld is not a multiple of 32", static_cast<long long>(p.k));
    }
  } else if (simt::neighbour_alignment(p.w.values) < 16) {
    return Reason::of("rows of w begin at addresses that 16 does not divide, or have gaps");
  }
  if (p.x.values.col_stride != 1 || simt::row_alignment(p.x.values) < 16 || p.k % 8 != 0) {
    return Reason::of("rows of x begin at addresses that 16 does not divide, or have gaps");
  }
  if (p.k > kLongest) return Reason::of("K = %lld, more than 2^30", static_cast<long long>(p.k));
  return simt::PairPlan(p, kQmmSm80Rows).why_not();
}

size_t qmm_sm80_workspace(const MatmulProblem& p) {
  return simt::PairPlan(p, kQmmSm80Rows).workspace();
}

void qmm_sm80(const MatmulProblem& p, dispatch::Workspace workspace) {
  if (p.empty()) return;
  Queue queue(p.op, p.device.id, p.options.stream);
  simt::Step step = simt::product_step(p, workspace, kernel_of(p), kTile, queue);
  step.shared_bytes = is_dense(p) ? kQmmSm80DenseBytes : kQmmSm80PackedBytes;
  queue.run(step);
}

}  // namespace moeblas::cuda
