// moe_ffn: a whole expert layer.
#include <algorithm>

#include "ops/moe.h"

namespace moeblas::ops {
namespace {

using dispatch::FfnProblem;
using dispatch::Operand;

constexpr const char* kOp = "moe_ffn";

// One product of the layer: a stack (E, N, K), dense or packed, named as messages name it.
Operand stack(const OperandNames& names, const Quantized& q) {
  require_ndim(kOp, {names.codes, q.codes}, 3, 3);
  return weights_operand(kOp, names, q, "K");
}

void require_matrix(const OperandNames& names, const Quantized& q, const Operand& operand,
                    int64_t experts, int64_t n, int64_t k) {
  const dispatch::Matrices& m = operand.values;
  if (m.batch == Shape{experts} && m.rows == n && m.cols == k) return;
  fail(kOp, names.codes, " has shape ", text(q.codes.shape), ", expected ",
       text(Shape{experts, n, k}), operand.spec ? " values" : "");
}

dispatch::Matrices bias(const char* name, const TensorView& view, int64_t experts, int64_t n) {
  if (!view) return {};
  require_float(kOp, {name, view});
  require_shape(kOp, {name, view}, {experts, n}, "one bias per expert and output");
  return bias_matrices(view);
}

FfnProblem analyse(const TensorView& x, const FfnLayer& layer, const TensorView& ids,
                   const TensorView& weights) {
  require_float(kOp, {"x", x});
  require_ndim(kOp, {"x", x}, 2, 2);
  require_integer(kOp, {"ids", ids});
  require_ndim(kOp, {"ids", ids}, 2, 2);
  require_shape(kOp, {"ids", ids}, {x.shape[0], ids.shape[1]}, "the tokens of x");
  require_dtype(kOp, {"weights", weights}, DType::f32);
  require_shape(kOp, {"weights", weights}, ids.shape, "the pairs of ids");
  if (!layer.down) fail(kOp, "down is missing");
  if (layer.gate_up ? layer.gate || layer.up : !(layer.gate && layer.up)) {
    const char* wrong = layer.gate_up ? layer.gate ? "gate is given" : "up is given"
                        : layer.gate  ? "up is missing"
                        : layer.up    ? "gate is missing"
                                      : "gate_up is missing";
    fail(kOp, wrong, ", expected either gate_up, or gate and up");
  }
  if (layer.activation < Activation::silu || layer.activation > Activation::clamped_swiglu) {
    fail(kOp, "activation is ", static_cast<int>(layer.activation), ", expected 0 to 4");
  }
  if (layer.glu_layout < GluLayout::gate_up || layer.glu_layout > GluLayout::interleaved) {
    fail(kOp, "glu_layout is ", static_cast<int>(layer.glu_layout), ", expected 0 to 2");
  }
  FfnProblem p;
  p.op = kOp;
  p.tokens = x.shape[0];
  p.top_k = ids.shape[1];
  p.hidden = x.shape[1];
  p.down = stack(kDown, *layer.down);
  p.experts = p.down.values.batch[0];
  p.intermediate = p.down.values.cols;
  require_matrix(kDown, *layer.down, p.down, p.experts, p.hidden, p.intermediate);
  p.separate = layer.gate.has_value();
  if (p.separate) {
    p.gate_up = stack(kGate, *layer.gate);
    p.up = stack(kUp, *layer.up);
    require_matrix(kGate, *layer.gate, p.gate_up, p.experts, p.intermediate, p.hidden);
    require_matrix(kUp, *layer.up, p.up, p.experts, p.intermediate, p.hidden);
    if (layer.gate_up_bias) fail(kOp, "gate_up_bias is given without gate_up, expected none");
    p.gate_up_bias = bias("gate_bias", layer.gate_bias, p.experts, p.intermediate);
    p.up_bias = bias("up_bias", layer.up_bias, p.experts, p.intermediate);
  } else {
    p.gate_up = stack(kGateUp, *layer.gate_up);
    require_matrix(kGateUp, *layer.gate_up, p.gate_up, p.experts, 2 * p.intermediate, p.hidden);
    if (layer.gate_bias || layer.up_bias) {
      fail(kOp, layer.gate_bias ? "gate_bias" : "up_bias", " is given with gate_up, expected none");
    }
    p.gate_up_bias = bias("gate_up_bias", layer.gate_up_bias, p.experts, 2 * p.intermediate);
  }
  require_countable_workspace(kOp, "ids", ids.shape, std::max(2 * p.intermediate, p.hidden));
  p.down_bias = bias("down_bias", layer.down_bias, p.experts, p.hidden);
  if (layer.expert_map) {
    require_integer(kOp, {"expert_map", layer.expert_map});
    require_ndim(kOp, {"expert_map", layer.expert_map}, 1, 1);
  }
  p.x = x;
  p.ids = ids;
  p.weights = weights;
  p.expert_map = layer.expert_map;
  p.glu_layout = layer.glu_layout;
  p.activation = layer.activation;
  p.alpha = layer.alpha;
  p.limit = layer.limit;
  return p;
}

}  // namespace

Spec infer_moe_ffn(const TensorView& x, const FfnLayer& layer, const TensorView& ids,
                   const TensorView& weights) {
  analyse(x, layer, ids, weights);
  return {x.dtype, x.shape};
}

FfnProblem moe_ffn(const TensorView& x, const FfnLayer& layer, const TensorView& ids,
                   const TensorView& weights, const TensorView& out, const Options& options) {
  FfnProblem p = analyse(x, layer, ids, weights);
  require_output(kOp, {"out", out}, {x.dtype, x.shape});
  const Quantized none;
  const Quantized& a = p.separate ? *layer.gate : *layer.gate_up;
  const Quantized& b = p.separate ? *layer.up : none;
  const Quantized& d = *layer.down;
  const OperandNames& first = p.separate ? kGate : kGateUp;
  p.device = require_memory(kOp,
                            {{"x", x},
                             {"ids", ids},
                             {"weights", weights},
                             {"expert_map", layer.expert_map},
                             {first.codes, a.codes},
                             {first.scales, a.scales},
                             {first.biases, a.biases},
                             {first.tensor_scale, a.tensor_scale},
                             {kUp.codes, b.codes},
                             {kUp.scales, b.scales},
                             {kUp.biases, b.biases},
                             {kUp.tensor_scale, b.tensor_scale},
                             {kDown.codes, d.codes},
                             {kDown.scales, d.scales},
                             {kDown.biases, d.biases},
                             {kDown.tensor_scale, d.tensor_scale},
                             {"gate_up_bias", layer.gate_up_bias},
                             {"gate_bias", layer.gate_bias},
                             {"up_bias", layer.up_bias},
                             {"down_bias", layer.down_bias}},
                            {{"out", out}}, options.query != nullptr);
  p.out = out;
  p.options = options;
  return p;
}

}  // namespace moeblas::ops
