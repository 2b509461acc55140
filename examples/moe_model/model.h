// A mixture-of-experts language model, OLMoE or Qwen3-MoE, on moeblas's public interface: an
// example to read, and what `moeblas generate` and `moeblas eval` run.
//
// Every matrix product is a call of the library, attention's included, and every weight is read
// where it lies in the mapped file: nothing is copied, decoded or repacked when a model is made.
// model.cpp is the model; weights.h finds its weights, arithmetic.h has what is no product.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "moe_model/arithmetic.h"
#include "moe_model/weights.h"

namespace moeblas::examples {

// What attention remembers of the tokens read so far.
struct KvCache {
  struct Layer {
    std::vector<float> keys;    // [key/value head][token][head_dim]
    std::vector<float> values;  // [key/value head][head_dim][token], so that sums over tokens run
                                // along memory
  };
  int64_t length = 0;  // tokens
  int64_t capacity;
  std::vector<Layer> layers;

  KvCache(const checkpoint::Config& config, int64_t tokens);
};

// Where the time goes: calls and seconds by operation and what it was for.
struct Profile {
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
  };
  using Name = std::pair<std::string_view, std::string_view>;
  std::map<Name, Entry> entries;
  double seconds = 0;  // of all, what lies between the operations included
};

class MoeModel {
 public:
  // The checkpoint must outlive the model. Throws checkpoint::Error if a tensor is missing or does
  // not fit the config.
  explicit MoeModel(const checkpoint::Checkpoint& c) : config_(c.config()), weights_(c) {}

  // Reads `tokens` after those that the cache holds. Returns the logits (rows, vocab_size) of the
  // token that follows each of them, or only of the one that follows the last. Throws
  // std::invalid_argument if a token is not in the vocabulary or the cache has no room for them.
  Matrix forward(std::span<const int32_t> tokens, KvCache& cache, bool only_last = false);

  // The same for a text of any length, in passes of at most kPass tokens: attention's scores take
  // heads * pass * length numbers. Calls use(logits, first) with those of tokens first, first + 1,
  // ... of the text.
  static constexpr size_t kPass = 128;
  template <class Use>
  void read(std::span<const int32_t> tokens, KvCache& cache, bool only_last, Use&& use) {
    for (size_t first = 0; first < tokens.size(); first += kPass) {
      const auto pass = tokens.subspan(first, std::min(kPass, tokens.size() - first));
      use(forward(pass, cache, only_last), first);
    }
  }

  const checkpoint::Config& config() const { return config_; }
  const Profile& profile() const { return profile_; }

 private:
  Matrix embed(std::span<const int32_t> tokens);
  Matrix attend(const Layer& layer, KvCache& cache, size_t index, const Matrix& x,
                const Rotation& rotation);
  Matrix feed_forward(const Layer& layer, const Matrix& x);
  Matrix run_each(const std::vector<FfnLayer>& experts, const Matrix& x, const TensorView& ids,
                  const TensorView& weights);
  Matrix multiply(const char* what, const Matrix& x, const Linear& w);
  Matrix norm(const Matrix& x, const TensorView& weight) const {
    return rms_norm(x, weight, config_.rms_norm_eps);
  }
  template <class Call>
  void timed(std::string_view op, std::string_view what, Call&& call);

  checkpoint::Config config_;
  Weights weights_;
  Profile profile_;
};

}  // namespace moeblas::examples
