// No weight is copied, decoded or repacked: a model takes the memory of its file and of its
// activations.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "model/random_model.h"

namespace moeblas::test {
namespace {

// Bytes that a run of `tokens` may hold at once beside the file: keys and values, and what one
// layer makes of the tokens, every intermediate result counted as if none were freed.
int64_t activation_bytes(const RandomConfig& c, int64_t tokens) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const int64_t layers = static_cast<int64_t>(c.sparse.size());
  const int64_t cache = layers * 2 * kv * tokens;
  const int64_t attention = 4 * q + 6 * kv + c.heads * tokens;
  const int64_t experts = c.experts + c.top_k * (4 * c.expert_size + 3 * c.hidden + 4);
  return 4 * (cache + tokens * (attention + experts + 8 * c.hidden + c.vocab));
}

int64_t peak_beyond_start(const std::filesystem::path& folder, int64_t tokens) {
  const std::string command =
      std::string(MOEBLAS_MEMORY_PROBE) + " " + folder.string() + " " + std::to_string(tokens);
  FILE* pipe = popen(command.c_str(), "r");
  long long before = 0, peak = 0;
  const int read = std::fscanf(pipe, "%lld %lld", &before, &peak);
  EXPECT_EQ(pclose(pipe), 0) << command;
  EXPECT_EQ(read, 2);
  return peak - before;
}

TEST(Memory, IsTheFileAndTheActivations) {
  // Code pages, stacks of threads, the allocator's own.
  constexpr int64_t kProgram = 4 << 20;
  constexpr int64_t kTokens = 16;
  for (const bool quantized : {true, false}) {
    RandomConfig config{.hidden = 512, .heads = 32, .experts = 48, .top_k = 8, .expert_size = 512};
    config.keep_values = false;
    config.sparse = {true};
    if (quantized) {
      config.format = QuantSpec{Mode::affine, 4, 64};
    } else {
      config.experts = 12;
      config.layout = ExpertLayout::separate;
      config.keep_values = true;
    }
    const RandomModel drawn(config, 3);
    const auto file = static_cast<int64_t>(drawn.file_bytes());
    // A copy of the weights would show, however they were copied.
    ASSERT_GT(file, 4 * kProgram);
    const int64_t most = file + activation_bytes(config, kTokens) + kProgram;
    const int64_t peak = peak_beyond_start(drawn.folder(), kTokens);
    EXPECT_LE(peak, most) << "file " << file << ", activations "
                          << activation_bytes(config, kTokens);
    EXPECT_GT(peak, 0);
    RecordProperty(quantized ? "quantized" : "floats",
                   std::to_string(static_cast<double>(peak) / static_cast<double>(file)));
  }
}

}  // namespace
}  // namespace moeblas::test
