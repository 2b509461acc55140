#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "checkpoint/json.h"
#include "checkpoint/modules.h"
#include "moeblas/ops.h"

namespace moeblas::checkpoint {
namespace {

constexpr size_t kMostNames = 1000;

std::string text(const Shape& shape) {
  std::string result = "[";
  for (int i = 0; i < shape.ndim(); ++i) result += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return result + "]";
}

std::string path(std::string_view module, std::string_view name) {
  return std::string(module).append(1, '.').append(name);
}

// Of many names, a few besides the first.
std::string others(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string result;
  for (size_t i = 1; i < std::min(names.size(), kShown); ++i) result += ", " + printable(names[i]);
  if (names.size() > kShown) result += " and " + std::to_string(names.size() - kShown) + " more";
  return names.size() > 1 ? "; so is" + result.substr(1) : "";
}

// The file that model.safetensors.index.json promises a tensor in; "" if it does not say.
std::string promised_file(const std::filesystem::path& folder, const std::string& tensor) {
  const auto index = folder / "model.safetensors.index.json";
  if (!std::filesystem::exists(index)) return "";
  const Json json = parse_json(index.string(), read_text(index));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) return "";
  const auto entry = map->find(tensor);
  return entry != map->end() && entry->is_string() ? entry->get<std::string>() : "";
}

}  // namespace

std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder) {
  std::error_code failed;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) paths.push_back(entry.path());
  }
  if (failed) throw Error(folder.string(), "", failed.message());
  if (paths.empty()) throw Error(folder.string(), "", "holds no model*.safetensors");
  std::sort(paths.begin(), paths.end());
  return paths;
}

Checkpoint Checkpoint::open(const std::filesystem::path& folder) {
  std::vector<Safetensors> files;
  for (const auto& file : weight_files(folder)) files.push_back(Safetensors::open(file));
  Checkpoint checkpoint(Config::read(folder / "config.json"), std::move(files));
  checkpoint.folder_ = folder;
  return checkpoint;
}

Checkpoint::Checkpoint(Config config, std::vector<Safetensors> files)
    : config_(std::move(config)), files_(std::move(files)) {
  for (size_t i = 0; i < files_.size(); ++i) {
    for (size_t j = 0; j < files_[i].tensors().size(); ++j) {
      const std::string& name = files_[i].tensors()[j].name;
      const auto [other, fresh] = by_name_.emplace(name, Place{i, j});
      if (!fresh)
        throw Error(files_[i].file(), name, "is also in " + files_[other->second.file].file());
    }
  }
}

std::string Checkpoint::where() const { return folder_.empty() ? config_.file : folder_.string(); }

const Safetensors& Checkpoint::file_of(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw Error(where(), name, "is missing");
  return files_[found->second.file];
}

TensorView Checkpoint::view(std::string_view name) const {
  const Safetensors& file = file_of(name);
  return file.view(file.tensors()[by_name_.find(name)->second.tensor]);
}

TensorView Checkpoint::tensor(std::string_view name, const Shape& shape) const {
  const TensorView found = view(name);
  const std::string file = file_of(name).file();
  if (!is_float(found.dtype)) {
    throw Error(file, name,
                std::string("has dtype ") + moeblas::name(found.dtype) +
                    ", expected float32, float16 or bfloat16");
  }
  if (found.shape != shape) {
    throw Error(file, name, "has shape " + text(found.shape) + ", expected " + text(shape));
  }
  return found;
}

TensorView Checkpoint::bias(std::string_view module, int64_t n) const {
  const std::string name = path(module, "bias");
  return has(name) ? tensor(name, {n}) : TensorView();
}

Quantized Checkpoint::dense(std::string_view name, const Shape& shape) const {
  Quantized q;
  q.spec = {Mode::dense, 0, 0};
  q.codes = tensor(name, shape);
  return q;
}

Quantized Checkpoint::weight(std::string_view module, const Shape& shape) const {
  const std::string weight = path(module, "weight"), scales = path(module, "scales"),
                    biases = path(module, "biases");
  const std::string prefix = path(module, "");
  for (auto it = by_name_.lower_bound(prefix);
       it != by_name_.end() && it->first.starts_with(prefix); ++it) {
    const std::string_view part = std::string_view(it->first).substr(prefix.size());
    if (part != "weight" && part != "scales" && part != "biases" && part != "bias") {
      throw Error(file_of(it->first).file(), it->first,
                  "is unknown; a module has weight, scales, biases and bias");
    }
  }
  if (!has(scales)) {
    if (has(biases)) throw Error(file_of(biases).file(), biases, "is there without scales");
    return dense(weight, shape);
  }
  if (!config_.quantization) {
    throw Error(config_.file, "quantization", "is missing, but there is " + printable(scales));
  }
  const auto spec = config_.quantization->of(module);
  if (!spec) {
    throw Error(config_.file, "quantization." + std::string(module),
                "is false, but there is " + printable(scales));
  }
  Quantized q;
  q.spec = *spec;
  q.codes = view(weight);
  q.scales = view(scales);
  if (has(biases)) q.biases = view(biases);
  Shape found;
  try {
    found = infer_dequantize(q).shape;
  } catch (const moeblas::Error& e) {
    throw Error(file_of(weight).file(), module, e.what());
  }
  if (found != shape) {
    throw Error(file_of(weight).file(), weight,
                "holds a matrix of shape " + text(found) + ", expected " + text(shape));
  }
  return q;
}

