// The block-quantized products: both operands in one block format, packed or quantized on the fly.
#pragma once

#include "ops/operands.h"

namespace moeblas::ops {

using dispatch::MatmulProblem;

// `dtype` is the output's where x is packed.
Spec infer_qqmm(const Quantized& x, const Quantized& w, std::optional<DType> dtype);
MatmulProblem qqmm(const Quantized& x, const Quantized& w, const Epilogue& epilogue,
                   const TensorView& out, const Options& options);

Spec infer_gather_qqmm(const Quantized& x, const Quantized& w, const TensorView& lhs,
                       const TensorView& rhs, std::optional<DType> dtype);
MatmulProblem gather_qqmm(const Quantized& x, const Quantized& w, const TensorView& lhs,
                          const TensorView& rhs, bool sorted, const Epilogue& epilogue,
                          const TensorView& out, const Options& options);

Spec infer_grouped_qqmm(const Quantized& x, const Quantized& w, const TensorView& offsets,
                        std::optional<DType> dtype);
MatmulProblem grouped_qqmm(const Quantized& x, const Quantized& w, const TensorView& offsets,
                           const Epilogue& epilogue, const TensorView& out, const Options& options);

}  // namespace moeblas::ops
