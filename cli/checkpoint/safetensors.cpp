#include "checkpoint/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "checkpoint/descriptor.h"
#include "moeblas/kernels.h"

namespace moeblas::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr StoredType kTypes[] = {
    {"F32", 32, DType::f32},
    {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},
    {"F64", 64, DType::f64},
    {"I8", 8, DType::i8},
    {"I16", 16, DType::i16},
    {"I32", 32, DType::i32},
    {"I64", 64, DType::i64},
    {"U8", 8, DType::u8},
    {"U16", 16, DType::u16},
    {"U32", 32, DType::u32},
    {"U64", 64, DType::u64},
    {"BOOL", 8, DType::boolean},
    {"C64", 64, DType::other},
    {"F8_E4M3", 8, DType::other},
    {"F8_E5M2", 8, DType::other},
    {"F8_E8M0", 8, DType::other},
    {"F6_E2M3", 6, DType::other},
    {"F6_E3M2", 6, DType::other},
    {"F4", 4, DType::other},
    {"F8_E4M3FNUZ", 8, DType::other},
    {"F8_E5M2FNUZ", 8, DType::other},
};

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMostHeaderBytes = 100'000'000;  // as the format's own reader
constexpr const char* kMetadata = "__metadata__";

using Json = nlohmann::json;

// Takes the header's events and throws at the first that the format does not know.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& file) : file_(file) {}

  struct Entry {
    std::string name;
    const StoredType* type = nullptr;
    std::optional<std::vector<int64_t>> shape;
    std::optional<std::vector<int64_t>> offsets;
  };
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(size_t) override {
    switch (at_) {
      case At::start:
        at_ = At::file;
        return true;
      case At::file_value:
        at_ = in_metadata_ ? At::metadata : At::entry;
        return true;
      default:
        return unexpected("an object");
    }
  }
  bool key(std::string& name) override {
    key_ = std::move(name);
    if (at_ == At::file) {
      tensor_ = key_;
      in_metadata_ = key_ == kMetadata;
      if (in_metadata_ && std::exchange(seen_metadata_, true)) fail(kMetadata, "stands here twice");
      if (!in_metadata_) entries.emplace_back().name = tensor_;
      at_ = At::file_value;
    } else if (at_ == At::metadata) {
      if (metadata.contains(key_)) fail(kMetadata, in_quotes(key_) + " stands here twice");
      at_ = At::metadata_value;
    } else {
      at_ = key_ == "dtype"          ? At::dtype
            : key_ == "shape"        ? At::shape
            : key_ == "data_offsets" ? At::offsets
                                     : At::unknown;
      if (at_ == At::unknown) {
        fail(tensor_,
             "has a field " + in_quotes(key_) + ", expected dtype, shape and data_offsets");
      }
    }
    return true;
  }
  bool string(std::string& text) override {
    if (at_ == At::metadata_value) {
      metadata.emplace(key_, std::move(text));
      at_ = At::metadata;
    } else if (at_ == At::dtype) {
      if (entry().type != nullptr) twice();
      entry().type = find_type(text);
      if (entry().type == nullptr)
        fail(tensor_, "dtype is " + in_quotes(text) + ", " + known_types());
      at_ = At::entry;
    } else {
      return unexpected("a string");
    }
    return true;
  }
  bool start_array(size_t) override {
    const bool expected = (at_ == At::shape || at_ == At::offsets) && numbers_ == nullptr;
    if (!expected) return unexpected("an array");
    auto& target = at_ == At::shape ? entry().shape : entry().offsets;
    if (target) twice();
    numbers_ = &target.emplace();
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (numbers_ == nullptr) return unexpected("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail(tensor_, key_ + " holds " + std::to_string(value) + ", expected at most 2^63 - 1");
    }
    numbers_->push_back(static_cast<int64_t>(value));
    return true;
  }
  bool end_array() override {
    numbers_ = nullptr;
    at_ = At::entry;
    return true;
  }
  bool end_object() override {
    if (at_ == At::entry) {
      const Entry& e = entry();
      for (const auto& [present, name] : {std::pair(e.type != nullptr, "dtype"),
                                          {e.shape.has_value(), "shape"},
                                          {e.offsets.has_value(), "data_offsets"}}) {
        if (!present) fail(tensor_, std::string("has no ") + name);
      }
    }
    at_ = at_ == At::file ? At::end : At::file;
    return true;
  }
  bool null() override {
    // What MLX writes where it was given no metadata.
    if (at_ != At::file_value || !in_metadata_) return unexpected("null");
    at_ = At::file;
    return true;
  }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(int64_t value) override {
    return unexpected("the negative number " + std::to_string(value));
  }
  bool number_float(double, const std::string& text) override {
    return unexpected("the fraction " + printable(text));
  }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail("header", "is no JSON at its byte " + std::to_string(position));
  }

 private:
  enum class At {
    start,
    file,
    file_value,
    metadata,
    metadata_value,
    entry,
    dtype,
    shape,
    offsets,
    unknown,
    end
  };
  [[noreturn]] void fail(std::string_view field, const std::string& what) const {
    throw Error(file_, field, what);
  }
  [[noreturn]] void twice() const { fail(tensor_, "has two fields " + key_); }
  bool unexpected(const std::string& what) const {
    switch (at_) {
      case At::start:
        fail("header", "is " + what + ", expected an object");
      case At::file_value:
        fail(tensor_, "is " + what + ", expected an object");
      case At::metadata_value:
        fail(kMetadata, in_quotes(key_) + " is " + what + ", expected a string");
      case At::dtype:
        fail(tensor_, "dtype is " + what + ", expected a string");
      default:
        fail(tensor_, key_ + " is or holds " + what + ", expected an array of integers >= 0");
    }
  }
  static std::string known_types() {
    std::string text = "known are";
    for (const StoredType& type : kTypes) text += std::string(" ") + type.name;
    return text;
  }
  Entry& entry() { return entries.back(); }

  const std::string& file_;
  At at_ = At::start;
  std::string tensor_, key_;
  bool in_metadata_ = false, seen_metadata_ = false;
  std::vector<int64_t>* numbers_ = nullptr;
};

