#include "checkpoint/modules.h"

namespace moeblas::checkpoint {

void visit_modules(const Config& c, const std::function<void(const Module&)>& visit) {
  const auto norm = [&](const std::string& path, int64_t k) {
    visit({Module::norm, path, {k}, false, "", ""});
  };
  const auto matrix = [&](const std::string& path, int64_t n, int64_t k, bool bias = false) {
    visit({Module::matrix, path, {n, k}, bias, "", ""});
  };
  const int64_t hidden = c.hidden_size;
  const int64_t queries = c.num_attention_heads * c.head_dim;
  const int64_t keys = c.num_key_value_heads * c.head_dim;
  const bool each_head = c.qk_norm == QkNorm::each_head;

  matrix("model.embed_tokens", c.vocab_size, hidden);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    norm(layer + "input_layernorm", hidden);
    matrix(layer + "self_attn.q_proj", queries, hidden, c.attention_bias);
    matrix(layer + "self_attn.k_proj", keys, hidden, c.attention_bias);
    matrix(layer + "self_attn.v_proj", keys, hidden, c.attention_bias);
    matrix(layer + "self_attn.o_proj", hidden, queries, c.attention_bias);
    norm(layer + "self_attn.q_norm", each_head ? c.head_dim : queries);
    norm(layer + "self_attn.k_norm", each_head ? c.head_dim : keys);
    norm(layer + "post_attention_layernorm", hidden);
    const std::string mlp = layer + "mlp";
    const bool sparse = c.sparse[static_cast<size_t>(i)];
    const int64_t inner = sparse ? c.moe_intermediate_size : c.intermediate_size;
    if (sparse) visit({Module::router, mlp + ".gate", {c.num_experts, hidden}, false, "", ""});
    for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = std::string_view(projection) == "down_proj";
      const int64_t n = down ? hidden : inner, k = down ? inner : hidden;
      if (sparse) {
        visit({Module::experts,
               mlp + ".switch_mlp." + projection,
               {c.num_experts, n, k},
               false,
               mlp,
               projection});
      } else {
        matrix(mlp + "." + projection, n, k);
      }
    }
  }
  norm("model.norm", hidden);
  if (!c.tie_word_embeddings) matrix("lm_head", c.vocab_size, hidden);
}

}  // namespace moeblas::checkpoint
