// In the place of src/cuda/device/wgmma.cuh: products of warpgroups on thread blocks of the host.
// They are made at a random time after they are committed, as late as their wait at the latest;
// until then B may not be written, their sums are spoilt and may not be touched, and neither may A
// in registers. Each warp's quarter of a product is by itself, as its rows are.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "cuda/device/ptx.cuh"

namespace moeblas::cuda::device {

struct Bfloat16 {
  static float value(uint16_t bits) { return formats::bfloat16_to_float(bits); }
};
struct Float16 {
  static float value(uint16_t bits) { return formats::float16_to_float(bits); }
};

// ---- Descriptors

constexpr uint32_t wgmma_columns_at(uint32_t address) { return address >> 4 | 1u << 16; }
constexpr uint32_t wgmma_columns_step(uint32_t bytes) { return bytes >> 4; }
inline uint64_t wgmma_columns(uint32_t lower) { return uint64_t{0x40000040u} << 32 | lower; }
constexpr uint32_t wgmma_across_at(uint32_t address, uint32_t chunk_bytes) {
  return (address & 0x3ffffu) >> 4 | chunk_bytes >> 4 << 16;
}
inline constexpr uint32_t kWgmmaAcrossStep = 2048;

// 16 k of so many rows (of A) or columns (of B), as numbers: of each k the numbers of all of them.
template <class T>
void load_operand(uint64_t descriptor, uint32_t count, bool across, std::vector<float>& to) {
  const auto lower = static_cast<uint32_t>(descriptor);
  const uint32_t start = (lower & 0x3fffu) << 4, far = (lower >> 16 & 0x3fffu) << 4;
  const uint32_t near = (static_cast<uint32_t>(descriptor >> 32) & 0x3fffu) << 4;
  if (descriptor >> 62 != 1) test::block_fails("an operand in another pattern than 128 bytes'");
  if ((lower & 0xc000u) != 0) test::block_fails("an operand begins beyond shared memory");
  // Its parts lie within lines of 128 bytes, those within patterns of eight.
  if (start / 128 % 8 != 0) test::block_fails("an operand begins within a pattern");
  to.resize(size_t{16} * count);
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t at = across ? start + i / 64 * far + k / 8 * near + k % 8 * 128 + i % 64 * 2
                                 : start + i / 8 * near + i % 8 * 128 + k * 2;
      to[k * count + i] = T::value(load_shared<uint16_t>(at ^ (at / 128 % 8) << 4));
    }
  }
}

// ---- What a warp has under way

class WarpProducts {
 public:
  static WarpProducts& mine() {
    static thread_local std::map<uint32_t, WarpProducts> of_warps;  // of a thread block
    static thread_local uint64_t block = 0;
    if (std::exchange(block, test::block_serial()) != block) of_warps.clear();
    return of_warps[test::thread_index() / 32];
  }

  void begin() { lane().begun = true; }

  // `a`: registers of A, or null.
  template <class T>
  void multiply(float* sums, uint32_t columns, const uint32_t* a, uint64_t rows, bool across_a,
                uint64_t b, bool across_b, bool add) {
    Lane& l = lane();
    if (!l.begun) test::block_fails("a product without what begins products");
    Sums& of = l.sums_at(sums, columns / 2);
    of.group = l.committed + 1;
    if (a != nullptr) {
      Registers& r = l.registers.emplace_back();
      r.at = a;
      r.group = of.group;
      std::memcpy(r.words, a, sizeof r.words);
    }
    if (met_ == 0) {
      next_ = std::make_unique<Product>();
      next_->make = [=](Product& p) {
        p.make_of<T>(columns, a != nullptr, rows, across_a, b, across_b, add);
      };
      next_->b = b;
      next_->rows = rows;
    }
    if (next_->b != b || next_->rows != rows) {
      test::block_fails("the lanes of a warp multiply unlike things");
    }
    const uint32_t i = lane_index();
    next_->sums[i] = &of;
    if (a != nullptr) std::memcpy(next_->a[i], a, sizeof next_->a[i]);
    if (++met_ == 32) {
      met_ = 0;
      issued_.push_back(std::move(next_));
    }
    sync("wgmma");
  }

  void commit() {
    Lane& l = lane();
    l.begun = false;
    ++l.committed;
    if (++met_ == 32) {
      met_ = 0;
      groups_.push_back(issued_.size() + made_);
      test::happen_later([this, group = groups_.size()] { make(group); });
    }
    sync("wgmma_commit");
  }

  void wait(uint64_t pending) {
    sync("wgmma_wait");
    Lane& l = lane();
    if (l.committed < pending) return;
    const uint64_t group = l.committed - pending;
    test::wait_until([this, group] { return groups_made_ >= group; });
    for (; !l.registers.empty() && l.registers.front().group <= group; l.registers.pop_front()) {
      const Registers& r = l.registers.front();
      if (std::memcmp(r.at, r.words, sizeof r.words) != 0) {
        test::block_fails("registers of A were written while they were multiplied");
      }
    }
    for (auto of = l.sums.begin(); of != l.sums.end();) {
      if (of->second.group > group) {
        ++of;
        continue;
      }
      of->second.give_back(of->first);
      of = l.sums.erase(of);
    }
  }

