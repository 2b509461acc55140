// moe_permute and moe_unpermute: a layer's rows into the order of their experts, and their weighted
// sum back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/data.h"
#include "bench/operations.h"
#include "bench/selection.h"

namespace moeblas::bench {
namespace {

class Permutation : public Case {
 public:
  Permutation(Device& device, const CaseSpec& s)
      : Case(s),
        device_(device),
        selection_(s.routing, s.shape.experts, s.shape.top_k, s.tokens, false,
                   Random(s.seed).stream(1)),
        source_(Source::bell(Random(s.seed).stream(2), s.dtype, 1.0f)) {}

  Sizes sizes() const final {
    return {{"M", tokens()}, {"H", hidden()}, {"E", experts()}, {"top_k", top_k()}};
  }
  bool copies() const final { return true; }
  int64_t footprint(int64_t sets) const final { return sets * work().bytes(); }

 protected:
  int64_t tokens() const { return spec().tokens; }
  int64_t top_k() const { return spec().shape.top_k; }
  int64_t pairs() const { return tokens() * top_k(); }
  int64_t experts() const { return spec().shape.experts; }
  int64_t hidden() const { return spec().shape.hidden; }
  int64_t token_bytes() const {
    return tokens() * hidden() * static_cast<int64_t>(size_of(spec().dtype));
  }
  std::vector<int32_t> ids() const { return selection_.experts(0); }
  // The row of each pair: sorted by expert, and by token within one.
  std::vector<int32_t> inverse() const {
    const std::vector<int32_t> chosen = ids();
    std::vector<int32_t> next = expert_ends(chosen, experts());
    std::rotate(next.begin(), next.end() - 1, next.end());
    next[0] = 0;
    std::vector<int32_t> rows;
    for (int32_t e : chosen) rows.push_back(next[static_cast<size_t>(e)]++);
    return rows;
  }
  TensorView view(const Slab& slab, int64_t set, DType dtype, const Shape& shape) const {
    return prepared_ ? slab.view(set) : TensorView(nullptr, dtype, shape, device_.handle());
  }

  Device& device_;
  Selection selection_;
  Source source_;
  bool prepared_ = false;
};

class MoePermute final : public Permutation {
 public:
  using Permutation::Permutation;

  Work work() const override { return {token_bytes(), top_k() * token_bytes(), 0}; }
  void prepare(int64_t sets) override {
    x_ = Slab(device_, spec().dtype, {tokens(), hidden()}, sets);
    ids_ = Slab(device_, DType::i32, {tokens(), top_k()}, sets);
    rows_ = Slab(device_, spec().dtype, {pairs(), hidden()}, sets);
    offsets_ = Slab(device_, DType::i32, {experts()}, sets);
    inverse_ = Slab(device_, DType::i32, {tokens(), top_k()}, sets);
    prepared_ = true;
    for (int64_t set = 0; set < sets; ++set) {
      x_.fill(set, source_);
      ids_.upload(set, ids().data());
      poison(set);
    }
  }
  void call(int64_t set, const Options& options) override {
    const DType d = spec().dtype;
    moe_permute(view(x_, set, d, {tokens(), hidden()}),
                view(ids_, set, DType::i32, {tokens(), top_k()}), {}, experts(),
                view(rows_, set, d, {pairs(), hidden()}),
                view(offsets_, set, DType::i32, {experts()}),
                view(inverse_, set, DType::i32, {tokens(), top_k()}), options);
  }
  void poison(int64_t set) override {
    for (Slab* out : {&rows_, &offsets_, &inverse_}) out->poison(set);
  }
  Verdict check(int64_t set, const Options&, const Tamper& tamper) override {
    std::vector<uint8_t> rows = rows_.download(set);
    const std::vector<uint8_t> offsets = offsets_.download(set), inverse = inverse_.download(set);
    if (tamper) tamper(rows);
    Verdict verdict;
    require_finite(rows, spec().dtype, verdict);
    const auto compare = [&](const std::vector<uint8_t>& got, const std::vector<int32_t>& wanted,
                             const char* what) {
      for (size_t i = 0; i < wanted.size(); ++i) {
        int32_t value = 0;
        std::memcpy(&value, got.data() + 4 * i, sizeof value);
        verdict.add(value, wanted[i], 0, [&] { return what + ("[" + std::to_string(i) + "]"); });
      }
    };
    const std::vector<int32_t> places = this->inverse();
    compare(offsets, expert_ends(ids(), experts()), "offsets");
    compare(inverse, places, "inverse");
    constexpr int64_t kMost = 4096;
    const int64_t samples = std::min(kMost, pairs());
    verdict.add_samples(samples, [&](int64_t sample, Verdict& v) {
      const int64_t pair = sample * (pairs() - 1) / std::max<int64_t>(samples - 1, 1);
      const int64_t row = places[static_cast<size_t>(pair)], token = pair / top_k();
      for (int64_t i = 0; i < hidden(); ++i) {
        uint32_t element = 0;
        source_.write((set * tokens() + token) * hidden() + i, &element, 0);
        v.add(load_float(rows.data(), spec().dtype, row * hidden() + i),
              load_float(&element, spec().dtype, 0), 0,
              [&] { return "rows[" + std::to_string(row) + ", " + std::to_string(i) + "]"; });
      }
    });
    return verdict;
  }