std::string text(const std::vector<int64_t>& shape) {
  std::string result = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i == 8) return result + ", ...]";
    result += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return result + "]";
}

// The bytes of a tensor; throws if they are not a whole number or leave 63 bits.
uint64_t bytes_of(const std::string& file, const HeaderReader::Entry& e) {
  int64_t strides = e.type->bits, bits = e.type->bits;
  bool fits = true;
  for (const int64_t size : *e.shape) {
    fits = fits && !__builtin_mul_overflow(strides, std::max<int64_t>(size, 1), &strides);
    bits = fits ? bits * size : 0;
  }
  const std::string of = "shape is " + text(*e.shape) + " of " + e.type->name;
  if (!fits) throw Error(file, e.name, of + ", more than 2^63 - 1 bits");
  if (bits % 8 != 0) throw Error(file, e.name, of + ", no whole number of bytes");
  return static_cast<uint64_t>(bits) / 8;
}

Tensor checked(const std::string& file, HeaderReader::Entry& e, uint64_t data_bytes) {
  if (e.offsets->size() != 2) {
    throw Error(file, e.name,
                "data_offsets has " + std::to_string(e.offsets->size()) + " numbers, expected 2");
  }
  const auto begin = static_cast<uint64_t>((*e.offsets)[0]);
  const auto end = static_cast<uint64_t>((*e.offsets)[1]);
  const std::string range =
      "data_offsets is [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
  if (begin > end) throw Error(file, e.name, range + ", an end before the begin");
  if (end > data_bytes) {
    throw Error(file, e.name,
                range + ", but the file has " + std::to_string(data_bytes) + " bytes of data");
  }
  const uint64_t bytes = bytes_of(file, e);
  if (end - begin != bytes) {
    throw Error(file, e.name,
                range + ", " + std::to_string(end - begin) + " bytes, but " + text(*e.shape) +
                    " of " + e.type->name + " takes " + std::to_string(bytes));
  }
  return {std::move(e.name), e.type, std::move(*e.shape), begin, bytes};
}

}  // namespace

const StoredType* find_type(std::string_view name) {
  for (const StoredType& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

const StoredType& type_of(DType dtype) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes),
                       [&](const StoredType& type) { return type.dtype == dtype; });
}

// What a file's views lead into: its mapping, and copies of what it does not align.
struct Safetensors::Memory {
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (address != nullptr) ::munmap(address, size);
  }

  // Aligned for every type; made once.
  const void* copy(std::span<const std::byte> data) {
    const std::lock_guard lock(mutex);
    auto& words = copies[data.data()];
    if (words.empty()) {
      words.resize((data.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
      std::memcpy(words.data(), data.data(), data.size());
    }
    return words.data();
  }

  void* address = nullptr;
  size_t size = 0;
  std::mutex mutex;
  std::map<const void*, std::vector<uint64_t>> copies;
};

Safetensors Safetensors::open(const std::filesystem::path& path) {
  const std::string file = path.string();
  // Without O_NONBLOCK, a pipe of this name would wait for its writer.
  const Descriptor descriptor(file, O_RDONLY | O_NONBLOCK);
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) throw system_error(file, "cannot be examined");
  if (!S_ISREG(status.st_mode)) throw Error(file, "", "is no regular file");
  auto memory = std::make_shared<Memory>();
  const auto size = static_cast<size_t>(status.st_size);
  if (size > 0) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) throw system_error(file, "cannot be mapped");
    memory->address = address;
    memory->size = size;
    advise_huge_pages(address, size);
  }
  const auto* first = static_cast<const std::byte*>(memory->address);
  return Safetensors(file, {first, size}, std::move(memory));
}

