// Runs a model and prints how much memory the process had before it opened the checkpoint, and at
// its peak, in bytes: `memory_probe FOLDER TOKENS`.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "moe_model/model.h"

namespace {

long long status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    long long kib = 0;
    if (word == field + ":" && file >> kib) return kib * 1024;
  }
  return -1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int64_t count = std::atoll(argv[2]);
  const long long before = status("VmRSS");
  const auto checkpoint = moeblas::checkpoint::Checkpoint::open(argv[1]);
  moeblas::examples::MoeModel model(checkpoint);
  moeblas::examples::KvCache cache(model.config(), count);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count - 1; ++i) tokens.push_back(static_cast<int32_t>(i * 7 % 256));
  model.forward(tokens, cache);
  model.forward(std::vector<int32_t>{1}, cache);
  std::printf("%lld %lld\n", before, status("VmHWM"));
  return before > 0 ? 0 : 1;
}
