// Loads a model that AOTInductor packaged and runs it, without Python: test_executorch.py compiles
// this.
//   run_package PACKAGE X IDS ROWS OUT    X: ROWS of floats, IDS: ROWS of int64, OUT: floats; raw
//   bytes
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <fstream>
#include <iterator>
#include <string>

namespace {

std::string read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  std::string x = read(argv[2]);
  std::string ids = read(argv[3]);
  const int64_t rows = std::stoll(argv[4]);
  const int64_t columns = static_cast<int64_t>(x.size() / sizeof(float)) / rows;
  torch::inductor::AOTIModelPackageLoader loader(argv[1]);
  const std::vector<at::Tensor> out =
      loader.run({at::from_blob(x.data(), {rows, columns}, at::kFloat),
                  at::from_blob(ids.data(), {rows}, at::kLong)});
  const at::Tensor y = out.at(0).contiguous();
  std::ofstream(argv[5], std::ios::binary)
      .write(static_cast<const char*>(y.const_data_ptr()),
             static_cast<std::streamsize>(y.nbytes()));
  return 0;
}
