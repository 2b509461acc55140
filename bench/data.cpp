#include "bench/data.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "formats/e8m0.h"
#include "formats/float16.h"
#include "formats/fp4.h"
#include "formats/fp8.h"

namespace moeblas::bench {
namespace {

constexpr int64_t kStaging = 1 << 18;  // elements that are made before they are uploaded

template <class T>
void store(void* to, int64_t i, T value) {
  std::memcpy(static_cast<char*>(to) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}
template <class T>
T load(const void* from, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + i * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

float round_to(DType dtype, float value) {
  uint32_t storage = 0;
  store_float(&storage, dtype, 0, value);
  return load_float(&storage, dtype, 0);
}

}  // namespace

float load_float(const void* from, DType dtype, int64_t i) {
  if (dtype == DType::f16) return formats::float16_to_float(load<uint16_t>(from, i));
  if (dtype == DType::bf16) return formats::bfloat16_to_float(load<uint16_t>(from, i));
  return load<float>(from, i);
}

void store_float(void* to, DType dtype, int64_t i, float value) {
  if (dtype == DType::f16) return store(to, i, formats::float_to_float16(value));
  if (dtype == DType::bf16) return store(to, i, formats::float_to_bfloat16(value));
  store(to, i, value);
}

void parallel_parts(int64_t total, int64_t part,
                    const std::function<void(int64_t, int64_t)>& work) {
  const int64_t parts = (total + part - 1) / part;
  const int64_t threads =
      std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, std::max<int64_t>(parts, 1));
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    for (int64_t i; (i = next++) < parts;) work(i * part, std::min(part, total - i * part));
  };
  std::vector<std::jthread> others;
  for (int64_t i = 1; i < threads; ++i) others.emplace_back(run);
  run();
}

Slab::Slab(Device& device, DType dtype, const Shape& shape, int64_t sets)
    : device_(&device), dtype_(dtype), shape_(shape) {
  constexpr int64_t kLine = 128;  // sets share no cache line, nor a pair that is fetched together
  pitch_ = (bytes() + kLine - 1) / kLine * kLine;
  memory_ = device.allocate(pitch_ * sets);
}

TensorView Slab::view(int64_t set) const { return {at(set), dtype_, shape_, device_->handle()}; }

void Slab::fill(int64_t set, int64_t first, int64_t count, const Source& source) {
  const auto size = static_cast<int64_t>(size_of(dtype_));
  parallel_parts(count, kStaging, [&](int64_t begin, int64_t n) {
    std::vector<uint8_t> staging(static_cast<size_t>(n * size));
    source(set * shape_.numel() + first + begin, n, staging.data());
    device_->upload(at(set) + (first + begin) * size, staging.data(), n * size);
  });
}

// All bits set: NaN in every float dtype, and codes that no kernel is expected to leave everywhere.
void Slab::poison(int64_t set) { device_->fill(at(set), 0xff, bytes()); }

std::vector<uint8_t> Slab::download(int64_t set) const {
  std::vector<uint8_t> host(static_cast<size_t>(bytes()));
  device_->download(host.data(), at(set), bytes());
  return host;
}

Source bell_values(const Random& random, DType dtype, float deviation) {
  return [=](int64_t first, int64_t count, void* to) {
    for (int64_t i = 0; i < count; ++i) {
      store_float(to, dtype, i, deviation * random.bell(first + i));
    }
  };
}

QuantizedData::QuantizedData(const QuantSpec& spec, DType scale_dtype, const Random& random)
    : spec_(spec),
      scale_dtype_(spec.mode == Mode::affine ? scale_dtype : DType::u8),
      codes_(random.stream(1)),
      scales_(random.stream(2)),
      tensor_scales_(random.stream(3)) {}

uint32_t QuantizedData::code_word(int64_t i) const {
  uint32_t word = codes_.word(i);
  if (spec_.mode == Mode::mxfp8) {
    // E4M3's NaN codes, 0x7f and 0xff, become the numbers beside them.
    for (int shift = 0; shift < 32; shift += 8) {
      if ((word >> shift & 0x7f) == 0x7f) word &= ~(1u << shift);
    }
  }
  return word;
}

// Affine. Weights spread over about +-0.25, whatever the number of codes.
float QuantizedData::scale(int64_t group) const {
  const double u = scales_.uniform(group);
  const double magnitude = 0.25 * (1 + u) / (1 << spec_.bits);
  // Either sign occurs in checkpoints.
  return round_to(scale_dtype_,
                  static_cast<float>(scales_.bits(~group) & 1 ? magnitude : -magnitude));
}

float QuantizedData::bias(int64_t group) const {
  const float middle = 0.5f * static_cast<float>((1 << spec_.bits) - 1);
  return round_to(scale_dtype_, -middle * scale(group));
}

uint8_t QuantizedData::scale_byte(int64_t group) const {
  const auto spread = static_cast<unsigned>(scales_.bits(group) >> 32);
  if (spec_.mode == Mode::nvfp4) return static_cast<uint8_t>(0x38 + spread % 8);  // 1 .. 1.875
  const unsigned one = 127;
  return static_cast<uint8_t>(one - (spec_.mode == Mode::mxfp4 ? 6 : 11) + spread % 3);
}

float QuantizedData::tensor_scale(int64_t matrix) const {
  return spec_.mode == Mode::nvfp4
             ? static_cast<float>(0x1p-6 * (1 + tensor_scales_.uniform(matrix)))
             : 1.0f;
}

Source QuantizedData::codes() const {
  return [self = *this](int64_t first, int64_t count, void* to) {
    for (int64_t i = 0; i < count; ++i) store(to, i, self.code_word(first + i));
  };
}

Source QuantizedData::scales() const {
  return [self = *this](int64_t first, int64_t count, void* to) {
    for (int64_t i = 0; i < count; ++i) {
      if (self.spec_.mode == Mode::affine) {
        store_float(to, self.scale_dtype_, i, self.scale(first + i));
      } else {
        store(to, i, self.scale_byte(first + i));
      }
    }
  };
}

Source QuantizedData::biases() const {
  return [self = *this](int64_t first, int64_t count, void* to) {
    for (int64_t i = 0; i < count; ++i) {
      store_float(to, self.scale_dtype_, i, self.bias(first + i));
    }
  };
}

Source QuantizedData::tensor_scales() const {
  return [self = *this](int64_t first, int64_t count, void* to) {
    for (int64_t i = 0; i < count; ++i) store(to, i, self.tensor_scale(first + i));
  };
}

void QuantizedData::reference(int64_t first, int64_t count, int64_t matrix, double* value,
                              double* magnitude) const {
  const int64_t group = spec_.group_size;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t bit = (first + i) * spec_.bits;
    // The code's bits start in word `at` and may end in the next one.
    const int64_t at = bit / 32;
    const int offset = static_cast<int>(bit % 32);
    uint64_t words = code_word(at);
    if (offset + spec_.bits > 32) words |= static_cast<uint64_t>(code_word(at + 1)) << 32;
    const auto code = static_cast<unsigned>(words >> offset & ((1u << spec_.bits) - 1));
    const int64_t g = (first + i) / group;
    if (spec_.mode == Mode::affine) {
      const double s = scale(g), b = bias(g);
      value[i] = code * s + b;
      magnitude[i] = code * std::abs(s) + std::abs(b);
    } else {
      const double element =
          spec_.mode == Mode::mxfp8 ? formats::e4m3_decode(code) : formats::e2m1_decode(code);
      const double s = spec_.mode == Mode::nvfp4 ? formats::e4m3_decode(scale_byte(g))
                                                 : formats::e8m0_decode(scale_byte(g));
      value[i] = element * s * tensor_scale(matrix);
      magnitude[i] = std::abs(value[i]);
    }
  }
}

}  // namespace moeblas::bench
