// The loops of the qmv kernels: a panel of packed rows times up to kQmvMost prepared rows of x.
//
// A block is kLanes octets of a packed row, octet l in lane l. `Codes` says how a block is unpacked
// and multiplied: it forms, per lane, the sum of an octet's codes times x, unscaled. An octet lies
// in one group, so that
//
//   total += bias * sum of x + scale * sum over j of code_j * x_j
//
// keeps codes exact and scales out of the inner loop, and lets the two parts, which often all but
// cancel, meet before they have grown.
//
// Rows of x that a block meets must stay in the first cache: the panel is cut into strips of rows
// and, where x is too long, a strip's columns into chunks, whose totals wait in memory. So the order
// in which a sum is formed depends on K and the format alone. Weights are fetched once, linearly,
// one strip ahead of their use: with every block that is multiplied, as many lines of the next strip
// are asked for.
#pragma once

#include "cpu/simd/qmv.h"
#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
using Words = Simd::Words;

constexpr int kLanes = Simd::kLanes;
constexpr int kBlock = 8 * kLanes;                 // values
constexpr int kMostRows = kLanes == 16 ? 8 : 4;    // of x, at a time
constexpr int64_t kCacheForX = 24 << 10;           // bytes
constexpr int64_t kStripBytes = 4 << 10;           // of codes, at least
constexpr int64_t kLine = 64;
constexpr int kMostStrip = 32;  // rows

constexpr int64_t blocks_of(int64_t k) { return (k + kBlock - 1) / kBlock; }

// E4M3FN in the upper byte of each word, times 2^-120: the exponent is moved to float32's place.
// NaN gives a number.
Floats e4m3_at_top(Words v) {
  const Words moved = Simd::both(Simd::shift_right_signed<4>(v), Simd::all_words(0x87f00000u));
  return Simd::mul(Simd::as_floats(moved), Simd::all(0x1p120f));
}

template <ScaleKind Kind>
Floats load_scales(const uint8_t* row, int64_t group, int count) {
  if constexpr (Kind == ScaleKind::f32) return Simd::load_f32(row + group * 4, count);
  if constexpr (Kind == ScaleKind::f16) return Simd::load_f16(row + group * 2, count);
  if constexpr (Kind == ScaleKind::bf16) return Simd::load_bf16(row + group * 2, count);
  const Words bytes = Simd::load_bytes(row + group, count);
  if constexpr (Kind == ScaleKind::e8m0) return Simd::e8m0(bytes);
  return Simd::nan_where_e4m3_nan(bytes, e4m3_at_top(Simd::shift_left<24>(bytes)));
}

Floats load_scales(ScaleKind kind, const uint8_t* row, int64_t group, int count) {
  switch (kind) {
    case ScaleKind::f32:
      return load_scales<ScaleKind::f32>(row, group, count);
    case ScaleKind::f16:
      return load_scales<ScaleKind::f16>(row, group, count);
    case ScaleKind::bf16:
      return load_scales<ScaleKind::bf16>(row, group, count);
    case ScaleKind::e8m0:
      return load_scales<ScaleKind::e8m0>(row, group, count);
    default:
      return load_scales<ScaleKind::e4m3>(row, group, count);
  }
}

// For block i after the one where a vector of scales begins: which of them each lane takes.
struct Spreads {
  alignas(64) uint32_t lane[16][kLanes];
  int blocks;  // that a vector of scales serves

  explicit Spreads(int group_size) : blocks(group_size / 8) {
    for (int i = 0; i < blocks; ++i) {
      for (int l = 0; l < kLanes; ++l)
        lane[i][l] = static_cast<uint32_t>((i * kLanes + l) * 8 / group_size);
    }
  }
};

// Walks over the lines of the rows that come next.
class Ahead {
 public:
  // From row `row` of the panel on; beyond it, panel.next.
  Ahead(const QmvPanel& panel, int64_t row, int64_t row_bytes)
      : panel_(panel), row_(row), row_bytes_(row_bytes) {
    enter();
  }
  template <int Lines>
  void fetch() {
    unroll<Lines>([&](auto line) __attribute__((always_inline)) {
      __builtin_prefetch(at_ + kLine * line.value, 0, 3);
    });
    at_ += kLine * Lines;
    if (at_ >= end_) {
      ++row_;
      enter();
    }
  }

 private:
  void enter() {
    const bool beyond = row_ >= panel_.rows;
    const uint8_t* const base = beyond ? panel_.next : panel_.codes;
    at_ = base + (beyond ? row_ - panel_.rows : row_) * panel_.code_stride;
    end_ = at_ + row_bytes_;
  }
  const QmvPanel& panel_;
  int64_t row_, row_bytes_;
  const uint8_t* at_;
  const uint8_t* end_;
};

