// quantize and quantize_dual: the answer is right if it is the format's definition bit for bit.
#include <algorithm>

#include "bench/operations.h"
#include "bench/ops/conversions.h"
#include "bench/ops/encode.h"
#include "formats/scale_layout.h"

namespace moeblas::bench {
namespace {

class Quantize : public Conversion {
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
  Verdict check(int64_t set, const Options&, const Tamper& tamper) override {
    Verdict verdict;
    judge({codes_, scales_, biases_}, set, 1, tamper, verdict);
    return verdict;
  }

 protected:
  struct Packed {
    const Slab &codes, &scales, &biases;
  };
  // Sampled groups of values that lie `step` apart in the matrix: 1, or its columns.
  void judge(const Packed& packed, int64_t set, int64_t step, const Tamper& tamper,
             Verdict& verdict) const;
  bool reads_values() const override { return true; }
  void fill(int64_t set) override { values_.fill(set, source_); }

 private:
  Source source_;
};

void Quantize::judge(const Packed& packed, int64_t set, int64_t step, const Tamper& tamper,
                     Verdict& verdict) const {
  constexpr int64_t kSamples = 4096;
  const CaseSpec& s = spec();
  const int64_t size = s.format.group_size;
  std::vector<uint8_t> codes = packed.codes.download(set);
  const std::vector<uint8_t> scales = packed.scales.download(set);
  const std::vector<uint8_t> biases =
      affine() ? packed.biases.download(set) : std::vector<uint8_t>();
  if (tamper) tamper(codes);
  const float tensor_scale = data_.tensor_scale(set);

  const auto scale_at = [&](int64_t group) -> size_t {
    const auto at = static_cast<uint64_t>(group), of_row = static_cast<uint64_t>(k_ / size);
    if (s.scale_layout == ScaleLayout::rows) return at;
    return formats::swizzled_128x4(at / of_row, at % of_row,
                                   formats::swizzle_padded_scales(of_row));
  };
  const int64_t samples = std::min(kSamples, groups());
  verdict.add_samples(samples, [&](int64_t i, Verdict& v) {
    const int64_t at = sampled_group(i, samples);
    std::vector<uint8_t> stored(static_cast<size_t>(size) * 4);
    std::vector<float> values(static_cast<size_t>(size));
    if (step == 1) {
      source_(set * n_ * k_ + at * size, size, stored.data());
      for (int64_t j = 0; j < size; ++j) {
        values[static_cast<size_t>(j)] = load_float(stored.data(), s.dtype, j);
      }
    } else {
      const int64_t column = at / (n_ / size), row = at % (n_ / size) * size;
      for (int64_t j = 0; j < size; ++j) {
        source_(set * n_ * k_ + (row + j) * k_ + column, 1, stored.data());
        values[static_cast<size_t>(j)] = load_float(stored.data(), s.dtype, 0);
      }
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
      compare(scales[scale_at(at)], expected.byte, "the scale's code");
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
}

// Codes along both axes, from one read of the values.
class QuantizeDual final : public Quantize {
 public:
  using Quantize::Quantize;

  Work work() const override {
    Work w = Quantize::work();
    w.write_bytes *= 2;
    return w;
  }
  void prepare(int64_t sets) override {
    const CaseSpec& s = spec();
    const Shape scales{k_, n_ / s.format.group_size};
    other_codes_ = Slab(device(), DType::u32, {k_, n_ / 32 * s.format.bits}, sets);
    other_scales_ = Slab(device(), data_.scale_dtype(), scales, sets);
    if (affine()) other_biases_ = Slab(device(), s.scale_dtype, scales, sets);
    Quantize::prepare(sets);
  }
  void call(int64_t set, const Options& options) override {
    Quantized columns = quantized(set);  // without tensor_scale: that of rows serves both
    columns.tensor_scale = {};
    const auto turned = [&](TensorView& view, const Slab& slab, const Shape& shape) {
      view =
          prepared() ? slab.view(set) : TensorView(nullptr, view.dtype, shape, device().handle());
    };
    const Shape scales{k_, n_ / spec().format.group_size};
    turned(columns.codes, other_codes_, {k_, n_ / 32 * spec().format.bits});
    turned(columns.scales, other_scales_, scales);
    if (affine()) turned(columns.biases, other_biases_, scales);
    quantize_dual(values(set), quantized(set), columns, options);
  }
  void poison(int64_t set) override {
    Quantize::poison(set);
    other_codes_.poison(set);
    other_scales_.poison(set);
    if (affine()) other_biases_.poison(set);
  }
  Verdict check(int64_t set, const Options& options, const Tamper& tamper) override {
    Verdict verdict = Quantize::check(set, options, tamper);
    judge({other_codes_, other_scales_, other_biases_}, set, k_, tamper, verdict);
    return verdict;
  }

 private:
  Slab other_codes_, other_scales_, other_biases_;
};

}  // namespace

std::unique_ptr<Case> make_quantize(Device& device, const CaseSpec& spec) {
  return std::make_unique<Quantize>(device, spec);
}
std::unique_ptr<Case> make_quantize_dual(Device& device, const CaseSpec& spec) {
  return std::make_unique<QuantizeDual>(device, spec);
}

}  // namespace moeblas::bench
