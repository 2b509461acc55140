#include "bench/data.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "formats/e8m0.h"
#include "formats/fp4.h"
#include "formats/fp8.h"

namespace moeblas::bench {
namespace {

// Sets share no cache line, nor a pair that is fetched together; GPUs want more for wide loads.
int64_t pitch_of(int64_t bytes) {
  constexpr int64_t kLine = 256;
  return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

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
    : device_(&device), dtype_(dtype), shape_(shape), pitch_(pitch_of(bytes())) {
  memory_ = device.allocate(pitch_ * sets);
}

int64_t Slab::footprint(DType dtype, const Shape& shape, int64_t sets) {
  return pitch_of(shape.numel() * static_cast<int64_t>(size_of(dtype))) * sets;
}

TensorView Slab::view(int64_t set) const { return {at(set), dtype_, shape_, device_->handle()}; }

void Slab::fill(int64_t set, int64_t first, int64_t count, const Source& source) {
  const auto size = static_cast<int64_t>(size_of(dtype_));
  device_->generate(at(set) + first * size, source, set * shape_.numel() + first, count);
}

void Slab::upload(int64_t set, const void* from) { device_->upload(at(set), from, bytes()); }

// All bits set: NaN in every float dtype, and codes that no kernel is expected to leave everywhere.
void Slab::poison(int64_t set) { device_->fill(at(set), 0xff, bytes()); }

std::vector<uint8_t> Slab::download(int64_t set) const {
  std::vector<uint8_t> host(static_cast<size_t>(bytes()));
  device_->download(host.data(), at(set), bytes());
  return host;
}

void QuantizedData::reference(int64_t first, int64_t count, int64_t matrix, double* value,
                              double* magnitude) const {
  const int64_t group = spec_.group_size;
  const unsigned mask = (1u << spec_.bits) - 1;
  const bool affine = spec_.mode == Mode::affine;
  int64_t held = -1;  // the word in `words`' lower half
  uint64_t words = 0;
  for (int64_t g = first / group; g < (first + count) / group; ++g) {
    double s = 0, b = 0;
    if (affine) {
      s = scale(g), b = bias(g);
    } else {
      s = spec_.mode == Mode::nvfp4 ? formats::e4m3_decode(scale_byte(g))
                                    : formats::e8m0_decode(scale_byte(g));
      s *= tensor_scale(matrix);
    }
    for (int64_t i = g * group; i < (g + 1) * group; ++i) {
      // A code's bits start in one word and may end in the next one.
      const int64_t bit = i * spec_.bits, at = bit / 32;
      if (at != held) {
        words = code_word(at);
        if (32 % spec_.bits != 0) words |= static_cast<uint64_t>(code_word(at + 1)) << 32;
        held = at;
      }
      const unsigned code = static_cast<unsigned>(words >> bit % 32) & mask;
      double& v = value[i - first];
      if (affine) {
        v = code * s + b;
        magnitude[i - first] = code * std::abs(s) + std::abs(b);
      } else {
        v = s *
            (spec_.mode == Mode::mxfp8 ? formats::e4m3_decode(code) : formats::e2m1_decode(code));
        magnitude[i - first] = std::abs(v);
      }
    }
  }
}

}  // namespace moeblas::bench
