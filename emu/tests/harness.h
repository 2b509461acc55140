// What the emulator's tests share: 16-bit storage types, inputs, and the four schedules.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "emu/emulator.h"

namespace moeblas::emu {

struct VectorParams {
  std::uint32_t n;
  float scale;
};

inline std::uint16_t bfloat_of_float(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Multiples of 1/8 in [-4, 4): exact in every format.
inline std::vector<float> random_values(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(static_cast<int>(random() % 64) - 32) / 8.0f;
  return values;
}

template <class T>
std::size_t bytes_of(const std::vector<T>& v) {
  return v.size() * sizeof(T);
}

class UnderSchedule : public testing::TestWithParam<Schedule> {
 protected:
  DispatchOptions options(std::uint64_t seed = 1) const {
    DispatchOptions o;
    o.schedule = GetParam();
    o.seed = seed;
    return o;
  }
};

inline std::string schedule_name(const testing::TestParamInfo<Schedule>& info) {
  return name_of(info.param);
}

inline auto all_schedules() {
  return testing::Values(Schedule::forward, Schedule::reverse, Schedule::random, Schedule::greedy);
}

// The message of the error that `run` throws; fails the test if it throws none of this kind.
template <class F>
std::string error_of(ErrorKind kind, F&& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace moeblas::emu

#define EXPECT_MENTIONS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)
