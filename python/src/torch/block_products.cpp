// Products of two block-quantized operands.
#include "torch/operators.h"

namespace moeblas::torch_operators {
namespace {

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

}  // namespace

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

}  // namespace moeblas::torch_operators
