// moeblas eval: how well a language model predicts a text, in bits per byte.
//
// The text is read in windows of `context` tokens that do not overlap. Each window's tokens predict
// the token after them, the last one the first of the next window: every token but the text's first
// is predicted once, from what stands before it in its window.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <numbers>
#include <span>
#include <string>

#include "commands.h"
#include "language_model.h"
#include "moeblas/kernels.h"
#include "numbers.h"
#include "progress.h"

namespace moeblas::cli {
namespace {

struct Settings {
  std::string model, text;
  int64_t context = 0;
  int threads = 0;
};

constexpr int64_t kContext = 2048;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) throw std::invalid_argument(path + ": cannot be read");
  return text;
}

void eval(const Settings& s) {
  if (s.threads > 0) set_num_threads(s.threads);
  LanguageModel language(s.model);
  examples::MoeModel& model = language.model();
  const checkpoint::Config& config = language.config();
  const std::vector<int32_t> tokens = language.tokens(contents(s.text));
  if (tokens.size() < 2) throw std::invalid_argument(s.text + ": expected at least two tokens");
  const int64_t longest = config.max_position_embeddings;
  if (s.context > longest) {
    throw std::invalid_argument("--context is " + std::to_string(s.context) +
                                ", expected at most the model's " + std::to_string(longest));
  }
  const auto context = static_cast<size_t>(s.context > 0 ? s.context : std::min(kContext, longest));
  const size_t predicted = tokens.size() - 1;
  examples::KvCache cache(config, static_cast<int64_t>(std::min(context, predicted)));
  ProgressBar bar("reading");
  const auto start = std::chrono::steady_clock::now();
  double bits = 0;
  for (size_t first = 0; first < predicted; first += context) {
    const std::span inputs(tokens.data() + first, std::min(context, predicted - first));
    cache.length = 0;
    model.read(inputs, cache, false, [&](const examples::Matrix& logits, size_t at) {
      for (int64_t row = 0; row < logits.rows; ++row) {
        const auto next = static_cast<size_t>(tokens[first + at + static_cast<size_t>(row) + 1]);
        bits += log2_sum_exp(logits.row(row), logits.cols) -
                double{logits.row(row)[next]} * std::numbers::log2e;
      }
      bar.show(first + at + static_cast<size_t>(logits.rows), predicted);
    });
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  bar.clear();
  std::printf("%.5f bits per %s: %zu predicted, windows of %zu, %.1f s, %.1f tokens/s\n",
              bits / static_cast<double>(predicted), language.bytes() ? "byte" : "token", predicted,
              context, seconds, static_cast<double>(predicted) / seconds);
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* command =
      app.add_subcommand("eval", "How well a language model predicts a text, in bits per byte");
  auto s = std::make_shared<Settings>();
  command->add_option("--model", s->model, "Folder of config.json and *.safetensors")->required();
  command
      ->add_option("--text", s->text, "A file: text; token ids if the model's tokens are not bytes")
      ->required();
  command
      ->add_option("--context", s->context,
                   "Tokens of a window (default: 2048, or the model's context if that is shorter)")
      ->check(positive());
  command->add_option("--threads", s->threads, "Threads (0: all CPUs)")->check(not_negative());
  command->callback([s] { eval(*s); });
}

}  // namespace moeblas::cli
