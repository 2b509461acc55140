// Any bytes as a config.json, beside each of the models' tensors.
#include <cstdint>
#include <string_view>
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
  static const std::vector<Aligned> bytes = [] {
    std::vector<Aligned> result;
    for (const Tiny& tiny : kFuzzModels) result.emplace_back(safetensors(tensors(tiny)));
    return result;
  }();
  error_of([&] {
    const auto config = Config::parse("config.json", {reinterpret_cast<const char*>(data), size});
    for (const Aligned& memory : bytes) {
      error_of([&] { read_all({config, {Safetensors::parse("model", memory.span())}}); });
    }
  });
  return 0;
}
