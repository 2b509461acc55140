#include "weights.h"

#include <algorithm>
#include <cmath>

#include "cuda_lane.h"
#include "support/codec.h"
#include "support/random.h"

namespace moeblas::gpu {
namespace {

constexpr int64_t kRows = 320, kValues = 1152;

// x is the identity times 2^x_exponent, so that neither end of the range leaves float32.
struct Weights {
  QuantSpec spec;
  DType x;
  DType scale = DType::u8;
  int x_exponent = 0;
  float tensor_scale = 1;
  std::vector<uint8_t> codes{}, scales{}, biases{};
  std::vector<double> expected{};  // row by row

  void draw_codes(test::Random& random) {
    for (int64_t i = 0; i < kRows * kValues * spec.bits / 8; ++i) {
      auto code = static_cast<uint8_t>(random.below(256));
      // Another value's zero times NaN would be NaN.
      if (spec.mode == Mode::mxfp8 && (code & 0x7f) == 0x7f) code ^= 1;
      codes.push_back(code);
    }
  }
  void expect(int64_t i, double scale_or_byte, double bias) {
    const uint32_t code = test::packed_code(codes.data(), spec.bits, i);
    const double weight =
        spec.mode == Mode::affine
            ? scale_or_byte * code + bias
            : test::decode_block(spec.mode, code, static_cast<uint32_t>(scale_or_byte),
                                 tensor_scale);
    expected.push_back(test::round_to(test::float_format(x), weight));
  }
};

// Exponents of scales of this type whose weights stay within the results' type, but for float16's,
// which leave it at the upper end.
struct Exponents {
  int least, most;
};
// Small scales are all below what the shorter ways of decoding take, or on both sides of it.
enum class Scales { small, mixed, large };
Exponents exponents_of(DType scale, int bits, Scales size) {
  const int least = scale == DType::f16 ? -14 : -126;
  if (size == Scales::small) return {least, -6};
  if (scale == DType::f16) return size == Scales::mixed ? Exponents{-14, -2} : Exponents{-2, 10};
  return size == Scales::mixed ? Exponents{-126, 0} : Exponents{0, 125 - std::max(bits, 4)};
}

// Significands of 8 bits, and biases near enough to scales for s q + b to be exact: in double where
// the kernel rounds it but once, in float32 elsewhere.
Weights affine(int bits, int group, DType x, DType scale, Scales size) {
  test::Random random(static_cast<uint64_t>(group + bits));
  const bool wide = scale != DType::f16;
  Weights w{{Mode::affine, bits, group}, x, scale, size != Scales::large && wide ? 100 : 0};
  const bool once = x == DType::bf16 && scale == x && group >= 32;
  w.draw_codes(random);
  const auto number = [&](int exponent) {
    const double significand = 1 + static_cast<double>(random.below(128)) / 128;
    return std::ldexp(random.one_in(2) ? significand : -significand, exponent);
  };
  const int64_t groups = kRows * kValues / group;
  w.scales.resize(static_cast<size_t>(groups) * size_of(scale));
  w.biases = w.scales;
  const Exponents range = exponents_of(scale, bits, size);
  for (int64_t g = 0; g < groups; ++g) {
    const auto exponent = static_cast<int>(random.between(range.least, range.most));
    const int other = std::max(wide ? -126 : -14,
                               exponent + static_cast<int>(random.between(once ? -12 : -4, 4)));
    const double s = random.one_in(20) ? 0 : number(exponent);
    const double b = random.one_in(20) ? 0 : number(other);
    test::store_value(w.scales.data(), scale, g, s);
    test::store_value(w.biases.data(), scale, g, b);
    for (int64_t i = 0; i < group; ++i) w.expect(g * group + i, s, b);
  }
  return w;
}

Weights block(Mode mode, DType x, Scales size) {
  const bool small = size != Scales::large;
  test::Random random(static_cast<uint64_t>(mode));
  Weights w{QuantSpec{mode}.resolved(), x};
  w.draw_codes(random);
  const bool e4m3 = mode == Mode::nvfp4;
  if (e4m3 && x == DType::bf16) w.tensor_scale = small ? 0x1p-70f : 0x1p70f;
  if (small && x == DType::bf16) w.x_exponent = 100;
  // The largest magnitude under them is finite.
  const int64_t most = mode == Mode::mxfp4 ? 252 : 246;
  const int64_t group = w.spec.group_size;
  for (int64_t g = 0; g < kRows * kValues / group; ++g) {
    int64_t byte = size == Scales::small   ? random.below(127)
                   : size == Scales::mixed ? random.between(120, 134)
                                           : random.between(127, most);
    if (e4m3) byte = random.below(127) + 128 * random.below(2);
    w.scales.push_back(static_cast<uint8_t>(byte));
    for (int64_t i = 0; i < group; ++i) w.expect(g * group + i, static_cast<double>(byte), 0);
  }
  return w;
}

// By so many rows of x at a time: tiles of another width.
std::string difference(const Weights& w, int64_t tokens) {
  std::vector<uint8_t> identity(kValues * kValues * 2), out(kValues * kRows * 2, 0xff);
  for (int64_t i = 0; i < kValues; ++i) {
    test::store_value(identity.data(), w.x, i * (kValues + 1), std::ldexp(1.0, w.x_exponent));
  }
  const DeviceMemory x(identity), codes(w.codes), scales(w.scales), biases(w.biases);
  const DeviceMemory result(out);
  const bool biased = !w.biases.empty();
  const int64_t groups = kValues / w.spec.group_size;
  Quantized q;
  q.spec = w.spec;
  q.codes = {codes.data(), DType::u32, {kRows, kValues * w.spec.bits / 32}, kCuda};
  q.scales = {scales.data(), w.scale, {kRows, groups}, kCuda};
  if (biased) q.biases = {biases.data(), w.scale, {kRows, groups}, kCuda};
  if (w.tensor_scale != 1) q.host_tensor_scale = w.tensor_scale;
  Options options;
  options.kernel = w.spec.bits % 4 == 0 ? "qmm_sm90" : "qmm_sm90_fields";
  for (int64_t first = 0; first < kValues; first += tokens) {
    quantized_matmul({x.data() + first * kValues * 2, w.x, {tokens, kValues}, kCuda}, q, true,
                     {result.data() + first * kRows * 2, w.x, {tokens, kRows}, kCuda}, options);
  }
  check_cuda(cudaDeviceSynchronize(), "the product with the identity");
  check_cuda(cudaMemcpy(out.data(), result.data(), out.size(), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < kValues; ++k) {
      const double got = test::load_value(out.data(), w.x, k * kRows + row);
      const double expected =
          std::ldexp(w.expected[static_cast<size_t>(row * kValues + k)], w.x_exponent);
      if (got == expected) continue;
      char text[200];
      std::snprintf(text, sizeof text, "%lld rows of x: weight (%lld, %lld) is %.9g, expected %.9g",
                    static_cast<long long>(tokens), static_cast<long long>(row),
                    static_cast<long long>(k), got, expected);
      return text;
    }
  }
  return "";
}
std::string difference(const Weights& w) {
  for (int64_t tokens : {32, 64, 128, 1152}) {
    static_assert(kValues == 1152);
    const std::string text = difference(w, tokens);
    if (!text.empty()) return text;
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
  for (Scales size : {Scales::small, Scales::mixed, Scales::large}) {
    const std::string scales = size == Scales::small   ? ", small scales"
                               : size == Scales::mixed ? ", mixed scales"
                                                       : ", large scales";
    for (int bits : {4, 8}) {
      for (int group : {16, 32, 64, 128}) {
        const std::string what =
            "affine " + std::to_string(bits) + "-bit, groups of " + std::to_string(group) + scales;
        for (DType scale : {DType::bf16, DType::f16, DType::f32}) {
          check(what + " of " + name(scale), affine(bits, group, DType::bf16, scale, size));
        }
        check(what + ", float16", affine(bits, group, DType::f16, DType::f16, size));
      }
    }
    for (int bits : {2, 3, 5, 6}) {
      for (int group : {32, 64, 128}) {
        check(
            "affine " + std::to_string(bits) + "-bit, groups of " + std::to_string(group) + scales,
            affine(bits, group, DType::bf16, DType::bf16, size));
      }
    }
    for (Mode mode : {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4}) {
      check(name(mode) + scales, block(mode, DType::bf16, size));
    }
  }
  check("nvfp4, float16", block(Mode::nvfp4, DType::f16, Scales::large));
}

}  // namespace moeblas::gpu
