#include "checkpoint/config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "checkpoint/json.h"
#include "moeblas/ops.h"

namespace moeblas::checkpoint {
namespace {

constexpr int64_t kMostSize = int64_t{1} << 24;
constexpr int64_t kMostLayers = 4096;
constexpr int64_t kMostCount = 65536;

// The members of one JSON object; a member that is null counts as absent.
class Fields {
 public:
  Fields(const std::string& file, std::string path, const Json& object)
      : file_(file), path_(std::move(path)), object_(object) {
    if (!object_.is_object()) fail("", std::string("is ") + kind(object_) + ", expected an object");
  }

  const Json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& at(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) fail(name, "is missing");
    return *value;
  }
  const std::string& string(const char* name) const {
    const Json& value = at(name);
    if (!value.is_string()) wrong(name, value, "a string");
    return value.get_ref<const std::string&>();
  }
  bool boolean(const char* name, bool otherwise) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) wrong(name, *value, "true or false");
    return value->get<bool>();
  }
  int64_t integer(const char* name, int64_t least, int64_t most) const {
    return integer(name, at(name), least, most);
  }
  int64_t integer(const char* name, int64_t least, int64_t most, int64_t otherwise) const {
    return find(name) == nullptr ? otherwise : integer(name, least, most);
  }
  std::vector<int64_t> integers(const char* name, int64_t least, int64_t most) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_array()) wrong(name, *value, "an array");
    std::vector<int64_t> result;
    for (const Json& element : *value) result.push_back(integer(name, element, least, most));
    return result;
  }
  double number(const char* name) const {
    const Json& value = at(name);
    if (!value.is_number()) wrong(name, value, "a number");
    return value.get<double>();
  }
  double positive(const char* name) const {
    const double value = number(name);
    if (!(value > 0)) fail(name, "is " + text(value) + ", expected more than 0");
    return value;
  }
  // A name inside the object, with what leads to it.
  std::string field(std::string_view name) const {
    return path_.empty() || name.empty() ? path_ + std::string(name) : path_ + '.' += name;
  }
  [[noreturn]] void fail(std::string_view name, const std::string& what) const {
    throw Error(file_, field(name), what);
  }
  static std::string text(double value) { return Json(value).dump(); }

 private:
  static std::string kind(const Json& value) {
    switch (value.type()) {
      case Json::value_t::object:
        return "an object";
      case Json::value_t::array:
        return "an array";
      case Json::value_t::string:
        return "the string " + in_quotes(value.get_ref<const std::string&>());
      default:
        return value.dump();
    }
  }
  [[noreturn]] void wrong(const char* name, const Json& value, const char* expected) const {
    fail(name, "is " + kind(value) + ", expected " + expected);
  }
  int64_t integer(const char* name, const Json& value, int64_t least, int64_t most) const {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
    if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most) {
      fail(name, "is " + kind(value) + ", expected an integer from " + std::to_string(least) +
                     " to " + std::to_string(most));
    }
    return value.get<int64_t>();
  }

  const std::string& file_;
  std::string path_;
  const Json& object_;
};

QuantSpec read_spec(const Fields& fields) {
  QuantSpec spec;
  if (fields.find("mode") != nullptr) {
    const std::string& mode = fields.string("mode");
    int i = 0;
    while (i < kModes && mode != kModeNames[i]) ++i;
    if (i == kModes) {
      fields.fail("mode", "is " + in_quotes(mode) + ", expected affine, mxfp4, mxfp8 or nvfp4");
    }
    spec.mode = static_cast<Mode>(i);
  }
  spec.bits = static_cast<int>(fields.integer("bits", 1, 32, 0));
  spec.group_size = static_cast<int>(fields.integer("group_size", 1, 4096, 0));
  spec = spec.resolved();
  // Which bits and groups a mode has, the library knows.
  try {
    infer_quantize({nullptr, DType::f32, {1, int64_t{32} * spec.group_size}}, spec);
  } catch (const moeblas::Error& e) {
    fields.fail("", e.what());
  }
  return spec;
}

