// The language model against float64, in every variant that it takes.
#include <gtest/gtest.h>

#include <cmath>

#include "model/random_model.h"
#include "model/reference_model.h"
#include "moe_model/model.h"
#include "moeblas/kernels.h"
#include "support/execute.h"

namespace moeblas::test {
namespace {

constexpr QuantSpec kAffine4{Mode::affine, 4, 32};

// The variants between them have everything that a config may say.
struct Variant {
  const char* name;
  RandomConfig config;
};
const Variant kVariants[] = {
    {"olmoe, affine", {.format = kAffine4}},
    {"olmoe, affine with 8-bit head, float32 scales",
     {.format = QuantSpec{Mode::affine, 3, 64},
      .head_format = QuantSpec{Mode::affine, 8, 16},
      .dtype = DType::f32,
      .normalize = false}},
    {"olmoe, bfloat16, experts one by one",
     {.layout = ExpertLayout::separate, .normalize = false, .clip_qkv = 1.5}},
    {"olmoe, float16, experts joint, tied",
     {.dtype = DType::f16, .layout = ExpertLayout::joint, .tied = true, .attention_bias = true}},
    {"olmoe, mxfp8, float router", {.format = QuantSpec{Mode::mxfp8, 8, 32}, .float_router = true}},
    {"qwen3, affine, tied",
     {.family = Family::qwen3_moe,
      .format = QuantSpec{Mode::affine, 5, 16},
      .dtype = DType::f16,
      .tied = true}},
    {"qwen3, float32, experts joint, wide heads",
     {.family = Family::qwen3_moe,
      .dtype = DType::f32,
      .layout = ExpertLayout::joint,
      .heads = 6,
      .kv_heads = 3,
      .head_dim = 32}},
    {"qwen3, bfloat16, experts one by one in two files, one dense layer",
     {.family = Family::qwen3_moe,
      .layout = ExpertLayout::separate,
      .two_files = true,
      .attention_bias = true,
      .sparse = {true, false, true}}},
    {"qwen3, nvfp4, dense layer, one expert a token",
     {.family = Family::qwen3_moe,
      .format = QuantSpec{Mode::nvfp4, 4, 16},
      .sparse = {false, true},
      .heads = 4,
      .kv_heads = 1,
      .top_k = 1,
      .theta = 1e6}},
    {"qwen3, mxfp4, every expert, in two files",
     {.family = Family::qwen3_moe,
      .format = QuantSpec{Mode::mxfp4, 4, 32},
      .two_files = true,
      .heads = 4,
      .kv_heads = 4,
      .experts = 3,
      .top_k = 3}},
    {"qwen3, affine, experts one by one",
     {.family = Family::qwen3_moe,
      .format = kAffine4,
      .layout = ExpertLayout::separate,
      .experts = 12,
      .top_k = 4}},
};

std::vector<int32_t> draw_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random.below(vocab)));
  return tokens;
}

// A model of a folder.
struct Loaded {
  checkpoint::Checkpoint checkpoint;
  examples::MoeModel model;

  explicit Loaded(const std::filesystem::path& folder)
      : checkpoint(checkpoint::Checkpoint::open(folder)), model(checkpoint) {}
};

// Logits (tokens, vocab), read in passes of these lengths in turn.
std::vector<float> logits(const RandomModel& drawn, std::span<const int32_t> tokens,
                          std::vector<size_t> passes, int64_t capacity = 0) {
  Loaded loaded(drawn.folder());
  examples::KvCache cache(loaded.model.config(),
                          capacity > 0 ? capacity : static_cast<int64_t>(tokens.size()));
  std::vector<float> all;
  for (size_t first = 0, turn = 0; first < tokens.size(); ++turn) {
    const size_t count = std::min(passes[turn % passes.size()], tokens.size() - first);
    const examples::Matrix some = loaded.model.forward(tokens.subspan(first, count), cache);
    all.insert(all.end(), some.data.begin(), some.data.end());
    first += count;
  }
  EXPECT_EQ(cache.length, static_cast<int64_t>(tokens.size()));
  return all;
}

