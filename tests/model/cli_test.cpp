// The commands generate and eval, as a user runs them.
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "model/random_model.h"
#include "model/reference_model.h"

namespace moeblas::test {
namespace {

struct Outcome {
  int status = -1;
  std::string out, err;
};

// Runs `moeblas ARGUMENTS`.
Outcome run(const RandomModel& drawn, const std::string& arguments) {
  const std::string errors = (drawn.folder() / "stderr").string();
  const std::string command =
      std::string(MOEBLAS_CLI) + " " + arguments + " 2> " + errors + " < /dev/null";
  Outcome o;
  FILE* pipe = popen(command.c_str(), "r");
  for (int c; (c = std::fgetc(pipe)) != EOF;) o.out += static_cast<char>(c);
  const int status = pclose(pipe);
  o.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::ifstream file(errors, std::ios::binary);
  o.err = {std::istreambuf_iterator<char>(file), {}};
  return o;
}

std::string generate(const RandomModel& drawn, const std::string& arguments) {
  return "generate --model " + drawn.folder().string() + " " + arguments;
}

// A model whose tokens are bytes, and one whose tokens are numbers.
const RandomConfig kBytes{.format = QuantSpec{Mode::affine, 4, 32}, .context = 48};
const RandomConfig kNumbers{.family = Family::qwen3_moe, .vocab = 96, .context = 48};

TEST(Generate, ASeedGivesOneText) {
  const RandomModel drawn(kBytes, 1);
  const std::string common = "--prompt Abraham --max-tokens 30 --temperature 1 --seed ";
  const Outcome first = run(drawn, generate(drawn, common + "5"));
  ASSERT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(first.out.size(), std::string("Abraham").size() + 30 + 1);
  EXPECT_EQ(first.out.substr(0, 7), "Abraham");
  for (const char* threads : {" --threads 1", " --threads 2", " --threads 3"}) {
    EXPECT_EQ(run(drawn, generate(drawn, common + "5" + threads)).out, first.out) << threads;
  }
  EXPECT_NE(run(drawn, generate(drawn, common + "6")).out, first.out);
}

TEST(Generate, ReportsSpeedAndOperations) {
  const RandomModel drawn(kBytes, 2);
  const Outcome o = run(drawn, generate(drawn, "--prompt abc --max-tokens 4"));
  ASSERT_EQ(o.status, 0);
  for (const char* part : {"prompt: 3 tokens in ", "after the first: 3 tokens in ", " tokens/s",
                           "moe_ffn ", "gather_mm          q k^T", "gather_mm          p v",
                           "quantized_matmul   output head", "calls", "share"}) {
    EXPECT_NE(o.err.find(part), std::string::npos) << part << "\n" << o.err;
  }
}

// Greedy text is what the reference finds likeliest, as long as float32 can tell.
TEST(Generate, FollowsTheLikeliestToken) {
  const RandomModel drawn(kNumbers, 3);
  const Outcome o = run(drawn, generate(drawn, "--prompt '3, 14 15' --max-tokens 12"));
  ASSERT_EQ(o.status, 0) << o.err;
  std::vector<int32_t> tokens;
  std::istringstream words(o.out);
  for (int32_t id; words >> id;) tokens.push_back(id);
  ASSERT_EQ(tokens.size(), 15u) << o.out;
  EXPECT_EQ(std::vector<int32_t>(tokens.begin(), tokens.begin() + 3),
            (std::vector<int32_t>{3, 14, 15}));
  const Judgement judgement = judge(drawn, tokens);
  int compared = 0;
  for (size_t i = 2; i + 1 < tokens.size(); ++i, ++compared) {
    const double* row = judgement.exact.data() + i * 96;
    const double top = *std::max_element(row, row + 96);
    // Nothing is likelier than what was chosen, by more than rounding explains.
    EXPECT_GE(row[tokens[i + 1]], top - 2 * judgement.tolerance) << "token " << i + 1;
  }
  EXPECT_EQ(compared, 12);
}

TEST(Generate, StopsWhereTheContextEnds) {
  const RandomModel drawn(kBytes, 4);
  const Outcome o = run(drawn, generate(drawn, "--prompt 0123456789 --max-tokens 1000"));
  ASSERT_EQ(o.status, 0);
  EXPECT_EQ(o.out.size(), 48u + 1);
  EXPECT_NE(o.err.find("context of 48 tokens"), std::string::npos) << o.err;
}

TEST(Generate, RefusesWithASentence) {
  const RandomModel bytes(kBytes, 5), numbers(kNumbers, 6);
  const auto refused = [](const RandomModel& drawn, const std::string& arguments,
                          std::vector<const char*> parts) {
    const Outcome o = run(drawn, arguments);
    EXPECT_NE(o.status, 0) << arguments;
    EXPECT_EQ(o.out, "");
    for (const char* part : parts) {
      EXPECT_NE(o.err.find(part), std::string::npos) << part << "\n" << o.err;
    }
  };
  refused(bytes, generate(bytes, "--prompt ''"), {"--prompt has 0 tokens"});
  refused(bytes, generate(bytes, "--prompt " + std::string(48, 'x')),
          {"--prompt has 48 tokens, expected 1 to 47"});
  refused(numbers, generate(numbers, "--prompt 'In the beginning'"), {"token ids", "'In'"});
  refused(numbers, generate(numbers, "--prompt '5 96'"), {"token 96", "vocabulary of 96"});
  for (const char* number : {"-1", "nan", "inf", "warm"}) {
    refused(bytes, generate(bytes, std::string("--prompt a --temperature ") + number),
            {"--temperature: is ", number, ", expected a number of at least 0"});
  }
  refused(bytes, "generate --model /nowhere --prompt a", {"/nowhere"});
  std::filesystem::remove(bytes.folder() / "model.safetensors");
  refused(bytes, generate(bytes, "--prompt a"), {"model*.safetensors"});
  // Another architecture, another activation: what came, and what is supported.
  for (const auto& [from, to, supported] : std::vector<std::array<const char*, 3>>{
           {"olmoe", "llama", "qwen3_moe"}, {"silu", "gelu", "silu"}}) {
    const RandomModel drawn(kBytes, 7);
    std::ifstream in(drawn.folder() / "config.json");
    std::string config{std::istreambuf_iterator<char>(in), {}};
    config.replace(config.find(from), std::string(from).size(), to);
    std::ofstream(drawn.folder() / "config.json") << config;
    refused(drawn, generate(drawn, "--prompt a"), {"config.json", to, supported});
  }
}

TEST(Eval, IsTheEntropyByTheReference) {
  const RandomModel drawn(kBytes, 8);
  const std::string text = "Now it came to pass in the days when the judges ruled.";
  std::ofstream(drawn.folder() / "text") << text;
  for (const size_t context : {size_t{16}, size_t{48}}) {
    double bits = 0, tolerance = 0;
    for (size_t first = 0; first + 1 < text.size(); first += context) {
      const size_t inputs = std::min(context, text.size() - 1 - first);
      std::vector<int32_t> tokens;
      for (size_t i = 0; i < inputs; ++i) {
        tokens.push_back(static_cast<unsigned char>(text[first + i]));
      }
      const Judgement judgement = judge(drawn, tokens);
      tolerance = std::max(tolerance, judgement.tolerance);
      for (size_t i = 0; i < inputs; ++i) {
        const double* row = judgement.exact.data() + i * 256;
        double sum = 0;
        for (int v = 0; v < 256; ++v) sum += std::exp(row[v]);
        bits += std::log2(sum) - row[static_cast<unsigned char>(text[first + i + 1])] / std::log(2);
      }
    }
    bits /= static_cast<double>(text.size() - 1);
    const Outcome o =
        run(drawn, "eval --model " + drawn.folder().string() + " --text " +
                       (drawn.folder() / "text").string() + (context == 16 ? " --context 16" : ""));
    ASSERT_EQ(o.status, 0) << o.err;
    // The sum of two logits' errors, in bits, and what five printed digits leave out.
    EXPECT_NEAR(std::stod(o.out), bits, 2 * tolerance / std::log(2) + 0.5e-5) << o.out;
    EXPECT_NE(o.out.find("bits per byte: 53 predicted, windows of " + std::to_string(context)),
              std::string::npos)
        << o.out;
  }
}

TEST(Eval, RefusesWithASentence) {
  const RandomModel drawn(kBytes, 9);
  std::ofstream(drawn.folder() / "short") << "a";
  const std::string model = "eval --model " + drawn.folder().string() + " --text ";
  Outcome o = run(drawn, model + (drawn.folder() / "short").string());
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find("at least two tokens"), std::string::npos) << o.err;
  o = run(drawn, model + "/nowhere");
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find("/nowhere"), std::string::npos) << o.err;
  o = run(drawn, model + (drawn.folder() / "config.json").string() + " --context 49");
  EXPECT_EQ(o.status, 1);
  EXPECT_NE(o.err.find("at most the model's 48"), std::string::npos) << o.err;
}

}  // namespace
}  // namespace moeblas::test
