#include "model/reference_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace moeblas::test {
namespace {

using Row = std::vector<double>;

class Reference {
 public:
  Reference(const RandomModel& model, double noise, Random random)
      : model_(model), c_(model.config()), noise_(noise), random_(random) {}

  Row logits(std::span<const int32_t> tokens) {
    std::vector<Row> x;
    const Row& embedding = model_.values("model.embed_tokens.weight");
    for (const int32_t id : tokens) {
      const auto first = embedding.begin() + id * c_.hidden;
      x.emplace_back(first, first + c_.hidden);
    }
    for (size_t l = 0; l < c_.sparse.size(); ++l) {
      const std::string layer = "model.layers." + std::to_string(l) + ".";
      attend(layer, x);
      for (Row& row : x) {
        const Row in = norm(row, layer + "post_attention_layernorm", c_.hidden);
        add(row, c_.sparse[l] ? mixture(layer + "mlp.", in) : mlp(layer + "mlp.", in));
      }
    }
    Row all;
    for (const Row& row : x) {
      const Row y = linear(c_.tied ? "model.embed_tokens" : "lm_head",
                           norm(row, "model.norm", c_.hidden), c_.vocab);
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }

 private:
  double r(double value) {
    return noise_ == 0 ? value : value * (1 + noise_ * (2 * random_.uniform() - 1));
  }

  Row linear(const std::string& module, const Row& x, int64_t n) {
    const Row& w = model_.values(module + ".weight");
    const bool bias = model_.has(module + ".bias");
    Row y;
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (size_t k = 0; k < x.size(); ++k) {
        sum = r(sum + r(x[k] * w[static_cast<size_t>(i) * x.size() + k]));
      }
      if (bias) sum = r(sum + model_.values(module + ".bias")[static_cast<size_t>(i)]);
      y.push_back(sum);
    }
    return y;
  }

  void add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = r(x[i] + y[i]);
  }

  Row norm(const Row& x, const std::string& module, int64_t width) {
    const Row& w = model_.values(module + ".weight");
    const auto size = static_cast<size_t>(width);
    Row y;
    for (size_t first = 0; first < x.size(); first += size) {
      double squares = 0;
      for (size_t i = first; i < first + size; ++i) squares = r(squares + r(x[i] * x[i]));
      const double root = r(std::sqrt(r(squares / static_cast<double>(width) + c_.epsilon)));
      for (size_t i = first; i < first + size; ++i) y.push_back(r(r(x[i] / root) * w[i - first]));
    }
    return y;
  }

  // Pairs (i, i + half) of each head as complex numbers, turned by position * theta^(-i / half).
  void rotate(Row& heads, size_t position) {
    const auto dim = static_cast<size_t>(c_.head_dim), half = dim / 2;
    for (size_t h = 0; h < heads.size(); h += dim) {
      for (size_t i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(position) *
            std::pow(c_.theta, -static_cast<double>(i) / static_cast<double>(half));
        const double c = r(std::cos(angle)), s = r(std::sin(angle));
        const double a = heads[h + i], b = heads[h + i + half];
        heads[h + i] = r(r(a * c) - r(b * s));
        heads[h + i + half] = r(r(b * c) + r(a * s));
      }
    }
  }

