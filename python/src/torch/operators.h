// The operators as torch calls them: arguments popped off its stack in the order of schemas.txt,
// results left there.
#pragma once

#include <array>

#include "torch/call.h"

namespace moeblas::torch_operators {

using Stack = StableIValue*;

template <size_t count>
void give(Stack stack, const std::array<Tensor, count>& outputs) {
  for (size_t i = 0; i < count; ++i) stack[i] = torch::stable::detail::from(outputs[i]);
}

// quantization.cpp
void quantize(Stack stack, uint64_t arguments, uint64_t results);
void quantize_dual(Stack stack, uint64_t arguments, uint64_t results);
void dequantize(Stack stack, uint64_t arguments, uint64_t results);
void to_fp8(Stack stack, uint64_t arguments, uint64_t results);
void from_fp8(Stack stack, uint64_t arguments, uint64_t results);
// products.cpp
void quantized_matmul(Stack stack, uint64_t arguments, uint64_t results);
void gather_mm(Stack stack, uint64_t arguments, uint64_t results);
void gather_qmm(Stack stack, uint64_t arguments, uint64_t results);
void gather_qmv(Stack stack, uint64_t arguments, uint64_t results);
void segmented_mm(Stack stack, uint64_t arguments, uint64_t results);
void grouped_mm(Stack stack, uint64_t arguments, uint64_t results);
void grouped_qmm(Stack stack, uint64_t arguments, uint64_t results);
// block_products.cpp
void qqmm(Stack stack, uint64_t arguments, uint64_t results);
void gather_qqmm(Stack stack, uint64_t arguments, uint64_t results);
void grouped_qqmm(Stack stack, uint64_t arguments, uint64_t results);
// layers.cpp
void moe_route(Stack stack, uint64_t arguments, uint64_t results);
void moe_permute(Stack stack, uint64_t arguments, uint64_t results);
void moe_unpermute(Stack stack, uint64_t arguments, uint64_t results);
void moe_ffn(Stack stack, uint64_t arguments, uint64_t results);

}  // namespace moeblas::torch_operators