Safetensors Safetensors::parse(std::string file, std::span<const std::byte> bytes) {
  return Safetensors(std::move(file), bytes, std::make_shared<Memory>());
}

Safetensors::Safetensors(std::string file, std::span<const std::byte> bytes,
                         std::shared_ptr<Memory> memory)
    : file_(std::move(file)), bytes_(bytes), memory_(std::move(memory)) {
  if (bytes_.size() < kLengthBytes) {
    throw Error(file_, "header length",
                "the file has " + std::to_string(bytes_.size()) + " bytes, expected at least 8");
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes_.data(), sizeof(length));
  const uint64_t rest = bytes_.size() - kLengthBytes;
  if (std::memcmp(bytes_.data(), "GGUF", 4) == 0) {
    throw Error(file_, "header length", "spells GGUF, another format; expected safetensors");
  }
  if (length > kMostHeaderBytes || length > rest) {
    throw Error(file_, "header length",
                "is " + std::to_string(length) + ", expected at most " +
                    (length > rest ? std::to_string(rest) + ", the rest of the file"
                                   : std::to_string(kMostHeaderBytes)));
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes,
                                length);
  if (!header.starts_with('{')) throw Error(file_, "header", "does not begin with {");
  // The JSON parser would take a zero byte as the header's end.
  if (const size_t zero = header.find('\0'); zero != header.npos) {
    throw Error(file_, "header", "is no JSON at its byte " + std::to_string(zero + 1));
  }
  HeaderReader reader(file_);
  Json::sax_parse(header.begin(), header.end(), &reader);

  metadata_ = std::move(reader.metadata);
  tensors_.reserve(reader.entries.size());
  for (HeaderReader::Entry& entry : reader.entries) {
    tensors_.push_back(checked(file_, entry, rest - length));
  }
  // Of an empty tensor and the one that begins at its place, the empty one comes first.
  std::sort(tensors_.begin(), tensors_.end(), [](const Tensor& x, const Tensor& y) {
    return std::tie(x.offset, x.bytes, x.name) < std::tie(y.offset, y.bytes, y.name);
  });
  uint64_t end = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& tensor = tensors_[i];
    if (!by_name_.emplace(tensor.name, i).second) {
      throw Error(file_, tensor.name, "stands in the header twice");
    }
    if (tensor.offset != end) {
      const bool hole = tensor.offset > end;
      throw Error(file_, tensor.name,
                  "begins at byte " + std::to_string(tensor.offset) + " of the data, " +
                      (hole ? "leaving a hole: expected " : "in another tensor that ends at ") +
                      std::to_string(end));
    }
    end += tensor.bytes;
    tensor.offset += kLengthBytes + length;
  }
  if (end != rest - length) {
    throw Error(file_, "data",
                "the tensors end at byte " + std::to_string(end) + ", the file has " +
                    std::to_string(rest - length) + " bytes of data");
  }
}

const Tensor* Safetensors::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

TensorView Safetensors::view(const Tensor& tensor) const {
  const auto fail = [&](const std::string& what) { throw Error(file_, tensor.name, what); };
  DType dtype = tensor.type->dtype;
  if (dtype == DType::other) fail(std::string("no operation reads its dtype ") + tensor.type->name);
  if (tensor.shape.size() > static_cast<size_t>(kMaxNdim)) {
    fail("has " + std::to_string(tensor.shape.size()) + " dimensions, expected at most 8");
  }
  Shape shape{std::span<const int64_t>(tensor.shape)};
  const std::span<const std::byte> data = bytes_.subspan(tensor.offset, tensor.bytes);
  const void* first = data.data();
  if (reinterpret_cast<uintptr_t>(first) % size_of(dtype) != 0) {
    if (dtype == DType::u32 && shape.ndim() > 0) {
      dtype = DType::u8;
      shape[shape.ndim() - 1] *= 4;
    } else {
      first = data.empty() ? nullptr : memory_->copy(data);
    }
  }
  return {first, dtype, shape};
}

}  // namespace moeblas::checkpoint
