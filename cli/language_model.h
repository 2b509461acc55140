// A language model as commands use it: a folder, and how its tokens are written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "moe_model/model.h"

namespace moeblas::cli {

class LanguageModel {
 public:
  explicit LanguageModel(const std::filesystem::path& folder);

  // A token is a byte; else commands take and print token ids.
  bool bytes() const { return bytes_; }
  // The bytes of the text, or the numbers in it, which spaces, line ends and commas separate.
  // Throws std::invalid_argument if something else stands there, or no token of the vocabulary.
  std::vector<int32_t> tokens(std::string_view text) const;
  // What is printed for a token.
  std::string text(int32_t token) const;

  const checkpoint::Config& config() const { return checkpoint_.config(); }
  examples::MoeModel& model() { return model_; }

 private:
  checkpoint::Checkpoint checkpoint_;
  bool bytes_;
  examples::MoeModel model_;
};

// log2 of the sum of 2^(logit * log2 e): minus a token's logit * log2 e, the bits that it costs.
double log2_sum_exp(const float* logits, int64_t count);

}  // namespace moeblas::cli