  void attend(const std::string& layer, std::vector<Row>& x) {
    const std::string module = layer + "self_attn.";
    const int64_t d = c_.head_dim;
    const bool each_head = c_.family == Family::qwen3_moe;
    std::vector<Row> q, k, v;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row in = norm(x[t], layer + "input_layernorm", c_.hidden);
      q.push_back(linear(module + "q_proj", in, c_.heads * d));
      k.push_back(linear(module + "k_proj", in, c_.kv_heads * d));
      v.push_back(linear(module + "v_proj", in, c_.kv_heads * d));
      q[t] = norm(q[t], module + "q_norm", each_head ? d : c_.heads * d);
      k[t] = norm(k[t], module + "k_norm", each_head ? d : c_.kv_heads * d);
      for (Row* row : {&q[t], &k[t], &v[t]}) {
        for (double& value : *row) {
          if (c_.clip_qkv) value = std::clamp(value, -*c_.clip_qkv, *c_.clip_qkv);
        }
      }
      rotate(q[t], t);
      rotate(k[t], t);
    }
    for (size_t t = 0; t < x.size(); ++t) {
      Row context;
      for (int64_t h = 0; h < c_.heads; ++h) {
        const auto own = static_cast<size_t>(h * d);
        const auto shared = static_cast<size_t>(h / (c_.heads / c_.kv_heads) * d);
        Row share;
        for (size_t u = 0; u <= t; ++u) {
          double score = 0;
          for (size_t i = 0; i < static_cast<size_t>(d); ++i) {
            score = r(score + r(q[t][own + i] * k[u][shared + i]));
          }
          share.push_back(r(score / std::sqrt(static_cast<double>(d))));
        }
        softmax(share);
        for (size_t i = 0; i < static_cast<size_t>(d); ++i) {
          double sum = 0;
          for (size_t u = 0; u <= t; ++u) sum = r(sum + r(share[u] * v[u][shared + i]));
          context.push_back(sum);
        }
      }
      add(x[t], linear(module + "o_proj", context, c_.hidden));
    }
  }

  void softmax(Row& values) {
    const double top = *std::max_element(values.begin(), values.end());
    double sum = 0;
    for (double& v : values) sum = r(sum + (v = r(std::exp(r(v - top)))));
    for (double& v : values) v = r(v / sum);
  }

  Row mlp(const std::string& module, const Row& x) { return mlp(module, x, c_.mlp_size); }
  Row mlp(const std::string& module, const Row& x, int64_t size) {
    const Row gate = linear(module + "gate_proj", x, size),
              up = linear(module + "up_proj", x, size);
    Row hidden;
    for (size_t i = 0; i < gate.size(); ++i) {
      hidden.push_back(r(r(gate[i] / r(1 + r(std::exp(-gate[i])))) * up[i]));
    }
    return linear(module + "down_proj", hidden, c_.hidden);
  }

  Row mixture(const std::string& module, const Row& x) {
    Row share = linear(module + "gate", x, c_.experts);
    softmax(share);
    std::vector<size_t> order(share.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return share[a] > share[b]; });
    order.resize(static_cast<size_t>(c_.top_k));
    double whole = 0;
    for (const size_t e : order) whole = r(whole + share[e]);
    if (!c_.normalize) whole = 1;
    Row y(x.size());
    for (const size_t e : order) {
      Row part = mlp(module + "experts." + std::to_string(e) + ".", x, c_.expert_size);
      for (double& value : part) value = r(value * r(share[e] / whole));
      add(y, part);
    }
    return y;
  }

  const RandomModel& model_;
  const RandomConfig& c_;
  const double noise_;
  Random random_;
};

}  // namespace

std::vector<double> reference_logits(const RandomModel& model, std::span<const int32_t> tokens,
                                     double noise, Random random) {
  return Reference(model, noise, random).logits(tokens);
}

Judgement judge(const RandomModel& model, std::span<const int32_t> tokens) {
  constexpr int kRuns = 4;
  Judgement j;
  j.exact = reference_logits(model, tokens);
  double squares = 0, logits = 0;
  for (int run = 0; run < kRuns; ++run) {
    const auto moved =
        reference_logits(model, tokens, 0x1p-23, Random(static_cast<uint64_t>(run) + 1));
    for (size_t i = 0; i < moved.size(); ++i) {
      squares += (moved[i] - j.exact[i]) * (moved[i] - j.exact[i]);
    }
  }
  for (const double v : j.exact) logits += v * v;
  const auto count = static_cast<double>(j.exact.size());
  j.tolerance = 8 * std::sqrt(squares / (kRuns * count));
  j.spread = std::sqrt(logits / count);
  return j;
}

}  // namespace moeblas::test
