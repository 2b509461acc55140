// The expert product of one mixture-of-experts layer, on the library's public interface: gate and
// up projections of Qwen3-30B-A3B (128 experts, 8 per token, hidden 2048, intermediate 768) with
// 4-bit weights in groups of 64, for a few tokens; the answer is checked, then timed.
//
//   example_gather_qmm [tokens ...]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <vector>

#include "moeblas/kernels.h"
#include "moeblas/ops.h"

namespace {

constexpr int64_t kExperts = 128, kTopK = 8, kHidden = 2048, kIntermediate = 768;
constexpr int64_t kN = 2 * kIntermediate, kK = kHidden, kGroup = 64;

float bfloat16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  static_assert(sizeof f == sizeof bits);
  std::copy_n(reinterpret_cast<const char*>(&bits), sizeof f, reinterpret_cast<char*>(&f));
  return f;
}

// Weights as a checkpoint holds them: packed codes, and bfloat16 scales and biases. Random codes
// stand in for trained ones; code 8 is near zero.
struct Layer {
  std::vector<uint32_t> codes = std::vector<uint32_t>(kExperts * kN * kK / 8);
  std::vector<uint16_t> scales = std::vector<uint16_t>(kExperts * kN * kK / kGroup);
  std::vector<uint16_t> biases = scales;

  explicit Layer(std::mt19937& rng) {
    for (auto& word : codes) word = static_cast<uint32_t>(rng());
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = static_cast<uint16_t>(0x3c00 + rng() % 128);  // 2^-7 and a little more
      biases[i] = static_cast<uint16_t>(0xbd80 + rng() % 128);  // about -8 scales
    }
  }
  moeblas::Quantized view() const {
    using moeblas::DType;
    moeblas::Quantized q;
    q.spec = {moeblas::Mode::affine, 4, kGroup};
    q.codes = {codes.data(), DType::u32, {kExperts, kN, kK / 8}};
    q.scales = {scales.data(), DType::bf16, {kExperts, kN, kK / kGroup}};
    q.biases = {biases.data(), DType::bf16, {kExperts, kN, kK / kGroup}};
    return q;
  }
  // One weight, by the definition: code * scale + bias.
  double value(int64_t expert, int64_t n, int64_t k) const {
    const int64_t i = (expert * kN + n) * kK + k;
    const double code = codes[static_cast<size_t>(i / 8)] >> (i % 8 * 4) & 15;
    const auto group = static_cast<size_t>(i / kGroup);
    return code * bfloat16_to_float(scales[group]) + bfloat16_to_float(biases[group]);
  }
};

// The largest error over some outputs of every pair, in units of the float32 error bound
// K * 2^-24 * sum |x w|.
double check(const Layer& layer, const std::vector<float>& x, const std::vector<int32_t>& ids,
             const std::vector<float>& out) {
  double worst = 0;
  for (size_t pair = 0; pair < ids.size(); ++pair) {
    const float* row = x.data() + pair / kTopK * kK;
    for (int64_t n = static_cast<int64_t>(pair) % 7; n < kN; n += 251) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < kK; ++k) {
        const double product = row[k] * layer.value(ids[pair], n, k);
        sum += product;
        magnitude += std::abs(product);
      }
      const double error = std::abs(out[pair * kN + static_cast<size_t>(n)] - sum);
      worst = std::max(worst, error / (kK * 0x1p-24 * magnitude));
    }
  }
  return worst;
}

bool run(const Layer& layer, int64_t tokens, std::mt19937& rng) {
  using moeblas::DType;
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(tokens * kK));
  for (float& v : x) v = normal(rng);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    std::set<int32_t> chosen;
    while (chosen.size() < kTopK) chosen.insert(static_cast<int32_t>(rng() % kExperts));
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  std::vector<float> out(ids.size() * kN, NAN);

  const moeblas::TensorView x_view(x.data(), DType::f32, {tokens, 1, 1, kK});
  const moeblas::TensorView ids_view(ids.data(), DType::i32, {tokens, kTopK});
  const moeblas::TensorView out_view(out.data(), DType::f32, {tokens, kTopK, 1, kN});
  const moeblas::Quantized w = layer.view();
  moeblas::Options options;
  const auto call = [&](const moeblas::Options& o) {
    moeblas::gather_qmm(x_view, w, {}, ids_view, true, false, out_view, o);
  };
  const moeblas::Plan plan = moeblas::plan(call, options);
  std::vector<char> workspace(plan.workspace_bytes + 64);
  options.workspace =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
  options.workspace_bytes = plan.workspace_bytes;

  call(options);
  const double error = check(layer, x, ids, out);
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call(options);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double experts = static_cast<double>(std::set<int32_t>(ids.begin(), ids.end()).size());
  const double bytes = experts * kN * kK * (0.5 + 4.0 / kGroup);
  std::printf(
      "T = %3lld  %3.0f experts  %9.1f us  %6.2f GB/s of weights  %6.2f GFLOP/s  error %.4f of its "
      "bound  %s\n",
      static_cast<long long>(tokens), experts, median * 1e6, bytes / median * 1e-9,
      2.0 * static_cast<double>(ids.size()) * kN * kK / median * 1e-9, error, plan.kernel.c_str());
  return error <= 1.0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> tokens;
  for (int i = 1; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));
  if (tokens.empty()) tokens = {1, 8, 64};
  std::printf(
      "gather_qmm, gate and up of Qwen3-30B-A3B: %lld experts of %lld x %lld, 4-bit, groups of "
      "%lld, float32 "
      "activations, %d threads\n",
      static_cast<long long>(kExperts), static_cast<long long>(kN), static_cast<long long>(kK),
      static_cast<long long>(kGroup), moeblas::get_num_threads());
  try {
    std::mt19937 rng(2026);
    const Layer layer(rng);
    bool right = true;
    for (int64_t t : tokens) right = run(layer, t, rng) && right;
    std::puts(right ? "answers checked against float64: right" : "answers WRONG");
    return right ? 0 : 1;
  } catch (const moeblas::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
