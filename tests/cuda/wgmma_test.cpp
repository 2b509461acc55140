// Products of warpgroups on thread blocks of the host, which tests of whole kernels rest on: by
// PTX's own layouts they are plain products, and what may not be touched meanwhile shows.
#include "cuda/device/wgmma.cuh"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "support/random.h"

namespace moeblas::test {
namespace {

using namespace cuda::device;

constexpr uint32_t kK = 64;  // a row of 128 bytes
constexpr uint32_t kThreads = 256, kGroups = kThreads / 128, kRows = 64 * kGroups;

// Small integers, so that sums are exact.
struct Matrices {
  std::vector<int> a, b;  // rows of kK: of A, and of B's columns

  Matrices(uint32_t columns, uint64_t seed) : a(kRows * kK), b(columns * kK) {
    Random random(seed);
    for (int& v : a) v = static_cast<int>(random.between(-8, 8));
    for (int& v : b) v = static_cast<int>(random.between(-8, 8));
  }
  float sum(uint32_t row, uint32_t column) const {
    int all = 0;
    for (uint32_t k = 0; k < kK; ++k) all += a[row * kK + k] * b[column * kK + k];
    return static_cast<float>(all);
  }
};

uint16_t bits_of(int value) { return formats::float_to_bfloat16(static_cast<float>(value)); }

// Rows of 128 bytes as a bulk copy lays them down: of eight rows the 16 bytes at c stand at c ^
// row.
void put_swizzled(const std::vector<int>& rows) {
  auto* to = reinterpret_cast<uint16_t*>(dynamic_memory());
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const uint32_t row = i / kK, k = i % kK;
    to[row * 64 + ((k / 8) ^ (row % 8)) * 8 + k % 8] = bits_of(rows[i]);
  }
}
// The same across: 64 columns of one k after the other.
void put_across(const std::vector<int>& rows, uint32_t columns) {
  auto* to = reinterpret_cast<uint16_t*>(dynamic_memory());
  for (uint32_t c = 0; c < columns; ++c) {
    for (uint32_t k = 0; k < kK; ++k) {
      to[c / 64 * (kK * 64) + k * 64 + ((c % 64 / 8) ^ (k % 8)) * 8 + c % 8] =
          bits_of(rows[c * kK + k]);
    }
  }
}

// The registers of A of the thread, for 16 k from `k` on, as the PTX manual has them.
void fill_a(const Matrices& m, uint32_t k, uint32_t (&a)[4]) {
  const uint32_t thread = thread_index();
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + (i < 2 || (i >= 4 && i < 6) ? 0 : 8);
    const uint32_t column = thread % 4 * 2 + (i & 1) + (i < 4 ? 0 : 8);
    const uint32_t bits = bits_of(m.a[row * kK + k + column]);
    a[i / 2] = i % 2 == 0 ? bits : a[i / 2] | bits << 16;
  }
}
template <uint32_t kColumns>
uint32_t wrong_sums(const Matrices& m, const float (&sums)[kColumns / 2]) {
  const uint32_t thread = thread_index();
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < kColumns / 2; ++i) {
    const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + ((i & 2) == 0 ? 0 : 8);
    const uint32_t column = i / 4 * 8 + thread % 4 * 2 + (i & 1);
    if (sums[i] != m.sum(row, column)) ++wrong;
  }
  return wrong;
}

enum class Mistake { none, sums_read, a_written, b_written, not_begun, one_group_short };

