#include "checkpoint/quantize.h"

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/descriptor.h"
#include "checkpoint/json.h"
#include "checkpoint/modules.h"
#include "checkpoint/writer.h"
#include "moeblas/ops.h"

namespace moeblas::checkpoint {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

// One module of the output.
struct Part {
  std::string path;
  Shape shape;                      // (K), (N, K) or (E, N, K)
  std::vector<TensorView> sources;  // the rows, one after the other, each (K) or (N, K)
  std::optional<QuantSpec> spec;    // nullopt: stays floats
  TensorView bias;

  DType dtype() const { return sources[0].dtype; }
  uint64_t parameters() const { return static_cast<uint64_t>(shape.numel() + bias_size()); }
  int64_t bias_size() const { return bias ? bias.numel() : 0; }
  QuantizedSpec outputs() const { return infer_quantize({nullptr, dtype(), shape}, *spec); }
};

Declared declared(const std::string& name, const Spec& spec) {
  return {name, spec.dtype, {spec.shape.begin(), spec.shape.end()}};
}

std::vector<Declared> tensors_of(const Part& part) {
  std::vector<Declared> tensors;
  if (part.spec) {
    const QuantizedSpec q = part.outputs();
    tensors.push_back(declared(part.path + ".weight", q.codes));
    tensors.push_back(declared(part.path + ".scales", q.scales));
    if (q.biases) tensors.push_back(declared(part.path + ".biases", *q.biases));
  } else {
    tensors.push_back(declared(part.path + ".weight", {part.dtype(), part.shape}));
  }
  if (part.bias)
    tensors.push_back(declared(part.path + ".bias", {part.bias.dtype, part.bias.shape}));
  return tensors;
}

// Rows first .. first + count of a matrix.
TensorView rows_of(const TensorView& matrix, int64_t first, int64_t count) {
  const auto step = matrix.strides[0] * static_cast<int64_t>(size_of(matrix.dtype));
  return {static_cast<const char*>(matrix.data) + first * step, matrix.dtype,
          Shape{count, matrix.shape[1]}, matrix.strides};
}

std::vector<TensorView> matrices_of(const Experts& experts, const Shape& shape) {
  std::vector<TensorView> matrices;
  for (const Quantized& expert : experts.separate) matrices.push_back(expert.codes);
  for (int64_t e = 0; experts.stack && e < shape[0]; ++e) {
    const TensorView& stack = experts.stack->codes;
    const auto step = stack.strides[0] * static_cast<int64_t>(size_of(stack.dtype));
    matrices.emplace_back(static_cast<const char*>(stack.data) + e * step, stack.dtype,
                          Shape{shape[1], shape[2]}, Shape{stack.strides[1], stack.strides[2]});
  }
  return matrices;
}

template <class Bits>
bool all_finite(const void* data, int64_t count, Bits exponent) {
  const auto* bits = static_cast<const Bits*>(data);
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) finite &= (bits[i] & exponent) != exponent;
  return finite;
}

bool all_finite(const TensorView& rows) {
  switch (rows.dtype) {
    case DType::bf16:
      return all_finite<uint16_t>(rows.data, rows.numel(), 0x7f80);
    case DType::f16:
      return all_finite<uint16_t>(rows.data, rows.numel(), 0x7c00);
    default:
      return all_finite<uint32_t>(rows.data, rows.numel(), 0x7f800000);
  }
}

