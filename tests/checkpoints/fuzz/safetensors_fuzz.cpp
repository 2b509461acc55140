// Any bytes as a file of safetensors, used as each of the models.
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoints/fuzz/models.h"
#include "moeblas/kernels.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  moeblas::set_num_threads(1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moeblas::test;
  using moeblas::checkpoint::Config;
  using moeblas::checkpoint::Safetensors;
  static const std::vector<Config> configs = [] {
    std::vector<Config> result;
    for (const Tiny& tiny : kFuzzModels) {
      result.push_back(Config::parse("config.json", config_text(tiny)));
    }
    return result;
  }();
  const Aligned memory(std::string(reinterpret_cast<const char*>(data), size));
  error_of([&] {
    const auto file = Safetensors::parse("model.safetensors", memory.span());
    for (const auto& tensor : file.tensors()) {
      error_of([&] { file.view(tensor); });
    }
    for (const Config& config : configs) {
      error_of([&] { read_all({config, {file}}); });
    }
  });
  return 0;
}
