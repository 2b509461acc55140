#include "cuda/segmented_limbs/plan.h"

#include <limits>

namespace moeblas::cuda {
namespace {

using dispatch::MatmulProblem;
using dispatch::Reason;

constexpr uint64_t kUnit = 16;  // bytes that are read as one
// About what stays in a Hopper GPU's L2 cache.
constexpr size_t kCached = size_t{48} << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

SegmentedLimbs::SegmentedLimbs(const MatmulProblem& p)
    : p_(p),
      k_records_(ceil_div(p.k, kLimbK)),
      a_{p.m, p.x.values.row_stride, p.x.values.col_stride, p.x.values},
      b_{p.n, p.w.values.col_stride, p.w.values.row_stride, p.w.values} {
  for (Part* part : {&a_, &b_}) {
    part->stripes = ceil_div(part->lines, kLimbLines);
    const auto records = static_cast<size_t>(part->stripes * k_records_);
    part->records_at = bytes_;
    part->scales_at = bytes_ + records * kLimbRecordBytes;
    bytes_ = part->scales_at + records * kLimbLines * sizeof(float);
  }
}

Reason SegmentedLimbs::why_not() const {
  if (p_.options.precision == Precision::exact) {
    return Reason::of("precision is exact, and sums of limbs are no IEEE multiply-adds");
  }
  if (blocks() > std::numeric_limits<int32_t>::max()) {
    return Reason::of("%lld records of limbs, more than 2^31 - 1",
                      static_cast<long long>(blocks()));
  }
  return {};
}

Reason SegmentedLimbs::why_short() const {
  // They are written more than multiplied, and the shortest made by multiply-adds anyway.
  constexpr int64_t kShort = 32;
  const int64_t segments = p_.batch.numel();
  if (p_.k >= kShort * segments) return {};
  return Reason::of("%lld of K for each segment, fewer than %lld",
                    static_cast<long long>(p_.k / segments), static_cast<long long>(kShort));
}

double SegmentedLimbs::bytes_moved() const {
  return 2.0 * sizeof(float) * static_cast<double>((p_.m + p_.n) * p_.k);
}

void SegmentedLimbs::Part::place(uint8_t* workspace) {
  source.data = static_cast<const float*>(values.data);
  source.line_stride = line_stride;
  source.k_stride = k_stride;
  source.lines = static_cast<uint32_t>(lines);
  source.stripes = static_cast<uint32_t>(stripes);
  const uint64_t apart = lines == 1 ? 0 : static_cast<uint64_t>(line_stride) * sizeof(float);
  source.wide = k_stride == 1 && (apart | reinterpret_cast<uintptr_t>(values.data)) % kUnit == 0;
  source.records = workspace + records_at;
  source.scales = reinterpret_cast<float*>(workspace + scales_at);
}

void SegmentedLimbs::run(void* workspace, Queue& queue) {
  for (Part* part : {&a_, &b_}) part->place(static_cast<uint8_t*>(workspace));
  const SegmentedLimbsParams q{a_.source, b_.source, static_cast<uint32_t>(p_.k), k_records(),
                               bytes_ > kCached};
  queue.run("segmented_limbs", static_cast<uint32_t>(blocks()), kLimbThreads, 0, q);
}

}  // namespace moeblas::cuda
