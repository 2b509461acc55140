#include "cuda/one_matrix.h"

namespace moeblas::cuda {

using dispatch::MatmulProblem;
using dispatch::Matrices;
using dispatch::Reason;

const char* one_matrix_format(const MatmulProblem& p) {
  if (!p.w.spec || p.x.values.dtype != DType::bf16) return nullptr;
  const QuantSpec& spec = *p.w.spec;
  if (spec.mode == Mode::mxfp4) return "mxfp4_bf16";
  if (spec.mode == Mode::nvfp4) return "nvfp4_bf16";
  const bool plain = p.w.scales.dtype == DType::bf16 && spec.group_size >= 32;
  return spec.mode == Mode::affine && spec.bits == 4 && plain ? "affine4_bf16" : nullptr;
}

TensorMapShape one_matrix_rows(const MatmulProblem& p, uint32_t rows, uint32_t pieces) {
  const Matrices& x = p.x.values;
  TensorMapShape s;
  s.data = x.data;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  constexpr uint32_t kPiece = 64;
  const int64_t row = p.m > 1 ? x.row_stride : p.k;
  s.add(kPiece, 2, kPiece);
  s.add(static_cast<uint64_t>(p.m), static_cast<uint64_t>(row) * 2, rows);
  s.add(static_cast<uint64_t>(p.k) / kPiece, kPiece * 2, pieces);
  return s;
}

TensorMapShape one_matrix_lines(const MatmulProblem& p) {
  TensorMapShape s;
  s.data = p.w.values.data;
  s.type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  s.fetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  s.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  s.add(kOneMatrixLine / 4, 4, kOneMatrixLine / 4);
  return s;
}

TensorMapShape one_matrix_scales(const MatmulProblem& p, const Matrices& scales, uint32_t row_bytes,
                                 uint32_t rows) {
  const uint64_t size = size_of(scales.dtype);
  TensorMapShape s;
  s.data = scales.data;
  s.swizzle = row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
              : row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
              : row_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                : CU_TENSOR_MAP_SWIZZLE_NONE;
  s.add(static_cast<uint64_t>(p.k / p.w.spec->group_size) * size, 1, row_bytes);
  s.add(static_cast<uint64_t>(p.n), static_cast<uint64_t>(scales.row_stride) * size, rows);
  return s;
}

Reason why_no_scales(const MatmulProblem& p, uint32_t row_bytes, uint32_t rows) {
  struct Operand {
    const Matrices* m;
    const char* name;
  };
  for (const auto& [m, name] :
       {Operand{&p.w.scales, "rows of scales"}, Operand{&p.w.biases, "rows of biases"}}) {
    if (m->data == nullptr) continue;
    const TensorMapShape shape = one_matrix_scales(p, *m, row_bytes, rows);
    if (shape.stride[1] < shape.size[0]) return Reason::of("%s overlap", name);
    if (const Reason no = why_no_tensor_map(shape, name)) return no;
  }
  return {};
}

}  // namespace moeblas::cuda
