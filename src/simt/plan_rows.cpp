#include "simt/plan_rows.h"

#include <algorithm>

namespace moeblas::simt {
namespace {

static_assert(int(kF32) == int(DType::f32) && int(kF16) == int(DType::f16) &&
                  int(kBf16) == int(DType::bf16) && int(kI8) == int(DType::i8) &&
                  int(kI16) == int(DType::i16) && int(kI32) == int(DType::i32) &&
                  int(kI64) == int(DType::i64) && int(kU8) == int(DType::u8) &&
                  int(kU16) == int(DType::u16) && int(kU32) == int(DType::u32) &&
                  int(kU64) == int(DType::u64),
              "kernels know element types by the numbers of DType");
static_assert(kMaxNdim <= kMaxDims, "StridedRows holds all leading dimensions");

}  // namespace

StridedRows strided_rows(const dispatch::Rows& rows, size_t unit) {
  StridedRows r{};
  r.col_stride = rows.col_stride;
  r.type = static_cast<int32_t>(rows.dtype);
  const size_t size = size_of(rows.dtype);
  bool wide = rows.col_stride == 1 && reinterpret_cast<uintptr_t>(rows.data) % unit == 0;
  for (int i = 0; i < rows.lead.ndim(); ++i) {
    const int64_t shape = rows.lead[i], stride = rows.lead_stride[i];
    if (shape == 1) continue;
    wide = wide && static_cast<size_t>(stride) * size % unit == 0;
    if (r.ndim > 0 && r.stride[r.ndim - 1] == shape * stride) {
      r.shape[r.ndim - 1] *= shape;
      r.stride[r.ndim - 1] = stride;
    } else {
      r.shape[r.ndim] = shape;
      r.stride[r.ndim++] = stride;
    }
  }
  r.wide = wide ? 1 : 0;
  return r;
}

bool without_gaps(const dispatch::Rows& rows) {
  int64_t step = rows.cols;
  for (int i = rows.lead.ndim() - 1; i >= 0; --i) {
    if (rows.lead[i] != 1 && rows.lead_stride[i] != step) return false;
    step *= rows.lead[i];
  }
  return rows.col_stride == 1;
}

dispatch::Rows rows_of_matrix(const TensorView& view) {
  dispatch::Rows r;
  r.data = view.data;
  r.dtype = view.dtype;
  r.lead = {view.shape[0]};
  r.lead_stride = {view.strides[0]};
  r.cols = view.shape[1];
  r.col_stride = view.strides[1];
  return r;
}

uint32_t groups_for(uint64_t units) {
  constexpr uint64_t kMost = 0x7fffffff;
  return static_cast<uint32_t>(std::min(kMost, (units + kThreads - 1) / kThreads));
}

}  // namespace moeblas::simt
