// Values to codes and back, as checked problems. moeblas.h has the contract of each.
#pragma once

#include "dispatch/problem.h"

namespace moeblas::ops {

using dispatch::QuantizeProblem;

QuantizedSpec infer_quantize(const TensorView& w, const QuantSpec& spec,
                             std::optional<DType> scale_dtype, ScaleLayout scale_layout);
QuantizeProblem quantize(const TensorView& w, const Quantized& out, const Options& options);

DualSpecs infer_quantize_dual(const TensorView& w, const QuantSpec& spec,
                              std::optional<DType> scale_dtype, ScaleLayout scale_layout);
QuantizeProblem quantize_dual(const TensorView& w, const Quantized& rows, const Quantized& columns,
                              const Options& options);

Spec infer_dequantize(const Quantized& w, std::optional<DType> dtype);
QuantizeProblem dequantize(const Quantized& w, const TensorView& out, const Options& options);

Spec infer_to_fp8(const TensorView& x);
QuantizeProblem to_fp8(const TensorView& x, const TensorView& out, const Options& options);

Spec infer_from_fp8(const TensorView& x, DType dtype);
QuantizeProblem from_fp8(const TensorView& x, const TensorView& out, const Options& options);

}  // namespace moeblas::ops
