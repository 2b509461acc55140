// Every prefix and every single-bit flip of small checkpoints: read as what the bytes now say, or
// refused by name. What is read is compared with a second reading of the header, and every tensor
// that a model needs is then used, so that a sanitizer sees any byte that is not the file's.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoints/tiny_model.h"

namespace moeblas::test {
namespace {

using checkpoint::Config;
using checkpoint::Safetensors;

const Tiny kModels[] = {
    {.layout = Layout::mlx, .spec = QuantSpec{Mode::affine, 4, 16}, .vocab = 1},
    {.architecture = checkpoint::Architecture::qwen3_moe,
     .layout = Layout::stacked,
     .hidden = 4,
     .tied = true},
};

// Header and data as the bytes say, or a message that names the file.
void expect_named(const std::string& message) {
  EXPECT_TRUE(message.starts_with("model.safetensors: ") || message.starts_with("config.json: "))
      << message;
}

void expect_as_the_header_says(const std::string& bytes, const Safetensors& file) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  auto header = nlohmann::json::parse(bytes.substr(8, length));
  header.erase("__metadata__");
  ASSERT_EQ(header.size(), file.tensors().size());
  for (const auto& [name, entry] : header.items()) {
    const checkpoint::Tensor* tensor = file.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(entry["dtype"], tensor->type->name);
    EXPECT_EQ(entry["shape"], tensor->shape);
    EXPECT_EQ(entry["data_offsets"][0].get<uint64_t>() + 8 + length, tensor->offset);
    EXPECT_EQ(entry["data_offsets"][1].get<uint64_t>() + 8 + length,
              tensor->offset + tensor->bytes);
    EXPECT_LE(tensor->offset + tensor->bytes, bytes.size());
  }
}

struct Outcomes {
  int read = 0, refused = 0;
  void count(const std::string& message) {
    message.empty() ? ++read : ++refused;
    if (!message.empty()) expect_named(message);
  }
};

TEST(Hostile, EveryPrefixOfAFileIsRefused) {
  for (const Tiny& tiny : kModels) {
    const std::string whole = safetensors(tensors(tiny));
    for (size_t n = 0; n < whole.size(); ++n) {
      const Aligned memory(whole.substr(0, n));
      const std::string message =
          error_of([&] { Safetensors::parse("model.safetensors", memory.span()); });
      ASSERT_NE(message, "") << n;
      expect_named(message);
    }
  }
}

TEST(Hostile, EveryBitOfAFile) {
  for (const Tiny& tiny : kModels) {
    std::string bytes = safetensors(tensors(tiny));
    const Config config = Config::parse("config.json", config_text(tiny));
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    Outcomes files, models;
    // Bits of the data change no decision: one model's are enough.
    const size_t end = tiny.spec ? header + 8 : bytes.size();
    for (size_t bit = 0; bit < end * 8; ++bit) {
      const auto flip = static_cast<char>(1 << (bit % 8));
      bytes[bit / 8] ^= flip;
      const Aligned memory(bytes);
      std::optional<Safetensors> file;
      files.count(error_of([&] { file = Safetensors::parse("model.safetensors", memory.span()); }));
      if (file && bit < (header + 8) * 8) {
        expect_as_the_header_says(bytes, *file);
        models.count(error_of([&] { read_all({config, {*file}}); }));
      }
      EXPECT_TRUE(file || bit < (header + 8) * 8)
          << "the data's bits are no business of the parser";
      bytes[bit / 8] ^= flip;
    }
    EXPECT_GT(files.refused, 1000);
    EXPECT_GT(files.read, 1000);
    // A name that changed is a file that is whole, and a model that is not.
    EXPECT_GT(models.refused, 1000);
  }
}

TEST(Hostile, EveryPrefixOfAConfig) {
  for (const Tiny& tiny : kModels) {
    const std::string whole = config_text(tiny);
    for (size_t n = 0; n < whole.size(); ++n) {
      const std::string message =
          error_of([&] { Config::parse("config.json", whole.substr(0, n)); });
      ASSERT_NE(message, "") << n;
      expect_named(message);
    }
  }
}

TEST(Hostile, EveryBitOfAConfig) {
  for (const Tiny& tiny : kModels) {
    std::string text = config_text(tiny);
    const Aligned memory(safetensors(tensors(tiny)));
    const auto file = Safetensors::parse("model.safetensors", memory.span());
    Outcomes configs, models;
    for (size_t bit = 0; bit < text.size() * 8; ++bit) {
      const auto flip = static_cast<char>(1 << (bit % 8));
      text[bit / 8] ^= flip;
      std::optional<Config> config;
      configs.count(error_of([&] { config = Config::parse("config.json", text); }));
      if (config) {
        const auto json = nlohmann::json::parse(text);
        EXPECT_EQ(json["hidden_size"], config->hidden_size);
        EXPECT_EQ(json["num_hidden_layers"], config->num_hidden_layers);
        EXPECT_EQ(json["num_attention_heads"], config->num_attention_heads);
        EXPECT_EQ(json["num_experts"], config->num_experts);
        EXPECT_EQ(json["num_experts_per_tok"], config->num_experts_per_tok);
        EXPECT_EQ(json["vocab_size"], config->vocab_size);
        EXPECT_EQ(json["max_position_embeddings"], config->max_position_embeddings);
        EXPECT_EQ(json["rms_norm_eps"], config->rms_norm_eps);
        EXPECT_GE(config->num_experts, config->num_experts_per_tok);
        EXPECT_EQ(config->num_attention_heads % config->num_key_value_heads, 0);
        models.count(error_of([&] { read_all({*config, {file}}); }));
      }
      text[bit / 8] ^= flip;
    }
    EXPECT_GT(configs.refused, 1000);
    EXPECT_GT(configs.read, 10);
    EXPECT_GT(models.refused, 10);
  }
}

}  // namespace
}  // namespace moeblas::test
