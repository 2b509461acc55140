// Routing and the fused expert layer: moe_route, moe_permute, moe_unpermute, moe_ffn.
#include "operations.h"
#include "weights.h"

namespace moeblas::python {
namespace {

constexpr const char* kScores[] = {"softmax", "sigmoid"};
constexpr const char* kActivations[] = {"silu", "gelu_erf", "gelu_tanh", "relu", "clamped_swiglu"};
constexpr const char* kGluLayouts[] = {"gate_up", "up_gate", "interleaved"};

nb::object moe_route(nb::handle logits_, nb::handle k, nb::handle score, nb::handle normalize,
                     nb::handle bias_, nb::handle n_group, nb::handle topk_group,
                     nb::handle scaling_factor, nb::handle out, nb::handle options) {
  Call call("moe_route", options);
  const Array logits(call, "logits", logits_), bias(call, "bias", bias_);
  moeblas_router router = MOEBLAS_ROUTER_INIT;
  router.top_k = integer_of(call.op(), "k", k);
  router.score = word_of(call.op(), "score", score, kScores);
  router.normalize = truth_of(call.op(), "normalize", normalize);
  router.n_group = integer_of(call.op(), "n_group", n_group);
  router.topk_group = integer_of(call.op(), "topk_group", topk_group);
  router.scaling_factor = number_of(call.op(), "scaling_factor", scaling_factor);
  moeblas_spec spec[2]{};
  check(moeblas_infer_moe_route(logits, bias, &router, spec));
  const Parts parts(call, out, 2);
  Result ids(call, "ids", parts[0], spec[0]), weights(call, "weights", parts[1], spec[1]);
  call.run([&] { return moeblas_moe_route(logits, bias, &router, ids, weights, call.options()); });
  return nb::make_tuple(ids.take(), weights.take());
}

nb::object moe_permute(nb::handle x_, nb::handle ids_, nb::handle experts_, nb::handle map_,
                       nb::handle out, nb::handle options) {
  Call call("moe_permute", options);
  const Array x(call, "x", x_), ids(call, "ids", ids_), map(call, "expert_map", map_);
  const int64_t experts = integer_of(call.op(), "experts", experts_);
  moeblas_spec spec[3]{};
  check(moeblas_infer_moe_permute(x, ids, map, experts, spec));
  const Parts parts(call, out, 3);
  Result rows(call, "rows", parts[0], spec[0]), offsets(call, "offsets", parts[1], spec[1]),
      inverse(call, "inverse", parts[2], spec[2]);
  call.run([&] {
    return moeblas_moe_permute(x, ids, map, experts, rows, offsets, inverse, call.options());
  });
  return nb::make_tuple(rows.take(), offsets.take(), inverse.take());
}

nb::object moe_unpermute(nb::handle y_, nb::handle inverse_, nb::handle weights_, nb::handle out_,
                         nb::handle options) {
  Call call("moe_unpermute", options);
  const Array y(call, "y", y_), inverse(call, "inverse", inverse_),
      weights(call, "weights", weights_);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_moe_unpermute(y, inverse, weights, spec);
             }));
  call.run([&] { return moeblas_moe_unpermute(y, inverse, weights, out, call.options()); });
  return out.take();
}

nb::object moe_ffn(nb::handle x_, nb::handle gate_up_, nb::handle gate_, nb::handle up_,
                   nb::handle down_, nb::handle ids_, nb::handle weights_, nb::handle activation,
                   nb::handle glu_layout, nb::handle map_, nb::handle gate_up_bias_,
                   nb::handle gate_bias_, nb::handle up_bias_, nb::handle down_bias_,
                   nb::handle alpha, nb::handle limit, nb::handle out_, nb::handle options) {
  Call call("moe_ffn", options);
  const Array x(call, "x", x_);
  const Weights gate_up(call, "gate_up", gate_up_), gate(call, "gate", gate_), up(call, "up", up_),
      down(call, "down", down_);
  const Array gate_up_bias(call, "gate_up_bias", gate_up_bias_),
      gate_bias(call, "gate_bias", gate_bias_), up_bias(call, "up_bias", up_bias_),
      down_bias(call, "down_bias", down_bias_), map(call, "expert_map", map_);
  const Array ids(call, "ids", ids_), weights(call, "weights", weights_);
  moeblas_ffn layer = MOEBLAS_FFN_INIT;
  layer.gate_up = gate_up;
  layer.gate = gate;
  layer.up = up;
  layer.down = down;
  layer.gate_up_bias = gate_up_bias;
  layer.gate_bias = gate_bias;
  layer.up_bias = up_bias;
  layer.down_bias = down_bias;
  layer.expert_map = map;
  layer.activation = word_of(call.op(), "activation", activation, kActivations);
  layer.glu_layout = word_of(call.op(), "glu_layout", glu_layout, kGluLayouts);
  layer.alpha = number_of(call.op(), "alpha", alpha);
  layer.limit = number_of(call.op(), "limit", limit);
  Result out(call, "out", out_, infer_unless(out_, [&](moeblas_spec* spec) {
               return moeblas_infer_moe_ffn(x, &layer, ids, weights, spec);
             }));
  call.run([&] { return moeblas_moe_ffn(x, &layer, ids, weights, out, call.options()); });
  return out.take();
}

}  // namespace

void bind_expert_layers(nb::module_& m) {
  define(m, "moe_route", &moe_route);
  define(m, "moe_permute", &moe_permute);
  define(m, "moe_unpermute", &moe_unpermute);
  define(m, "moe_ffn", &moe_ffn);
}

}  // namespace moeblas::python
