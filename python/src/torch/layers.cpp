// Routing, permutation and the fused expert layer.
#include "torch/operators.h"

namespace moeblas::torch_operators {

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

namespace {

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

}  // namespace

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

}  // namespace moeblas::torch_operators
