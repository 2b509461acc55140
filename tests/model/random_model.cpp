#include "model/random_model.h"

#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "checkpoint/writer.h"
#include "support/codec.h"

namespace moeblas::test {

struct RandomModel::Coded {
  std::optional<QuantSpec> format;
  int64_t n, k;
  Stored weight, scales, biases;
};

namespace {

constexpr const char* kProjections[] = {"gate_proj", "up_proj", "down_proj"};

std::vector<std::byte> room(DType dtype, int64_t count) {
  return std::vector<std::byte>(static_cast<size_t>(count) * size_of(dtype));
}

nlohmann::json quantization(const QuantSpec& spec) {
  return {{"mode", name(spec.mode)}, {"bits", spec.bits}, {"group_size", spec.group_size}};
}

}  // namespace

RandomModel::RandomModel(const RandomConfig& config, uint64_t seed)
    : config_(config), random_(seed) {
  std::string pattern = (std::filesystem::temp_directory_path() / "moeblas-drawn-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp fails");
  folder_ = pattern;
  const RandomConfig& c = config_;
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const bool each_head = c.family == Family::qwen3_moe;
  const auto head_format = c.head_format ? c.head_format : c.format;
  linear("model.embed_tokens", head_format, c.vocab, c.hidden, false, 8);
  if (!c.tied) linear("lm_head", head_format, c.vocab, c.hidden, false, 2);
  vector("model.norm.weight", c.hidden, 1, 0.2);
  for (size_t l = 0; l < c.sparse.size(); ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    vector(layer + "input_layernorm.weight", c.hidden, 1, 0.2);
    vector(layer + "post_attention_layernorm.weight", c.hidden, 1, 0.2);
    vector(attention + "q_norm.weight", each_head ? c.head_dim : q, 1.5, 0.2);
    vector(attention + "k_norm.weight", each_head ? c.head_dim : kv, 1.5, 0.2);
    linear(attention + "q_proj", c.format, q, c.hidden, c.attention_bias);
    linear(attention + "k_proj", c.format, kv, c.hidden, c.attention_bias);
    linear(attention + "v_proj", c.format, kv, c.hidden, c.attention_bias);
    linear(attention + "o_proj", c.format, c.hidden, q, c.attention_bias);
    if (c.sparse[l]) {
      linear(mlp + "gate", c.float_router ? std::nullopt : c.format, c.experts, c.hidden, false, 2);
      experts(mlp);
    } else {
      linear(mlp + "gate_proj", c.format, c.mlp_size, c.hidden, false, 2);
      linear(mlp + "up_proj", c.format, c.mlp_size, c.hidden, false);
      linear(mlp + "down_proj", c.format, c.hidden, c.mlp_size, false, 2);
    }
  }
  write_config();
  write_weights();
}

RandomModel::~RandomModel() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void RandomModel::vector(const std::string& name, int64_t size, double middle, double spread) {
  Stored s{config_.dtype, {size}, room(config_.dtype, size)};
  std::vector<double>& values = values_[name];
  for (int64_t i = 0; i < size; ++i) {
    store_value(s.bytes.data(), s.dtype, i, middle + spread * random_.normal());
    values.push_back(load_value(s.bytes.data(), s.dtype, i));
  }
  stored_[name] = std::move(s);
}

// Values of a standard deviation of about scale / sqrt(k).
RandomModel::Coded RandomModel::draw(const std::string& module,
                                     const std::optional<QuantSpec>& format, int64_t n, int64_t k,
                                     double scale) {
  const double deviation = scale / std::sqrt(static_cast<double>(k));
  std::vector<double>& values = values_[module + ".weight"];
  Coded m{format, n, k, {}, {}, {}};
  if (!format) {
    m.weight = {config_.dtype, {n, k}, room(config_.dtype, n * k)};
    for (int64_t i = 0; i < n * k; ++i) {
      store_value(m.weight.bytes.data(), config_.dtype, i, deviation * random_.normal());
      values.push_back(load_value(m.weight.bytes.data(), config_.dtype, i));
    }
    return m;
  }
  const bool affine = format->mode == Mode::affine;
  const int64_t words = k * format->bits / 32, groups = k / format->group_size;
  m.weight = {DType::u32, {n, words}, room(DType::u32, n * words)};
  for (std::byte& byte : m.weight.bytes) {
    int64_t code = random_.below(256);
    if (format->mode == Mode::mxfp8) code = (code & 0x87) | random_.between(4, 7) << 3;
    byte = static_cast<std::byte>(code);
  }
  const DType scale_dtype = affine ? config_.dtype : DType::u8;
  m.scales = {scale_dtype, {n, groups}, room(scale_dtype, n * groups)};
  if (affine) m.biases = {scale_dtype, {n, groups}, room(scale_dtype, n * groups)};
  for (int64_t g = 0; g < n * groups; ++g) {
    auto* byte = reinterpret_cast<uint8_t*>(m.scales.bytes.data()) + g;
    if (affine) {
      const double levels = std::ldexp(1.0, format->bits);
      const double step = deviation * std::sqrt(12.0) / levels * (0.8 + 0.4 * random_.uniform());
      store_value(m.scales.bytes.data(), scale_dtype, g, random_.one_in(2) ? step : -step);
      const double stored = load_value(m.scales.bytes.data(), scale_dtype, g);
      store_value(m.biases.bytes.data(), scale_dtype, g, -stored * (levels - 1) / 2);
    } else if (format->mode == Mode::nvfp4) {
      *byte = static_cast<uint8_t>(encode(kE4M3, deviation / 3 * (0.8 + 0.4 * random_.uniform())));
    } else {
      const double largest = format->mode == Mode::mxfp4 ? 3 : 1;
      *byte = static_cast<uint8_t>(127 + std::lround(std::log2(deviation / largest)));
    }
  }
  if (!config_.keep_values) return m;
  const auto* codes = reinterpret_cast<const uint8_t*>(m.weight.bytes.data());
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      const uint32_t code = packed_code(codes + row * words * 4, format->bits, i);
      const int64_t g = row * groups + i / format->group_size;
      values.push_back(
          affine ? decode_affine(code, load_value(m.scales.bytes.data(), scale_dtype, g),
                                 load_value(m.biases.bytes.data(), scale_dtype, g))
                 : decode_block(format->mode, code,
                                static_cast<uint32_t>(m.scales.bytes[static_cast<size_t>(g)]), 1));
    }
  }
  return m;
}

