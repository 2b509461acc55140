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
// a sum is formed depends on K and the format alone. Two rows go together, which share the loads of
// x; their codes are fetched one row's after the other's, some pieces ahead: one linear stream,
// which is as fast as the machine reads (rows fetched side by side are not).
//
// Only what multiplies a piece is a text for each format and number of rows of x, and has each
// vector operation once: compilers that check every access take minutes for more.
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
// Bytes of x that stay in the first cache: of 48 KB with sixteen lanes, mostly, else of 32.
constexpr int64_t kCacheForX = (kLanes == 16 ? 32 : 24) << 10;
constexpr int64_t kCacheForRowAndNext = 44 << 10;  // x, a row of codes and the next one
constexpr int64_t kMostPiece = 4 << 10;            // bytes of codes, of rows that go in pieces
constexpr int64_t kAhead = 8 << 10;                // bytes of codes between fetch and use
constexpr int kLine = 64;                          // bytes that are fetched at a time
constexpr int64_t kStrip = 32;                     // rows, an even number
constexpr int kMostServed = 32;                    // blocks that one vector of scales serves

// Values of x that R rows of weights meet: of more than one, in a register.
template <int R, class Vector>
[[gnu::always_inline]] inline Vector shared(Vector v) {
  return R > 1 ? Simd::kept(v) : v;
}

constexpr int bytes_of(ScaleKind kind) {
  return kind == ScaleKind::f32 ? 4 : kind == ScaleKind::f16 || kind == ScaleKind::bf16 ? 2 : 1;
}

// A vector of scales, zeros behind the first `count`. S is Simd, whose own load of E4M3 not every
// tier has.
template <ScaleKind Kind, class S = Simd>
[[gnu::always_inline]] inline Floats load_scales(const uint8_t* at, int count) {
  if constexpr (Kind == ScaleKind::f32) return Simd::load_f32(at, count);
  if constexpr (Kind == ScaleKind::f16) return Simd::load_f16(at, count);
  if constexpr (Kind == ScaleKind::bf16) return Simd::load_bf16(at, count);
  if constexpr (Kind == ScaleKind::e4m3 && requires { S::load_e4m3(at, count); })
    return S::load_e4m3(at, count);
  const Words bytes = Simd::load_bytes(at, count);
  return Kind == ScaleKind::e8m0 ? Byte::e8m0(bytes) : Byte::e4m3(bytes);
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

template <class Unpack>
constexpr int kBlockOf = kLanes * Unpack::kPerLane;  // codes
template <class Unpack>
constexpr int kBlockBytes = kBlockOf<Unpack> * Unpack::kBits / 8;
template <int kPerLane>
constexpr LaneGroups<kPerLane> kLaneGroups{};

// A packed matrix in blocks.
struct Shape {
  int64_t blocks, whole, groups;
  int64_t block_bytes, row_bytes;
  int64_t floats_of_x;  // a block's
  int64_t served;       // blocks, by a vector of scales
  const uint32_t (*lanes)[kLanes];
  ScaleKind kind;
  int64_t scale_bytes;

  // Where block `begin` of a panel's row n lies; behind the panel's end come the rows that begin at
  // panel.next.
  QmvRow at(const QmvPanel& panel, int64_t n, int64_t begin) const {
    const QmvRow& base = n < panel.rows ? panel.first : panel.next;
    const int64_t i = n < panel.rows ? n : n - panel.rows;
    const int64_t scales = begin / served * kLanes * scale_bytes;
    return {base.codes + i * panel.code_stride + begin * block_bytes,
            base.scales + i * panel.scale_stride + scales,
            base.biases + i * panel.bias_stride + scales};
  }
};

template <class Unpack>
Shape shape_of(const QmvFormat& f) {
  return {
      .blocks = (f.k + kBlockOf<Unpack> - 1) / kBlockOf<Unpack>,
      .whole = f.k / kBlockOf<Unpack>,
      .groups = f.k / f.group_size,
      .block_bytes = kBlockBytes<Unpack>,
      .row_bytes = f.k / 8 * Unpack::kBits,
      .floats_of_x = Unpack::kFloatsOfX,
      .served = f.group_size / Unpack::kPerLane,
      .lanes =
          kLaneGroups<Unpack::kPerLane>.of[__builtin_ctz(static_cast<unsigned>(f.group_size)) - 4],
      .kind = f.scale_kind,
      .scale_bytes = bytes_of(f.scale_kind)};
}

// Blocks [begin, end) of consecutive rows.
struct Pieces {
  const float* const* x = nullptr;
  int64_t begin = 0, end = 0;
  int64_t vector = 0;  // of scales, that serves the first block
  int64_t rows = 0;
  QmvRow first;  // row
  QmvRow ahead;  // what is fetched meanwhile: as many rows from here on
  int64_t code_stride = 0, scale_stride = 0, bias_stride = 0;
  float factor = 1.0f;       // of scales
  Floats* totals = nullptr;  // [row][row of x]
};

inline int64_t distance(const uint8_t* from, const uint8_t* to) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from));
}

