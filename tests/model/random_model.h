// Small random language models: a folder with config.json and safetensors, as a user has one, and
// the same weights as numbers, decoded by the tests' own codec.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moeblas/quant.h"
#include "support/random.h"

namespace moeblas::test {

enum class Family { olmoe, qwen3_moe };
// How the experts of a layer lie in the file.
enum class ExpertLayout {
  stacked,   // mlp.switch_mlp.P.weight (E, N, K)
  joint,     // mlp.experts.gate_up_proj (E, 2I, H) and mlp.experts.down_proj (E, H, I); floats
  separate,  // mlp.experts.E.P.weight (N, K)
};

struct RandomConfig {
  Family family = Family::olmoe;
  std::optional<QuantSpec> format{};       // none: floats
  std::optional<QuantSpec> head_format{};  // of embedding and head, where it is another one
  bool float_router = false;               // of a quantized model
  DType dtype = DType::bf16;               // of floats, scales and biases
  ExpertLayout layout = ExpertLayout::stacked;
  bool two_files = false;  // tensors in turn in one or the other
  bool tied = false;
  bool attention_bias = false;
  bool normalize = true;
  std::optional<double> clip_qkv{};
  std::vector<bool> sparse = {true, true};  // per layer
  int64_t hidden = 64, heads = 4, kv_heads = 2, head_dim = 16, experts = 6, top_k = 3;
  int64_t expert_size = 64, mlp_size = 96, vocab = 256, context = 64;
  double theta = 10000, epsilon = 1e-5;
  bool keep_values = true;  // for the reference; a large model may do without
};

class RandomModel {
 public:
  // Draws the weights and writes the folder, which goes with the object.
  RandomModel(const RandomConfig& config, uint64_t seed);
  ~RandomModel();
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;

  const RandomConfig& config() const { return config_; }
  const std::filesystem::path& folder() const { return folder_; }
  // The values of PATH.weight or PATH.bias, row-major; of an expert, PATH is
  // model.layers.L.mlp.experts.E.P, whatever the layout.
  const std::vector<double>& values(const std::string& name) const { return values_.at(name); }
  bool has(const std::string& name) const { return values_.contains(name); }
  uint64_t file_bytes() const;

 private:
  struct Stored {
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  struct Coded;  // a matrix as the file holds it

  void vector(const std::string& name, int64_t size, double middle, double spread);
  Coded draw(const std::string& module, const std::optional<QuantSpec>& format, int64_t n,
             int64_t k, double scale);
  void store(const std::string& module, const std::vector<Coded>& matrices, bool stacked);
  void linear(const std::string& module, const std::optional<QuantSpec>& format, int64_t n,
              int64_t k, bool bias, double scale = 1);
  void experts(const std::string& mlp);
  void write_config() const;
  void write_weights() const;

  RandomConfig config_;
  Random random_;
  std::filesystem::path folder_;
  std::map<std::string, Stored> stored_;
  std::map<std::string, std::vector<double>> values_;
};

}  // namespace moeblas::test
