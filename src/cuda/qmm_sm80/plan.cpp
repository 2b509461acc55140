#include "cuda/qmm_sm80/plan.h"

#include <algorithm>
#include <cstdlib>

#include "cuda/qmm_sm80/shape.h"
#include "cuda/queue.h"
#include "simt/pairs_plan.h"
#include "simt/products.h"

namespace moeblas::cuda {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Reason;

constexpr int64_t kLongest = int64_t{1} << 30;
// How far apart the kernel can say that rows lie, in values: of x all of them, of dense w a tile's.
constexpr int64_t kFarthest = (int64_t{1} << 31) * 8;

// From the first value to the rows that lie farthest from it.
int64_t extent(const dispatch::Matrices& m) {
  int64_t values = std::abs(m.row_stride) * std::max<int64_t>(m.rows - 1, 0);
  for (int d = 0; d < m.batch.ndim(); ++d) {
    values += std::abs(m.batch_stride[d]) * std::max<int64_t>(m.batch[d] - 1, 0);
  }
  return values;
}

// Of each format, in the order of formats::AllFormats, and of dense w in bfloat16 and float16.
struct Names {
  const char *tall, *wide;
};
#define MB_NAMES(format) {"qmm_sm80_tall_" format, "qmm_sm80_wide_" format}
constexpr Names kPackedNames[] = {MB_NAMES("affine2"), MB_NAMES("affine3"), MB_NAMES("affine4"),
                                  MB_NAMES("affine5"), MB_NAMES("affine6"), MB_NAMES("affine8"),
                                  MB_NAMES("mxfp4"),   MB_NAMES("mxfp8"),   MB_NAMES("nvfp4")};
constexpr Names kDenseBf16 = MB_NAMES("dense_bf16"), kDenseF16 = MB_NAMES("dense_f16");
#undef MB_NAMES

bool is_dense(const MatmulProblem& p) { return p.w.form == Form::dense; }

const Names& names_of(const MatmulProblem& p) {
  if (!is_dense(p)) return kPackedNames[simt::weight_format(p)];
  return p.dtype() == DType::f16 ? kDenseF16 : kDenseBf16;
}

template <class Size>
constexpr simt::TileSize kTileOf = {Size::kRows, Size::kCols, kQmmSm80Threads};

// A tile of 256 rows decodes each weight half as often, one of 128 wastes less where there are no
// more.
bool is_tall(const MatmulProblem& p) {
  const int64_t matrices = std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
  return p.total_rows() / matrices > QmmSm80Wide::kRows;
}
simt::TileSize tile_of(const MatmulProblem& p) {
  return is_tall(p) ? kTileOf<QmmSm80Tall> : kTileOf<QmmSm80Wide>;
}

}  // namespace

Reason qmm_sm80_codes_reject(const MatmulProblem& p) {
  const auto& factor = p.w.tensor_scale;
  if (p.w.spec->mode != Mode::nvfp4 && (factor.data != nullptr || factor.host != 1.0f)) {
    return Reason::of("a tensor_scale, which the scales of this format may need to stay in range");
  }
  if (p.transpose && simt::row_alignment(p.w.values) < 4) {
    return Reason::of("rows of codes begin at addresses that 4 does not divide");
  }
  if (p.transpose && p.k % 32 != 0) {
    return Reason::of("K = %lld is not a multiple of 32", static_cast<long long>(p.k));
  }
  if (p.k > kLongest) return Reason::of("K = %lld, more than 2^30", static_cast<long long>(p.k));
  return {};
}

Reason qmm_sm80_reject(const MatmulProblem& p) {
  if (!is_dense(p)) {
    if (p.dtype() == DType::f16) {
      return Reason::of("x is float16, whose range decoded weights may leave");
    }
    if (p.w.spec->mode == Mode::affine && p.options.precision == Precision::exact) {
      return Reason::of("precision is exact, and affine weights are rounded to bfloat16 here");
    }
    if (const Reason r = qmm_sm80_codes_reject(p)) return r;
  } else if (simt::neighbour_alignment(p.w.values) < 16) {
    return Reason::of("rows of w begin at addresses that 16 does not divide, or have gaps");
  }
  if (p.x.values.col_stride != 1 || simt::row_alignment(p.x.values) < 16 || p.k % 8 != 0) {
    return Reason::of("rows of x begin at addresses that 16 does not divide, or have gaps");
  }
  if (extent(p.x.values) >= kFarthest) {
    return Reason::of("rows of x lie %lld values apart, and 2^34 can be told",
                      static_cast<long long>(extent(p.x.values)));
  }
  if (is_dense(p) && std::max(std::abs(p.w.values.row_stride), std::abs(p.w.values.col_stride)) >=
                         kFarthest / QmmSm80Wide::kCols) {
    return Reason::of("rows of w lie 2^26 values apart or more");
  }
  if (p.k > kLongest) return Reason::of("K = %lld, more than 2^30", static_cast<long long>(p.k));
  return simt::PairPlan(p, tile_of(p).rows).why_not();
}

size_t qmm_sm80_workspace(const MatmulProblem& p) {
  return simt::PairPlan(p, tile_of(p).rows).workspace();
}

void qmm_sm80(const MatmulProblem& p, dispatch::Workspace workspace) {
  if (p.empty()) return;
  Queue queue(p.op, p.device.id, p.options.stream);
  const Names& names = names_of(p);
  simt::Step step =
      simt::product_step(p, workspace, is_tall(p) ? names.tall : names.wide, tile_of(p), queue);
  step.shared_bytes = kQmmSm80Bytes;
  queue.run(step);
}

}  // namespace moeblas::cuda
