#include "language_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace moeblas::cli {

LanguageModel::LanguageModel(const std::filesystem::path& folder)
    : checkpoint_(checkpoint::Checkpoint::open(folder)),
      bytes_(checkpoint::is_byte_model(checkpoint_.config(), folder)),
      model_(checkpoint_) {}

std::vector<int32_t> LanguageModel::tokens(std::string_view text) const {
  std::vector<int32_t> ids;
  if (bytes_) {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  constexpr std::string_view kBetween = " \t\r\n,";
  for (size_t at; (at = text.find_first_not_of(kBetween)) != text.npos;) {
    text.remove_prefix(at);
    const std::string_view word = text.substr(0, text.find_first_of(kBetween));
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      throw std::invalid_argument("this model has no byte vocabulary: expected token ids, got '" +
                                  std::string(word.substr(0, 40)) + "'");
    }
    if (id < 0 || id >= config().vocab_size) {
      throw std::invalid_argument("token " + std::to_string(id) + " is outside the vocabulary of " +
                                  std::to_string(config().vocab_size));
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
  return ids;
}

std::string LanguageModel::text(int32_t token) const {
  if (bytes_) return std::string(1, static_cast<char>(token));
  return std::to_string(token) + " ";
}

double log2_sum_exp(const float* logits, int64_t count) {
  const double top = *std::max_element(logits, logits + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(logits[i] - top);
  return top * std::numbers::log2e + std::log2(sum);
}

}  // namespace moeblas::cli
