// Loads a model that AOTInductor packaged and runs it, without Python: test_executorch.py compiles
// this.
//   run_package DEVICE PACKAGE X IDS ROWS OUT    DEVICE: cpu or cuda; X: ROWS of floats, IDS: ROWS
//   of int64, OUT: floats; raw bytes
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

namespace {

std::string read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void run(char** argv) {
  const at::Device device(argv[1]);
  std::string x = read(argv[3]);
  std::string ids = read(argv[4]);
  const int64_t rows = std::stoll(argv[5]);
  const int64_t columns = static_cast<int64_t>(x.size() / sizeof(float)) / rows;
  torch::inductor::AOTIModelPackageLoader loader(argv[2]);
  const std::vector<at::Tensor> out =
      loader.run({at::from_blob(x.data(), {rows, columns}, at::kFloat).to(device),
                  at::from_blob(ids.data(), {rows}, at::kLong).to(device)});
  const at::Tensor y = out.at(0).cpu().contiguous();
  std::ofstream(argv[6], std::ios::binary)
      .write(static_cast<const char*>(y.const_data_ptr()),
             static_cast<std::streamsize>(y.nbytes()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  try {
    run(argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
