#include "moe_model/model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>

#include "moeblas/ops.h"

namespace moeblas::examples {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One row of a matrix, as a matrix.
TensorView row_of(TensorView v, int64_t row) {
  if (!v) return v;
  v.data = static_cast<char*>(v.data) + row * v.strides[0] * static_cast<int64_t>(size_of(v.dtype));
  v.shape[0] = 1;
  return v;
}

// Keys and values of new tokens, behind those that the cache has.
void append(KvCache& cache, size_t layer, int64_t dim, const Matrix& k, const Matrix& v) {
  float* const keys = cache.layers[layer].keys.data();
  float* const values = cache.layers[layer].values.data();
  for (int64_t t = 0; t < k.rows; ++t) {
    const int64_t at = cache.length + t;
    for (int64_t i = 0; i < k.cols; ++i) {
      keys[(i / dim * cache.capacity + at) * dim + i % dim] = k.row(t)[i];
      values[i * cache.capacity + at] = v.row(t)[i];
    }
  }
}

}  // namespace

KvCache::KvCache(const checkpoint::Config& config, int64_t tokens)
    : capacity(tokens), layers(static_cast<size_t>(config.num_hidden_layers)) {
  const auto size = static_cast<size_t>(config.num_key_value_heads * config.head_dim * tokens);
  for (Layer& layer : layers) layer = {std::vector<float>(size), std::vector<float>(size)};
}

template <class Call>
void MoeModel::timed(std::string_view op, std::string_view what, Call&& call) {
  const auto start = Clock::now();
  call();
  Profile::Entry& entry = profile_.entries[{op, what}];
  entry.seconds += seconds_since(start);
  ++entry.calls;
}

Matrix MoeModel::forward(std::span<const int32_t> tokens, KvCache& cache, bool only_last) {
  const auto start = Clock::now();
  const auto count = static_cast<int64_t>(tokens.size());
  if (count == 0 || count > cache.capacity - cache.length) {
    throw std::invalid_argument("expected 1 to " + std::to_string(cache.capacity - cache.length) +
                                " tokens, the room in the cache, got " + std::to_string(count));
  }
  const Rotation rotation(cache.length, count, config_.head_dim, config_.rope_theta);
  Matrix x = embed(tokens);
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    const Layer& layer = weights_.layers[l];
    add(x, attend(layer, cache, l, norm(x, layer.attention_norm), rotation));
    add(x, feed_forward(layer, norm(x, layer.ffn_norm)));
  }
  cache.length += count;
  if (only_last) {
    Matrix last(1, x.cols);
    std::copy_n(x.row(count - 1), x.cols, last.row(0));
    x = std::move(last);
  }
  Matrix logits = multiply("output head", norm(x, weights_.final_norm), weights_.head);
  profile_.seconds += seconds_since(start);
  return logits;
}

Matrix MoeModel::embed(std::span<const int32_t> tokens) {
  Matrix x(static_cast<int64_t>(tokens.size()), config_.hidden_size);
  for (int64_t t = 0; t < x.rows; ++t) {
    const int32_t id = tokens[static_cast<size_t>(t)];
    if (id < 0 || id >= config_.vocab_size) {
      throw std::invalid_argument("token " + std::to_string(id) + " is outside the vocabulary of " +
                                  std::to_string(config_.vocab_size));
    }
    Quantized row = weights_.embedding;
    row.codes = row_of(row.codes, id);
    row.scales = row_of(row.scales, id);
    row.biases = row_of(row.biases, id);
    if (row.spec.mode == Mode::dense) {
      const TensorView values(row.codes.data, row.codes.dtype, {x.cols},
                              Shape{row.codes.strides[1]});
      std::ranges::copy(to_floats(values), x.row(t));
    } else {
      const TensorView out(x.row(t), DType::f32, {1, x.cols});
      timed("dequantize", "embedding", [&] { dequantize(row, out); });
    }
  }
  return x;
}

Matrix MoeModel::multiply(const char* what, const Matrix& x, const Linear& w) {
  Matrix y(x.rows, w.weight.codes.shape[0]);
  timed("quantized_matmul", what, [&] { quantized_matmul(x.view(), w.weight, true, y.view()); });
  if (w.bias) add_row(y, w.bias);
  return y;
}