std::optional<Quantization> read_quantization(const std::string& file, const Fields& config) {
  // The second is a duplicate, or another library's only word on the matter.
  std::string name = "quantization";
  const Json* object = config.find(name.c_str());
  if (object == nullptr) object = config.find((name = "quantization_config").c_str());
  if (object == nullptr) return std::nullopt;
  const Fields fields(file, name, *object);
  if (fields.find("quant_method") != nullptr) {
    fields.fail("quant_method",
                "is not supported; supported is the quantization of MLX: "
                "group_size, bits and mode");
  }
  fields.at("group_size");
  fields.at("bits");
  Quantization result{read_spec(fields), {}};
  for (const auto& [key, value] : object->items()) {
    if (key == "group_size" || key == "bits" || key == "mode") continue;
    const std::string path = name + "." + key;
    if (value.is_boolean()) {
      result.overrides[key] = value.get<bool>() ? std::optional(result.spec) : std::nullopt;
    } else if (value.is_object()) {
      result.overrides[key] = read_spec(Fields(file, path, value));
    } else {
      throw Error(file, path, "is neither a module's settings nor true or false");
    }
  }
  return result;
}

void read_rope(const Fields& fields, Config& config) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* value = fields.find(name);
    if (value == nullptr) continue;
    const Fields rope(config.file, name, *value);
    for (const char* type : {"rope_type", "type"}) {
      if (rope.find(type) != nullptr && rope.string(type) != "default") {
        rope.fail(type, "is " + in_quotes(rope.string(type)) + "; supported is default");
      }
    }
    if (rope.find("partial_rotary_factor") != nullptr &&
        rope.number("partial_rotary_factor") != 1.0) {
      rope.fail("partial_rotary_factor", "is not 1; supported is 1");
    }
    if (rope.find("rope_theta") != nullptr) config.rope_theta = rope.positive("rope_theta");
  }
  if (fields.find("rope_theta") != nullptr) {
    const double theta = fields.positive("rope_theta");
    if (config.rope_theta != 0 && config.rope_theta != theta) {
      fields.fail("rope_theta", "is " + Fields::text(theta) + ", but rope_parameters says " +
                                    Fields::text(config.rope_theta));
    }
    config.rope_theta = theta;
  }
  if (config.rope_theta == 0) config.rope_theta = 10000;
}

// What must be as it is in the models that are implemented.
void refuse_variants(const Fields& fields) {
  if (fields.find("hidden_act") != nullptr && fields.string("hidden_act") != "silu") {
    fields.fail("hidden_act",
                "is " + in_quotes(fields.string("hidden_act")) + "; supported is silu");
  }
  for (const char* name : {"use_sliding_window", "mlp_bias", "rope_traditional"}) {
    if (fields.boolean(name, false)) fields.fail(name, "is true; supported is false");
  }
}

// Which layers have experts: those of every decoder_sparse_step, without the mlp_only_layers.
std::vector<bool> sparse_layers(const Fields& fields, const Config& config) {
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  std::vector<bool> sparse(layers, true);
  if (config.architecture == Architecture::olmoe) return sparse;
  const auto step = static_cast<size_t>(fields.integer("decoder_sparse_step", 1, kMostLayers, 1));
  for (size_t i = 0; i < layers; ++i) sparse[i] = (i + 1) % step == 0;
  for (const int64_t i : fields.integers("mlp_only_layers", 0, config.num_hidden_layers - 1)) {
    sparse[static_cast<size_t>(i)] = false;
  }
  return sparse;
}

Architecture read_architecture(const Fields& fields) {
  const std::string& type = fields.string("model_type");
  if (type == "olmoe") return Architecture::olmoe;
  if (type == "qwen3_moe") return Architecture::qwen3_moe;
  fields.fail("model_type", "is " + in_quotes(type) + "; supported are olmoe and qwen3_moe");
}

}  // namespace

std::optional<QuantSpec> Quantization::of(std::string_view module) const {
  const auto found = overrides.find(module);
  return found == overrides.end() ? spec : found->second;
}

