// moeblas inspect: what is in a file of safetensors, or in a model's folder.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "commands.h"
#include "moeblas/ops.h"

namespace moeblas::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Safetensors;
using checkpoint::Tensor;

// A line of the listing: a tensor, or the tensors of one quantized module.
struct Line {
  std::string name;
  std::string format;
  std::vector<int64_t> shape;
  uint64_t parameters = 0;
  uint64_t bytes = 0;
};

struct Found {
  const Safetensors* file;
  const Tensor* tensor;
};

// "layers.2" before "layers.10".
struct Natural {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const {
    const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    const auto number = [&](std::string_view s) {
      return s.substr(0,
                      static_cast<size_t>(std::find_if_not(s.begin(), s.end(), digit) - s.begin()));
    };
    while (!a.empty() && !b.empty()) {
      const std::string_view m = number(a), n = number(b);
      if (m.size() != n.size() && !m.empty() && !n.empty()) return m.size() < n.size();
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
    return a.size() < b.size();
  }
};

using Tensors = std::map<std::string_view, Found, Natural>;

std::vector<Safetensors> open_all(const fs::path& path) {
  std::vector<Safetensors> files;
  if (fs::is_directory(path)) {
    for (const fs::path& file : checkpoint::weight_files(path)) {
      files.push_back(Safetensors::open(file));
    }
  } else {
    files.push_back(Safetensors::open(path));
  }
  return files;
}

std::string format_of(const QuantSpec& spec) {
  return std::string(name(spec.mode)) + " " + std::to_string(spec.bits) + "-bit, groups of " +
         std::to_string(spec.group_size);
}

Line line_of(const Tensor& t) {
  uint64_t parameters = 1;
  for (const int64_t size : t.shape) parameters *= static_cast<uint64_t>(size);
  return {checkpoint::printable(t.name), t.type->name, t.shape, parameters, t.bytes};
}

// The module of `weight`, if it is quantized and its tensors fit what the config says.
std::optional<Line> quantized_line(const Tensors& tensors, const std::string& module,
                                   const std::optional<checkpoint::Quantization>& quantization) {
  const auto find = [&](const char* part) -> const Found* {
    const auto found = tensors.find(module + part);
    return found == tensors.end() ? nullptr : &found->second;
  };
  const Found *weight = find(".weight"), *scales = find(".scales"), *biases = find(".biases");
  const auto spec = quantization ? quantization->of(module) : std::nullopt;
  if (!spec || weight == nullptr || scales == nullptr) return std::nullopt;
  try {
    Quantized q;
    q.spec = *spec;
    q.codes = weight->file->view(*weight->tensor);
    q.scales = scales->file->view(*scales->tensor);
    if (biases != nullptr) q.biases = biases->file->view(*biases->tensor);
    const Shape shape = infer_dequantize(q).shape;
    return Line{
        checkpoint::printable(module),
        format_of(*spec),
        {shape.begin(), shape.end()},
        static_cast<uint64_t>(shape.numel()),
        weight->tensor->bytes + scales->tensor->bytes + (biases ? biases->tensor->bytes : 0)};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

double bits_per_weight(const Line& line) {
  return line.parameters == 0
             ? 0
             : 8.0 * static_cast<double>(line.bytes) / static_cast<double>(line.parameters);
}

std::string text(const std::vector<int64_t>& shape) {
  std::string result = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    result += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return result + "]";
}

void inspect(const std::string& target) {
  const fs::path path(target);
  const std::vector<Safetensors> files = open_all(path);
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  std::optional<checkpoint::Quantization> quantization;
  if (fs::exists(folder / "config.json")) {
    // Of another library's formats, the tensors can still be listed.
    try {
      quantization = checkpoint::Quantization::read(folder / "config.json");
    } catch (const checkpoint::Error& e) {
      std::fprintf(stderr, "moeblas: %s\n", e.what());
    }
  }
  Tensors tensors;
  for (const Safetensors& file : files) {
    std::printf("%s: %.2f MB, %zu tensors\n", file.file().c_str(),
                static_cast<double>(file.file_bytes()) / 1e6, file.tensors().size());
    for (const Tensor& t : file.tensors()) {
      const auto [other, fresh] = tensors.emplace(t.name, Found{&file, &t});
      if (!fresh) {
        throw checkpoint::Error(file.file(), t.name, "is also in " + other->second.file->file());
      }
    }
  }
  std::vector<Line> lines;
  std::map<std::string, Line> formats;
  Line total{"total", "", {}, 0, 0};
  for (auto it = tensors.begin(); it != tensors.end(); ++it) {
    const std::string name(it->first);
    const size_t dot = name.rfind('.');
    const std::string module = name.substr(0, dot),
                      part = dot < name.size() ? name.substr(dot) : "";
    std::optional<Line> line;
    if (part == ".weight" || part == ".scales" || part == ".biases") {
      line = quantized_line(tensors, module, quantization);
      if (line && part != ".weight") continue;
    }
    if (!line) line = line_of(*it->second.tensor);
    for (Line* sum : {&formats[line->format], &total}) {
      sum->parameters += line->parameters;
      sum->bytes += line->bytes;
    }
    lines.push_back(std::move(*line));
  }
  int width = 6;
  for (const Line& line : lines) width = std::max(width, static_cast<int>(line.name.size()));
  std::printf("\n%-*s  %-28s  %-20s  %14s  %s\n", width, "tensor", "format", "shape", "bytes",
              "bits per weight");
  for (const Line& l : lines) {
    std::printf("%-*s  %-28s  %-20s  %14llu  %.2f\n", width, l.name.c_str(), l.format.c_str(),
                text(l.shape).c_str(), static_cast<unsigned long long>(l.bytes),
                bits_per_weight(l));
  }
  std::printf("\n%-28s  %14s  %14s  %s\n", "format", "parameters", "bytes", "bits per weight");
  const auto print_sum = [](const std::string& name, const Line& l) {
    std::printf("%-28s  %14llu  %14llu  %.2f\n", name.c_str(),
                static_cast<unsigned long long>(l.parameters),
                static_cast<unsigned long long>(l.bytes), bits_per_weight(l));
  };
  for (const auto& [format, sum] : formats) print_sum(format, sum);
  print_sum("total", total);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto* command = app.add_subcommand(
      "inspect", "Tensors, formats, sizes and bits per weight of a file or a folder");
  auto path = std::make_shared<std::string>();
  command->add_option("path", *path, "A file of safetensors, or a folder of model*.safetensors")
      ->required();
  command->callback([path] { inspect(*path); });
}

}  // namespace moeblas::cli
