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
// and, where x is too long, a strip's columns into chunks, whose totals wait in memory. So the
// order in which a sum is formed depends on K and the format alone. Weights are fetched once, a
// strip ahead of their use: with every block that is multiplied, the same block of the next strip
// is asked for.
#pragma once

#include "cpu/simd/qmv.h"
#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
using Words = Simd::Words;

constexpr int kLanes = Simd::kLanes;
constexpr int kBlock = 8 * kLanes;               // values
constexpr int kMostRows = kLanes == 16 ? 8 : 4;  // of x, at a time
constexpr int64_t kCacheForX = 24 << 10;         // bytes
constexpr int64_t kStripBytes = 8 << 10;         // of codes, at least
constexpr int64_t kLine = 64;
constexpr int kMostStrip = 32;      // rows
constexpr int64_t kMostChunk = 64;  // blocks

constexpr int64_t blocks_of(int64_t k) { return (k + kBlock - 1) / kBlock; }

// E4M3FN in the upper byte of each word, times 2^-120: the exponent is moved to float32's place.
// NaN gives a number.
Floats e4m3_at_top(Words v) {
  const Words moved = Simd::both(Simd::shift_right_signed<4>(v), Simd::all_words(0x87f00000u));
  return Simd::mul(Simd::as_floats(moved), Simd::all(0x1p120f));
}

