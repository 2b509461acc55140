// quantize and dequantize against the vectors in tests/golden (make_golden.py says where each of
// them comes from).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "formats/formats.h"
#include "formats/independent.h"
#include "formats/pack.h"
#include "moeblas/ops.h"
#include "support/array.h"

namespace moeblas::test {
namespace {

using namespace independent;

std::ifstream open(const std::string& file) {
  std::ifstream in(std::string(MOEBLAS_GOLDEN_DIR) + "/" + file);
  EXPECT_TRUE(in.good()) << file;
  return in;
}

uint32_t hex(const std::string& digits) {
  return static_cast<uint32_t>(std::stoul(digits, nullptr, 16));
}

void expect_words(const Array& codes, const std::vector<uint32_t>& words, const std::string& what) {
  ASSERT_EQ(codes.bytes().size(), words.size() * 4) << what;
  for (size_t i = 0; i < words.size(); ++i) {
    EXPECT_EQ(codes.as<uint32_t>()[i], words[i]) << what << ", word " << i;
  }
}

// w_i = (i - 10) / 4.
Array ramp() {
  Array w(DType::f32, {32});
  for (int i = 0; i < 32; ++i) w.set(i, static_cast<float>(i - 10) / 4);
  return w;
}

TEST(Golden, Specification) {
  std::ifstream in = open("specification.txt");
  int vectors = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words_in(line);
    std::string kind, first, second;
    if (!(words_in >> kind) || kind[0] == '#') continue;
    ++vectors;
    words_in >> first;
    if (kind != "pack") words_in >> second;
    std::vector<uint32_t> words;
    for (std::string word; words_in >> word;) words.push_back(hex(word));
    if (kind == "pack") {
      const int bits = std::stoi(first);
      std::vector<unsigned> codes(32);
      for (unsigned i = 0; i < 32; ++i) codes[i] = 7 * i % (1u << bits);
      const std::vector<uint8_t> bytes = pack(codes, bits);
      ASSERT_EQ(bytes.size(), words.size() * 4);
      EXPECT_EQ(std::memcmp(bytes.data(), words.data(), bytes.size()), 0) << line;
      // The library reads the words as these codes.
      Array packed(DType::u32, {bits}), one(DType::f32, {1}), zero(DType::f32, {1}),
          values(DType::f32, {32});
      packed.bytes() = bytes;
      one.set(0, 1.0f);
      dequantize({{Mode::affine, bits, 32}, packed, one, zero, {}, {}}, values);
      for (int i = 0; i < 32; ++i) {
        EXPECT_EQ(values.get(i), static_cast<float>(codes[static_cast<size_t>(i)])) << line;
      }
    } else if (kind == "affine") {
      const int bits = std::stoi(first);
      Array codes(DType::u32, {bits}), scales(DType::f32, {1}), biases(DType::f32, {1});
      quantize(ramp(), {{Mode::affine, bits, 32}, codes, scales, biases, {}, {}});
      expect_words(codes, words, line);
      EXPECT_EQ(scales.get(0), std::stof(second)) << line;
      EXPECT_EQ(biases.get(0), 5.25f) << line;
    } else if (kind == "block") {
      const Mode mode = first == "mxfp4"   ? Mode::mxfp4
                        : first == "mxfp8" ? Mode::mxfp8
                                           : Mode::nvfp4;
      ASSERT_EQ(first, name(mode));
      std::vector<uint8_t> expected;
      std::istringstream bytes_in(second);
      for (std::string byte; std::getline(bytes_in, byte, ',');) {
        expected.push_back(static_cast<uint8_t>(hex(byte)));
      }
      Array codes(DType::u32, {mode == Mode::mxfp8 ? 8 : 4}),
          scales(DType::u8, {static_cast<int64_t>(expected.size())});
      quantize(ramp(), {{mode}, codes, scales, {}, {}, {}});
      expect_words(codes, words, line);
      EXPECT_EQ(scales.bytes(), expected) << line;
    } else {
      ASSERT_EQ(kind, "probe") << line;
      ASSERT_EQ(words.size(), 1u) << line;
      const Mode mode = first == "mxfp4" ? Mode::mxfp4 : Mode::mxfp8;
      ASSERT_EQ(first, name(mode));
      for (float sign : {1.0f, -1.0f}) {
        Array w(DType::f32, {32}), codes(DType::u32, {mode == Mode::mxfp8 ? 8 : 4}),
            scales(DType::u8, {1});
        w.set(17, sign * std::stof(second));
        quantize(w, {{mode}, codes, scales, {}, {}, {}});
        EXPECT_EQ(scales.bytes()[0], words[0]) << line;
      }
    }
  }
  EXPECT_EQ(vectors, 5 + 6 + 3 + 6) << "every vector of the specification";
}

// A float of any of the three dtypes from its hex digits, compared as bits but for NaN.
bool equal_float(const Array& a, int64_t i, uint32_t pattern) {
  const uint32_t got = a.dtype() == DType::f32 ? a.as<uint32_t>()[i] : a.as<uint16_t>()[i];
  if (got == pattern) return true;
  const Layout& l = a.dtype() == DType::f16 ? kFloat16 : kBfloat16;
  const double expected =
      a.dtype() == DType::f32 ? double{float_of_bits(pattern)} : value_of(l, pattern);
  return std::isnan(expected) && std::isnan(a.get(i));
}

// Every case of a file; returns how many groups were compared.
int expect_affine_file(const std::string& file) {
  std::ifstream in = open(file);
  std::map<std::string, Array> inputs;
  int compared = 0;
  std::string line;
  bool have_line = static_cast<bool>(std::getline(in, line));
  while (have_line) {
    std::istringstream header(line);
    std::string kind, input, third;
    header >> kind >> input >> third;
    std::vector<std::string> body;
    while ((have_line = static_cast<bool>(std::getline(in, line))) && line.find("input") != 0 &&
           line.find("case") != 0) {
      body.push_back(line);
    }
    const auto rows = static_cast<int64_t>(body.size());
    if (kind == "input") {
      const DType dtype = third == "float32"   ? DType::f32
                          : third == "float16" ? DType::f16
                                               : DType::bf16;
      int64_t group = 0;
      header >> group;
      Array w(dtype, {rows, group});
      const size_t digits = 2 * size_of(dtype);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < group; ++i) {
          const std::string& text = body[static_cast<size_t>(r)];
          const uint32_t pattern = hex(text.substr(static_cast<size_t>(i) * digits, digits));
          if (dtype == DType::f32) {
            w.as<uint32_t>()[r * group + i] = pattern;
          } else {
            w.as<uint16_t>()[r * group + i] = static_cast<uint16_t>(pattern);
          }
        }
      }
      inputs.insert_or_assign(input, std::move(w));
    } else if (kind == "case") {
      const Array& w = inputs.at(input);
      EXPECT_EQ(rows, w.shape()[0]) << input;
      const int bits = std::stoi(third);
      // The groups in one row: a single group need not fill whole words.
      const auto group = static_cast<int>(w.shape()[1]);
      const int64_t columns = rows * group, bytes = group * bits / 8;
      const TensorView row(w.bytes().data(), w.dtype(), {columns});
      Array codes(DType::u32, {columns * bits / 32}), scales(w.dtype(), {rows}),
          biases(w.dtype(), {rows});
      quantize(row, {{Mode::affine, bits, group}, codes, scales, biases, {}, {}});
      for (int64_t r = 0; r < rows; ++r, ++compared) {
        std::istringstream fields(body[static_cast<size_t>(r)]);
        std::string packed, scale, bias;
        fields >> packed >> scale >> bias;
        const std::string where = input + ", " + third + " bits, group " + std::to_string(r);
        EXPECT_EQ(packed.size(), static_cast<size_t>(2 * bytes)) << where;
        for (int64_t i = 0; i < bytes; ++i) {
          EXPECT_EQ(codes.bytes()[static_cast<size_t>(r * bytes + i)],
                    hex(packed.substr(static_cast<size_t>(i) * 2, 2)))
              << where << ", byte " << i;
        }
        EXPECT_TRUE(equal_float(scales, r, hex(scale))) << where << ": scale " << scales.get(r);
        EXPECT_TRUE(equal_float(biases, r, hex(bias))) << where << ": bias " << biases.get(r);
      }
    }
  }
  return compared;
}

constexpr int kGroupsPerInput = 18;

TEST(Golden, AffineOfMlx) {
  EXPECT_EQ(expect_affine_file("affine_mlx.txt"), 3 * 3 * 6 * kGroupsPerInput);
}

TEST(Golden, AffineGroupsOf16) {
  EXPECT_EQ(expect_affine_file("affine_group16.txt"), 3 * 6 * kGroupsPerInput);
}

}  // namespace
}  // namespace moeblas::test
