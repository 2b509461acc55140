// moeblas generate: a language model continues a text; then how fast it was, and where the time
// went.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <span>
#include <string>

#include "commands.h"
#include "language_model.h"
#include "moeblas/kernels.h"

namespace moeblas::cli {
namespace {

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

void print(const examples::Profile& profile) {
  std::fprintf(stderr, "%-18s %-12s %8s %10s %10s %7s\n", "operation", "", "calls", "ms", "us/call",
               "share");
  double outside = profile.seconds;
  for (const auto& [name, entry] : profile.entries) {
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

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
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
  examples::KvCache cache(config, length + most);
  Sampler sample(s.temperature, s.seed);
  const auto say = [&](int32_t token) {
    const std::string text = language.text(token);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  for (const int32_t token : prompt) say(token);

  const auto start = std::chrono::steady_clock::now();
  int32_t token = 0;
  const auto choose = [&](const examples::Matrix& logits, size_t = 0) {
    token = sample({logits.row(0), static_cast<size_t>(logits.cols)});
  };
  examples::MoeModel& model = language.model();
  examples::Matrix logits(0, 0);
  model.read(prompt, cache, true, [&](examples::Matrix last, size_t) { logits = std::move(last); });
  const auto read = std::chrono::steady_clock::now();
  int64_t count = 0;
  const auto ends = [&](int32_t id) {
    return std::ranges::find(config.eos_token_ids, id) != config.eos_token_ids.end();
  };
  while (count < most) {
    choose(logits);
    say(token);
    if (++count == most || ends(token)) break;
    logits = model.forward({&token, 1}, cache);
  }
  const auto end = std::chrono::steady_clock::now();
  std::printf("\n");
  std::fflush(stdout);

  if (most < s.max_tokens) {
    std::fprintf(stderr, "the model's context of %lld tokens ends here\n",
                 static_cast<long long>(context));
  }
  const double reading = seconds_between(start, read), writing = seconds_between(read, end);
  std::fprintf(stderr, "\nprompt: %lld tokens in %.3f s, %.1f tokens/s\n",
               static_cast<long long>(length), reading, static_cast<double>(length) / reading);
  std::fprintf(stderr, "generated: %lld tokens in %.3f s, %.1f tokens/s, %d threads\n\n",
               static_cast<long long>(count), writing, static_cast<double>(count) / writing,
               get_num_threads());
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
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--temperature", s->temperature,
                   "0: always the likeliest token; else the width of the draw")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", s->seed, "Of the draws")->capture_default_str();
  command->add_option("--threads", s->threads, "Threads (0: all CPUs)")
      ->check(CLI::NonNegativeNumber);
  command->callback([s] { generate(*s); });
}

}  // namespace moeblas::cli
