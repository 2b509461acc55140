// The loops of the qmv kernels: a panel of packed rows times up to kQmvMost prepared rows of x.
//
// A block is kLanes runs of a packed row's codes, run l in lane l. `Unpack` says how a block is
// unpacked and multiplied: it forms, per lane, the sum of a run's codes times x, unscaled. A run
// lies in one group. A vector of scales serves kLanes groups, and so many blocks; there
//
//   total += biases * sums of x over the groups + for every block: its scales * its runs' sums
//
// keeps codes exact and scales out of the inner loop, and lets the two parts, which often all but
// cancel, meet before they have grown.
//
// A piece is a row, or where x is too long for the first cache a chunk of its blocks: a strip of
// rows then meets one chunk of x after the other, and totals wait in memory. So the order in which
// a sum is formed depends on K and the format alone. Codes are fetched in the order of their use,
// some pieces ahead: one linear stream, which is as fast as the machine reads (rows side by side
// are not).
#pragma once

#include "cpu/simd/decoder.h"
#include "cpu/simd/qmv.h"
#include "cpu/simd/simd.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
using Words = Simd::Words;
using Byte = Decoder<Codes::e4m3, Panel::f32>;

constexpr int kLanes = Simd::kLanes;
constexpr int kMostRows = kLanes == 16 ? 8 : 4;  // of x, at a time
constexpr int64_t kCacheForX = 24 << 10;         // bytes
constexpr int64_t kAhead = 8 << 10;              // bytes of codes between fetch and use
constexpr int64_t kStrip = 32;                   // rows
constexpr int64_t kMostChunk = 64;               // blocks
constexpr int kMostServed = 32;                  // blocks that one vector of scales serves

constexpr int bytes_of(ScaleKind kind) {
  return kind == ScaleKind::f32 ? 4 : kind == ScaleKind::f16 || kind == ScaleKind::bf16 ? 2 : 1;
}

// A vector of scales, zeros behind the first `count`.
template <ScaleKind Kind>
[[gnu::always_inline]] inline Floats load_scales(const uint8_t* at, int count) {
  if constexpr (Kind == ScaleKind::f32) return Simd::load_f32(at, count);
  if constexpr (Kind == ScaleKind::f16) return Simd::load_f16(at, count);
  if constexpr (Kind == ScaleKind::bf16) return Simd::load_bf16(at, count);
  const Words bytes = Simd::load_bytes(at, count);
  return Kind == ScaleKind::e8m0 ? Byte::e8m0(bytes) : Byte::e4m3(bytes);
}
template <class Unpack>
[[gnu::always_inline]] inline Floats load_scales(ScaleKind kind, const uint8_t* at, int count) {
  if constexpr (!Unpack::kAffine) return load_scales<Unpack::kScales>(at, count);
  if (kind == ScaleKind::bf16) return load_scales<ScaleKind::bf16>(at, count);
  return kind == ScaleKind::f16 ? load_scales<ScaleKind::f16>(at, count)
                                : load_scales<ScaleKind::f32>(at, count);
}

// Which of a vector of scales the lanes of each block that it serves take.
template <int kPerLane>
struct LaneGroups {
  alignas(64) uint32_t of[4][kMostServed][kLanes];  // of groups of 16, 32, 64, 128

  constexpr LaneGroups() : of{} {
    for (int size = 0; size < 4; ++size) {
      for (int i = 0; i < kMostServed; ++i) {
        for (int l = 0; l < kLanes; ++l)
          of[size][i][l] = static_cast<uint32_t>((i * kLanes + l) * kPerLane / (16 << size));
      }
    }
  }
};

// A packed matrix for blocks of kPerLane codes a lane.
template <class Unpack>
struct Shape {
  static constexpr int kBlock = kLanes * Unpack::kPerLane;  // codes
  static constexpr int kBytes = kBlock * Unpack::kBits / 8;
  static constexpr LaneGroups<Unpack::kPerLane> kLaneGroups{};

  const int64_t k, blocks, whole, groups, row_bytes;
  const int served;  // blocks, by a vector of scales
  const uint32_t (*lanes)[kLanes];
  const ScaleKind kind;
  const int scale_bytes;