 private:
  static constexpr uint32_t kSpoilt = 0x7fc0dead;  // NaN

  // A lane's sums, here while products to them are under way.
  struct Sums {
    std::vector<float> values;
    uint64_t group = 0;  // the last that adds to them

    bool untouched(const float* at) const {
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::bit_cast<uint32_t>(at[i]) != kSpoilt) return false;
      }
      return true;
    }
    void give_back(float* at) const {
      if (!untouched(at)) test::block_fails("sums were written while products were under way");
      std::memcpy(at, values.data(), values.size() * sizeof(float));
    }
  };
  struct Registers {
    const uint32_t* at;
    uint32_t words[4];
    uint64_t group;
  };
  struct Lane {
    bool begun = false;
    uint64_t committed = 0;
    std::map<float*, Sums> sums;
    std::deque<Registers> registers;

    Sums& sums_at(float* at, uint32_t count) {
      Sums& of = sums[at];
      if (of.values.empty()) {
        of.values.assign(at, at + count);
        for (uint32_t i = 0; i < count; ++i) at[i] = std::bit_cast<float>(kSpoilt);
      } else if (of.values.size() != count) {
        test::block_fails("products of two widths to the same sums");
      } else if (!of.untouched(at)) {
        test::block_fails("sums were written while products were under way");
      }
      return of;
    }
  };

  struct Product {
    Sums* sums[32];
    uint32_t a[32][4];
    uint64_t b, rows;
    uint32_t warp = test::thread_index() / 32 % 4;
    std::function<void(Product&)> make;

    // Products are exact in float32; the order in which sums are rounded is not the hardware's.
    template <class T>
    void make_of(uint32_t columns, bool registers, uint64_t a_rows, bool across_a, uint64_t b_at,
                 bool across_b, bool add) {
      static thread_local std::vector<float> left, right, rows_of_a, sum;
      left.resize(256);  // of each k, 16 rows
      if (registers) {
        for (uint32_t lane = 0; lane < 32; ++lane) {
          for (uint32_t i = 0; i < 8; ++i) {
            const uint32_t word = i / 2, row = lane / 4 + word % 2 * 8;
            const uint32_t k = lane % 4 * 2 + i % 2 + word / 2 * 8;
            left[k * 16 + row] = T::value(static_cast<uint16_t>(a[lane][word] >> i % 2 * 16));
          }
        }
      } else {
        load_operand<T>(a_rows, 64, across_a, rows_of_a);
        for (uint32_t k = 0; k < 16; ++k) {
          std::copy_n(&rows_of_a[k * 64 + warp * 16], 16, &left[k * 16]);
        }
      }
      load_operand<T>(b_at, columns, across_b, right);
      sum.resize(columns);
      for (uint32_t row = 0; row < 16; ++row) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (uint32_t k = 0; k < 16; ++k) {
          const float value = left[k * 16 + row], *of_k = &right[k * columns];
          for (uint32_t c = 0; c < columns; ++c) sum[c] += value * of_k[c];
        }
        for (uint32_t c = 0; c < columns; ++c) {
          float& to = sums[row % 8 * 4 + c % 8 / 2]->values[c / 8 * 4 + row / 8 * 2 + c % 2];
          to = (add ? to : 0.0f) + sum[c];
        }
      }
    }
  };

  Lane& lane() { return lanes_[lane_index()]; }
  static void sync(const char* name) { test::meet(name, name, 1); }

  // All products up to the end of so many groups.
  void make(uint64_t group) {
    if (groups_made_ >= group) return;
    groups_made_ = group;
    for (; made_ < groups_[group - 1]; ++made_) {
      issued_.front()->make(*issued_.front());
      issued_.pop_front();
    }
  }

  Lane lanes_[32];
  uint32_t met_ = 0;
  std::unique_ptr<Product> next_;
  std::deque<std::unique_ptr<Product>> issued_;
  std::vector<size_t> groups_;  // products up to the end of each
  size_t made_ = 0;
  uint64_t groups_made_ = 0;
};

inline void wgmma_begin() {
  WarpProducts::mine().begin();
  test::meet("wgmma_begin", "", 1);
}
inline void wgmma_commit() { WarpProducts::mine().commit(); }
template <int kPending>
void wgmma_wait() {
  WarpProducts::mine().wait(kPending);
}

template <class T, int kCols>
struct Wgmma {
  template <bool kAcrossB = false, bool kAdd = true>
  static void multiply(float (&sums)[kCols / 2], const uint32_t (&a)[4], uint64_t columns) {
    WarpProducts::mine().multiply<T>(sums, kCols, a, 0, false, columns, kAcrossB, kAdd);
  }
};
template <class T, int kCols, bool kAcross>
struct WgmmaShared {
  template <bool kAcrossB = false, bool kAdd = true>
  static void multiply(float (&sums)[kCols / 2], uint64_t rows, uint64_t columns) {
    WarpProducts::mine().multiply<T>(sums, kCols, nullptr, rows, kAcross, columns, kAcrossB, kAdd);
  }
};

}  // namespace moeblas::cuda::device
