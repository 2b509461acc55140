#include "weights.h"

#include <cmath>
#include <cstring>

#include "support/codec.h"
#include "support/random.h"

namespace moeblas::gpu {
namespace {

constexpr int64_t kRows = 320, kValues = 1152;

uint16_t bfloat16(double value) {
  const auto single = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// x is the identity times 2^x_exponent, so that neither end of the range leaves float32.
struct Weights {
  QuantSpec spec;
  int x_exponent = 0;
  std::vector<uint8_t> codes, scales, biases;
  std::vector<double> expected;  // row by row
};

// Scales of any exponent; biases near enough to them for s q + b to be exact in double.
Weights affine(int group, bool small) {
  test::Random random(static_cast<uint64_t>(group));
  Weights w{{Mode::affine, 4, group}, small ? 100 : 0, {}, {}, {}, {}};
  for (int64_t i = 0; i < kRows * kValues / 2; ++i) {
    w.codes.push_back(static_cast<uint8_t>(random.below(256)));
  }
  const auto number = [&](int exponent) {
    const double significand = 1 + static_cast<double>(random.below(128)) / 128;
    return std::ldexp(random.one_in(2) ? significand : -significand, exponent);
  };
  const auto append = [](std::vector<uint8_t>& to, uint16_t bits) {
    to.push_back(static_cast<uint8_t>(bits));
    to.push_back(static_cast<uint8_t>(bits >> 8));
  };
  for (int64_t g = 0; g < kRows * kValues / group; ++g) {
    const auto exponent =
        static_cast<int>(small ? random.between(-126, 0) : random.between(0, 121));
    const int other = std::max(-126, exponent + static_cast<int>(random.between(-12, 4)));
    const double s = random.one_in(20) ? 0 : number(exponent);
    const double b = random.one_in(20) ? 0 : number(other);
    append(w.scales, bfloat16(s));
    append(w.biases, bfloat16(b));
    for (int64_t i = 0; i < group; ++i) {
      const uint32_t code = test::packed_code(w.codes.data(), 4, g * group + i);
      w.expected.push_back(test::round_to(test::kBfloat16, s * code + b));
    }
  }
  return w;
}

Weights mxfp4(bool small) {
  test::Random random(4);
  Weights w{QuantSpec{Mode::mxfp4}.resolved(), small ? 100 : 0, {}, {}, {}, {}};
  for (int64_t i = 0; i < kRows * kValues / 2; ++i) {
    w.codes.push_back(static_cast<uint8_t>(random.below(256)));
  }
  for (int64_t g = 0; g < kRows * kValues / 32; ++g) {
    // 6 * 2^125 is the largest that is finite.
    w.scales.push_back(static_cast<uint8_t>(small ? random.below(127) : random.between(127, 252)));
    for (int64_t i = 0; i < 32; ++i) {
      const uint32_t code = test::packed_code(w.codes.data(), 4, g * 32 + i);
      w.expected.push_back(test::decode_block(Mode::mxfp4, code, w.scales.back(), 1));
    }
  }
  return w;
}

std::string difference(const Weights& w) {
  std::vector<uint8_t> identity(kValues * kValues * 2), out(kValues * kRows * 2);
  for (int64_t i = 0; i < kValues; ++i) {
    const uint16_t one = bfloat16(std::ldexp(1.0, w.x_exponent));
    std::memcpy(&identity[static_cast<size_t>(i * (kValues + 1) * 2)], &one, 2);
  }
  const DeviceMemory x(identity), codes(w.codes), scales(w.scales), biases(w.biases);
  const DeviceMemory result(out.size());
  const bool biased = !w.biases.empty();
  const int64_t groups = kValues / w.spec.group_size;
  Quantized q;
  q.spec = w.spec;
  q.codes = {codes.data(), DType::u32, {kRows, kValues / 8}, kCuda};
  q.scales = {scales.data(), biased ? DType::bf16 : DType::u8, {kRows, groups}, kCuda};
  if (biased) q.biases = {biases.data(), DType::bf16, {kRows, groups}, kCuda};
  Options options;
  options.kernel = "qmm_sm90";
  quantized_matmul({x.data(), DType::bf16, {kValues, kValues}, kCuda}, q, true,
                   {result.data(), DType::bf16, {kValues, kRows}, kCuda}, options);
  check_cuda(cudaDeviceSynchronize(), "the product with the identity");
  check_cuda(cudaMemcpy(out.data(), result.data(), out.size(), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < kValues; ++k) {
      const double got = test::load_value(out.data(), DType::bf16, k * kRows + row);
      const double expected =
          std::ldexp(w.expected[static_cast<size_t>(row * kValues + k)], w.x_exponent);
      if (got == expected) continue;
      char text[160];
      std::snprintf(text, sizeof text, "weight (%lld, %lld) is %.9g, expected %.9g",
                    static_cast<long long>(row), static_cast<long long>(k), got, expected);
      return text;
    }
  }
  return "";
}

}  // namespace

void check_weights(Report& report) {
  const auto check = [&](const std::string& name, const Weights& w) {
    std::string failure;
    try {
      failure = difference(w);
    } catch (const Error& e) {
      // Another device than the kernel is for.
      if (e.status() != MOEBLAS_UNSUPPORTED) failure = e.what();
    }
    report.check("weights of qmm_sm90, bit for bit: " + name, failure);
  };
  for (bool small : {true, false}) {
    const std::string scales = small ? ", small scales" : ", large scales";
    for (int group : {32, 64, 128}) {
      check("affine 4-bit, groups of " + std::to_string(group) + scales, affine(group, small));
    }
    check("mxfp4" + scales, mxfp4(small));
  }
}

}  // namespace moeblas::gpu