void RandomModel::store(const std::string& module, const std::vector<Coded>& matrices,
                        bool stacked) {
  const auto join = [&](const char* part, Stored Coded::* member) {
    Stored all = matrices[0].*member;
    for (size_t i = 1; i < matrices.size(); ++i) {
      const std::vector<std::byte>& more = (matrices[i].*member).bytes;
      all.bytes.insert(all.bytes.end(), more.begin(), more.end());
    }
    if (stacked) all.shape.insert(all.shape.begin(), static_cast<int64_t>(matrices.size()));
    if (!all.bytes.empty()) stored_[module + part] = std::move(all);
  };
  join(".weight", &Coded::weight);
  join(".scales", &Coded::scales);
  join(".biases", &Coded::biases);
}

void RandomModel::linear(const std::string& module, const std::optional<QuantSpec>& format,
                         int64_t n, int64_t k, bool bias, double scale) {
  store(module, {draw(module, format, n, k, scale)}, false);
  if (bias) vector(module + ".bias", n, 0, 0.3);
}

void RandomModel::experts(const std::string& mlp) {
  const RandomConfig& c = config_;
  std::map<std::string, std::vector<Coded>> coded;
  for (const std::string projection : kProjections) {
    const bool down = projection == "down_proj";
    for (int64_t e = 0; e < c.experts; ++e) {
      const std::string module = mlp + "experts." + std::to_string(e) + "." + projection;
      const int64_t n = down ? c.hidden : c.expert_size, k = down ? c.expert_size : c.hidden;
      coded[projection].push_back(draw(module, c.format, n, k, projection == "up_proj" ? 1 : 2));
      if (c.layout == ExpertLayout::separate) store(module, {coded[projection].back()}, false);
    }
    if (c.layout == ExpertLayout::stacked) {
      store(mlp + "switch_mlp." + projection, coded[projection], true);
    }
  }
  if (c.layout != ExpertLayout::joint) return;
  const auto append = [](Stored& all, const Stored& more) {
    all.bytes.insert(all.bytes.end(), more.bytes.begin(), more.bytes.end());
  };
  Stored joint{c.dtype, {c.experts, 2 * c.expert_size, c.hidden}, {}};
  Stored down{c.dtype, {c.experts, c.hidden, c.expert_size}, {}};
  for (size_t e = 0; e < static_cast<size_t>(c.experts); ++e) {
    append(joint, coded["gate_proj"][e].weight);
    append(joint, coded["up_proj"][e].weight);
    append(down, coded["down_proj"][e].weight);
  }
  stored_[mlp + "experts.gate_up_proj"] = std::move(joint);
  stored_[mlp + "experts.down_proj"] = std::move(down);
}