  explicit Shape(const QmvFormat& f)
      : k(f.k),
        blocks((f.k + kBlock - 1) / kBlock),
        whole(f.k / kBlock),
        groups(f.k / f.group_size),
        row_bytes(f.k / 8 * Unpack::kBits),
        served(f.group_size / Unpack::kPerLane),
        lanes(kLaneGroups.of[__builtin_ctz(static_cast<unsigned>(f.group_size)) - 4]),
        kind(f.scale_kind),
        scale_bytes(bytes_of(f.scale_kind)) {}

  // Where block `begin` of a panel's row n lies; behind the panel's end come the rows that begin at
  // panel.next.
  QmvRow at(const QmvPanel& panel, int64_t n, int64_t begin) const {
    const QmvRow& base = n < panel.rows ? panel.first : panel.next;
    const int64_t i = n < panel.rows ? n : n - panel.rows;
    const int64_t scales = begin / served * kLanes * scale_bytes;
    return {base.codes + i * panel.code_stride + begin * kBytes,
            base.scales + i * panel.scale_stride + scales,
            base.biases + i * panel.bias_stride + scales};
  }
};

// total[m] += blocks [begin, end) of a row times row m of x; meanwhile those at `ahead` are
// fetched.
template <class Unpack, int M>
[[gnu::always_inline]] inline void multiply_piece(const Shape<Unpack>& shape, const Unpack& codes,
                                                  QmvRow row, QmvRow ahead, float factor,
                                                  const float* const* x, int64_t begin, int64_t end,
                                                  Floats* total) {
  constexpr int kX = Unpack::kFloatsOfX, kBytes = Shape<Unpack>::kBytes;
  const float *xs[M], *sums[M];
  unroll<M>([&](auto m) __attribute__((always_inline)) {
    xs[m.value] = x[m.value] + begin * kX;
    sums[m.value] = x[m.value] + shape.blocks * kX;
  });
  const auto step = [&](const uint8_t* from, Floats scales,
                        const uint32_t* lanes) __attribute__((always_inline)) {
    __builtin_prefetch(ahead.codes, 0, 3);
    const auto unpacked = codes.unpack(from);
    const Floats scale = Simd::spread(scales, Simd::load_words(lanes));
    unroll<M>([&](auto m) __attribute__((always_inline)) {
      total[m.value] = Simd::fma(Unpack::runs(unpacked, xs[m.value]), scale, total[m.value]);
      xs[m.value] += kX;
    });
    ahead.codes += kBytes;
  };
  const int64_t scale_step = kLanes * shape.scale_bytes;
  int64_t served = shape.served;
  if constexpr (!Unpack::kAffine) served = Unpack::kGroup / Unpack::kPerLane;
  for (int64_t vector = begin / served; begin < end; ++vector) {
    const int64_t first = vector * served, left = shape.groups - vector * kLanes;
    __builtin_prefetch(ahead.scales, 0, 3);
    // The usual number by itself, for which no masks are needed.
    const auto load = [&](const uint8_t* at) __attribute__((always_inline)) {
      return left >= kLanes ? load_scales<Unpack>(shape.kind, at, kLanes)
                            : load_scales<Unpack>(shape.kind, at, static_cast<int>(left));
    };
    Floats scales = load(row.scales);
    if constexpr (Unpack::kAffine) {
      __builtin_prefetch(ahead.biases, 0, 3);
      if (begin == first) {
        const Floats biases = load(row.biases);
        unroll<M>([&](auto m) __attribute__((always_inline)) {
          const Floats of_groups = Simd::load(sums[m.value] + vector * kLanes);
          total[m.value] = Simd::fma(biases, of_groups, total[m.value]);
        });
      }
      row.biases += scale_step;
      ahead.biases += scale_step;
    } else {
      scales = Simd::mul(scales, Simd::all(factor * Unpack::kTimes));
    }
    row.scales += scale_step;
    ahead.scales += scale_step;
    const int64_t last = first + served, stop = end < last ? end : last;
    const int64_t stop_whole = stop < shape.whole ? stop : shape.whole;
    const uint32_t* lanes = shape.lanes[begin - first];
    for (; begin < stop_whole; ++begin, lanes += kLanes, row.codes += kBytes)
      step(row.codes, scales, lanes);
    if (begin < stop) {  // K ends within the last block
      constexpr int kVector = kLanes * 4;
      alignas(64) uint8_t part[(kBytes / kVector + 2) * kVector];
      const int64_t rest = shape.row_bytes - shape.whole * kBytes;
      for (int i = 0; i < kBytes; i += kVector) {
        const int64_t bytes = rest - i;
        Simd::store_words(part + i,
                          Simd::load_row(row.codes + i, static_cast<int>(bytes > 0 ? bytes : 0)));
      }
      step(part, scales, lanes);
      ++begin;
    }
  }
}

