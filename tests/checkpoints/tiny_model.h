// The smallest models of each architecture and layout, as text and bytes in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "moeblas/quant.h"

namespace moeblas::test {

// A tensor to be stored.
struct Blob {
  std::string name;
  std::string type;  // as the format names it
  std::vector<int64_t> shape;
  std::string data;
};

// A file of safetensors, written without the writer under test. padded: the header's length is a
// multiple of 8, as all writers but MLX's make it; otherwise the data begins at an odd address.
std::string safetensors(const std::vector<Blob>& blobs, bool padded = true);
// The same around any header.
std::string with_header(const std::string& header, const std::string& data = "");

enum class Layout {
  separate,  // Hugging Face: a tensor for each expert
  stacked,   // Hugging Face 5 in memory: experts.gate_up_proj and experts.down_proj
  mlx,       // switch_mlp, floats
};

struct Tiny {
  checkpoint::Architecture architecture = checkpoint::Architecture::olmoe;
  Layout layout = Layout::separate;
  DType dtype = DType::bf16;
  std::optional<QuantSpec> spec{};  // quantized, in MLX's layout
  int64_t layers = 1;
  int64_t hidden = 16;
  int64_t vocab = 3;
  bool tied = false;
  bool attention_bias = false;
};

// config.json; `extra` is put in front of the other members, as text that ends with a comma.
std::string config_text(const Tiny& tiny, const std::string& extra = "");
// The tensors, in the order of their names; the same values in every layout.
std::vector<Blob> tensors(const Tiny& tiny);

// Bytes at an address that is a multiple of 16, which a std::string's need not be.
class Aligned {
 public:
  explicit Aligned(const std::string& bytes);
  std::span<const std::byte> span() const { return {data_->data(), size_}; }

 private:
  std::shared_ptr<std::vector<std::byte>> data_;
  size_t size_;
};

// The checkpoint in memory that they make.
checkpoint::Checkpoint in_memory(const std::string& config, const Aligned& file);

// Reads everything that the architecture has: each float tensor's bytes, each quantized matrix
// through dequantize. Throws what the checkpoint throws.
void read_all(const checkpoint::Checkpoint& checkpoint);

// A folder of its own for one test, removed with the object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, const std::string& text);
std::string read_file(const std::filesystem::path& path);
// A model's folder with config.json and model.safetensors.
void write_model(const std::filesystem::path& folder, const Tiny& tiny);

// What `call` throws, which must be a checkpoint::Error; "" if it throws nothing.
std::string error_of(const std::function<void()>& call);

}  // namespace moeblas::test
