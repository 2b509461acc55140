// A small seeded generator with the same stream on every platform and standard library.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>

namespace moeblas::test {

// splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Whole numbers in [0, n), [low, high].
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return *std::next(choices.begin(), below(static_cast<int64_t>(choices.size())));
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Mean 0, variance 1, bell-shaped, |value| < 6: the sum of twelve uniforms.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  uint64_t state_;
};

}  // namespace moeblas::test
