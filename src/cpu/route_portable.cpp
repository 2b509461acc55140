// route_portable: moe_route in plain C++, one token after the other, in float32.
#include "cpu/route_portable.h"

#include <algorithm>
#include <cmath>

#include "cpu/elements.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::RouteProblem;

// NaN is worse than every number.
bool better(float a, float b) { return !std::isnan(a) && (std::isnan(b) || a > b); }

// The best position of values[0, n) that is not taken, the lower of equals; -1 if all are taken.
int64_t best_free(const float* values, const bool* taken, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!taken[i] && (best < 0 || better(values[i], values[best]))) best = i;
  }
  return best;
}

void softmax(float* values, int64_t n) {
  float max = -INFINITY;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, values[i]);
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += values[i] = std::exp(values[i] - max);
  for (int64_t i = 0; i < n; ++i) values[i] /= sum;
}

// A worker's memory for one token.
struct Scratch {
  float* scores;   // [E]
  float* choice;   // [E] what the choice is made by
  float* worth;    // [n_group]
  float* weights;  // [k]
  bool* taken;     // [E]
  bool* closed;    // [n_group]

  static size_t bytes(const RouteProblem& p) {
    const auto experts = static_cast<size_t>(p.experts),
               groups = static_cast<size_t>(p.router.n_group),
               k = static_cast<size_t>(p.router.top_k);
    const size_t all = (2 * experts + groups + k) * sizeof(float) + experts + groups;
    return (all + 63) / 64 * 64;
  }
  Scratch(const RouteProblem& p, char* memory) {
    scores = reinterpret_cast<float*>(memory);
    choice = scores + p.experts;
    worth = choice + p.experts;
    weights = worth + p.router.n_group;
    taken = reinterpret_cast<bool*>(weights + p.router.top_k);
    closed = taken + p.experts;
  }
};

// Marks the experts of all groups but the best topk_group as taken.
void close_groups(const RouteProblem& p, const Scratch& s) {
  const int64_t groups = p.router.n_group, size = p.experts / groups;
  for (int64_t g = 0; g < groups; ++g) {
    const float* values = s.choice + g * size;
    bool* taken = s.taken + g * size;
    const int64_t first = best_free(values, taken, size);
    taken[first] = true;
    const int64_t second = best_free(values, taken, size);
    taken[first] = false;
    s.worth[g] = second < 0 ? values[first] : values[first] + values[second];
    s.closed[g] = false;
  }
  for (int i = 0; i < p.router.topk_group; ++i)
    s.closed[best_free(s.worth, s.closed, groups)] = true;
  // `closed` now marks the groups that stay open.
  for (int64_t g = 0; g < groups; ++g) std::fill_n(s.taken + g * size, size, !s.closed[g]);
}

void route_token(const RouteProblem& p, int64_t t, const Scratch& s) {
  const Router& r = p.router;
  load_floats(p.logits.data, p.logits.dtype, t * p.logits.strides[0], p.logits.strides[1],
              p.experts, s.scores);
  const bool grouped = r.n_group > 1;
  // Softmax keeps the order of the logits, which tell more experts apart than the scores do.
  const bool by_logits = r.score == Score::softmax && !p.bias && !grouped;
  if (by_logits) std::copy_n(s.scores, p.experts, s.choice);
  const bool chosen_logits = r.score == Score::softmax && r.normalize;
  const auto logit = [&](int64_t e) {
    return load_float(p.logits.data, p.logits.dtype,
                      t * p.logits.strides[0] + e * p.logits.strides[1]);
  };
  if (r.score == Score::sigmoid) {
    for (int64_t e = 0; e < p.experts; ++e) s.scores[e] = 1.0f / (1.0f + std::exp(-s.scores[e]));
  } else if (!by_logits || !chosen_logits) {
    softmax(s.scores, p.experts);
  }
  if (!by_logits) {
    for (int64_t e = 0; e < p.experts; ++e) {
      s.choice[e] = s.scores[e];
      if (p.bias) s.choice[e] += load_as<float>(p.bias.data, e * p.bias.strides[0]);
    }
  }
  std::fill_n(s.taken, p.experts, false);
  if (grouped) close_groups(p, s);

  float sum = 0.0f;
  for (int j = 0; j < r.top_k; ++j) {
    const int64_t e = best_free(s.choice, s.taken, p.experts);
    s.taken[e] = true;
    store_as(p.ids.data, t * p.ids.strides[0] + j, static_cast<int32_t>(e));
    s.weights[j] = chosen_logits ? logit(e) : s.scores[e];
    sum += s.weights[j];
  }
  if (chosen_logits) softmax(s.weights, r.top_k);
  for (int j = 0; j < r.top_k; ++j) {
    float weight = s.weights[j];
    // Where every chosen sigmoid underflows the weights stay 0.
    if (r.normalize && !chosen_logits && sum != 0.0f) weight /= sum;
    store_as(p.weights.data, t * p.weights.strides[0] + j, weight * r.scaling_factor);
  }
}

}  // namespace

size_t route_portable_workspace(const RouteProblem& p) {
  return static_cast<size_t>(threads::num_threads()) * Scratch::bytes(p);
}

void route_portable(const RouteProblem& p, dispatch::Workspace workspace) {
  const size_t per_slot = Scratch::bytes(p);
  const int slots = static_cast<int>(
      std::min(static_cast<size_t>(threads::num_threads()), workspace.bytes / per_slot));
  threads::for_each_item(p.tokens, slots, [&](int64_t t, int slot) {
    route_token(
        p, t,
        Scratch(p, static_cast<char*>(workspace.data) + static_cast<size_t>(slot) * per_slot));
  });
}

}  // namespace moeblas::cpu