void RandomModel::write_config() const {
  const RandomConfig& c = config_;
  const bool olmoe = c.family == Family::olmoe;
  nlohmann::json json = {
      {"architectures", {olmoe ? "OlmoeForCausalLM" : "Qwen3MoeForCausalLM"}},
      {"model_type", olmoe ? "olmoe" : "qwen3_moe"},
      {"hidden_act", "silu"},
      {"hidden_size", c.hidden},
      {"num_hidden_layers", c.sparse.size()},
      {"num_attention_heads", c.heads},
      {"num_key_value_heads", c.kv_heads},
      {"num_experts", c.experts},
      {"num_experts_per_tok", c.top_k},
      {"norm_topk_prob", c.normalize},
      {"intermediate_size", olmoe ? c.expert_size : c.mlp_size},
      {"max_position_embeddings", c.context},
      {"vocab_size", c.vocab},
      {"rms_norm_eps", c.epsilon},
      {"rope_theta", c.theta},
      {"attention_bias", c.attention_bias},
      {"tie_word_embeddings", c.tied},
  };
  if (c.clip_qkv) json["clip_qkv"] = *c.clip_qkv;
  if (!olmoe) {
    json["head_dim"] = c.head_dim;
    json["moe_intermediate_size"] = c.expert_size;
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = nlohmann::json::array();
    for (size_t l = 0; l < c.sparse.size(); ++l) {
      if (!c.sparse[l]) json["mlp_only_layers"].push_back(l);
    }
  }
  if (c.format) {
    nlohmann::json q = quantization(*c.format);
    if (c.head_format) {
      q["model.embed_tokens"] = q["lm_head"] = quantization(*c.head_format);
    }
    for (size_t l = 0; l < c.sparse.size() && c.float_router; ++l) {
      q["model.layers." + std::to_string(l) + ".mlp.gate"] = false;
    }
    json["quantization"] = q;
  }
  std::ofstream(folder_ / "config.json") << json.dump(2);
}

void RandomModel::write_weights() const {
  const size_t files = config_.two_files ? 2 : 1;
  std::vector<std::vector<checkpoint::Declared>> declared(files);
  size_t turn = 0;
  for (const auto& [name, s] : stored_)
    declared[turn++ % files].push_back({name, s.dtype, s.shape});
  for (size_t f = 0; f < files; ++f) {
    const std::string number = "model-0000" + std::to_string(f + 1) + "-of-00002.safetensors";
    checkpoint::SafetensorsWriter writer(folder_ / (files > 1 ? number : "model.safetensors"),
                                         declared[f], {});
    for (const checkpoint::Declared& d : declared[f]) {
      writer.write(d.name, 0, stored_.at(d.name).bytes);
    }
    writer.finish();
  }
}

uint64_t RandomModel::file_bytes() const {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    bytes += entry.file_size();
  }
  return bytes;
}

}  // namespace moeblas::test
