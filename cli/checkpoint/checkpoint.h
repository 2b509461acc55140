// Checkpoint: a model's folder, its tensors found by module path and viewed where they lie.
//
//   const auto checkpoint = checkpoint::Checkpoint::open("models/kjv-olmoe-8m-4bit");
//   const Config& c = checkpoint.config();
//   Quantized q = checkpoint.weight("model.layers.0.self_attn.q_proj",
//                                   {c.num_attention_heads * c.head_dim, c.hidden_size});
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/error.h"
#include "checkpoint/safetensors.h"
#include "moeblas/quant.h"

namespace moeblas::checkpoint {

// One projection of a layer's experts, (E, N, K) in all.
struct Experts {
  // Stacked in the file (MLX's switch_mlp, or a three-dimensional parameter of Hugging Face, a view
  // into gate_up_proj included): all experts; spec.mode dense if they are floats.
  std::optional<Quantized> stack;
  // Stored one by one: a matrix (N, K) for each expert. Empty if there is a stack.
  std::vector<Quantized> separate;
};

// The files of a folder that hold its tensors: model*.safetensors, sorted. Throws Error if there is
// none.
std::vector<std::filesystem::path> weight_files(const std::filesystem::path& folder);

// model.safetensors, or the model*.safetensors that are there: their headers say which tensors
// exist, not model.safetensors.index.json, which may name absent files. Views are valid while the
// checkpoint or one moved from it lives. Reading from several threads is safe.
class Checkpoint {
 public:
  static Checkpoint open(const std::filesystem::path& folder);
  Checkpoint(Config config, std::vector<Safetensors> files);

  const Config& config() const { return config_; }
  const std::vector<Safetensors>& files() const { return files_; }
  bool has(std::string_view name) const { return by_name_.contains(name); }

  // What the config's architecture needs and no file has: tensor names in the model's order, at
  // most 1000; a projection of which no expert is there is named once. Empty: nothing is missing.
  std::vector<std::string> missing() const;
  // Tensors that the architecture does not have, at most 1000 names. lm_head.weight beside tied
  // embeddings is known, and not used.
  std::vector<std::string> unknown() const;
  // Throws Error naming what is missing, and the file that the index says it is in, or what is
  // unknown.
  void require_complete() const;

  // The functions below throw Error, naming the file and the tensor, if it is missing or has
  // another shape or dtype than the call expects.

  // A float tensor: a norm's weight, a bias.
  TensorView tensor(std::string_view name, const Shape& shape) const;
  // The bias of a module; an absent view if it has none.
  TensorView bias(std::string_view module, int64_t n) const;
  // The matrix (N, K) of a linear module or an embedding, quantized as the file has it; spec.mode
  // is dense, with the floats in `codes`, for a module that is not quantized. Codes are uint32, or
  // uint8 where the file does not align them (see Safetensors::view).
  Quantized weight(std::string_view module, const Shape& shape) const;
  // projection: gate_proj, up_proj or down_proj of the experts below mlp ("model.layers.0.mlp").
  Experts experts(std::string_view mlp, std::string_view projection, const Shape& shape) const;

 private:
  Quantized dense(std::string_view name, const Shape& shape) const;
  TensorView view(std::string_view name) const;
  const Safetensors& file_of(std::string_view name) const;
  std::string where() const;

  // Positions in files_ and in that file's tensors().
  struct Place {
    size_t file;
    size_t tensor;
  };

  std::filesystem::path folder_;
  Config config_;
  std::vector<Safetensors> files_;
  std::map<std::string, Place, std::less<>> by_name_;
};

}  // namespace moeblas::checkpoint
