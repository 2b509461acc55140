// Safetensors: one file of named tensors, checked completely before anything of it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/error.h"
#include "moeblas/tensor.h"

namespace moeblas::checkpoint {

// An element type of the format, by its name there.
struct StoredType {
  const char* name;
  int bits;
  DType dtype;  // DType::other: it can be listed, no operation reads it
};

// Every type that is known; nullptr for any other name.
const StoredType* find_type(std::string_view name);
// The type that holds a dtype. Every dtype but DType::other has one.
const StoredType& type_of(DType dtype);

struct Tensor {
  std::string name;
  const StoredType* type;
  std::vector<int64_t> shape;  // the product of all sizes, zeros counted as one, fits 63 bits
  uint64_t offset;             // of the first byte, from the file's start
  uint64_t bytes;
};

// A file of safetensors (https://github.com/huggingface/safetensors): 8 bytes header length, a JSON
// header, the data. Refused with checkpoint::Error, which names file and field:
//   - a header that is longer than the file or than 100 MB, that does not begin with '{', that is
//     no JSON object of objects, or that holds a name twice;
//   - an entry whose fields are not exactly dtype, shape and data_offsets, whose dtype is unknown,
//     whose shape has a size that is no integer >= 0, or a product beyond 63 bits, whose bytes are
//     not what dtype and shape take;
//   - tensors that overlap, leave a hole, or do not end where the file ends.
// Time and memory are linear in the header's size. Reading from several threads is safe. Copies
// share the mapping.
class Safetensors {
 public:
  // Maps the file; nothing of the data is read. A file that is shortened while it is mapped ends
  // the process at the next read (SIGBUS), as with every mapping.
  static Safetensors open(const std::filesystem::path& path);
  // The same from memory, which must outlive the object and its copies; `file` is for messages.
  static Safetensors parse(std::string file, std::span<const std::byte> bytes);

  const std::string& file() const { return file_; }
  uint64_t file_bytes() const { return bytes_.size(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // In the order of their data.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;

  // The tensor where it lies in the file, valid while this object or a copy of it lives. The format
  // does not demand that data is aligned, and MLX writes headers of any length: uint32 data that is
  // not aligned is seen as uint8, with a last dimension four times as long, and any other tensor
  // that is not aligned to its element is copied, once. Refused: a type that no operation reads,
  // more than 8 dimensions.
  TensorView view(const Tensor& tensor) const;

 private:
  struct Memory;
  Safetensors(std::string file, std::span<const std::byte> bytes, std::shared_ptr<Memory> memory);

  std::string file_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<Memory> memory_;
  std::map<std::string, std::string> metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace moeblas::checkpoint
