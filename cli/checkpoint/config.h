// Config: what config.json says about a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/error.h"
#include "moeblas/quant.h"

namespace moeblas::checkpoint {

enum class Architecture { olmoe, qwen3_moe };

// What the root mean square of a query or key is taken over.
enum class QkNorm { all_heads, each_head };

// The "quantization" of an MLX checkpoint.
struct Quantization {
  QuantSpec spec;  // resolved
  // By module path; nullopt: false, the module is not quantized. An entry without "mode" is affine,
  // whatever the mode of the rest, as mlx-lm reads it.
  std::map<std::string, std::optional<QuantSpec>, std::less<>> overrides;

  std::optional<QuantSpec> of(std::string_view module) const;

  // Of the config.json of any model; nullopt if it says nothing.
  static std::optional<Quantization> read(const std::filesystem::path& path);
};

// Every number is in the range that its comment gives, and each is at most 2^24 where none is
// given, so that a product of two fits int64 (of three with 2^15).
struct Config {
  std::string file;  // for messages
  Architecture architecture{};
  int64_t hidden_size = 0;              // >= 1
  int64_t num_hidden_layers = 0;        // 1 .. 4096
  int64_t num_attention_heads = 0;      // >= 1, a multiple of num_key_value_heads
  int64_t num_key_value_heads = 0;      // >= 1
  int64_t head_dim = 0;                 // >= 2, even
  int64_t num_experts = 0;              // 1 .. 65536
  int64_t num_experts_per_tok = 0;      // 1 .. num_experts
  int64_t moe_intermediate_size = 0;    // >= 1, of an expert (OLMoE's intermediate_size)
  int64_t intermediate_size = 0;        // >= 1, of a layer without experts (Qwen3-MoE)
  int64_t vocab_size = 0;               // >= 1
  int64_t max_position_embeddings = 0;  // >= 1
  bool norm_topk_prob = false;
  bool tie_word_embeddings = false;
  bool attention_bias = false;     // q, k, v and o have P.bias
  double rope_theta = 0;           // > 0, finite
  double rms_norm_eps = 0;         // >= 0, finite
  std::optional<double> clip_qkv;  // > 0: q, k and v are limited to [-clip_qkv, clip_qkv]
  QkNorm qk_norm{};                // OLMoE all_heads, Qwen3-MoE each_head
  std::vector<bool> sparse;        // per layer: experts, or one dense MLP
  std::vector<int64_t> eos_token_ids;
  std::optional<Quantization> quantization;

  // Throws Error naming file and field: no JSON, a name twice, a missing field, a wrong type, a
  // value out of range, an architecture other than OLMoE and Qwen3-MoE, a variant of them that is
  // not implemented (rope scaling, sliding window, another activation than silu).
  static Config read(const std::filesystem::path& path);
  static Config parse(std::string file, std::string_view text);
};

// The bytes of one token are the token: a vocabulary of 256 and no tokenizer in the folder.
bool is_byte_model(const Config& config, const std::filesystem::path& folder);

}  // namespace moeblas::checkpoint