// Every token attends to itself and all before it; query heads share key/value heads in groups.
Matrix MoeModel::attend(const Layer& layer, KvCache& cache, size_t index, const Matrix& x,
                        const Rotation& rotation) {
  // Both kinds of norm are one call: over a token's heads, or over as many values as a head has.
  Matrix q = norm(multiply("q", x, layer.q), layer.q_norm);
  Matrix k = norm(multiply("k", x, layer.k), layer.k_norm);
  Matrix v = multiply("v", x, layer.v);
  if (config_.clip_qkv) {
    for (Matrix* m : {&q, &k, &v}) clamp(*m, *config_.clip_qkv);
  }
  rotation.turn(q);
  rotation.turn(k);
  const int64_t d = config_.head_dim, kv = config_.num_key_value_heads;
  const int64_t heads = config_.num_attention_heads, group = heads / kv;
  append(cache, index, d, k, v);

  // Stacks (key/value head, query head of its group) of matrices with a row per token. All query
  // heads of a group meet one matrix of keys, and one of values, by broadcasting.
  const int64_t count = x.rows, length = cache.length + count, room = cache.capacity;
  const Shape stack{kv, group, count, d}, stack_strides{group * d, d, heads * d, 1};
  Matrix scores(heads * count, length), context(count, heads * d);
  const KvCache::Layer& memory = cache.layers[index];
  const TensorView queries(q.data.data(), DType::f32, stack, stack_strides);
  const TensorView keys(memory.keys.data(), DType::f32, Shape{kv, 1, d, length},
                        Shape{d * room, 0, 1, d});
  const TensorView shares(scores.data.data(), DType::f32, {kv, group, count, length});
  const TensorView values(memory.values.data(), DType::f32, Shape{kv, 1, length, d},
                          Shape{d * room, 0, 1, room});
  const TensorView result(context.data.data(), DType::f32, stack, stack_strides);

  timed("gather_mm", "q k^T", [&] { gather_mm(queries, keys, {}, {}, false, shares); });
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (int64_t r = 0; r < scores.rows; ++r) {
    softmax(scores.row(r), cache.length + r % count + 1, length, scale);
  }
  timed("gather_mm", "p v", [&] { gather_mm(shares, values, {}, {}, false, result); });
  return multiply("o", context, layer.o);
}

// The experts that the router chooses for each token, weighted and added up.
Matrix MoeModel::feed_forward(const Layer& layer, const Matrix& x) {
  const bool routed = layer.router.weight.codes.present;
  const int64_t top_k = routed ? config_.num_experts_per_tok : 1;
  std::vector<int32_t> chosen(static_cast<size_t>(x.rows * top_k));
  std::vector<float> shares(chosen.size(), 1.0f);
  const TensorView ids(chosen.data(), DType::i32, {x.rows, top_k});
  const TensorView weights(shares.data(), DType::f32, {x.rows, top_k});
  if (routed) {
    const Matrix logits = multiply("router", x, layer.router);
    const Router router{.top_k = static_cast<int>(top_k), .normalize = config_.norm_topk_prob};
    timed("moe_route", "", [&] { moe_route(logits.view(), {}, router, ids, weights); });
  }
  if (layer.experts.size() > 1) return run_each(layer.experts, x, ids, weights);
  Matrix y(x.rows, x.cols);
  timed("moe_ffn", "", [&] { moe_ffn(x.view(), layer.experts[0], ids, weights, y.view()); });
  return y;
}

// Experts that the file does not stack: rows sorted by expert, then one after the other.
Matrix MoeModel::run_each(const std::vector<FfnLayer>& experts, const Matrix& x,
                          const TensorView& ids, const TensorView& weights) {
  const int64_t pairs = ids.numel(), e = config_.num_experts;
  Matrix sorted(pairs, x.cols), results(pairs, x.cols), y(x.rows, x.cols);
  std::vector<int32_t> ends(experts.size()), places(static_cast<size_t>(pairs));
  const TensorView offsets(ends.data(), DType::i32, {e});
  const TensorView inverse(places.data(), DType::i32, ids.shape);
  timed("moe_permute", "",
        [&] { moe_permute(x.view(), ids, {}, e, sorted.view(), offsets, inverse); });
  const int32_t only_expert = 0;
  const float whole = 1;
  const Shape same{0, 0};
  for (size_t i = 0; i < experts.size(); ++i) {
    const int64_t begin = i == 0 ? 0 : ends[i - 1], rows = ends[i] - begin;
    if (rows == 0) continue;
    const TensorView in(sorted.row(begin), DType::f32, {rows, x.cols});
    const TensorView out(results.row(begin), DType::f32, {rows, x.cols});
    const TensorView first(&only_expert, DType::i32, {rows, 1}, same);
    const TensorView one(&whole, DType::f32, {rows, 1}, same);
    timed("moe_ffn", "", [&] { moe_ffn(in, experts[i], first, one, out); });
  }
  timed("moe_unpermute", "", [&] { moe_unpermute(results.view(), inverse, weights, y.view()); });
  return y;
}

}  // namespace moeblas::examples
