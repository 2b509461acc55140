// Quantization and its inverse.
#include "torch/operators.h"

namespace moeblas::torch_operators {
namespace {

struct QuantizeArguments {
  Tensor w;
  Form form;
  OptionalTensor tensor_scale;
  std::optional<torch::headeronly::ScalarType> scale_dtype;
  std::string scale_layout;
};

QuantizeArguments read_quantize(Stack stack) {
  Arguments a(stack);
  Tensor w = a.tensor();
  Form form = read_form(a);
  OptionalTensor tensor_scale = a.optional();
  auto scale_dtype = a.dtype();
  return {std::move(w), std::move(form), std::move(tensor_scale), scale_dtype, a.word()};
}

// Codes, scales and biases, as many times as `infer` has them.
template <size_t count, class Infer>
std::array<Tensor, count> quantized_outputs(Call& call, Infer* infer, const moeblas_tensor* w,
                                            const QuantizeArguments& given) {
  return call.outputs<count>(
      infer, w, call.mode(given.form.mode), static_cast<int32_t>(given.form.bits),
      static_cast<int32_t>(given.form.group_size), call.dtype("scale_dtype", given.scale_dtype),
      call.scale_layout(given.scale_layout));
}

const moeblas_quantized* bind_outputs(Call& call, const QuantizeArguments& given,
                                      const char* argument, const Tensor* outputs,
                                      const OptionalTensor& tensor_scale) {
  const bool affine = given.form.mode == "affine";
  return call.packed(argument,
                     {outputs[0], outputs[1], affine ? OptionalTensor(outputs[2]) : std::nullopt},
                     given.form, tensor_scale, given.scale_layout);
}

}  // namespace

void quantize(Stack stack, uint64_t, uint64_t) {
  const QuantizeArguments given = read_quantize(stack);
  Call call("quantize", given.w);
  const moeblas_tensor* w = call.tensor("w", given.w);
  const auto out = quantized_outputs<3>(call, moeblas_infer_quantize, w, given);
  call.run(moeblas_quantize, "native", w,
           bind_outputs(call, given, "codes", out.data(), given.tensor_scale));
  give(stack, out);
}

void quantize_dual(Stack stack, uint64_t, uint64_t) {
  const QuantizeArguments given = read_quantize(stack);
  Call call("quantize_dual", given.w);
  const moeblas_tensor* w = call.tensor("w", given.w);
  const auto out = quantized_outputs<6>(call, moeblas_infer_quantize_dual, w, given);
  call.run(moeblas_quantize_dual, "native", w,
           bind_outputs(call, given, "rows", out.data(), given.tensor_scale),
           bind_outputs(call, given, "columns", out.data() + 3, std::nullopt));
  give(stack, out);
}

void dequantize(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Weight w{a.tensor(), a.tensor(), a.optional()};
  const Form form = read_form(a);
  const OptionalTensor tensor_scale = a.optional();
  const auto dtype = a.dtype();
  const std::string layout = a.word();
  Call call("dequantize", w.codes);
  const auto* packed = call.packed("w", w, form, tensor_scale, layout);
  const auto out = call.outputs<1>(moeblas_infer_dequantize, packed, call.dtype("dtype", dtype));
  call.run(moeblas_dequantize, "native", packed, call.tensor("out", out[0]));
  give(stack, out);
}

void to_fp8(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  Call call("to_fp8", x);
  const auto* argument = call.tensor("x", x);
  const auto out = call.outputs<1>(moeblas_infer_to_fp8, argument);
  call.run(moeblas_to_fp8, "native", argument, call.tensor("out", out[0]));
  give(stack, out);
}

void from_fp8(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const auto dtype = a.dtype();
  Call call("from_fp8", x);
  const auto* argument = call.tensor("x", x);
  const moeblas_dtype bfloat16 = {MOEBLAS_BFLOAT, 16, 1};
  const moeblas_dtype* given = call.dtype("dtype", dtype);
  const auto out =
      call.outputs<1>(moeblas_infer_from_fp8, argument, given != nullptr ? *given : bfloat16);
  call.run(moeblas_from_fp8, "native", argument, call.tensor("out", out[0]));
  give(stack, out);
}

}  // namespace moeblas::torch_operators