// What is left of a row behind its whole blocks, filled up with zeros.
[[gnu::noinline]] void copy_last_block(const Shape& shape, const uint8_t* from, uint8_t* to) {
  constexpr int kVector = kLanes * 4;
  const int64_t rest = shape.row_bytes - shape.whole * shape.block_bytes;
  for (int64_t i = 0; i < shape.block_bytes; i += kVector) {
    const int64_t bytes = rest - i;
    Simd::store_words(to + i, Simd::load_row(from + i, static_cast<int>(bytes > 0 ? bytes : 0)));
  }
}

// totals[n][m] += a piece's row n times row m of M of x. R rows go together, whose codes are
// fetched in the order of memory.
template <class Unpack, int M, int R>
[[gnu::noinline]] void multiply_pieces(const Shape& shape, const void* unpack, const Pieces& p) {
  constexpr int kX = Unpack::kFloatsOfX, kBytes = kBlockBytes<Unpack>;
  const Unpack codes = *static_cast<const Unpack*>(unpack);
  alignas(64) uint8_t part[R][(kBytes / (kLanes * 4) + 2) * kLanes * 4];
  int64_t served = shape.served;
  if constexpr (!Unpack::kAffine) served = Unpack::kGroup / Unpack::kPerLane;
  const int64_t scale_step = kLanes * shape.scale_bytes;
  const int64_t bytes = (p.end - p.begin) * kBytes;
  const float *first_x[M], *sums[M];
  unroll<M>([&](auto m) __attribute__((always_inline)) {
    first_x[m.value] = p.x[m.value] + p.begin * kX;
    sums[m.value] = p.x[m.value] + shape.blocks * kX;
  });
  const int64_t codes_ahead = distance(p.first.codes, p.ahead.codes);
  const int64_t scales_ahead = distance(p.first.scales, p.ahead.scales);
  const int64_t biases_ahead = distance(p.first.biases, p.ahead.biases);
  for (int64_t n = 0; n < p.rows; n += R) {
    Floats* const totals = p.totals + n * M;
    Floats total[R][M];
    const float* x[M];
    unroll<M>([&](auto m) __attribute__((always_inline)) {
      x[m.value] = first_x[m.value];
      unroll<R>([&](auto r) __attribute__((always_inline)) {
        total[r.value][m.value] = p.begin == 0 ? Simd::zero() : totals[r.value * M + m.value];
      });
    });
    const uint8_t *from[R], *scales_at[R], *biases_at[R];
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      // Beside a last row that is alone stands it again; its totals there are nobody's.
      const int64_t row = n + r.value < p.rows ? n + r.value : n;
      from[r.value] = p.first.codes + row * p.code_stride;
      scales_at[r.value] = p.first.scales + row * p.scale_stride;
      biases_at[r.value] = p.first.biases + row * p.bias_stride;
    });
    const uint8_t* ahead = from[0] + codes_ahead;
    const uint8_t* row_end = ahead + bytes;
    const auto step = [&](const Floats(&scales)[R],
                          const uint32_t* lanes) __attribute__((always_inline)) {
      const Words spread = Simd::load_words(lanes);
      if constexpr (R == 1) ahead = from[0] + codes_ahead;
      unroll<(R * kBytes + kLine - 1) / kLine>([&](auto line) __attribute__((always_inline)) {
        __builtin_prefetch(ahead + line.value * kLine, 0, 3);
      });
      if constexpr (R > 1) {
        ahead += R * kBytes;
        if (ahead >= row_end) {
          ahead += p.code_stride - bytes;
          row_end += p.code_stride;
        }
      }
      typename Unpack::Values unpacked[R];
      Floats scale[R];
      unroll<R>([&](auto r) __attribute__((always_inline)) {
        unpacked[r.value] = codes.unpack(from[r.value]);
        from[r.value] += kBytes;
        scale[r.value] = Simd::spread(scales[r.value], spread);
      });
      unroll<M>([&](auto m) __attribute__((always_inline)) {
        Floats runs[R];
        Unpack::runs(unpacked, x[m.value], runs);
        x[m.value] += kX;
        unroll<R>([&](auto r) __attribute__((always_inline)) {
          total[r.value][m.value] =
              Simd::fma(runs[r.value], scale[r.value], total[r.value][m.value]);
        });
      });
    };
    int64_t vector = p.vector, stop = vector * served;
    for (int64_t begin = p.begin; begin < p.end; ++vector) {
      const int64_t groups = shape.groups - vector * kLanes;
      const int count = groups < kLanes ? static_cast<int>(groups) : kLanes;
      Floats scales[R], biases[R];
      const auto load = [&](auto kind) __attribute__((always_inline)) {
        constexpr ScaleKind kKind = static_cast<ScaleKind>(decltype(kind)::value);
        unroll<R>([&](auto r) __attribute__((always_inline)) {
          scales[r.value] = load_scales<kKind>(scales_at[r.value], count);
          if constexpr (Unpack::kAffine)
            biases[r.value] = load_scales<kKind>(biases_at[r.value], count);
        });
      };
      if constexpr (!Unpack::kAffine) {
        load(Index<static_cast<int>(Unpack::kScales)>{});
        for (Floats& of : scales) of = Simd::mul(of, Simd::all(p.factor * Unpack::kTimes));
      } else {
        if (shape.kind == ScaleKind::bf16) {
          load(Index<static_cast<int>(ScaleKind::bf16)>{});
        } else if (shape.kind == ScaleKind::f16) {
          load(Index<static_cast<int>(ScaleKind::f16)>{});
        } else {
          load(Index<static_cast<int>(ScaleKind::f32)>{});
        }
        if (begin == stop) {
          unroll<M>([&](auto m) __attribute__((always_inline)) {
            const Floats of_groups = shared<R>(Simd::load(sums[m.value] + vector * kLanes));
            unroll<R>([&](auto r) __attribute__((always_inline)) {
              total[r.value][m.value] =
                  Simd::fma(biases[r.value], of_groups, total[r.value][m.value]);
            });
          });
        }
      }
      unroll<R>([&](auto r) __attribute__((always_inline)) {
        __builtin_prefetch(scales_at[r.value] + scales_ahead, 0, 3);
        scales_at[r.value] += scale_step;
        if constexpr (Unpack::kAffine) {
          __builtin_prefetch(biases_at[r.value] + biases_ahead, 0, 3);
          biases_at[r.value] += scale_step;
        }
      });
      const uint32_t* lanes = shape.lanes[begin - stop];
      stop = p.end - stop < served ? p.end : stop + served;
      int64_t until = stop < shape.whole ? stop : shape.whole;
      for (;;) {
        asm volatile("");  // compilers would make one loop of the two, a slower one
        for (; begin < until; ++begin, lanes += kLanes) step(scales, lanes);
        if (begin == stop) break;
        unroll<R>([&](auto r) __attribute__((always_inline)) {  // K ends within the last block
          copy_last_block(shape, from[r.value], part[r.value]);
          from[r.value] = part[r.value];
        });
        until = stop;
      }
    }
    unroll<R * M>([&](auto i) __attribute__((always_inline)) {
      totals[i.value] = total[i.value / M][i.value % M];
    });
  }
}

