// The pass that makes float16 limbs of the operands of a product over ranges of K: who may use
// them, the memory they take, and the launch. The kernel is in segmented_limbs/kernels.cu.
#pragma once

#include "cuda/queue.h"
#include "cuda/segmented_limbs/params.h"
#include "dispatch/row.h"

namespace moeblas::cuda {

class SegmentedLimbs {
 public:
  explicit SegmentedLimbs(const dispatch::MatmulProblem& p);

  // Why sums of limbs are not what was asked for, or limbs cannot be made.
  dispatch::Reason why_not() const;
  // Why segments are too short for limbs, by their average: only the device knows more.
  dispatch::Reason why_short() const;
  size_t workspace() const { return bytes_; }
  // What making them takes, next to a product's time.
  double bytes_moved() const;

  // Makes them in `workspace`, aligned to 16 bytes.
  void run(void* workspace, Queue& queue);
  Limbs a() const { return a_.limbs(); }
  Limbs b() const { return b_.limbs(); }
  uint32_t k_records() const { return static_cast<uint32_t>(k_records_); }

 private:
  struct Part {
    int64_t lines, line_stride, k_stride;
    const dispatch::Matrices& values;
    int64_t stripes = 0;
    size_t records_at = 0, scales_at = 0;  // in the workspace
    LimbsSource source{};

    Limbs limbs() const { return {source.records, source.scales}; }
    void place(uint8_t* workspace);
  };
  int64_t blocks() const { return (a_.stripes + b_.stripes) * k_records_; }

  const dispatch::MatmulProblem& p_;
  int64_t k_records_;
  Part a_, b_;
  size_t bytes_ = 0;
};

}  // namespace moeblas::cuda