// Blocks [begin, end) of one row.
template <class Codes, int M>
[[gnu::always_inline]] inline void multiply_row(const QmvFormat& format, const Codes& codes,
                                                const Spreads& spreads, const uint8_t* row,
                                                const uint8_t* scales, const uint8_t* biases,
                                                float tensor_scale, const float* const* x,
                                                int64_t begin, int64_t end, Ahead& ahead,
                                                Floats* total, bool& nan) {
  constexpr int kBytes = Codes::kBits * kLanes;  // of a block
  const int64_t whole = format.k / kBlock, groups = format.k / format.group_size;
  alignas(64) uint8_t last[kBytes];  // the last block, where K ends within it
  if (end > whole) {
    for (int i = 0; i < kBytes; ++i) last[i] = 0;
    const int64_t rest = (format.k - whole * kBlock) / 8 * Codes::kBits;
    __builtin_memcpy(last, row + whole * kBytes, static_cast<uint64_t>(rest));
  }
  for (int64_t block = begin; block < end;) {
    const int64_t group = block / spreads.blocks * kLanes, left = groups - group;
    const int present = left < kLanes ? static_cast<int>(left) : kLanes;
    Floats scale = load_scales(format.scale_kind, scales, group, present);
    Floats bias = Simd::zero();
    if constexpr (Codes::kAffine) {
      bias = load_scales(format.scale_kind, biases, group, present);
    } else {
      scale = Simd::mul(scale, Simd::all(tensor_scale));
    }
    int64_t i = block % spreads.blocks;
    const int64_t served = block - i + spreads.blocks, stop = served < end ? served : end;
    for (; block < stop; ++block, ++i) {
      ahead.template fetch<(kBytes + kLine - 1) / kLine>();
      const auto unpacked = codes.unpack(block < whole ? row + block * kBytes : last, nan);
      const Words lanes = Simd::load_words(spreads.lane[i]);
      const Floats s = Simd::spread(scale, lanes);
      Floats b = Simd::zero();
      if constexpr (Codes::kAffine) b = Simd::spread(bias, lanes);
      unroll<M>([&](auto m) __attribute__((always_inline)) {
        const float* const xs = x[m.value] + block * Codes::kFloatsOfX;
        Floats& t = total[m.value];
        if constexpr (Codes::kAffine)
          t = Simd::fma(b, Simd::load(xs + Codes::kFloatsOfX - kLanes), t);
        t = Simd::fma(Codes::octets(unpacked, xs), s, t);
      });
    }
  }
}

template <class Codes, int M>
void multiply(const QmvFormat& format, const QmvPanel& panel, const Spreads& spreads,
              const float* const* x, float* sums, int64_t pitch) {
  const Codes codes(format);
  const int64_t blocks = blocks_of(format.k), row_bytes = format.k / 8 * Codes::kBits;
  constexpr int64_t kFit = kCacheForX / (M * Codes::kFloatsOfX * 4);
  constexpr int64_t kChunk = kFit < 4 ? 4 : kFit;  // blocks
  // One row at a time suffices where x fits; prefetches need some distance all the same.
  const int64_t most = blocks <= kChunk ? (kStripBytes + row_bytes - 1) / row_bytes : kMostStrip;
  const int64_t strip = most < kMostStrip ? most : kMostStrip;

  for (int64_t first = 0; first < panel.rows; first += strip) {
    const int64_t rows = panel.rows - first < strip ? panel.rows - first : strip;
    Ahead ahead(panel, first + strip, row_bytes);
    Floats totals[kMostStrip][M];
    bool nan[kMostStrip];
    for (int64_t begin = 0; begin < blocks; begin += kChunk) {
      const int64_t end = begin + kChunk < blocks ? begin + kChunk : blocks;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t n = first + r;
        Floats total[M];
        if (begin == 0) nan[r] = false;
        unroll<M>([&](auto m) __attribute__((always_inline)) {
          total[m.value] = begin == 0 ? Simd::zero() : totals[r][m.value];
        });
        multiply_row<Codes, M>(format, codes, spreads, panel.codes + n * panel.code_stride,
                               panel.scales + n * panel.scale_stride,
                               panel.biases + n * panel.bias_stride, panel.tensor_scale, x, begin,
                               end, ahead, total, nan[r]);
        if (end < blocks) {
          unroll<M>([&](auto m)
                        __attribute__((always_inline)) { totals[r][m.value] = total[m.value]; });
        } else {
          unroll<M>([&](auto m) __attribute__((always_inline)) {
            sums[m.value * pitch + n] = nan[r] ? __builtin_nanf("") : Simd::sum(total[m.value]);
          });
        }
      }
    }
  }
}

template <class Codes>
void kernel(const QmvFormat& format, const QmvPanel& panel, const void* const* prepared,
            int64_t count, float* sums, int64_t pitch) {
  const Spreads spreads(format.group_size);
  const auto* x = reinterpret_cast<const float* const*>(prepared);
  const auto take = [&](auto m) {
    constexpr int kRows = decltype(m)::value;
    multiply<Codes, kRows>(format, panel, spreads, x, sums, pitch);
    x += kRows;
    count -= kRows;
    sums += kRows * pitch;
  };
  while (count >= kMostRows) take(Index<kMostRows>{});
  if (kMostRows > 4 && count >= 4) take(Index<4>{});
  if (count == 3) take(Index<3>{});
  if (count == 2) take(Index<2>{});
  if (count == 1) take(Index<1>{});
}

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