class Conversion {
 public:
  Conversion(const fs::path& in, QuantizeOptions options)
      : in_(in), options_(std::move(options)), checkpoint_(Checkpoint::open(in)) {
    const Config& config = checkpoint_.config();
    if (config.quantization)
      throw Error(config.file, "quantization", "says it is quantized already");
    checkpoint_.require_complete();
    options_.spec = options_.spec.resolved();
    std::vector<bool> used(options_.skip.size());
    visit_modules(config, [&](const Module& m) { add(m, used); });
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i])
        throw Error(in.string(), "skip", in_quotes(options_.skip[i]) + " matches no matrix");
    }
    for (const Part& part : parts_) total_ += part.parameters();
  }

  QuantizeResult write(const fs::path& folder,
                       const std::function<void(uint64_t, uint64_t)>& progress) {
    progress_ = progress;
    open_shards(folder);
    if (progress_) progress_(0, total_);
    for (const Part& part : parts_) write(part);
    for (const auto& shard : shards_) shard->finish();
    write_index(folder);
    for (const auto& entry : fs::directory_iterator(in_)) {
      if (accompanies(entry.path().filename().string())) {
        write_text(folder / entry.path().filename(), read_text(entry.path()));
      }
    }
    // Last: a folder without it does not load.
    write_text(folder / "config.json", config_text());
    return {shard_of_.size(), total_, bytes_};
  }

 private:
  void add(const Module& m, std::vector<bool>& used) {
    Part part{m.path, m.shape, {}, {}, {}};
    if (m.kind == Module::experts) {
      part.sources = matrices_of(checkpoint_.experts(m.mlp, m.projection, m.shape), m.shape);
    } else {
      part.sources = {checkpoint_.tensor(m.path + ".weight", m.shape)};
    }
    for (const TensorView& source : part.sources) {
      if (source.dtype != part.dtype()) {
        throw Error(in_.string(), m.path, "has experts of different dtypes");
      }
    }
    if (m.bias) part.bias = checkpoint_.bias(m.path, m.shape[0]);
    if (m.kind != Module::norm && !skipped(m.path, used)) choose(m, part);
    parts_.push_back(std::move(part));
  }

  // As mlx-lm decides: what group_size does not divide stays floats; a model may have its own wish.
  void choose(const Module& m, Part& part) {
    const int64_t k = m.shape.back();
    if (k % options_.spec.group_size != 0) return;
    part.spec = options_.spec;
    constexpr QuantSpec kRouter{Mode::affine, 8, 64};
    if (m.kind == Module::router && checkpoint_.config().architecture == Architecture::qwen3_moe) {
      if (k % kRouter.group_size != 0) {
        part.spec.reset();
        return;
      }
      part.spec = kRouter;
      overrides_[m.path] = {{"group_size", kRouter.group_size}, {"bits", kRouter.bits}};
    }
    try {
      part.outputs();
    } catch (const moeblas::Error& e) {
      throw Error(in_.string(), m.path, e.what());
    }
  }

  bool skipped(const std::string& path, std::vector<bool>& used) const {
    bool skip = false;
    for (size_t i = 0; i < used.size(); ++i) {
      if (::fnmatch(options_.skip[i].c_str(), path.c_str(), 0) != 0) continue;
      used[i] = true;
      skip = true;
    }
    return skip;
  }

  void open_shards(const fs::path& folder) {
    std::vector<std::vector<Declared>> shards(1);
    uint64_t shard_bytes = 0;
    for (const Part& part : parts_) {
      for (Declared& tensor : tensors_of(part)) {
        const uint64_t bytes = tensor.bytes();
        if (shard_bytes + bytes > options_.shard_bytes && !shards.back().empty()) {
          shards.emplace_back();
          shard_bytes = 0;
        }
        shard_bytes += bytes;
        bytes_ += bytes;
        shard_of_[tensor.name] = shards.size() - 1;
        shards.back().push_back(std::move(tensor));
      }
    }
    for (size_t i = 0; i < shards.size(); ++i) {
      char name[64] = "model.safetensors";
      if (shards.size() > 1) {
        std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
      }
      names_.push_back(name);
      shards_.push_back(std::make_unique<SafetensorsWriter>(
          folder / name, std::move(shards[i]),
          std::map<std::string, std::string>{{"format", "mlx"}}));
    }
  }

  void put(const std::string& tensor, uint64_t offset, const void* data, uint64_t bytes) {
    shards_[shard_of_.at(tensor)]->write(
        tensor, offset, {static_cast<const std::byte*>(data), static_cast<size_t>(bytes)});
  }

  void write(const Part& part) {
    const auto bytes = [](const TensorView& v) {
      return static_cast<uint64_t>(v.numel()) * size_of(v.dtype);
    };
    uint64_t done = 0;
    int64_t rows = 0;
    for (const TensorView& source : part.sources) {
      if (part.spec) {
        write_quantized(part, source, rows);
        rows += source.shape[0];
      } else {
        put(part.path + ".weight", done, source.data, bytes(source));
        done += bytes(source);
        advance(source.numel());
      }
    }
    if (part.bias) {
      put(part.path + ".bias", 0, part.bias.data, bytes(part.bias));
      advance(part.bias.numel());
    }
  }

  // One matrix of a module, whose rows begin at row `base` of the module's.
  void write_quantized(const Part& part, const TensorView& matrix, int64_t base) {
    const int64_t k = matrix.shape[1];
    const int64_t block = std::max<int64_t>(1, (int64_t{1} << 22) / k);
    for (int64_t first = 0; first < matrix.shape[0]; first += block) {
      const TensorView rows = rows_of(matrix, first, std::min(block, matrix.shape[0] - first));
      if (!all_finite(rows))
        throw Error(in_.string(), part.path, "holds a value that is not finite");
      const QuantizedSpec specs = infer_quantize(rows, *part.spec);
      Quantized q;
      q.spec = *part.spec;
      q.codes = buffer(0, specs.codes);
      q.scales = buffer(1, specs.scales);
      if (specs.biases) q.biases = buffer(2, *specs.biases);
      quantize(rows, q);
      put_rows(part.path + ".weight", q.codes, base + first);
      put_rows(part.path + ".scales", q.scales, base + first);
      if (q.biases) put_rows(part.path + ".biases", q.biases, base + first);
      advance(rows.numel());
    }
  }

  void put_rows(const std::string& tensor, const TensorView& rows, int64_t first) {
    const uint64_t row = static_cast<uint64_t>(rows.shape[1]) * size_of(rows.dtype);
    put(tensor, static_cast<uint64_t>(first) * row, rows.data,
        static_cast<uint64_t>(rows.shape[0]) * row);
  }

  TensorView buffer(size_t which, const Spec& spec) {
    auto& memory = buffers_[which];
    memory.resize((static_cast<size_t>(spec.shape.numel()) * size_of(spec.dtype) + 7) / 8);
    return {memory.data(), spec.dtype, spec.shape};
  }

  void advance(int64_t parameters) {
    done_ += static_cast<uint64_t>(parameters);
    if (progress_) progress_(done_, total_);
  }

  void write_index(const fs::path& folder) const {
    OrderedJson map = OrderedJson::object();
    for (const auto& [name, shard] : shard_of_) map.push_back({name, names_[shard]});
    const OrderedJson index = {{"metadata", {{"total_size", bytes_}, {"total_parameters", total_}}},
                               {"weight_map", std::move(map)}};
    write_text(folder / "model.safetensors.index.json", index.dump(4, ' ', true));
  }

  std::string config_text() const {
    const fs::path path = in_ / "config.json";
    Json config = parse_json(path.string(), read_text(path));
    config.erase("_name_or_path");
    config.erase("vision_config");
    // For readers that do not know rope_parameters.
    if (!config.contains("rope_theta")) config["rope_theta"] = checkpoint_.config().rope_theta;
    OrderedJson quantization = {{"group_size", options_.spec.group_size},
                                {"bits", options_.spec.bits},
                                {"mode", name(options_.spec.mode)}};
    for (const auto& [module, spec] : overrides_) quantization[module] = spec;
    // Parsed objects have their names sorted; the new ones go where they sort.
    OrderedJson text = OrderedJson::object();
    config["quantization"] = config["quantization_config"] = nullptr;
    for (const auto& [key, value] : config.items()) {
      text[key] = key.starts_with("quantization") ? quantization : OrderedJson(value);
    }
    return text.dump(4, ' ', true) + '\n';
  }

  static bool accompanies(const std::string& name) {
    for (const char* pattern :
         {"tokenizer*.json", "tokenizer.model", "*.tiktoken", "special_tokens_map.json",
          "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.*",
          "generation_config.json"}) {
      if (::fnmatch(pattern, name.c_str(), 0) == 0) return true;
    }
    return false;
  }

  static void write_text(const fs::path& path, const std::string& text) {
    Descriptor file(path.string(), O_WRONLY | O_CREAT | O_EXCL);
    file.write(text.data(), text.size(), 0);
    file.sync();
    file.finish();
  }

  fs::path in_;
  QuantizeOptions options_;
  Checkpoint checkpoint_;
  std::vector<Part> parts_;
  std::map<std::string, OrderedJson> overrides_;
  std::map<std::string, size_t> shard_of_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<SafetensorsWriter>> shards_;
  std::vector<uint64_t> buffers_[3];
  std::function<void(uint64_t, uint64_t)> progress_;
  uint64_t total_ = 0, done_ = 0, bytes_ = 0;
};

}  // namespace

