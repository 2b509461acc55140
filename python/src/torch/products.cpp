// Products of floats with dense and with packed weights.
#include "torch/operators.h"

namespace moeblas::torch_operators {

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

}  // namespace

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

}  // namespace moeblas::torch_operators
