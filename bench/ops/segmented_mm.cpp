// segmented_mm: a (M, K) times b (K, N) over ranges of K. Routing uniform or even: equal segments
// that cover K; any other: as many segments between random cuts, which start and end anywhere.
#include <algorithm>

#include "bench/data.h"
#include "bench/operations.h"

namespace moeblas::bench {
namespace {

class SegmentedMm final : public Case {
 public:
  SegmentedMm(Device& device, const CaseSpec& s)
      : Case(s),
        device_(device),
        m_(s.shape.m),
        n_(s.shape.n),
        k_(s.shape.k),
        a_source_(Source::bell(Random(s.seed).stream(1), s.dtype, 1.0f)),
        b_source_(Source::bell(Random(s.seed).stream(2), s.dtype, 0.125f)) {
    const Random random = Random(s.seed).stream(3);
    const int64_t count = s.shape.segments;
    std::vector<int64_t> cuts{0, k_};
    for (int64_t i = 1; i < count; ++i) {
      cuts.push_back(s.routing == Routing::uniform || s.routing == Routing::even
                         ? i * k_ / count
                         : static_cast<int64_t>(random.bits(i) % static_cast<uint64_t>(k_ + 1)));
    }
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      ends_.push_back(static_cast<int32_t>(cuts[i]));
      ends_.push_back(static_cast<int32_t>(cuts[i + 1]));
    }
  }

  // The cuts cover K, so all of a and b is needed.
  Work work() const override {
    const auto element = static_cast<int64_t>(size_of(spec().dtype));
    return {(m_ + n_) * k_ * element, segments() * m_ * n_ * element, 2 * m_ * n_ * k_};
  }
  Sizes sizes() const override {
    return {{"M", m_}, {"N", n_}, {"K", k_}, {"segments", segments()}};
  }
  int pieces() const override { return 6; }
  int64_t footprint(int64_t sets) const override { return sets * work().bytes(); }

  void prepare(int64_t sets) override {
    a_ = Slab(device_, spec().dtype, {m_, k_}, sets);
    b_ = Slab(device_, spec().dtype, {k_, n_}, sets);
    segments_ = Slab(device_, DType::i32, {segments(), 2}, sets);
    out_ = Slab(device_, spec().dtype, {segments(), m_, n_}, sets);
    for (int64_t set = 0; set < sets; ++set) {
      a_.fill(set, a_source_);
      b_.fill(set, b_source_);
      segments_.upload(set, ends_.data());
      poison(set);
    }
    prepared_ = true;
  }

  void call(int64_t set, const Options& options) override {
    const DType d = spec().dtype;
    const moeblas::Device where = device_.handle();
    if (prepared_) {
      segmented_mm(a_.view(set), b_.view(set), segments_.view(set), out_.view(set), options);
    } else {
      segmented_mm({nullptr, d, {m_, k_}, where}, {nullptr, d, {k_, n_}, where},
                   {nullptr, DType::i32, {segments(), 2}, where},
                   {nullptr, d, {segments(), m_, n_}, where}, options);
    }
  }

  void poison(int64_t set) override { out_.poison(set); }

  Verdict check(int64_t set, const Options& options, const Tamper& tamper) override {
    constexpr int64_t kSamples = 512;
    const DType d = spec().dtype;
    std::vector<uint8_t> out = out_.download(set);
    if (tamper) tamper(out);
    Verdict verdict;
    require_finite(out, d, verdict);
    const Random random = Random(spec().seed).stream(4);
    const int64_t total = segments() * m_ * n_;
    const int64_t samples = std::min(kSamples, total);
    verdict.add_samples(samples, [&](int64_t i, Verdict& v) {
      const int64_t at = samples == total ? i
                         : i < 2
                             ? i * (total - 1)
                             : static_cast<int64_t>(random.bits(i) % static_cast<uint64_t>(total));
      const int64_t segment = at / (m_ * n_), row = at / n_ % m_, col = at % n_;
      const int64_t begin = ends_[static_cast<size_t>(2 * segment)];
      const int64_t end = ends_[static_cast<size_t>(2 * segment + 1)];
      Sum sum;
      for (int64_t j = begin; j < end; ++j) {
        uint32_t element = 0;
        a_source_.write(set * m_ * k_ + row * k_ + j, &element, 0);
        const float a = load_float(&element, d, 0);
        b_source_.write(set * k_ * n_ + j * n_ + col, &element, 0);
        const float b = load_float(&element, d, 0);
        sum.add(a, b, std::abs(b));
      }
      const Precise precise{end - begin, d, std::nullopt, options.precision};
      v.add(load_float(out.data(), d, at), sum.y, error_limit(sum, precise), [&] {
        return "out[segment " + std::to_string(segment) + ", " + std::to_string(row) + ", " +
               std::to_string(col) + "]";
      });
    });
    return verdict;
  }

 private:
  int64_t segments() const { return spec().shape.segments; }

  Device& device_;
  int64_t m_, n_, k_;
  Source a_source_, b_source_;
  std::vector<int32_t> ends_;
  bool prepared_ = false;
  Slab a_, b_, segments_, out_;
};

}  // namespace

std::unique_ptr<Case> make_segmented_mm(Device& device, const CaseSpec& spec) {
  return std::make_unique<SegmentedMm>(device, spec);
}

}  // namespace moeblas::bench
