#include "checkpoints/tiny_model.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/modules.h"
#include "checkpoint/safetensors.h"
#include "moeblas/ops.h"
#include "support/random.h"

namespace moeblas::test {
namespace {

using checkpoint::Module;

std::string bytes_of(const void* data, size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

// Values that every float type holds exactly.
std::vector<float> values_of(const std::string& name, int64_t count) {
  Random random(std::hash<std::string>{}(name));
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(random.between(-64, 64)) / 64.0f);
  }
  return values;
}

std::string encoded(const std::vector<float>& values, DType dtype) {
  std::string data;
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    if (dtype == DType::f32) {
      data += bytes_of(&bits, 4);
    } else {
      const auto upper = static_cast<uint16_t>(bits >> 16);
      data += bytes_of(&upper, 2);
    }
  }
  return data;
}

Blob floats(const std::string& name, const std::vector<int64_t>& shape,
            const std::vector<float>& values, DType dtype) {
  return {name, checkpoint::type_of(dtype).name, shape, encoded(values, dtype)};
}

std::vector<int64_t> list(const Shape& shape) { return {shape.begin(), shape.end()}; }

void add_quantized(std::vector<Blob>& blobs, const Module& m, const Blob& w, DType dtype,
                   const QuantSpec& spec) {
  const TensorView view(w.data.data(), dtype, m.shape);
  const QuantizedSpec specs = infer_quantize(view, spec);
  const auto add = [&](const char* part, const Spec& s) {
    blobs.push_back({m.path + part, checkpoint::type_of(s.dtype).name, list(s.shape),
                     std::string(static_cast<size_t>(s.shape.numel()) * size_of(s.dtype), '\0')});
    return TensorView(blobs.back().data.data(), s.dtype, s.shape);
  };
  blobs.reserve(blobs.size() + 3);
  Quantized q;
  q.spec = spec;
  q.codes = add(".weight", specs.codes);
  q.scales = add(".scales", specs.scales);
  if (specs.biases) q.biases = add(".biases", *specs.biases);
  quantize(view, q);
}

void add_experts(std::vector<Blob>& blobs, const Module& m, const Tiny& tiny) {
  const auto values = values_of(m.path, m.shape.numel());
  const Blob all = floats(m.path + ".weight", list(m.shape), values, tiny.dtype);
  if (tiny.spec) return add_quantized(blobs, m, all, tiny.dtype, *tiny.spec);
  const std::string experts = m.mlp + ".experts.";
  const size_t bytes = all.data.size() / static_cast<size_t>(m.shape[0]);
  switch (tiny.layout) {
    case Layout::mlx:
      blobs.push_back(all);
      break;
    case Layout::separate:
      for (int64_t e = 0; e < m.shape[0]; ++e) {
        blobs.push_back({experts + std::to_string(e) + "." + m.projection + ".weight",
                         all.type,
                         {m.shape[1], m.shape[2]},
                         all.data.substr(static_cast<size_t>(e) * bytes, bytes)});
      }
      break;
    case Layout::stacked:
      if (m.projection == "down_proj") {
        blobs.push_back({experts + "down_proj", all.type, all.shape, all.data});
      } else if (m.projection == "gate_proj") {
        Blob both{experts + "gate_up_proj", all.type, {m.shape[0], 2 * m.shape[1], m.shape[2]}, ""};
        Module up = m;
        up.path.replace(up.path.rfind("gate_proj"), 9, "up_proj");
        const std::string ups = encoded(values_of(up.path, m.shape.numel()), tiny.dtype);
        for (size_t e = 0; e < static_cast<size_t>(m.shape[0]); ++e) {
          both.data += all.data.substr(e * bytes, bytes) + ups.substr(e * bytes, bytes);
        }
        blobs.push_back(std::move(both));
      }
  }
}

// So that no load can be left out.
volatile unsigned char sink;

void touch(const TensorView& view) {
  const auto* bytes = static_cast<const unsigned char*>(view.data);
  int64_t last = 0;
  for (int i = 0; i < view.ndim(); ++i) {
    if (view.shape[i] == 0) return;
    last += (view.shape[i] - 1) * view.strides[i];
  }
  for (int64_t i = 0; i < (last + 1) * static_cast<int64_t>(size_of(view.dtype)); ++i) {
    sink = bytes[i];
  }
}

