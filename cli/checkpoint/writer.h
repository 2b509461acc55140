// SafetensorsWriter: one file of safetensors, whose tensors are declared first and filled piece by
// piece, in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/descriptor.h"
#include "checkpoint/error.h"
#include "checkpoint/safetensors.h"

namespace moeblas::checkpoint {

struct Declared {
  std::string name;
  DType dtype;  // not DType::other
  std::vector<int64_t> shape;

  uint64_t bytes() const;
};

// The data is laid out by descending element size, then by name, behind a header of a multiple of 8
// bytes, so that every tensor is aligned. The header's length is written last: until then it is 0,
// which every reader refuses. Throws Error naming the file.
class SafetensorsWriter {
 public:
  // Fails if the file exists. Names are unique, sizes as Safetensors takes them.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<Declared> tensors,
                    const std::map<std::string, std::string>& metadata);

  // Each byte of a tensor is written once; offset counts from the tensor's begin.
  void write(std::string_view name, uint64_t offset, std::span<const std::byte> data);
  // Everything was written: makes it durable, then the header's length.
  void finish();

 private:
  struct Region {
    uint64_t begin;
    uint64_t bytes;
    uint64_t written;
  };
  std::string file_;
  Descriptor descriptor_;
  std::string header_;  // with its length
  std::map<std::string, Region, std::less<>> regions_;
};

}  // namespace moeblas::checkpoint
