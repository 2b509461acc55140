// moe_route, as Mixtral and Qwen3-MoE choose: softmax over the chosen logits.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/data.h"
#include "bench/operations.h"

namespace moeblas::bench {
namespace {

class MoeRoute final : public Case {
 public:
  MoeRoute(Device& device, const CaseSpec& s)
      : Case(s),
        device_(device),
        experts_(s.shape.experts),
        top_k_(s.shape.top_k),
        source_(Source::bell(Random(s.seed).stream(1), s.dtype, 2.0f)) {}

  Work work() const override {
    const auto element = static_cast<int64_t>(size_of(spec().dtype));
    return {spec().tokens * experts_ * element, spec().tokens * top_k_ * 8, 0};
  }
  Sizes sizes() const override {
    return {{"M", spec().tokens}, {"E", experts_}, {"top_k", top_k_}};
  }
  int64_t footprint(int64_t sets) const override { return sets * work().bytes(); }

  void prepare(int64_t sets) override {
    logits_ = Slab(device_, spec().dtype, {spec().tokens, experts_}, sets);
    ids_ = Slab(device_, DType::i32, {spec().tokens, top_k_}, sets);
    weights_ = Slab(device_, DType::f32, {spec().tokens, top_k_}, sets);
    prepared_ = true;
    for (int64_t set = 0; set < sets; ++set) {
      logits_.fill(set, source_);
      poison(set);
    }
  }

  void call(int64_t set, const Options& options) override {
    const auto view = [&](const Slab& slab, DType dtype, int64_t columns) {
      return prepared_ ? slab.view(set)
                       : TensorView(nullptr, dtype, {spec().tokens, columns}, device_.handle());
    };
    moe_route(view(logits_, spec().dtype, experts_), {},
              {.top_k = static_cast<int>(top_k_), .normalize = true},
              view(ids_, DType::i32, top_k_), view(weights_, DType::f32, top_k_), options);
  }

  void poison(int64_t set) override {
    ids_.poison(set);
    weights_.poison(set);
  }

  Verdict check(int64_t set, const Options&, const Tamper& tamper) override {
    constexpr int64_t kMost = 1024;
    std::vector<uint8_t> ids = ids_.download(set);
    const std::vector<uint8_t> weights = weights_.download(set);
    if (tamper) tamper(ids);
    Verdict verdict;
    require_finite(weights, DType::f32, verdict);
    const int64_t samples = std::min(kMost, spec().tokens);
    verdict.add_samples(samples, [&](int64_t i, Verdict& v) {
      const int64_t t = i * spec().tokens / samples;
      std::vector<double> logit(static_cast<size_t>(experts_));
      for (int64_t e = 0; e < experts_; ++e) {
        uint32_t element = 0;
        source_.write((set * spec().tokens + t) * experts_ + e, &element, 0);
        logit[static_cast<size_t>(e)] = load_float(&element, spec().dtype, 0);
      }
      // Ties go to the lower expert.
      std::vector<int32_t> order(logit.size());
      std::iota(order.begin(), order.end(), 0);
      const auto at = [&](int32_t e) { return logit[static_cast<size_t>(e)]; };
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return at(a) > at(b); });
      double total = 0;
      for (int64_t j = 0; j < top_k_; ++j) {
        total += std::exp(at(order[static_cast<size_t>(j)]) - at(order[0]));
      }
      for (int64_t j = 0; j < top_k_; ++j) {
        const int32_t e = order[static_cast<size_t>(j)];
        int32_t id = 0;
        std::memcpy(&id, ids.data() + (t * top_k_ + j) * 4, sizeof id);
        const auto where = [&](const char* what) {
          return [=] {
            return std::string(what) + "[token " + std::to_string(t) + ", " + std::to_string(j) +
                   "]";
          };
        };
        v.add(id, e, 0, where("ids"));
        // The exponential of a rounded difference, a sum of top_k of them, a quotient.
        const double weight = std::exp(at(e) - at(order[0])) / total;
        const double roundings =
            8 + static_cast<double>(top_k_) + 2 * (at(order[0]) - logit[static_cast<size_t>(e)]);
        v.add(load_float(weights.data(), DType::f32, t * top_k_ + j), weight,
              roundings * 0x1p-24 * weight, where("weights"));
      }
    });
    return verdict;
  }

 private:
  Device& device_;
  int64_t experts_, top_k_;
  Source source_;
  bool prepared_ = false;
  Slab logits_, ids_, weights_;
};

}  // namespace

std::unique_ptr<Case> make_moe_route(Device& device, const CaseSpec& spec) {
  return std::make_unique<MoeRoute>(device, spec);
}

}  // namespace moeblas::bench
