// The host's side of strided_rows.h, and grids in one dimension.
#pragma once

#include "dispatch/problem.h"
#include "simt/plan.h"
#include "simt/strided_rows.h"

namespace moeblas::simt {

// `unit`: what `wide` promises the alignment of, in bytes (a power of two).
StridedRows strided_rows(const dispatch::Rows& rows, size_t unit);

// The bytes as which eight neighbours of a row of floats are read: 16, twice for float32.
inline constexpr size_t kFloatUnit = 16;
// The same for eight packed codes of `bits`: what divides their bytes.
constexpr size_t code_unit(int bits) { return static_cast<size_t>(bits & -bits); }

// Whether the rows are one piece of memory, in order.
bool without_gaps(const dispatch::Rows& rows);

// A view with two dimensions as rows.
dispatch::Rows rows_of_matrix(const TensorView& view);

// Threads of every kernel whose grid is a number of units; a kernel strides by its whole grid, so
// that fewer threadgroups than this asks for are enough.
inline constexpr uint32_t kThreads = 256;
uint32_t groups_for(uint64_t units);

}  // namespace moeblas::simt
