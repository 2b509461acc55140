// The operators moeblas::* for CPU and CUDA tensors, over torch's stable ABI: one binary for every
// torch from TORCH_TARGET_VERSION on. Shapes and gradients are Python's (moeblas/torch); the
// schemas are schemas.txt, in which each function below reads its arguments' order.
#include "torch/operators.h"

#include <torch/csrc/stable/library.h>

#include <string_view>

#include "torch/call.h"
#include "torch/schemas.h"

namespace moeblas::torch_operators {
namespace {

using Stack = StableIValue*;

template <size_t count>
void give(Stack stack, const std::array<Tensor, count>& outputs) {
  for (size_t i = 0; i < count; ++i) stack[i] = torch::stable::detail::from(outputs[i]);
}

// ---- Quantization ------------------------------------------------------------------------------

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

// ---- Products ----------------------------------------------------------------------------------

void quantized_matmul(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const Weight w{a.tensor(), a.optional(), a.optional()};
  const int32_t transpose = a.flag();
  const Form form = read_form(a);
  const OptionalTensor tensor_scale = a.optional();
  const std::string precision = a.word();
  Call call("quantized_matmul", x);
  const auto* rows = call.tensor("x", x);
  const auto* weight = call.weight("w", w, form, tensor_scale);
  const auto out = call.outputs<1>(moeblas_infer_quantized_matmul, rows, weight, transpose);
  call.run(moeblas_quantized_matmul, precision, rows, weight, transpose,
           call.tensor("out", out[0]));
  give(stack, out);
}

void gather_mm(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor left = a.tensor();
  const Tensor right = a.tensor();
  const OptionalTensor lhs = a.optional();
  const OptionalTensor rhs = a.optional();
  const int32_t sorted = a.flag();
  const std::string precision = a.word();
  Call call("gather_mm", left);
  const auto* l = call.tensor("a", left);
  const auto* r = call.tensor("b", right);
  const auto* i = call.tensor("lhs_indices", lhs);
  const auto* j = call.tensor("rhs_indices", rhs);
  const auto out = call.outputs<1>(moeblas_infer_gather_mm, l, r, i, j);
  call.run(moeblas_gather_mm, precision, l, r, i, j, sorted, call.tensor("out", out[0]));
  give(stack, out);
}

}  // namespace

void gather_qmm(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const Weight w{a.tensor(), a.optional(), a.optional()};
  const OptionalTensor lhs = a.optional();
  const OptionalTensor rhs = a.optional();
  const int32_t transpose = a.flag();
  const Form form = read_form(a);
  const OptionalTensor tensor_scale = a.optional();
  const int32_t sorted = a.flag();
  const std::string precision = a.word();
  Call call("gather_qmm", x);
  const auto* rows = call.tensor("x", x);
  const auto* weight = call.weight("w", w, form, tensor_scale);
  const auto* i = call.tensor("lhs_indices", lhs);
  const auto* j = call.tensor("rhs_indices", rhs);
  const auto out = call.outputs<1>(moeblas_infer_gather_qmm, rows, weight, i, j, transpose);
  call.run(moeblas_gather_qmm, precision, rows, weight, i, j, transpose, sorted,
           call.tensor("out", out[0]));
  give(stack, out);
}

void gather_qmv(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const Weight w{a.tensor(), a.optional(), a.optional()};
  const Tensor ids = a.tensor();
  const Form form = read_form(a);
  const OptionalTensor tensor_scale = a.optional();
  const std::string precision = a.word();
  Call call("gather_qmv", x);
  const auto* rows = call.tensor("x", x);
  const auto* weight = call.weight("w", w, form, tensor_scale);
  const auto* j = call.tensor("expert_indices", ids);
  const auto out = call.outputs<1>(moeblas_infer_gather_qmv, rows, weight, j);
  call.run(moeblas_gather_qmv, precision, rows, weight, j, call.tensor("out", out[0]));
  give(stack, out);
}

namespace {

// segmented_mm and grouped_mm: three tensors and a precision.
template <auto infer, auto function>
void dense_product(const char* op, const std::array<const char*, 3>& names, Stack stack) {
  Arguments a(stack);
  const std::array<Tensor, 3> given{a.tensor(), a.tensor(), a.tensor()};
  const std::string precision = a.word();
  Call call(op, given[0]);
  const auto* x = call.tensor(names[0], given[0]);
  const auto* w = call.tensor(names[1], given[1]);
  const auto* parts = call.tensor(names[2], given[2]);
  const auto out = call.outputs<1>(infer, x, w, parts);
  call.run(function, precision, x, w, parts, call.tensor("out", out[0]));
  give(stack, out);
}

void segmented_mm(Stack stack, uint64_t, uint64_t) {
  dense_product<moeblas_infer_segmented_mm, moeblas_segmented_mm>("segmented_mm",
                                                                  {"a", "b", "segments"}, stack);
}

void grouped_mm(Stack stack, uint64_t, uint64_t) {
  dense_product<moeblas_infer_grouped_mm, moeblas_grouped_mm>("grouped_mm", {"x", "w", "offsets"},
                                                              stack);
}

void grouped_qmm(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const Weight w{a.tensor(), a.optional(), a.optional()};
  const Tensor offsets = a.tensor();
  const int32_t transpose = a.flag();
  const Form form = read_form(a);
  const OptionalTensor tensor_scale = a.optional();
  const std::string precision = a.word();
  Call call("grouped_qmm", x);
  const auto* rows = call.tensor("x", x);
  const auto* weight = call.weight("w", w, form, tensor_scale);
  const auto* ends = call.tensor("offsets", offsets);
  const auto out = call.outputs<1>(moeblas_infer_grouped_qmm, rows, weight, ends, transpose);
  call.run(moeblas_grouped_qmm, precision, rows, weight, ends, transpose,
           call.tensor("out", out[0]));
  give(stack, out);
}

// ---- Block-quantized products ------------------------------------------------------------------

// What the three forms share: the formats of both operands and all that follows the product.
struct BlockArguments {
  Form form;
  OptionalTensor scale_x;
  OptionalTensor scale_w;
};

BlockArguments read_block(Arguments& a) {
  Form form = read_form(a);
  OptionalTensor scale_x = a.optional();
  return {std::move(form), std::move(scale_x), a.optional()};
}

struct BlockEpilogue {
  OptionalTensor bias;
  OptionalTensor c;
  OptionalTensor x_scales;
  bool sorted;
  std::string layout_w;
  std::string layout_x;
  double alpha;
  double beta;
  std::optional<torch::headeronly::ScalarType> dtype;
  std::string precision;
};

BlockEpilogue read_epilogue(Arguments& a, bool has_sorted) {
  BlockEpilogue e;
  e.bias = a.optional();
  e.c = a.optional();
  e.x_scales = a.optional();
  e.sorted = has_sorted && a.flag();
  e.layout_w = a.word();
  e.layout_x = a.word();
  e.alpha = a.number();
  e.beta = a.number();
  e.dtype = a.dtype();
  e.precision = a.word();
  return e;
}

struct BlockOperands {
  const moeblas_quantized* x;
  const moeblas_quantized* w;
  moeblas_epilogue epilogue;
};

BlockOperands bind_block(Call& call, const Tensor& x, const Tensor& w, const OptionalTensor& scales,
                         const BlockArguments& b, const BlockEpilogue& e) {
  const auto* left = call.packed("x", {x, e.x_scales, std::nullopt}, b.form, b.scale_x, e.layout_x);
  const auto* right = call.packed("w", {w, scales, std::nullopt}, b.form, b.scale_w, e.layout_w);
  moeblas_epilogue epilogue = MOEBLAS_EPILOGUE_INIT;
  epilogue.alpha = static_cast<float>(e.alpha);
  epilogue.beta = e.c ? static_cast<float>(e.beta) : 0.0f;
  epilogue.c = call.tensor("c", e.c);
  epilogue.bias = call.tensor("bias", e.bias);
  return {left, right, epilogue};
}

void qqmm(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const Tensor w = a.tensor();
  const OptionalTensor scales = a.optional();
  const BlockArguments b = read_block(a);
  const BlockEpilogue e = read_epilogue(a, false);
  Call call("qqmm", x);
  const BlockOperands o = bind_block(call, x, w, scales, b, e);
  const auto out = call.outputs<1>(moeblas_infer_qqmm, o.x, o.w, call.dtype("dtype", e.dtype));
  call.run(moeblas_qqmm, e.precision, o.x, o.w, &o.epilogue, call.tensor("out", out[0]));
  give(stack, out);
}

void gather_qqmm(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const Tensor w = a.tensor();
  const OptionalTensor scales = a.optional();
  const OptionalTensor lhs = a.optional();
  const OptionalTensor rhs = a.optional();
  const BlockArguments b = read_block(a);
  const BlockEpilogue e = read_epilogue(a, true);
  Call call("gather_qqmm", x);
  const BlockOperands o = bind_block(call, x, w, scales, b, e);
  const auto* i = call.tensor("lhs_indices", lhs);
  const auto* j = call.tensor("rhs_indices", rhs);
  const auto out =
      call.outputs<1>(moeblas_infer_gather_qqmm, o.x, o.w, i, j, call.dtype("dtype", e.dtype));
  call.run(moeblas_gather_qqmm, e.precision, o.x, o.w, i, j, static_cast<int32_t>(e.sorted),
           &o.epilogue, call.tensor("out", out[0]));
  give(stack, out);
}

void grouped_qqmm(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const Tensor w = a.tensor();
  const OptionalTensor scales = a.optional();
  const Tensor offsets = a.tensor();
  const BlockArguments b = read_block(a);
  const BlockEpilogue e = read_epilogue(a, false);
  Call call("grouped_qqmm", x);
  const BlockOperands o = bind_block(call, x, w, scales, b, e);
  const auto* ends = call.tensor("offsets", offsets);
  const auto out =
      call.outputs<1>(moeblas_infer_grouped_qqmm, o.x, o.w, ends, call.dtype("dtype", e.dtype));
  call.run(moeblas_grouped_qqmm, e.precision, o.x, o.w, ends, &o.epilogue,
           call.tensor("out", out[0]));
  give(stack, out);
}

// ---- Routing and the fused expert layer --------------------------------------------------------

void moe_route(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor logits = a.tensor();
  moeblas_router router = MOEBLAS_ROUTER_INIT;
  router.top_k = static_cast<int32_t>(a.integer());
  const OptionalTensor bias = a.optional();
  const std::string score = a.word();
  router.normalize = a.flag();
  router.n_group = static_cast<int32_t>(a.integer());
  router.topk_group = static_cast<int32_t>(a.integer());
  router.scaling_factor = static_cast<float>(a.number());
  Call call("moe_route", logits);
  router.score = call.number<2>("score", {"softmax", "sigmoid"}, score);
  const auto* given = call.tensor("logits", logits);
  const auto* correction = call.tensor("bias", bias);
  const moeblas_router* choice = &router;
  const auto out = call.outputs<2>(moeblas_infer_moe_route, given, correction, choice);
  call.run(moeblas_moe_route, "native", given, correction, choice, call.tensor("ids", out[0]),
           call.tensor("weights", out[1]));
  give(stack, out);
}

void moe_permute(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const Tensor ids = a.tensor();
  const int64_t experts = a.integer();
  const OptionalTensor expert_map = a.optional();
  Call call("moe_permute", x);
  const auto* rows = call.tensor("x", x);
  const auto* pairs = call.tensor("ids", ids);
  const auto* map = call.tensor("expert_map", expert_map);
  const auto out = call.outputs<3>(moeblas_infer_moe_permute, rows, pairs, map, experts);
  call.run(moeblas_moe_permute, "native", rows, pairs, map, experts, call.tensor("rows", out[0]),
           call.tensor("offsets", out[1]), call.tensor("inverse", out[2]));
  give(stack, out);
}

void moe_unpermute(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor y = a.tensor();
  const Tensor inverse = a.tensor();
  const OptionalTensor weights = a.optional();
  Call call("moe_unpermute", y);
  const auto* rows = call.tensor("y", y);
  const auto* pairs = call.tensor("inverse", inverse);
  const auto* factors = call.tensor("weights", weights);
  const auto out = call.outputs<1>(moeblas_infer_moe_unpermute, rows, pairs, factors);
  call.run(moeblas_moe_unpermute, "native", rows, pairs, factors, call.tensor("out", out[0]));
  give(stack, out);
}

// One of the four matrices of moe_ffn: eight arguments of its schema.
struct Expert {
  OptionalTensor codes;
  OptionalTensor scales;
  OptionalTensor biases;
  OptionalTensor tensor_scale;
  Form form;
  OptionalTensor bias;
};

Expert read_expert(Arguments& a) {
  Expert e;
  e.codes = a.optional();
  e.scales = a.optional();
  e.biases = a.optional();
  e.tensor_scale = a.optional();
  e.form = read_form(a);
  e.bias = a.optional();
  return e;
}

void moe_ffn(Stack stack, uint64_t, uint64_t) {
  Arguments a(stack);
  const Tensor x = a.tensor();
  const Tensor ids = a.tensor();
  const Tensor weights = a.tensor();
  const std::array<Expert, 4> experts{read_expert(a), read_expert(a), read_expert(a),
                                      read_expert(a)};
  const OptionalTensor expert_map = a.optional();
  const std::string activation = a.word();
  const std::string glu_layout = a.word();
  moeblas_ffn layer = MOEBLAS_FFN_INIT;
  layer.alpha = static_cast<float>(a.number());
  layer.limit = static_cast<float>(a.number());
  const std::string precision = a.word();

  Call call("moe_ffn", x);
  const std::array<const char*, 4> names{"gate_up", "gate", "up", "down"};
  const std::array<const moeblas_quantized**, 4> matrices{&layer.gate_up, &layer.gate, &layer.up,
                                                          &layer.down};
  const std::array<const moeblas_tensor**, 4> biases{&layer.gate_up_bias, &layer.gate_bias,
                                                     &layer.up_bias, &layer.down_bias};
  for (size_t i = 0; i < experts.size(); ++i) {
    const Expert& e = experts[i];
    if (e.codes) {
      *matrices[i] = call.weight(names[i], {*e.codes, e.scales, e.biases}, e.form, e.tensor_scale);
    }
    *biases[i] = call.tensor(names[i], e.bias);
  }
  layer.expert_map = call.tensor("expert_map", expert_map);
  layer.activation = call.number<5>(
      "activation", {"silu", "gelu_erf", "gelu_tanh", "relu", "clamped_swiglu"}, activation);
  layer.glu_layout =
      call.number<3>("glu_layout", {"gate_up", "up_gate", "interleaved"}, glu_layout);
  const auto* rows = call.tensor("x", x);
  const auto* pairs = call.tensor("ids", ids);
  const auto* factors = call.tensor("weights", weights);
  const moeblas_ffn* given = &layer;
  const auto out = call.outputs<1>(moeblas_infer_moe_ffn, rows, given, pairs, factors);
  call.run(moeblas_moe_ffn, precision, rows, given, pairs, factors, call.tensor("out", out[0]));
  give(stack, out);
}

// ---- Registration ------------------------------------------------------------------------------

struct Kernel {
  const char* name;
  void (*function)(Stack, uint64_t, uint64_t);
};

#define MOEBLAS_KERNEL(name) {#name, name}
constexpr Kernel kKernels[] = {
    MOEBLAS_KERNEL(quantize),     MOEBLAS_KERNEL(quantize_dual), MOEBLAS_KERNEL(dequantize),
    MOEBLAS_KERNEL(to_fp8),       MOEBLAS_KERNEL(from_fp8),      MOEBLAS_KERNEL(quantized_matmul),
    MOEBLAS_KERNEL(gather_mm),    MOEBLAS_KERNEL(gather_qmm),    MOEBLAS_KERNEL(gather_qmv),
    MOEBLAS_KERNEL(segmented_mm), MOEBLAS_KERNEL(grouped_mm),    MOEBLAS_KERNEL(grouped_qmm),
    MOEBLAS_KERNEL(qqmm),         MOEBLAS_KERNEL(gather_qqmm),   MOEBLAS_KERNEL(grouped_qqmm),
    MOEBLAS_KERNEL(moe_route),    MOEBLAS_KERNEL(moe_permute),   MOEBLAS_KERNEL(moe_unpermute),
    MOEBLAS_KERNEL(moe_ffn),
};
#undef MOEBLAS_KERNEL

void implement(torch::stable::detail::StableLibrary& library) {
  for (const Kernel& kernel : kKernels) library.impl(kernel.name, kernel.function);
}

}  // namespace

STABLE_TORCH_LIBRARY(moeblas, library) {
  std::string_view text = kSchemas;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() + (line.size() < text.size() ? 1 : 0));
    if (!line.empty() && line.front() != '#') library.def(std::string(line).c_str());
  }
}

STABLE_TORCH_LIBRARY_IMPL(moeblas, CPU, library) { implement(library); }
STABLE_TORCH_LIBRARY_IMPL(moeblas, CUDA, library) { implement(library); }

}  // namespace moeblas::torch_operators