// All of K in two groups; how many sums are wrong.
template <uint32_t kColumns, bool kAcross = false>
uint32_t wrong_of(uint64_t seed, Mistake mistake = Mistake::none) {
  const Matrices m(kColumns, seed);
  uint32_t wrong = 0;
  run_grid({1, kThreads, kColumns * kK * 2, seed, 0xff}, [&] {
    if (thread_index() == 0) {
      kAcross ? put_across(m.b, kColumns) : put_swizzled(m.b);
    }
    named_barrier(1, kThreads);
    float sums[kColumns / 2];
    for (float& s : sums) s = 0.0f;
    uint32_t a[4][4];
    for (uint32_t j = 0; j < 4; ++j) {
      fill_a(m, j * 16, a[j]);
      if (j % 2 == 0 && mistake != Mistake::not_begun) wgmma_begin();
      if constexpr (kAcross) {
        Wgmma<Bfloat16, kColumns>::template multiply<true>(
            sums, a[j], wgmma_columns(wgmma_across_at(j * kWgmmaAcrossStep, kK * 128)));
      } else {
        Wgmma<Bfloat16, kColumns>::multiply(
            sums, a[j], wgmma_columns(wgmma_columns_at(0) + j * wgmma_columns_step(32)));
      }
      if (j % 2 == 1) wgmma_commit();
    }
    if (mistake == Mistake::one_group_short) {
      wgmma_wait<1>();
      wrong += wrong_sums<kColumns>(m, sums);
    }
    if (mistake == Mistake::sums_read) wrong += wrong_sums<kColumns>(m, sums);
    if (mistake == Mistake::a_written) ++a[3][0];
    if (mistake == Mistake::b_written) spoil_shared(0, kColumns * kK * 2);
    wgmma_wait<0>();
    wrong += wrong_sums<kColumns>(m, sums);
  });
  return wrong;
}

TEST(Wgmma, IsAProduct) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    EXPECT_EQ(wrong_of<16>(seed), 0u);
    EXPECT_EQ(wrong_of<32>(seed), 0u);
    EXPECT_EQ(wrong_of<80>(seed), 0u);
    EXPECT_EQ(wrong_of<256>(seed), 0u);
    EXPECT_EQ((wrong_of<128, true>(seed)), 0u);
  }
}

TEST(Wgmma, ShowsWhatIsTouchedTooEarly) {
  EXPECT_GT(wrong_of<32>(1, Mistake::sums_read), 0u);
  EXPECT_GT(wrong_of<32>(1, Mistake::one_group_short), 0u);
  uint32_t wrong = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) wrong += wrong_of<32>(seed, Mistake::b_written);
  EXPECT_GT(wrong, 0u);
}
TEST(Wgmma, RefusesRegistersWrittenTooEarly) {
  EXPECT_THROW(wrong_of<32>(1, Mistake::a_written), std::runtime_error);
}
TEST(Wgmma, WantsToBegin) { EXPECT_THROW(wrong_of<32>(1, Mistake::not_begun), std::runtime_error); }

// A from shared memory: rows of K, or across.
template <bool kAcross>
uint32_t wrong_of_shared(uint64_t seed) {
  constexpr uint32_t kColumns = 32, kOfA = kRows * kK * 2;
  Matrices m(kColumns, seed);
  uint32_t wrong = 0;
  run_grid({1, kThreads, kOfA + kColumns * kK * 2, seed, 0xff}, [&] {
    if (thread_index() == 0) {
      put_swizzled(m.b);
      std::memcpy(dynamic_memory() + kOfA, dynamic_memory(), kColumns * kK * 2);
      kAcross ? put_across(m.a, kRows) : put_swizzled(m.a);
    }
    named_barrier(1, kThreads);
    float sums[kColumns / 2];
    const uint32_t rows = wgmma_columns_at(thread_index() / 128 * (64 * kK * 2));
    wgmma_begin();
    for (uint32_t j = 0; j < 4; ++j) {
      const auto a = wgmma_columns(rows + j * wgmma_columns_step(kAcross ? kWgmmaAcrossStep : 32));
      const auto b = wgmma_columns(wgmma_columns_at(kOfA) + j * wgmma_columns_step(32));
      if (j == 0) {
        WgmmaShared<Bfloat16, kColumns, kAcross>::template multiply<false, false>(sums, a, b);
      } else {
        WgmmaShared<Bfloat16, kColumns, kAcross>::multiply(sums, a, b);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    wrong += wrong_sums<kColumns>(m, sums);
  });
  return wrong;
}
TEST(Wgmma, TakesAFromSharedMemory) {
  EXPECT_EQ(wrong_of_shared<false>(1), 0u);
  EXPECT_EQ(wrong_of_shared<true>(1), 0u);
}

}  // namespace
}  // namespace moeblas::test