template <class Unpack, int M>
void multiply(const QmvFormat& format, const QmvPanel& panel, const float* const* x, float* sums,
              int64_t pitch) {
  const Unpack codes(format);
  const Shape<Unpack> shape(format);
  constexpr int64_t kFit = kCacheForX / (M * Unpack::kFloatsOfX * 4);
  constexpr int64_t kChunk = kFit < 4 ? 4 : kFit > kMostChunk ? kMostChunk : kFit;
  const int64_t piece = shape.blocks < kChunk ? shape.blocks : kChunk;
  const int64_t ahead = (kAhead + piece * shape.kBytes - 1) / (piece * shape.kBytes);  // pieces
  for (int64_t n = 0; n < panel.rows; n += kStrip) {
    const int64_t rows = panel.rows - n < kStrip ? panel.rows - n : kStrip;
    Floats totals[kStrip * M];
    for (int64_t begin = 0; begin < shape.blocks; begin += kChunk) {
      const int64_t end = begin + kChunk < shape.blocks ? begin + kChunk : shape.blocks;
      for (int64_t r = 0; r < rows; ++r) {
        Floats total[M];
        unroll<M>([&](auto m) __attribute__((always_inline)) {
          total[m.value] = begin == 0 ? Simd::zero() : totals[r * M + m.value];
        });
        const int64_t behind = r + ahead - rows;
        const QmvRow next = behind < 0           ? shape.at(panel, n + r + ahead, begin)
                            : end < shape.blocks ? shape.at(panel, n + behind, end)
                                                 : shape.at(panel, n + rows + behind, 0);
        multiply_piece<Unpack, M>(shape, codes, shape.at(panel, n + r, begin), next,
                                  panel.tensor_scale, x, begin, end, total);
        unroll<M>([&](auto m)
                      __attribute__((always_inline)) { totals[r * M + m.value] = total[m.value]; });
      }
    }
    for (int m = 0; m < M; ++m) {
      const Floats* const of = totals + m;
      float* const out = sums + m * pitch + n;
      int64_t r = 0;
      for (; r + 4 <= rows; r += 4)
        Simd::sums(of[r * M], of[(r + 1) * M], of[(r + 2) * M], of[(r + 3) * M], out + r);
      for (; r < rows; ++r) out[r] = Simd::sum(of[r * M]);
    }
  }
}

template <class Unpack>
void kernel(const QmvFormat& format, const QmvPanel& panel, const void* const* prepared,
            int64_t count, float* sums, int64_t pitch) {
  const auto* x = reinterpret_cast<const float* const*>(prepared);
  const auto take = [&](auto m) {
    constexpr int kRows = decltype(m)::value;
    multiply<Unpack, kRows>(format, panel, x, sums, pitch);
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

// The sums of x over groups, behind the `blocks` blocks of a prepared row: of the groups of values
// [first, first + count), zeros behind the row's last.
template <class Unpack>
void add_group_sums(const QmvFormat& format, const float* x, int64_t first, int64_t count,
                    void* prepared) {
  const Shape<Unpack> shape(format);
  float* const sums = static_cast<float*>(prepared) + shape.blocks * Unpack::kFloatsOfX;
  const int64_t size = format.group_size;
  int64_t group = first / size;
  for (int64_t i = 0; i < count; i += size, ++group) {
    float sum[8] = {};
    for (int64_t j = 0; j < size; j += 8) {
      for (int l = 0; l < 8; ++l) sum[l] += x[i + j + l];
    }
    sums[group] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  }
  if (group == shape.groups) {
    for (; group % kLanes != 0; ++group) sums[group] = 0.0f;
  }
}

}  // namespace
}  // namespace moeblas::cpu::MOEBLAS_TIER