// One format's ways to multiply pieces, by the number of rows of x.
struct Ways {
  void (*multiply[kMostRows + 1])(const Shape& shape, const void* unpack, const Pieces& pieces);
  int together[kMostRows + 1];  // rows of weights
  // Rows of weights that are so long, in bytes, meet a single row of x one by one.
  int64_t alone_from;
  void (*multiply_alone)(const Shape& shape, const void* unpack, const Pieces& pieces);
};

template <class Unpack>
constexpr Ways ways() {
  Ways w{};
  const auto put = [&](auto of) {
    constexpr int kRows = decltype(of)::value;
    // Two rows of weights to so many of x: by registers.
    constexpr int kTogether = kRows <= Unpack::kMostWithTwo ? Unpack::kTogether : 1;
    w.multiply[kRows] = multiply_pieces<Unpack, kRows, kTogether>;
    w.together[kRows] = kTogether;
  };
  put(Index<1>{});
  put(Index<2>{});
  put(Index<3>{});
  put(Index<4>{});
  put(Index<kMostRows>{});
  w.alone_from = Unpack::kAloneFrom;
  w.multiply_alone = w.multiply[1];
  if constexpr (Unpack::kAloneFrom > 0) w.multiply_alone = multiply_pieces<Unpack, 1, 1>;
  return w;
}

