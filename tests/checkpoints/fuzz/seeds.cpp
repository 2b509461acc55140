// Writes what the fuzzers begin with: FOLDER/safetensors and FOLDER/config.
#include <cstdio>
#include <filesystem>
#include <string>

#include "checkpoints/fuzz/models.h"

int main(int argc, char** argv) {
  using namespace moeblas::test;
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder / "safetensors");
  std::filesystem::create_directories(folder / "config");
  int number = 0;
  for (const Tiny& tiny : kFuzzModels) {
    const std::string name = "seed-" + std::to_string(number++);
    write_file(folder / "safetensors" / name, safetensors(tensors(tiny)));
    write_file(folder / "config" / name, config_text(tiny));
  }
}
