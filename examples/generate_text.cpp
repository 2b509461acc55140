// A language model continues a text, always by the likeliest byte: the model of moe_model/ in use.
//
//   example_generate_text models/kjv-olmoe-8m-4bit "In the beginning"
#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include "moe_model/model.h"

int main(int argc, char** argv) {
  if (argc != 3 || argv[2][0] == '\0') {
    std::fprintf(stderr, "usage: example_generate_text MODEL PROMPT\n");
    return 2;
  }
  try {
    using namespace moeblas;
    const auto checkpoint = checkpoint::Checkpoint::open(argv[1]);
    examples::MoeModel model(checkpoint);
    constexpr int64_t kTokens = 100;

    std::vector<int32_t> text;  // a token is a byte
    for (const char* c = argv[2]; *c != '\0'; ++c) text.push_back(static_cast<unsigned char>(*c));
    examples::KvCache cache(model.config(), static_cast<int64_t>(text.size()) + kTokens);
    std::printf("%s", argv[2]);
    for (int64_t i = 0; i < kTokens; ++i) {
      // The prompt at first, then each new byte.
      const examples::Matrix logits = model.forward(text, cache, /*only_last=*/true);
      const float* row = logits.row(0);
      text = {static_cast<int32_t>(std::max_element(row, row + logits.cols) - row)};
      std::putchar(text[0]);
    }
    std::printf("\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
