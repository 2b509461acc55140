// The kernels of qmv_sm90 for a format of w.
#pragma once

#include "dispatch/problem.h"

namespace moeblas::cuda {

// The instances of a format, by the dtype of its scales where that is free.
struct QmvFamily {
  QuantSpec spec;  // of groups of this size
  DType scale;
  const char* few;
  const char* many;
  const char* helped;  // `many` of up to eight columns with warps that store; null: there is none
  const char* slots_helped;  // the same where scales do not come with stages as words
  const char* columns;       // makes columns of x for `many`
  uint32_t few_tokens;
  // QmvParams::column_costs, of `many` and of the helped ones.
  uint32_t costs;
  uint32_t helped_costs;
};

// Null where there are none.
const QmvFamily* qmv_sm90_family(const dispatch::Operand& w);

}  // namespace moeblas::cuda