std::optional<Quantization> Quantization::read(const std::filesystem::path& path) {
  const std::string file = path.string();
  const Json json = parse_json(file, read_text(path));
  return read_quantization(file, Fields(file, "", json));
}

Config Config::parse(std::string file, std::string_view text) {
  Config c;
  c.file = std::move(file);
  const Json json = parse_json(c.file, text);
  const Fields fields(c.file, "", json);
  c.architecture = read_architecture(fields);
  const bool olmoe = c.architecture == Architecture::olmoe;
  c.qk_norm = olmoe ? QkNorm::all_heads : QkNorm::each_head;

  c.hidden_size = fields.integer("hidden_size", 1, kMostSize);
  c.num_hidden_layers = fields.integer("num_hidden_layers", 1, kMostLayers);
  c.num_attention_heads = fields.integer("num_attention_heads", 1, kMostCount);
  c.num_key_value_heads =
      fields.integer("num_key_value_heads", 1, kMostCount, c.num_attention_heads);
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    fields.fail("num_attention_heads", "is " + std::to_string(c.num_attention_heads) +
                                           ", no multiple of num_key_value_heads, " +
                                           std::to_string(c.num_key_value_heads));
  }
  c.head_dim = fields.integer("head_dim", 2, kMostCount, 0);
  if (c.head_dim == 0) {
    c.head_dim = c.hidden_size / c.num_attention_heads;
    if (c.hidden_size % c.num_attention_heads != 0) {
      fields.fail("head_dim", "is missing, and hidden_size " + std::to_string(c.hidden_size) +
                                  " is no multiple of num_attention_heads, " +
                                  std::to_string(c.num_attention_heads));
    }
  }
  if (c.head_dim % 2 != 0) {
    fields.fail("head_dim", "is " + std::to_string(c.head_dim) + ", expected an even number");
  }
  // Hugging Face writes either name.
  const char* experts = fields.find("num_experts") ? "num_experts" : "num_local_experts";
  c.num_experts = fields.integer(fields.find(experts) ? experts : "num_experts", 1, kMostCount);
  c.num_experts_per_tok = fields.integer("num_experts_per_tok", 1, c.num_experts);
  c.vocab_size = fields.integer("vocab_size", 1, kMostSize);
  c.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMostSize);
  c.norm_topk_prob = fields.boolean("norm_topk_prob", false);
  c.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  c.attention_bias = fields.boolean("attention_bias", false);
  c.rms_norm_eps = fields.number("rms_norm_eps");
  if (c.rms_norm_eps < 0) fields.fail("rms_norm_eps", "is negative");
  if (fields.find("clip_qkv") != nullptr) c.clip_qkv = fields.positive("clip_qkv");
  refuse_variants(fields);
  read_rope(fields, c);

  c.sparse = sparse_layers(fields, c);
  c.moe_intermediate_size =
      fields.integer(olmoe ? "intermediate_size" : "moe_intermediate_size", 1, kMostSize);
  const bool all_sparse = std::find(c.sparse.begin(), c.sparse.end(), false) == c.sparse.end();
  if (!all_sparse) c.intermediate_size = fields.integer("intermediate_size", 1, kMostSize);

  if (const Json* eos = fields.find("eos_token_id"); eos != nullptr && eos->is_array()) {
    c.eos_token_ids = fields.integers("eos_token_id", 0, c.vocab_size - 1);
  } else if (eos != nullptr) {
    c.eos_token_ids = {fields.integer("eos_token_id", 0, c.vocab_size - 1)};
  }
  c.quantization = read_quantization(c.file, fields);
  return c;
}

Config Config::read(const std::filesystem::path& path) {
  return parse(path.string(), read_text(path));
}

bool is_byte_model(const Config& config, const std::filesystem::path& folder) {
  return config.vocab_size == 256 && !std::filesystem::exists(folder / "tokenizer.json") &&
         !std::filesystem::exists(folder / "tokenizer.model") &&
         !std::filesystem::exists(folder / "vocab.json");
}

}  // namespace moeblas::checkpoint
