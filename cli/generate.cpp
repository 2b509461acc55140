// moeblas generate: a language model continues a text; then how fast it was, and where the time
// went.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "language_model.h"
#include "moeblas/kernels.h"
#include "numbers.h"

namespace moeblas::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string model, prompt;
  int64_t max_tokens = 200;
  double temperature = 0;
  uint64_t seed = 0;
  int threads = 0;
};

// The likeliest token, or one drawn from softmax(logits / temperature).
class Sampler {
 public:
  Sampler(double temperature, uint64_t seed) : temperature_(temperature), random_(seed) {}

  int32_t operator()(std::span<const float> logits) {
    const auto top = std::max_element(logits.begin(), logits.end());
    if (temperature_ == 0) return static_cast<int32_t>(top - logits.begin());
    std::vector<double> ends;
    double sum = 0;
    for (const float logit : logits) {
      ends.push_back(sum += std::exp((double{logit} - double{*top}) / temperature_));
    }
    // The same draws with every standard library, whose distributions differ.
    const double draw = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;
    const auto chosen = std::upper_bound(ends.begin(), ends.end() - 1, draw);
    return static_cast<int32_t>(chosen - ends.begin());
  }

 private:
  double temperature_;
  std::mt19937_64 random_;
};

// By operation, what took longest first.
void print(const examples::Profile& profile) {
  std::vector<std::pair<examples::Profile::Name, examples::Profile::Entry>> entries(
      profile.entries.begin(), profile.entries.end());
  std::ranges::sort(entries, std::greater(), [](const auto& e) { return e.second.seconds; });
  std::fprintf(stderr, "%-18s %-12s %8s %10s %10s %7s\n", "operation", "", "calls", "ms", "us/call",
               "share");
  double outside = profile.seconds;
  for (const auto& [name, entry] : entries) {
    outside -= entry.seconds;
    std::fprintf(stderr, "%-18s %-12s %8lld %10.1f %10.1f %6.1f%%\n",
                 std::string(name.first).c_str(), std::string(name.second).c_str(),
                 static_cast<long long>(entry.calls), entry.seconds * 1e3,
                 entry.seconds * 1e6 / static_cast<double>(entry.calls),
                 entry.seconds * 100 / profile.seconds);
  }
  std::fprintf(stderr, "%-31s %8s %10.1f %10s %6.1f%%\n", "norms, rotation, softmax, ...", "",
               outside * 1e3, "", outside * 100 / profile.seconds);
}

void print_rate(const char* what, int64_t tokens, Clock::duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  std::fprintf(stderr, "%s: %lld tokens in %.3f s, %.1f tokens/s\n", what,
               static_cast<long long>(tokens), seconds, static_cast<double>(tokens) / seconds);
}

void generate(const Settings& s) {
  if (s.threads > 0) set_num_threads(s.threads);
  LanguageModel language(s.model);
  const checkpoint::Config& config = language.config();
  const std::vector<int32_t> prompt = language.tokens(s.prompt);
  const auto length = static_cast<int64_t>(prompt.size()), context = config.max_position_embeddings;
  if (length == 0 || length >= context) {
    throw std::invalid_argument("--prompt has " + std::to_string(length) +
                                " tokens, expected 1 to " + std::to_string(context - 1) +
                                ", less than the model's context");
  }
  const int64_t most = std::min(s.max_tokens, context - length);
  examples::MoeModel& model = language.model();
  examples::KvCache cache(config, length + most);
  Sampler sample(s.temperature, s.seed);
  const auto say = [&](int32_t token) {
    const std::string text = language.text(token);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  for (const int32_t token : prompt) say(token);

  const auto start = Clock::now();
  examples::Matrix logits(0, 0);
  model.read(prompt, cache, true, [&](examples::Matrix last, size_t) { logits = std::move(last); });
  const auto read = Clock::now();
  int64_t count = 0;
  for (bool stop = false; count < most && !stop; ++count) {
    // The prompt's last pass has the first token's logits.
    const int32_t token = sample({logits.row(0), static_cast<size_t>(logits.cols)});
    say(token);
    stop = std::ranges::count(config.eos_token_ids, token) > 0;
    if (!stop && count + 1 < most) logits = model.forward({&token, 1}, cache);
  }
  const auto end = Clock::now();
  std::printf("\n");
  std::fflush(stdout);

  if (count == most && most < s.max_tokens) {
    std::fprintf(stderr, "the model's context of %lld tokens ends here\n",
                 static_cast<long long>(context));
  }
  std::fprintf(stderr, "\n%d threads\n", get_num_threads());
  print_rate("prompt", length, read - start);
  if (count > 1) print_rate("after the first", count - 1, end - read);
  std::fprintf(stderr, "\n");
  print(model.profile());
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command = app.add_subcommand(
      "generate", "Continue a text with a language model: an OLMoE or Qwen3-MoE checkpoint");
  auto s = std::make_shared<Settings>();
  command->add_option("--model", s->model, "Folder of config.json and *.safetensors")->required();
  command
      ->add_option("--prompt", s->prompt,
                   "The text; token ids for a model whose tokens are not bytes")
      ->required();
  command->add_option("--max-tokens", s->max_tokens, "Tokens to add at most")
      ->check(not_negative())
      ->capture_default_str();
  command
      ->add_option("--temperature", s->temperature,
                   "0: always the likeliest token; else the width of the draw")
      ->check(not_negative())
      ->capture_default_str();
  command->add_option("--seed", s->seed, "Of the draws")->capture_default_str();
  command->add_option("--threads", s->threads, "Threads (0: all CPUs)")->check(not_negative());
  command->callback([s] { generate(*s); });
}

}  // namespace moeblas::cli
