// What main.cpp asks of every library: the same product, from the same numbers, in the library's
// own formats.
//
// Weights are rows of one pool: row n of matrix i is pool row (n + 37 i) mod kPool, kPool a prime
// that divides no N. So a library quantizes kPool rows, whatever the size of the stack, one
// reference serves every matrix, and a wrong row or matrix is a wrong answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace compare {

constexpr int64_t kPool = 1021;
constexpr int64_t pool_row(int64_t matrix, int64_t n) { return (n + 37 * matrix) % kPool; }

// rows x (n x k), or of `experts` such matrices each row with `top_k` of them. A call works on one
// of `sets` matrices or choices of experts, which together are larger than the caches.
struct Workload {
  const char* name;
  int64_t rows, n, k, experts, top_k;
  int sets;

  int64_t matrices() const { return experts == 0 ? sets : experts; }
  int64_t outputs() const { return rows * (experts == 0 ? 1 : top_k); }  // rows of them
  double flop() const { return 2.0 * static_cast<double>(outputs() * n * k); }
};

struct Inputs {
  Workload work;
  std::vector<float> pool;                // kPool x k
  std::vector<float> x;                   // rows x k, every number a bfloat16
  std::vector<uint16_t> x_bf16;           // the same
  std::vector<std::vector<int32_t>> ids;  // per set [rows][top_k]

  int64_t matrix_of(int set, int64_t output) const {
    return work.experts == 0 ? set : ids[static_cast<size_t>(set)][static_cast<size_t>(output)];
  }
};

// One way to compute it.
struct Product {
  std::string library, format, kernel;
  double bits_per_weight = 0;
  double limit = 0;               // of the relative RMS error against float64 on the same weights
  std::string limit_is;           // why
  std::vector<float> weights;     // kPool x k: the numbers that the stored weights mean
  std::function<void(int)> call;  // on a set
  std::function<void()> poison;   // all outputs NaN
  std::function<std::vector<float>(int)> result;  // of the call on that set: outputs() x n
};

// Everything that the library has for the workload.
struct Library {
  std::string name, version;
  std::function<void(int)> set_threads;
  std::function<std::vector<Product>(const Inputs&, const std::vector<std::string>& formats)>
      products;
};

Library ours();
Library ggml();

// bfloat16 out: half a unit in the last of eight places at most.
constexpr double kBf16Limit = 0x1p-8;
// int8 activations in blocks, each number off by up to half of the block's largest / 127, evenly,
// no number beyond five standard deviations: 5 / 127 / sqrt(12) of the sum.
constexpr double kInt8Limit = 5.0 / 127 / 3.4641016;

inline float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

// Is `format` wanted? An empty list: every one is.
inline bool wanted(const std::vector<std::string>& formats, const std::string& format) {
  if (formats.empty()) return true;
  for (const std::string& f : formats) {
    if (f == format) return true;
  }
  return false;
}

}  // namespace compare
