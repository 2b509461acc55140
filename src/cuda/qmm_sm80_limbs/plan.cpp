#include "cuda/qmm_sm80_limbs/plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "cuda/qmm_sm80/plan.h"
#include "cuda/qmm_sm80_limbs/params.h"
#include "cuda/queue.h"
#include "dispatch/qqmm_parts.h"
#include "simt/pairs_plan.h"
#include "simt/plan_rows.h"
#include "simt/products.h"

namespace moeblas::cuda {
namespace {

using dispatch::MatmulProblem;
using dispatch::Reason;

// In the order of formats::AllFormats.
struct Names {
  const char *tall, *low;
};
#define MB_NAMES(format) {"qmm_sm80_limbs_tall_" format, "qmm_sm80_limbs_short_" format}
constexpr Names kNames[] = {MB_NAMES("affine2"), MB_NAMES("affine3"), MB_NAMES("affine4"),
                            MB_NAMES("affine5"), MB_NAMES("affine6"), MB_NAMES("affine8"),
                            MB_NAMES("mxfp4"),   MB_NAMES("mxfp8"),   MB_NAMES("nvfp4")};
#undef MB_NAMES

template <class Size>
constexpr simt::TileSize kTileOf = {Size::kRows, Size::kCols, kQmmSm80Threads};

// A tall tile decodes each weight half as often, of a short one a multiprocessor has two.
bool is_tall(const MatmulProblem& p) {
  const int64_t matrices = std::max<int64_t>(1, std::min(p.batch.numel(), p.w.values.count()));
  return p.total_rows() / matrices > QmmSm80LimbsShort::kRows;
}
simt::TileSize tile_of(const MatmulProblem& p) {
  return is_tall(p) ? kTileOf<QmmSm80LimbsTall> : kTileOf<QmmSm80LimbsShort>;
}

bool is_affine(const MatmulProblem& p) { return p.w.spec->mode == Mode::affine; }
uint32_t unit_of(const MatmulProblem& p) {
  const auto group = static_cast<uint32_t>(p.w.spec->group_size);
  return is_affine(p) ? std::min(group, kQmmSm80Step) : kQmmSm80Step;
}

int64_t rows_of_x(const MatmulProblem& p) { return p.x.values.count() * p.x.values.rows; }
int64_t steps_of(const MatmulProblem& p) { return (p.k + kQmmSm80Step - 1) / kQmmSm80Step; }

// The work list's rows of x are known by the number under which their limbs are made as well.
MatmulProblem with_numbers(const MatmulProblem& p) {
  MatmulProblem q = p;
  q.x.scales = dispatch::in_place_of(p.x.values, nullptr, DType::u8, 1);
  return q;
}

// Offsets in bytes.
struct Room {
  size_t sums, lists;

  explicit Room(const MatmulProblem& p) {
    const auto steps = static_cast<size_t>(rows_of_x(p) * steps_of(p));
    sums = steps * kXStepBytes;
    lists = sums + (is_affine(p) ? (steps * kXUnitsBytes + 63) / 64 * 64 : 0);
  }
};

}  // namespace

Reason qmm_sm80_limbs_reject(const MatmulProblem& p) {
  if (!p.transpose) return Reason::of("w is packed along N, whose scales change with every k");
  if (p.options.precision == Precision::exact) {
    return Reason::of("precision is exact, and sums of limbs are no IEEE multiply-adds");
  }
  if (const Reason r = qmm_sm80_codes_reject(p)) return r;
  if (rows_of_x(p) > std::numeric_limits<int32_t>::max()) {
    return Reason::of("%lld rows of x, more than 2^31 - 1", static_cast<long long>(rows_of_x(p)));
  }
  return simt::PairPlan(p, tile_of(p).rows).why_not();
}

size_t qmm_sm80_limbs_workspace(const MatmulProblem& p) {
  return Room(p).lists + simt::PairPlan(p, tile_of(p).rows).workspace();
}

void run_qmm_sm80_limbs(const MatmulProblem& p, dispatch::Workspace workspace, simt::Queue& queue) {
  const Room at(p);
  auto* limbs = static_cast<uint8_t*>(workspace.data);
  auto* sums = reinterpret_cast<float*>(limbs + at.sums);
  const auto steps = static_cast<uint32_t>(steps_of(p));

  if (steps > 0) {
    simt::Step rows;
    rows.kernel = "qmm_sm80_limbs_rows";
    rows.groups[0] = static_cast<uint32_t>(rows_of_x(p));
    rows.threads[0] = kXRowsThreads;
    rows.point(p.x.values.data);
    rows.point(limbs);
    rows.point(sums);
    rows.set(XLimbsParams{simt::strided_rows(dispatch::rows_of(p.x.values), 16),
                          static_cast<uint32_t>(p.k), steps, is_affine(p) ? unit_of(p) : 0});
    queue.run(rows);
  }

  const Names& names = kNames[simt::weight_format(p)];
  const MatmulProblem numbered = with_numbers(p);
  simt::Step step = simt::product_step(numbered, {limbs + at.lists, workspace.bytes - at.lists},
                                       is_tall(p) ? names.tall : names.low, tile_of(p), queue);
  QmmSm80LimbsParams params{};
  std::memcpy(&params.product, step.params.data(), sizeof params.product);
  params.limbs = limbs;
  params.sums = sums;
  params.steps = steps;
  params.unit_bits = static_cast<uint32_t>(std::countr_zero(unit_of(p)));
  step.set(params);
  step.shared_bytes = is_tall(p) ? QmmSm80LimbsTall::kBytes : QmmSm80LimbsShort::kBytes;
  queue.run(step);
}

void qmm_sm80_limbs(const MatmulProblem& p, dispatch::Workspace workspace) {
  if (p.empty()) return;
  Queue queue(p.op, p.device.id, p.options.stream);
  run_qmm_sm80_limbs(p, workspace, queue);
}

}  // namespace moeblas::cuda
