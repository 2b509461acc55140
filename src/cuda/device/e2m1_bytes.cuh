// Codes of e2m1 as bytes, for products of integers: a third of the operations to decode that
// float16 takes.
//
// 12 more than twice a value is an integer from 0 to 24. A byte permutation looks four codes up at
// a time, by their lower three bits; where the fourth is set, it fills the byte with the sign of
// what it finds, 0. So one look at the codes brings the positive ones, one at the codes with their
// bits turned over the negative ones, and their sum all of them. A product of integers costs more
// than those sums, so there is one for both signs; by how much it is too large follows from x
// alone.
#pragma once

#include "cuda/device/fold_e4m3.cuh"
#include "cuda/device/kept.cuh"
#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

// A word's eight codes, four in a word.
struct CodeBytes {
  uint32_t low, high;
};
// Of e2m1 what codes with one sign are, twice and with kE2m1More; 0 for the others.
constexpr int32_t kE2m1More = 12;
// In registers, as an instruction takes one constant only: the first halves of the tables, and ~0.
struct E2m1Constants {
  static constexpr uint32_t kPositive = 0x0f0e0d0cu, kNegative = 0x08060400u;
  uint32_t positive, negative, ones;
  static __device__ __forceinline__ E2m1Constants kept_by(uint32_t lane) {
    return {kept(kPositive + nothing_of(lane), lane), kept(kNegative + nothing_of(lane), lane),
            kept(~nothing_of(lane), lane)};
  }
};
__device__ __forceinline__ CodeBytes bytes_of_e2m1(const E2m1Constants& with, uint32_t word) {
  // Negative codes' table is the other way around: turned over are all of their bits, by products,
  // as the pipe of permutations and shifts has the most to do.
  constexpr uint32_t kLargePositive = 0x18141210u, kLargeNegative = 0x0c0b0a09u;
  const uint32_t upper = word >> 16;
  return {pick_bytes(with.positive, kLargePositive, word) +
              pick_bytes(with.negative, kLargeNegative, word * with.ones + with.ones),
          pick_bytes(with.positive, kLargePositive, upper) +
              pick_bytes(with.negative, kLargeNegative, upper * with.ones + with.ones)};
}
}  // namespace moeblas::cuda::device
