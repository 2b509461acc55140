#include "moe_model/weights.h"

#include <string>

namespace moeblas::examples {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Config;

// (N, K) as the stack (1, N, K).
TensorView stack_of_one(const TensorView& v) {
  if (!v) return v;
  return {v.data, v.dtype, {1, v.shape[0], v.shape[1]}, {0, v.strides[0], v.strides[1]}};
}
Quantized stack_of_one(Quantized q) {
  q.codes = stack_of_one(q.codes);
  q.scales = stack_of_one(q.scales);
  q.biases = stack_of_one(q.biases);
  return q;
}

std::vector<FfnLayer> experts_of(const Checkpoint& c, const std::string& mlp) {
  const Config& config = c.config();
  const int64_t e = config.num_experts, h = config.hidden_size, i = config.moe_intermediate_size;
  const checkpoint::Experts gate = c.experts(mlp, "gate_proj", {e, i, h}),
                            up = c.experts(mlp, "up_proj", {e, i, h}),
                            down = c.experts(mlp, "down_proj", {e, h, i});
  if (gate.stack && up.stack && down.stack) {
    return {{.gate = gate.stack, .up = up.stack, .down = down.stack}};
  }
  if (gate.stack || up.stack || down.stack) {
    throw checkpoint::Error(config.file, mlp, "only some projections of its experts are stacked");
  }
  std::vector<FfnLayer> layers;
  for (size_t x = 0; x < gate.separate.size(); ++x) {
    const auto matrix = [x](const checkpoint::Experts& projection) {
      return stack_of_one(projection.separate[x]);
    };
    layers.push_back({.gate = matrix(gate), .up = matrix(up), .down = matrix(down)});
  }
  return layers;
}

}  // namespace

Weights::Weights(const Checkpoint& c) {
  c.require_complete();
  const Config& config = c.config();
  const int64_t h = config.hidden_size, d = config.head_dim;
  const int64_t q_width = config.num_attention_heads * d;
  const int64_t kv_width = config.num_key_value_heads * d;
  const bool all_heads = config.qk_norm == checkpoint::QkNorm::all_heads;
  const auto linear = [&](const std::string& path, int64_t n, int64_t k) {
    return Linear{c.weight(path, {n, k}), c.bias(path, n)};
  };
  embedding = c.weight("model.embed_tokens", {config.vocab_size, h});
  final_norm = c.tensor("model.norm.weight", {h});
  head =
      config.tie_word_embeddings ? Linear{embedding, {}} : linear("lm_head", config.vocab_size, h);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const std::string path = "model.layers." + std::to_string(l);
    const std::string attention = path + ".self_attn", mlp = path + ".mlp";
    Layer& layer = layers.emplace_back();
    layer.attention_norm = c.tensor(path + ".input_layernorm.weight", {h});
    layer.q_norm = c.tensor(attention + ".q_norm.weight", {all_heads ? q_width : d});
    layer.k_norm = c.tensor(attention + ".k_norm.weight", {all_heads ? kv_width : d});
    layer.q = linear(attention + ".q_proj", q_width, h);
    layer.k = linear(attention + ".k_proj", kv_width, h);
    layer.v = linear(attention + ".v_proj", kv_width, h);
    layer.o = linear(attention + ".o_proj", h, q_width);
    layer.ffn_norm = c.tensor(path + ".post_attention_layernorm.weight", {h});
    if (config.sparse[static_cast<size_t>(l)]) {
      layer.router = linear(mlp + ".gate", config.num_experts, h);
      layer.experts = experts_of(c, mlp);
    } else {
      const int64_t i = config.intermediate_size;
      layer.experts = {{.gate = stack_of_one(c.weight(mlp + ".gate_proj", {i, h})),
                        .up = stack_of_one(c.weight(mlp + ".up_proj", {i, h})),
                        .down = stack_of_one(c.weight(mlp + ".down_proj", {h, i}))}};
    }
  }
}

}  // namespace moeblas::examples