 private:
  Slab x_, ids_, rows_, offsets_, inverse_;
};

class MoeUnpermute final : public Permutation {
 public:
  MoeUnpermute(Device& device, const CaseSpec& s)
      : Permutation(device, s),
        weight_source_(Source::bell(Random(s.seed).stream(3), DType::f32, 0.5f)) {}

  Work work() const override { return {top_k() * token_bytes(), token_bytes(), 0}; }
  void prepare(int64_t sets) override {
    y_ = Slab(device_, spec().dtype, {pairs(), hidden()}, sets);
    inverse_ = Slab(device_, DType::i32, {tokens(), top_k()}, sets);
    weights_ = Slab(device_, DType::f32, {tokens(), top_k()}, sets);
    out_ = Slab(device_, spec().dtype, {tokens(), hidden()}, sets);
    prepared_ = true;
    for (int64_t set = 0; set < sets; ++set) {
      y_.fill(set, source_);
      inverse_.upload(set, inverse().data());
      weights_.fill(set, weight_source_);
      poison(set);
    }
  }
  void call(int64_t set, const Options& options) override {
    const DType d = spec().dtype;
    moe_unpermute(view(y_, set, d, {pairs(), hidden()}),
                  view(inverse_, set, DType::i32, {tokens(), top_k()}),
                  view(weights_, set, DType::f32, {tokens(), top_k()}),
                  view(out_, set, d, {tokens(), hidden()}), options);
  }
  void poison(int64_t set) override { out_.poison(set); }
  Verdict check(int64_t set, const Options&, const Tamper& tamper) override {
    constexpr int64_t kMost = 1024;
    std::vector<uint8_t> out = out_.download(set);
    if (tamper) tamper(out);
    Verdict verdict;
    require_finite(out, spec().dtype, verdict);
    const std::vector<int32_t> places = inverse();
    const int64_t samples = std::min(kMost, tokens());
    verdict.add_samples(samples, [&](int64_t sample, Verdict& v) {
      const int64_t t = sample * tokens() / samples;
      for (int64_t i = 0; i < hidden(); ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t j = 0; j < top_k(); ++j) {
          const int64_t row = places[static_cast<size_t>(t * top_k() + j)];
          uint32_t y = 0, weight = 0;
          source_.write((set * pairs() + row) * hidden() + i, &y, 0);
          weight_source_.write(set * pairs() + t * top_k() + j, &weight, 0);
          const double term =
              double{load_float(&y, spec().dtype, 0)} * double{load_float(&weight, DType::f32, 0)};
          sum += term;
          magnitude += std::abs(term);
        }
        const double limit = static_cast<double>(top_k() + 1) * 0x1p-24 * magnitude +
                             rounding_limit(sum, spec().dtype);
        v.add(load_float(out.data(), spec().dtype, t * hidden() + i), sum, limit,
              [&] { return "out[token " + std::to_string(t) + ", " + std::to_string(i) + "]"; });
      }
    });
    return verdict;
  }

 private:
  Source weight_source_;
  Slab y_, inverse_, weights_, out_;
};

}  // namespace

std::unique_ptr<Case> make_moe_permute(Device& device, const CaseSpec& spec) {
  return std::make_unique<MoePermute>(device, spec);
}
std::unique_ptr<Case> make_moe_unpermute(Device& device, const CaseSpec& spec) {
  return std::make_unique<MoeUnpermute>(device, spec);
}

}  // namespace moeblas::bench