constexpr int bytes_of(ScaleKind kind) {
  return kind == ScaleKind::f32 ? 4 : kind == ScaleKind::f16 || kind == ScaleKind::bf16 ? 2 : 1;
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

// Of several rows, `stride` bytes apart, groups [first, last) times `factor`, in whole vectors,
// zeros behind the last; rows of `out` are `pitch` apart.
template <ScaleKind Kind>
void decode_scales(const uint8_t* row, int64_t stride, int rows, int64_t first, int64_t last,
                   float factor, float* out, int64_t pitch) {
  const Floats by = Simd::all(factor);
  for (int64_t group = first; group < last; group += kLanes, out += kLanes) {
    const int count = last - group < kLanes ? static_cast<int>(last - group) : kLanes;
    for (int r = 0; r < rows; ++r) {
      Simd::store(out + r * pitch,
                  Simd::mul(load_scales<Kind>(row + r * stride, group, count), by));
    }
  }
}

void decode_scales(ScaleKind kind, const uint8_t* row, int64_t stride, int rows, int64_t first,
                   int64_t last, float factor, float* out, int64_t pitch) {
  switch (kind) {
    case ScaleKind::f32:
      return decode_scales<ScaleKind::f32>(row, stride, rows, first, last, factor, out, pitch);
    case ScaleKind::f16:
      return decode_scales<ScaleKind::f16>(row, stride, rows, first, last, factor, out, pitch);
    case ScaleKind::bf16:
      return decode_scales<ScaleKind::bf16>(row, stride, rows, first, last, factor, out, pitch);
    case ScaleKind::e8m0:
      return decode_scales<ScaleKind::e8m0>(row, stride, rows, first, last, factor, out, pitch);
    default:
      return decode_scales<ScaleKind::e4m3>(row, stride, rows, first, last, factor, out, pitch);
  }
}

// A vector of scales serves some blocks: which of them the lanes of block i after its first take.
struct Groups {
  int shift;  // log2 of blocks
  int64_t blocks;
  alignas(64) uint32_t of_lane[16][kLanes];

  explicit Groups(int group_size)
      : shift(__builtin_ctz(static_cast<unsigned>(group_size)) - 3), blocks(int64_t{1} << shift) {
    for (uint32_t i = 0; i < blocks; ++i) {
      for (uint32_t l = 0; l < kLanes; ++l) of_lane[i][l] = (i * kLanes + l) >> shift;
    }
  }
};

// Row n of a panel; behind its end come the rows that begin at panel.next.
QmvRow row_of(const QmvPanel& panel, int64_t n) {
  const QmvRow& base = n < panel.rows ? panel.first : panel.next;
  const int64_t i = n < panel.rows ? n : n - panel.rows;
  return {base.codes + i * panel.code_stride, base.scales + i * panel.scale_stride,
          base.biases + i * panel.bias_stride};
}

// Blocks [begin, end) of R rows from row n of the panel on, which M rows of x meet; meanwhile the
// same blocks of the R rows `strip` further on are fetched.
template <class Codes, int M, int R>
class Tile {
 public:
  Tile(const QmvFormat& format, const Codes& codes, const Groups& groups, const QmvPanel& panel,
       int64_t n, int64_t strip)
      : format_(format),
        codes_(codes),
        groups_(groups),
        panel_(panel),
        row_(row_of(panel, n)),
        ahead_(row_of(panel, n + strip)) {}

  // total[r * M + m] += the blocks' sum; nan[r] where a code is NaN.
  [[gnu::always_inline]] inline void multiply(const float* const* x, int64_t begin, int64_t end,
                                              Floats* total, bool* nan) {
    const int64_t serves = groups_.blocks, first = begin >> groups_.shift << groups_.shift;
    load_scales(first, end);
    const int64_t whole = format_.k / kBlock;
    // Rows that follow each other are fetched line by line.
    const int64_t row_bytes = format_.k / 8 * Codes::kBits;
    const bool linear = panel_.code_stride == row_bytes;
    const int64_t fetch_row = linear ? kBytes : panel_.code_stride;
    const int64_t fetch_block = linear ? R * kBytes : kBytes;
    const uint8_t* to_fetch = ahead_.codes + begin * fetch_block;
    const uint8_t* at = row_.codes + begin * kBytes;
    const float* xs[M];
    unroll<M>([&](auto m)
                  __attribute__((always_inline)) { xs[m.value] = x[m.value] + begin * kX; });
    const float* scale = scale_[0];
    for (int64_t block = first, i = begin - first; block < end; block += serves, i = 0) {
      const uint32_t* lanes = groups_.of_lane[i];
      const int64_t stop = block + serves < end ? block + serves : end;
      const int64_t stop_whole = stop < whole ? stop : whole;
      const auto step = [&](const uint8_t* codes, int64_t stride) __attribute__((always_inline)) {
        const Words of_lane = Simd::load_words(lanes);
        unroll<R>([&](auto r) __attribute__((always_inline)) {
          unroll<(kBytes + kLine - 1) / kLine>([&](auto line) __attribute__((always_inline)) {
            __builtin_prefetch(to_fetch + r.value * fetch_row + kLine * line.value, 0, 3);
          });
          const auto unpacked = codes_.unpack(codes + r.value * stride, nan[r.value]);
          const float* const of_row = scale + r.value * kMostScales;
          const Floats s = Simd::spread(Simd::load(of_row), of_lane);
          Floats b = Simd::zero();
          if constexpr (Codes::kAffine)
            b = Simd::spread(Simd::load(of_row + R * kMostScales), of_lane);
          unroll<M>([&](auto m) __attribute__((always_inline)) {
            Floats& t = total[r.value * M + m.value];
            if constexpr (Codes::kAffine)
              t = Simd::fma(b, Simd::load(xs[m.value] + kX - kLanes), t);
            t = Simd::fma(Codes::octets(unpacked, xs[m.value]), s, t);
          });
        });
        unroll<M>([&](auto m) __attribute__((always_inline)) { xs[m.value] += kX; });
        lanes += kLanes;
        to_fetch += fetch_block;
      };
      for (int64_t left = stop_whole - block - i; left > 0; --left, at += kBytes)
        step(at, panel_.code_stride);
      if (stop > stop_whole) {  // K ends within the last block
        alignas(64) uint8_t part[R][kBytes] = {};
        const int64_t rest = row_bytes - whole * kBytes;
        for (int r = 0; r < R; ++r)
          __builtin_memcpy(part[r], row_.codes + r * panel_.code_stride + whole * kBytes,
                           static_cast<uint64_t>(rest));
        step(part[0], kBytes);
      }
      scale += kLanes;
    }
  }

 private:
  static constexpr int kBytes = Codes::kBits * kLanes;  // of a block
  static constexpr int kX = Codes::kFloatsOfX;
  static constexpr int kMostScales = (kMostChunk + 16) * 8;

  // Of the blocks from `first` on, and fetches those of the rows ahead.
  void load_scales(int64_t first, int64_t end) {
    const int64_t all = format_.k >> (groups_.shift + 3);
    const int64_t group = (first >> groups_.shift) * kLanes;
    const int64_t behind = (((end - 1) >> groups_.shift) + 1) * kLanes;
    const int64_t last = behind < all ? behind : all;
    const float factor = Codes::kAffine ? 1.0f : panel_.tensor_scale;
    const int64_t bytes = bytes_of(format_.scale_kind);
    decode_scales(format_.scale_kind, row_.scales, panel_.scale_stride, R, group, last, factor,
                  scale_[0], kMostScales);
    fetch(ahead_.scales, panel_.scale_stride, group * bytes, last * bytes);
    if constexpr (Codes::kAffine) {
      decode_scales(format_.scale_kind, row_.biases, panel_.bias_stride, R, group, last, factor,
                    scale_[R], kMostScales);
      fetch(ahead_.biases, panel_.bias_stride, group * bytes, last * bytes);
    }
  }
  // Bytes [begin, end) of R rows.
  static void fetch(const uint8_t* from, int64_t stride, int64_t begin, int64_t end) {
    // Rows without gaps are one range.
    const int rows = stride == end - begin ? 1 : R;
    const int64_t stop = rows == 1 ? begin + R * stride : end;
    for (int r = 0; r < rows; ++r) {
      for (int64_t i = begin; i < stop; i += kLine) __builtin_prefetch(from + r * stride + i, 0, 3);
    }
  }

  const QmvFormat& format_;
  const Codes& codes_;
  const Groups& groups_;
  const QmvPanel& panel_;
  const QmvRow row_, ahead_;
  alignas(64) float scale_[Codes::kAffine ? 2 * R : R][kMostScales];  // then biases
};

// A panel's rows, R at a time, from row `n` on; returns the first row that is left.
template <class Codes, int M, int R>
int64_t multiply(const QmvFormat& format, const QmvPanel& panel, const Groups& groups, int64_t n,
                 const float* const* x, float* sums, int64_t pitch) {
  const Codes codes(format);
  const int64_t blocks = blocks_of(format.k), row_bytes = format.k / 8 * Codes::kBits;
  constexpr int64_t kFit = kCacheForX / (M * Codes::kFloatsOfX * 4);
  constexpr int64_t kChunk = kFit < 4 ? 4 : kFit > kMostChunk ? kMostChunk : kFit;  // blocks
  // Where x fits, a strip is as short as the distance of prefetches allows.
  const int64_t rows = blocks <= kChunk ? (kStripBytes + row_bytes - 1) / row_bytes : kMostStrip;
  const int64_t strip = rows >= kMostStrip ? kMostStrip : (rows + R - 1) / R * R;

  for (; n + R <= panel.rows; n += strip) {
    Floats totals[kMostStrip * M];
    bool nan[kMostStrip];
    for (int64_t begin = 0; begin < blocks; begin += kChunk) {
      const int64_t end = begin + kChunk < blocks ? begin + kChunk : blocks;
      for (int64_t r = 0; r < strip && n + r + R <= panel.rows; r += R) {
        Floats total[R * M];
        bool is_nan[R];
        unroll<R>([&](auto i) __attribute__((always_inline)) {
          is_nan[i.value] = begin == 0 ? false : nan[r + i.value];
        });
        unroll<R * M>([&](auto i) __attribute__((always_inline)) {
          total[i.value] = begin == 0 ? Simd::zero() : totals[r * M + i.value];
        });
        Tile<Codes, M, R> tile(format, codes, groups, panel, n + r, strip);
        tile.multiply(x, begin, end, total, is_nan);
        if (end < blocks) {
          unroll<R>([&](auto i)
                        __attribute__((always_inline)) { nan[r + i.value] = is_nan[i.value]; });
          unroll<R * M>([&](auto i) __attribute__((always_inline)) {
            totals[r * M + i.value] = total[i.value];
          });
          continue;
        }
        unroll<M>([&](auto m) __attribute__((always_inline)) {
          float* const out = sums + m.value * pitch + n + r;
          if constexpr (R == 4) {
            Simd::sums(total[m.value], total[M + m.value], total[2 * M + m.value],
                       total[3 * M + m.value], out);
          } else {
            unroll<R>([&](auto i) __attribute__((always_inline)) {
              out[i.value] = Simd::sum(total[i.value * M + m.value]);
            });
          }
          unroll<R>([&](auto i) __attribute__((always_inline)) {
            if (is_nan[i.value]) out[i.value] = __builtin_nanf("");
          });
        });
      }
    }
  }
  return panel.rows / R * R;
}

template <class Codes>
void kernel(const QmvFormat& format, const QmvPanel& panel, const void* const* prepared,
            int64_t count, float* sums, int64_t pitch) {
  const Groups groups(format.group_size);
  const auto* x = reinterpret_cast<const float* const*>(prepared);
  const auto take = [&](auto m) {
    constexpr int kRows = decltype(m)::value;
    int64_t n = 0;
    if constexpr (kRows == 1) n = multiply<Codes, 1, 4>(format, panel, groups, n, x, sums, pitch);
    multiply<Codes, kRows, 1>(format, panel, groups, n, x, sums, pitch);
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