Experts Checkpoint::experts(std::string_view mlp, std::string_view projection,
                            const Shape& shape) const {
  const int64_t count = shape[0], n = shape[1], k = shape[2];
  for (const char* stack : {"switch_mlp", "experts"}) {
    const std::string module = path(path(mlp, stack), projection);
    if (has(path(module, "weight"))) return {weight(module, shape), {}};
  }
  const std::string parameter = path(path(mlp, "experts"), projection);
  if (has(parameter)) return {dense(parameter, shape), {}};
  const std::string both = path(mlp, "experts.gate_up_proj");
  if (has(both) && projection != "down_proj") {
    Quantized q = dense(both, {count, 2 * n, k});
    const int64_t first = projection == "up_proj" ? n * k : 0;
    const auto* data = static_cast<const char*>(q.codes.data);
    q.codes = {data + first * static_cast<int64_t>(size_of(q.codes.dtype)), q.codes.dtype, shape,
               Shape{2 * n * k, k, 1}};
    return {q, {}};
  }
  Experts result;
  for (int64_t e = 0; e < count; ++e) {
    const std::string module = path(path(path(mlp, "experts"), std::to_string(e)), projection);
    result.separate.push_back(weight(module, {n, k}));
  }
  return result;
}

std::vector<std::string> Checkpoint::missing() const {
  std::vector<std::string> names;
  const auto need = [&](std::string name) {
    if (names.size() < kMostNames && !has(name)) names.push_back(std::move(name));
  };
  const auto need_experts = [&](const Module& m) {
    const std::string experts = path(m.mlp, "experts.");
    for (const std::string& stack :
         {m.path + ".weight", experts + m.projection + ".weight", experts + m.projection}) {
      if (has(stack)) return;
    }
    if (m.projection != "down_proj" && has(experts + "gate_up_proj")) return;
    const auto first = by_name_.lower_bound(experts);
    if (first == by_name_.end() || !first->first.starts_with(experts)) {
      return need(experts + "*." + m.projection + ".weight");
    }
    for (int64_t e = 0; e < m.shape[0] && names.size() < kMostNames; ++e) {
      need(experts + std::to_string(e) + "." + m.projection + ".weight");
    }
  };
  visit_modules(config_, [&](const Module& m) {
    if (m.kind == Module::experts) return need_experts(m);
    need(m.path + ".weight");
    if (m.bias) need(m.path + ".bias");
  });
  return names;
}

std::vector<std::string> Checkpoint::unknown() const {
  std::set<std::string_view> known;
  const auto know = [&](const std::string& name) {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) known.insert(found->first);
  };
  const auto know_module = [&](const std::string& module) {
    for (const char* part : {"weight", "scales", "biases", "bias"}) know(path(module, part));
  };
  visit_modules(config_, [&](const Module& m) {
    know_module(m.path);
    if (m.kind != Module::experts) return;
    const std::string experts = path(m.mlp, "experts.");
    know_module(experts + m.projection);
    know(experts + m.projection);
    if (m.projection != "down_proj") know(experts + "gate_up_proj");
    // The files' names, not all that the config's number of experts allows.
    for (auto it = by_name_.lower_bound(experts);
         it != by_name_.end() && it->first.starts_with(experts); ++it) {
      int64_t e = -1;
      const std::string_view rest = std::string_view(it->first).substr(experts.size());
      const auto number = std::from_chars(rest.data(), rest.data() + rest.size(), e);
      if (number.ec != std::errc() || e < 0 || e >= m.shape[0]) continue;
      const std::string module = experts + std::to_string(e) + "." + m.projection;
      if (it->first.starts_with(module + ".")) know_module(module);
    }
  });
  if (config_.tie_word_embeddings) know_module("lm_head");
  std::vector<std::string> names;
  for (const auto& [name, place] : by_name_) {
    if (names.size() < kMostNames && !known.contains(name)) names.push_back(name);
  }
  return names;
}

void Checkpoint::require_complete() const {
  if (const auto names = missing(); !names.empty()) {
    const std::string file = folder_.empty() ? "" : promised_file(folder_, names[0]);
    throw Error(where(), names[0],
                "is missing" + others(names) +
                    (file.empty() ? "" : "; the index says that it is in " + printable(file)));
  }
  if (const auto names = unknown(); !names.empty()) {
    throw Error(file_of(names[0]).file(), names[0],
                "is no tensor of this architecture" + others(names));
  }
}

}  // namespace moeblas::checkpoint