void read_weight(const Quantized& q) {
  if (q.spec.mode == Mode::dense) return touch(q.codes);
  const Spec spec = infer_dequantize(q);
  std::vector<std::byte> out(static_cast<size_t>(spec.shape.numel()) * size_of(spec.dtype));
  dequantize(q, {out.data(), spec.dtype, spec.shape});
}

}  // namespace

std::string with_header(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return bytes_of(&length, sizeof(length)) + header + data;
}

std::string safetensors(const std::vector<Blob>& blobs, bool padded) {
  nlohmann::ordered_json header;
  std::string data;
  for (const Blob& blob : blobs) {
    header[blob.name] = {{"dtype", blob.type},
                         {"shape", blob.shape},
                         {"data_offsets", {data.size(), data.size() + blob.data.size()}}};
    data += blob.data;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8 + (padded ? 0 : 1), ' ');
  return with_header(text, data);
}

std::string config_text(const Tiny& tiny, const std::string& extra) {
  const bool olmoe = tiny.architecture == checkpoint::Architecture::olmoe;
  nlohmann::ordered_json config = {{"model_type", olmoe ? "olmoe" : "qwen3_moe"},
                                   {"hidden_size", tiny.hidden},
                                   {"num_hidden_layers", tiny.layers},
                                   {"num_attention_heads", 2},
                                   {"num_key_value_heads", 1},
                                   {"num_experts", 2},
                                   {"num_experts_per_tok", 1},
                                   {"vocab_size", tiny.vocab},
                                   {"max_position_embeddings", 8},
                                   {"rms_norm_eps", 1e-5},
                                   {"rope_theta", 10000.0}};
  config[olmoe ? "intermediate_size" : "moe_intermediate_size"] = tiny.hidden;
  if (!olmoe) config["head_dim"] = tiny.hidden / 2;
  if (tiny.tied) config["tie_word_embeddings"] = true;
  if (tiny.attention_bias) config["attention_bias"] = true;
  if (tiny.spec) {
    const QuantSpec spec = tiny.spec->resolved();
    config["quantization"] = {
        {"group_size", spec.group_size}, {"bits", spec.bits}, {"mode", name(spec.mode)}};
  }
  return "{" + extra + config.dump().substr(1);
}

std::vector<Blob> tensors(const Tiny& tiny) {
  std::vector<Blob> blobs;
  checkpoint::visit_modules(
      checkpoint::Config::parse("tiny", config_text(tiny)), [&](const Module& m) {
        if (m.kind == Module::experts) return add_experts(blobs, m, tiny);
        const Blob weight = floats(m.path + ".weight", list(m.shape),
                                   values_of(m.path, m.shape.numel()), tiny.dtype);
        if (tiny.spec && m.kind != Module::norm) {
          add_quantized(blobs, m, weight, tiny.dtype, *tiny.spec);
        } else {
          blobs.push_back(weight);
        }
        if (m.bias) {
          const std::string name = m.path + ".bias";
          blobs.push_back(floats(name, {m.shape[0]}, values_of(name, m.shape[0]), tiny.dtype));
        }
      });
  std::sort(blobs.begin(), blobs.end(),
            [](const Blob& a, const Blob& b) { return a.name < b.name; });
  return blobs;
}

Aligned::Aligned(const std::string& bytes)
    : data_(std::make_shared<std::vector<std::byte>>()), size_(bytes.size()) {
  const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
  data_->assign(first, first + bytes.size());
}

checkpoint::Checkpoint in_memory(const std::string& config, const Aligned& file) {
  return {checkpoint::Config::parse("config.json", config),
          {checkpoint::Safetensors::parse("model.safetensors", file.span())}};
}

void read_all(const checkpoint::Checkpoint& c) {
  c.require_complete();
  checkpoint::visit_modules(c.config(), [&](const Module& m) {
    if (m.kind == Module::norm) return touch(c.tensor(m.path + ".weight", m.shape));
    if (m.kind != Module::experts) {
      read_weight(c.weight(m.path, m.shape));
      const TensorView bias = c.bias(m.path, m.shape[0]);
      if (bias) touch(bias);
      return;
    }
    const checkpoint::Experts experts = c.experts(m.mlp, m.projection, m.shape);
    if (experts.stack) read_weight(*experts.stack);
    for (const Quantized& expert : experts.separate) read_weight(expert);
  });
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "moeblas-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}
Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_model(const std::filesystem::path& folder, const Tiny& tiny) {
  std::filesystem::create_directories(folder);
  write_file(folder / "config.json", config_text(tiny));
  write_file(folder / "model.safetensors", safetensors(tensors(tiny)));
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const checkpoint::Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace moeblas::test
