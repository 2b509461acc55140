#include "checkpoint/writer.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace moeblas::checkpoint {

uint64_t Declared::bytes() const {
  uint64_t bytes = size_of(dtype);
  for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<Declared> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path.string()), descriptor_(file_, O_WRONLY | O_CREAT | O_EXCL) {
  std::sort(tensors.begin(), tensors.end(), [](const Declared& a, const Declared& b) {
    return std::pair(size_of(b.dtype), std::string_view(a.name)) <
           std::pair(size_of(a.dtype), std::string_view(b.name));
  });
  using Object = nlohmann::ordered_json;
  std::string text = "{\"__metadata__\":" + Object(metadata).dump();
  uint64_t end = 0;
  for (const Declared& tensor : tensors) {
    const uint64_t begin = std::exchange(end, end + tensor.bytes());
    const Object entry = {{"dtype", type_of(tensor.dtype).name},
                          {"shape", tensor.shape},
                          {"data_offsets", {begin, end}}};
    text += "," + Object(tensor.name).dump() + ":" + entry.dump();
    if (!regions_.emplace(tensor.name, Region{begin, tensor.bytes(), 0}).second) {
      throw Error(file_, tensor.name, "is declared twice");
    }
  }
  text += '}';
  const uint64_t length = (text.size() + 7) / 8 * 8;
  header_.assign(sizeof(length) + length, ' ');
  std::memcpy(header_.data(), &length, sizeof(length));
  text.copy(header_.data() + sizeof(length), text.size());
  if (::ftruncate(descriptor_, static_cast<off_t>(header_.size() + end)) != 0) {
    throw system_error(file_, "cannot be resized");
  }
}

void SafetensorsWriter::write(std::string_view name, uint64_t offset,
                              std::span<const std::byte> data) {
  const auto found = regions_.find(name);
  if (found == regions_.end()) throw Error(file_, name, "was not declared");
  Region& region = found->second;
  if (offset > region.bytes || data.size() > region.bytes - offset) {
    throw Error(file_, name,
                "has " + std::to_string(region.bytes) + " bytes, not " +
                    std::to_string(offset + data.size()));
  }
  descriptor_.write(data.data(), data.size(), header_.size() + region.begin + offset);
  region.written += data.size();
}

void SafetensorsWriter::finish() {
  for (const auto& [name, region] : regions_) {
    if (region.written != region.bytes) {
      throw Error(file_, name,
                  "has " + std::to_string(region.bytes) + " bytes, of which " +
                      std::to_string(region.written) + " were written");
    }
  }
  constexpr size_t kLength = sizeof(uint64_t);
  descriptor_.write(header_.data() + kLength, header_.size() - kLength, kLength);
  descriptor_.sync();
  descriptor_.write(header_.data(), kLength, 0);
  descriptor_.sync();
  descriptor_.finish();
}

}  // namespace moeblas::checkpoint