double largest_error(std::span<const float> got, std::span<const double> exact) {
  if (got.size() != exact.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(got[i] - exact[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

TEST(Model, LogitsAreThoseOfTheReference) {
  uint64_t seed = 1;
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    const RandomModel drawn(variant.config, seed);
    const auto tokens = draw_tokens(19, variant.config.vocab, ++seed);
    const Judgement judgement = judge(drawn, tokens);
    // The case can tell right from wrong.
    ASSERT_LT(judgement.tolerance * 1000, judgement.spread);
    const double error = largest_error(logits(drawn, tokens, {tokens.size()}), judgement.exact);
    EXPECT_LE(error, judgement.tolerance);
    RecordProperty(variant.name, std::to_string(error / judgement.tolerance));
  }
}

// The same logits token by token from the cache, in uneven passes, and with room to spare.
TEST(Model, TheCacheChangesNothing) {
  uint64_t seed = 101;
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    const RandomModel drawn(variant.config, seed);
    const auto tokens = draw_tokens(13, variant.config.vocab, ++seed);
    const Judgement judgement = judge(drawn, tokens);
    ASSERT_LT(judgement.tolerance * 1000, judgement.spread);
    EXPECT_LE(largest_error(logits(drawn, tokens, {1}), judgement.exact), judgement.tolerance);
    EXPECT_LE(largest_error(logits(drawn, tokens, {3, 1, 5}, 40), judgement.exact),
              judgement.tolerance);
  }
}

TEST(Model, OneCacheServesTextAfterText) {
  const RandomModel drawn(kVariants[0].config, 7);
  Loaded loaded(drawn.folder());
  examples::KvCache cache(loaded.model.config(), 12);
  for (uint64_t text = 0; text < 3; ++text) {
    const auto tokens = draw_tokens(12 - static_cast<int64_t>(text) * 3, 256, text);
    const Judgement judgement = judge(drawn, tokens);
    cache.length = 0;
    const examples::Matrix got = loaded.model.forward(tokens, cache);
    EXPECT_LE(largest_error(got.data, judgement.exact), judgement.tolerance);
    // Only the last row, and in passes.
    cache.length = 0;
    loaded.model.read(tokens, cache, true, [&](const examples::Matrix& last, size_t first) {
      EXPECT_EQ(first, 0u);
      EXPECT_EQ(last.rows, 1);
      const std::span<const double> row(judgement.exact.end() - last.cols, judgement.exact.end());
      EXPECT_LE(largest_error(last.data, row), judgement.tolerance);
    });
  }
}

TEST(Model, LongTextsAreReadInPasses) {
  RandomConfig config = kVariants[0].config;
  config.context = 400;
  const RandomModel drawn(config, 8);
  Loaded loaded(drawn.folder());
  const auto tokens = draw_tokens(300, 256, 9);
  examples::KvCache cache(loaded.model.config(), 300);
  std::vector<float> all;
  std::vector<size_t> starts;
  loaded.model.read(tokens, cache, false, [&](const examples::Matrix& some, size_t first) {
    starts.push_back(first);
    all.insert(all.end(), some.data.begin(), some.data.end());
  });
  EXPECT_EQ(starts, (std::vector<size_t>{0, 128, 256}));
  const Judgement judgement = judge(drawn, tokens);
  EXPECT_LE(largest_error(all, judgement.exact), judgement.tolerance);
}

TEST(Model, ThreadsChangeNoBit) {
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    const RandomModel drawn(variant.config, 21);
    const auto tokens = draw_tokens(9, variant.config.vocab, 22);
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 5}) {
      with_threads(threads, [&] { results.push_back(logits(drawn, tokens, {6, 1})); });
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

TEST(Model, EveryProductIsAnOperation) {
  const RandomModel drawn(kVariants[0].config, 31);
  Loaded loaded(drawn.folder());
  examples::KvCache cache(loaded.model.config(), 8);
  loaded.model.forward(draw_tokens(5, 256, 1), cache);
  loaded.model.forward(draw_tokens(1, 256, 2), cache);
  const examples::Profile& profile = loaded.model.profile();
  const int64_t layers = 2, passes = 2;
  for (const auto& [op, what] :
       std::vector<std::pair<const char*, const char*>>{{"quantized_matmul", "q"},
                                                        {"quantized_matmul", "k"},
                                                        {"quantized_matmul", "v"},
                                                        {"quantized_matmul", "o"},
                                                        {"quantized_matmul", "router"},
                                                        {"gather_mm", "q k^T"},
                                                        {"gather_mm", "p v"},
                                                        {"moe_route", ""},
                                                        {"moe_ffn", ""}}) {
    ASSERT_TRUE(profile.entries.contains({op, what})) << op << " " << what;
    EXPECT_EQ(profile.entries.at({op, what}).calls, layers * passes) << op << " " << what;
  }
  EXPECT_EQ(profile.entries.at({"quantized_matmul", "output head"}).calls, passes);
  EXPECT_EQ(profile.entries.at({"dequantize", "embedding"}).calls, 6);
  double sum = 0;
  for (const auto& [name, entry] : profile.entries) sum += entry.seconds;
  EXPECT_LE(sum, profile.seconds);
}

template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST(Model, RefusesWhatItCannotRead) {
  const RandomModel drawn(kVariants[0].config, 41);
  Loaded loaded(drawn.folder());
  examples::KvCache cache(loaded.model.config(), 4);
  const auto forward = [&](std::vector<int32_t> tokens) {
    return message_of([&] { loaded.model.forward(tokens, cache); });
  };
  EXPECT_EQ(forward({1, 2, 3, 4, 5}), "expected 1 to 4 tokens, the room in the cache, got 5");
  EXPECT_EQ(forward({}), "expected 1 to 4 tokens, the room in the cache, got 0");
  EXPECT_EQ(forward({1, 256}), "token 256 is outside the vocabulary of 256");
  EXPECT_EQ(forward({-1}), "token -1 is outside the vocabulary of 256");
  EXPECT_EQ(cache.length, 0);
  EXPECT_EQ(forward({1, 2, 3, 4}), "");
}

TEST(Model, NamesWhatACheckpointLacks) {
  RandomConfig config = kVariants[2].config;
  config.two_files = true;
  const RandomModel drawn(config, 51);
  std::filesystem::remove(drawn.folder() / "model-00002-of-00002.safetensors");
  const std::string message = message_of([&] { Loaded loaded(drawn.folder()); });
  EXPECT_NE(message.find("is missing"), std::string::npos) << message;
  EXPECT_NE(message.find("model.layers.0."), std::string::npos) << message;
}

}  // namespace
}  // namespace moeblas::test
