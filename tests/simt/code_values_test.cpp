// The products' decoders against the definitions of src/formats: every code in every place of an
// octet, next to random neighbours, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>
#include <vector>

#include "emu/emulator.h"
#include "formats/formats.h"
#include "formats/pack.h"

namespace moeblas::test {
namespace {

template <class F>
float value_of(unsigned code) {
  if constexpr (formats::kIsAffine<F>) {
    return static_cast<float>(code);
  } else {
    return F::decode_code(code);
  }
}

template <class F>
void expect_values(const char* kernel) {
  constexpr unsigned kThreads = 64;
  std::mt19937_64 random(7);
  std::vector<uint64_t> octets;
  for (unsigned code = 0; code < 1u << F::kBits; ++code) {
    for (int place = 0; place < 8; ++place) {
      uint64_t octet = 0;
      for (int i = 0; i < 8; ++i) {
        const auto other = static_cast<unsigned>(random()) & ((1u << F::kBits) - 1);
        octet = formats::with_code<F::kBits>(octet, i, i == place ? code : other);
      }
      // What lies beyond the octet is not its concern.
      if (F::kBits < 8) octet |= random() << (8 * F::kBits % 64);
      octets.push_back(octet);
    }
  }
  while (octets.size() % kThreads != 0) octets.push_back(0);
  std::vector<float> values(octets.size() * 8, -1.0f);
  emu::Command command(kernel);
  command.bind(0, static_cast<const void*>(octets.data()), octets.size() * 8);
  command.bind(1, static_cast<void*>(values.data()), values.size() * 4);
  command.dispatch({static_cast<unsigned>(octets.size() / kThreads), 1, 1}, {kThreads, 1, 1});
  for (size_t i = 0; i < values.size(); ++i) {
    const unsigned code = formats::code_of<F::kBits>(octets[i / 8], static_cast<int>(i % 8));
    EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(value_of<F>(code)))
        << kernel << ", code " << code << " in place " << i % 8;
  }
}

TEST(CodeValues, EqualTheDefinition) {
  expect_values<formats::Affine<2>>("code_values_affine2");
  expect_values<formats::Affine<3>>("code_values_affine3");
  expect_values<formats::Affine<4>>("code_values_affine4");
  expect_values<formats::Affine<5>>("code_values_affine5");
  expect_values<formats::Affine<6>>("code_values_affine6");
  expect_values<formats::Affine<8>>("code_values_affine8");
  expect_values<formats::Mxfp4>("code_values_mxfp4");
  expect_values<formats::Mxfp8>("code_values_mxfp8");
  expect_values<formats::Nvfp4>("code_values_nvfp4");
}

}  // namespace
}  // namespace moeblas::test
