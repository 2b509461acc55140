// dequantize: float32 arithmetic and one rounding, judged against the exact values.
#include <algorithm>

#include "bench/operations.h"
#include "bench/ops/conversions.h"

namespace moeblas::bench {
namespace {

class Dequantize final : public Conversion {
 public:
  using Conversion::Conversion;

  void call(int64_t set, const Options& options) override {
    dequantize(quantized(set), values(set), options);
  }
  void poison(int64_t set) override { values_.poison(set); }
  Verdict check(int64_t set, const Options&, const Tamper& tamper) override {
    constexpr int64_t kSamples = 4096;
    const CaseSpec& s = spec();
    const int64_t size = s.format.group_size;
    std::vector<uint8_t> out = values_.download(set);
    if (tamper) tamper(out);
    Verdict verdict;
    require_finite(out, s.dtype, verdict);
    const int64_t samples = std::min(kSamples, groups());
    verdict.add_samples(samples, [&](int64_t i, Verdict& judged) {
      const int64_t at = sampled_group(i, samples);
      std::vector<double> value(static_cast<size_t>(size)), magnitude(value.size());
      data_.reference(set * n_ * k_ + at * size, size, set, value.data(), magnitude.data());
      for (int64_t j = 0; j < size; ++j) {
        const double v = value[static_cast<size_t>(j)];
        // A product and a sum in float32, then the rounding to the output.
        const double limit =
            0x1p-23 * magnitude[static_cast<size_t>(j)] + rounding_limit(v, s.dtype);
        judged.add(load_float(out.data(), s.dtype, at * size + j), v, limit,
                   [&] { return "value " + std::to_string(at * size + j); });
      }
    });
    return verdict;
  }

 protected:
  bool reads_values() const override { return false; }
  void fill(int64_t set) override {
    codes_.fill(set, Source::codes(data_));
    scales_.fill(set, Source::scales(data_));
    if (affine()) biases_.fill(set, Source::biases(data_));
  }
};

}  // namespace

std::unique_ptr<Case> make_dequantize(Device& device, const CaseSpec& spec) {
  return std::make_unique<Dequantize>(device, spec);
}

}  // namespace moeblas::bench