// sums[m * pitch + n] = row n of the panel times row m of `count` of x.
void multiply(const Shape& shape, const Ways& ways, const void* unpack, const QmvPanel& panel,
              const float* const* x, int count, float* sums, int64_t pitch) {
  const int64_t x_bytes = count * shape.floats_of_x * 4;  // beside a block
  int64_t chunk = kCacheForX / x_bytes;
  // Of rows with gaps between them two are as fast together.
  const bool long_rows = count == 1 && ways.alone_from > 0 && shape.row_bytes >= ways.alone_from &&
                         panel.code_stride == shape.row_bytes;
  const bool alone = long_rows && chunk >= shape.blocks &&
                     shape.blocks * x_bytes + 2 * shape.row_bytes <= kCacheForRowAndNext;
  if (chunk < shape.blocks || (long_rows && !alone)) {
    const int64_t most = kMostPiece / shape.block_bytes;
    chunk = chunk < most ? chunk : most;
    if (chunk < 4) chunk = 4;
  }
  // Pieces of a row as equal as can be: what is fetched ahead are whole ones.
  const int64_t pieces = (shape.blocks + chunk - 1) / chunk;
  const int64_t piece = (shape.blocks + pieces - 1) / pieces;
  const auto multiply_rows = alone ? ways.multiply_alone : ways.multiply[count];
  const int64_t together = alone ? 1 : ways.together[count];
  const int64_t bytes = together * piece * shape.block_bytes;
  const int64_t far = (kAhead + bytes - 1) / bytes * together;
  Floats totals[kStrip * kMostRows];
  Pieces p;
  p.x = x;
  p.code_stride = panel.code_stride;
  p.scale_stride = panel.scale_stride;
  p.bias_stride = panel.bias_stride;
  p.factor = panel.tensor_scale;
  for (int64_t n = 0; n < panel.rows; n += kStrip) {
    const int64_t rows = panel.rows - n < kStrip ? panel.rows - n : kStrip;
    for (p.begin = 0; p.begin < shape.blocks; p.begin = p.end) {
      p.end = p.begin + piece < shape.blocks ? p.begin + piece : shape.blocks;
      p.vector = p.begin / shape.served;
      // Rows by whether what is ahead of them are pieces of this chunk.
      const int64_t same = far < rows ? (rows - far + together - 1) / together * together : 0;
      for (int64_t r = 0; r < rows; r += p.rows) {
        p.rows = r < same ? same : rows - r;
        p.first = shape.at(panel, n + r, p.begin);
        p.ahead = r < same               ? shape.at(panel, n + r + far, p.begin)
                  : p.end < shape.blocks ? shape.at(panel, n + r + far - rows, p.end)
                                         : shape.at(panel, n + r + far, 0);
        p.totals = totals + r * count;
        multiply_rows(shape, unpack, p);
      }
    }
    for (int m = 0; m < count; ++m) {
      const Floats* const of = totals + m;
      float* const out = sums + m * pitch + n;
      int64_t r = 0;
      for (; r + 4 <= rows; r += 4)
        Simd::sums(of[r * count], of[(r + 1) * count], of[(r + 2) * count], of[(r + 3) * count],
                   out + r);
      for (; r < rows; ++r) out[r] = Simd::sum(of[r * count]);
    }
  }
}

template <class Unpack>
void kernel(const QmvFormat& format, const QmvPanel& panel, const void* const* prepared,
            int64_t count, float* sums, int64_t pitch) {
  static constexpr Ways kWays = ways<Unpack>();
  const Unpack codes(format);
  const Shape shape = shape_of<Unpack>(format);
  const auto* x = reinterpret_cast<const float* const*>(prepared);
  while (count > 0) {
    const int rows = count >= kMostRows ? kMostRows : count >= 4 ? 4 : static_cast<int>(count);
    multiply(shape, kWays, &codes, panel, x, rows, sums, pitch);
    x += rows;
    count -= rows;
    sums += rows * pitch;
  }
}

// The sums of x over groups, behind the `blocks` blocks of a prepared row: of the groups of values
// [first, first + count), zeros behind the row's last.
template <class Unpack>
void add_group_sums(const QmvFormat& format, const float* x, int64_t first, int64_t count,
                    void* prepared) {
  const Shape shape = shape_of<Unpack>(format);
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
