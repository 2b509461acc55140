// quantize: the answer is right if it is the format's definition bit for bit.
#include <algorithm>

#include "bench/operations.h"
#include "bench/ops/conversions.h"
#include "bench/ops/encode.h"

namespace moeblas::bench {
namespace {

class Quantize final : public Conversion {
 public:
  Quantize(Device& device, const CaseSpec& s)
      : Conversion(device, s), source_(Source::bell(Random(s.seed).stream(2), s.dtype, 0.125f)) {}

  void call(int64_t set, const Options& options) override {
    quantize(values(set), quantized(set), options);
  }
  void poison(int64_t set) override {
    codes_.poison(set);
    scales_.poison(set);
    if (affine()) biases_.poison(set);
  }
  Verdict check(int64_t set, const Options&, const Tamper& tamper) override;

 protected:
  bool reads_values() const override { return true; }
  void fill(int64_t set) override { values_.fill(set, source_); }

 private:
  Source source_;
};

Verdict Quantize::check(int64_t set, const Options&, const Tamper& tamper) {
  constexpr int64_t kSamples = 4096;
  const CaseSpec& s = spec();
  const int64_t size = s.format.group_size;
  std::vector<uint8_t> codes = codes_.download(set);
  const std::vector<uint8_t> scales = scales_.download(set);
  const std::vector<uint8_t> biases = affine() ? biases_.download(set) : std::vector<uint8_t>();
  if (tamper) tamper(codes);
  const float tensor_scale = data_.tensor_scale(set);

  Verdict verdict;
  const int64_t samples = std::min(kSamples, groups());
  verdict.add_samples(samples, [&](int64_t i, Verdict& v) {
    const int64_t at = sampled_group(i, samples);
    std::vector<uint8_t> stored(static_cast<size_t>(size) * 4);
    std::vector<float> values(static_cast<size_t>(size));
    source_(set * n_ * k_ + at * size, size, stored.data());
    for (int64_t j = 0; j < size; ++j) {
      values[static_cast<size_t>(j)] = load_float(stored.data(), s.dtype, j);
    }
    const EncodedGroup expected = encode_group(s.format, values, tensor_scale);
    const auto compare = [&](double got, double wanted, const char* what) {
      v.add(got, wanted, 0, [&] { return what + (" of group " + std::to_string(at)); });
    };
    if (affine()) {
      uint32_t rounded = 0;
      const auto stored_as = [&](float value) {
        store_float(&rounded, s.scale_dtype, 0, value);
        return load_float(&rounded, s.scale_dtype, 0);
      };
      compare(load_float(scales.data(), s.scale_dtype, at), stored_as(expected.scale), "the scale");
      compare(load_float(biases.data(), s.scale_dtype, at), stored_as(expected.bias), "the bias");
    } else {
      compare(scales[static_cast<size_t>(at)], expected.byte, "the scale's code");
    }
    for (int64_t j = 0; j < size; ++j) {
      // A code's bits, one by one: rows of codes are a stream of bits, the least significant first.
      unsigned code = 0;
      for (int b = 0; b < s.format.bits; ++b) {
        const int64_t bit = (at * size + j) * s.format.bits + b;
        code |= (codes[static_cast<size_t>(bit / 8)] >> (bit % 8) & 1u) << b;
      }
      compare(code, expected.codes[static_cast<size_t>(j)], "a code");
    }
  });
  return verdict;
}

}  // namespace

std::unique_ptr<Case> make_quantize(Device& device, const CaseSpec& spec) {
  return std::make_unique<Quantize>(device, spec);
}

}  // namespace moeblas::bench