QuantizeResult quantize_checkpoint(const fs::path& in, const fs::path& out,
                                   const QuantizeOptions& options,
                                   const std::function<void(uint64_t, uint64_t)>& progress) {
  const fs::path normal = fs::absolute(out).lexically_normal();
  const fs::path target = normal.has_filename() ? normal : normal.parent_path();
  const fs::path partial = target.string() + ".partial";
  if (fs::exists(target)) throw Error(out.string(), "", "exists already");
  Conversion conversion(in, options);

  if (::mkdir(partial.c_str(), 0777) != 0) {
    if (errno != EEXIST) throw system_error(partial.string(), "cannot be created");
    throw Error(partial.string(), "",
                "exists: it is being written, or was left by a run that was killed and is to be "
                "removed");
  }
  struct Remover {
    ~Remover() {
      std::error_code ignored;
      if (!done) fs::remove_all(folder, ignored);
    }
    fs::path folder;
    bool done = false;
  } remover{partial};
  const QuantizeResult result = conversion.write(partial, progress);
  Descriptor(partial.string(), O_RDONLY | O_DIRECTORY).sync();
  if (::rename(partial.c_str(), target.c_str()) != 0) {
    throw system_error(out.string(), "cannot be given its name");
  }
  remover.done = true;
  Descriptor(target.parent_path().string(), O_RDONLY | O_DIRECTORY).sync();
  return result;
}

}  // namespace moeblas::checkpoint
