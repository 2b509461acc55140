// qmv_sm80: decode on sm_80 and newer. quantized_matmul, gather_qmm, gather_qmv and grouped_qmm for
// few rows per matrix, w packed along K, in every format, with any groups, scales and alignment,
// where no kernel of one architecture takes it; one device body for all of them, the work list
// (simt/pairs.metal) tells them apart.
//
// A block of 8 warps (4 where shared memory is small) takes a share of all panels of rows of all
// tiles of the list. A panel has row_groups times 16 rows; the chunks of K of each 16 are shared
// by `parts` warps, which bring them from memory by asynchronous copies, each into stages of its
// own, through panels and matrices without a break:
//
//   stage    16 rows x 512 values (256 of 8 bits): codes as they lie, scales, biases
//   step     16 rows x 32 values, a unit: mma.m16n8k16 with w as the 16-row operand; lane t of a
//   row
//            has eight neighbours, which become float16 by a few operations on words (decode.cuh)
//   x        float16 columns in shared memory for all of K (x_columns.cuh), or section by section
//
// Products are exact, sums float32. A group's sum is scaled in float32, the bias enters by the
// group sum of x. The eight columns of a product are
//
//   one column of x, or four   times 8 or 2 units: a column holds x in one unit and zeros in the
//                              others, so that one set of sums serves them all
//   more                       8 columns of x, once or twice; sums of a unit, then its scale
//
// and where groups are of 16, half a unit takes the place of a unit. Parts of K meet in shared
// memory in the order of the warps. Sums that are not finite are made again from decoded weights.
//
// The time goes into reading w, once for up to 16 rows of x; below
// some 20 MB of w, into what happens before the first copy and after the last.
#pragma once

#include "cuda/device/x_columns.cuh"
#include "cuda/qmv_sm80_ring.cuh"
#include "simt/decoded_sum.h"

namespace moeblas::cuda::device {

// The tile that a block is at.
struct Tile80 {
  uint32_t rows;  // of x
  int64_t w;      // -1: they are zero
  simt::MatrixPlace matrix;
  int64_t x[kQmv80MostColumns], out[kQmv80MostColumns], c[kQmv80MostColumns];
};

// x of a section, as fill_columns reads it.
struct XSection80 {
  const unsigned char* x;
  int64_t x_col_stride;
  int32_t x_type;
  uint32_t x_runs;
  uint32_t k, units, columns, column_bytes;
  uint32_t limbs, column_step;  // a row is a column
};

// A stage as a lane sees it: its octets of rows g and g + 8 of unit 0, and the scales and biases of
// these rows.
struct Stage80 {
  uint32_t codes, shift;
  uint32_t scales[2], biases[2];
};

// The lane's eight codes of a unit.
template <class T>
__device__ __forceinline__ Octet load_octet80(const Stage80& s, uint32_t row, uint32_t unit) {
  const uint32_t at = s.codes + row * T::kPitch + unit * (4 * T::kBits);
  if constexpr (T::kBits == 2) {
    return T::Decode::decode(load_shared_u16(at), 0);
  } else if constexpr (T::kBits == 4) {
    return T::Decode::decode(load_shared_u32(at), 0);
  } else if constexpr (T::kBits == 8) {
    const uint2 two = load_shared_2(at);
    return T::Decode::decode(two.x, two.y);
  } else {
    const uint32_t first = load_shared_u32(at), second = load_shared_u32(at + 4);
    return T::Decode::decode(__funnelshift_r(first, second, s.shift), second >> s.shift);
  }
}

__device__ __forceinline__ void multiply80(float (&sums)[4], const Octet& upper, const Octet& lower,
                                           int pair, uint32_t first, uint32_t second) {
  multiply_f16(sums,
               {upper.pair[pair], lower.pair[pair], upper.pair[pair + 1], lower.pair[pair + 1]},
               {first, second});
}

// How a chunk's groups lie: log2 of the units in one, and of those that share a factor of x; where
// groups are of 16, a unit is two. Of affine scales, their type.
struct Groups80 {
  uint32_t shift, factor_shift, halves;
  bool wide, half;

  static __device__ __forceinline__ Groups80 of(const ProductParams& p, uint32_t group) {
    return {group > kQmv80Unit ? static_cast<uint32_t>(__ffs(group) - 6) : 0, group > kQmv80Unit,
            group == 16, p.w.scale.type == simt::kF32, p.w.scale.type == simt::kF16};
  }
  // In one register, where registers are dear.
  __device__ __forceinline__ uint32_t packed() const {
    return shift | factor_shift << 2 | halves << 3 | uint32_t{wide} << 4 | uint32_t{half} << 5;
  }
  static __device__ __forceinline__ Groups80 unpacked(uint32_t word) {
    return {word & 3, word >> 2 & 1, word >> 3 & 1, (word & 16) != 0, (word & 32) != 0};
  }
};

// The scale (or bias) of a group, from shared memory.
template <class T>
__device__ __forceinline__ float load_scale80(uint32_t at, uint32_t group, const Groups80& groups) {
  if constexpr (T::kAffine) {
    const uint32_t bits = load_shared_2_or_4(groups.wide, at + (group << (groups.wide ? 2 : 1)));
    return groups.half ? __half2float(__ushort_as_half(static_cast<uint16_t>(bits)))
                       : __uint_as_float(bits << (groups.wide ? 0 : 16));
  } else if constexpr (T::kNvfp4) {
    const uint32_t two = e4m3_pair(load_shared_u8(at + group));
    return __half2float(__ushort_as_half(static_cast<uint16_t>(two)));
  } else {
    return e8m0_or_infinity(load_shared_u8(at + group));
  }
}

__device__ __forceinline__ Factor load_factor(uint32_t at) {
  const uint2 v = load_shared_2(at);
  return {__uint_as_float(v.x), __uint_as_float(v.y)};
}

// Where a lane finds x: its eight values of its column in unit 0 of the chunk, and the factors of
// its first sum's column there.
struct XAt80 {
  uint32_t x, factors, factor_pitch;  // the pitch: from factor to factor
};

// A lane's sums: of tile j of columns, rows g + 8r, its column 2t + i (of one column of x: its unit
// 2t + i).
__device__ __forceinline__ constexpr int sum_of(int j, int r, int i) { return 4 * j + 2 * r + i; }

// One chunk for one column or up to four.
template <class T, int columns>
__device__ __forceinline__ void add_few80(const Stage80& s, const XAt80& at, const Groups80& groups,
                                          uint32_t active, uint4 (&x)[8 / columns], float (&y)[8],
                                          uint32_t lane) {
  constexpr uint32_t kSlots = 8 / columns;
  const uint32_t t = lane % 4, units = kSlots >> groups.halves;
#pragma unroll 1
  for (uint32_t first = 0; first < T::kUnits; first += units) {
    // Two sets, as products of one wait for each other.
    float d[2][4] = {};
#pragma unroll
    for (uint32_t u = 0; u < kSlots; ++u) {
      if (u == kSlots / 2 && groups.halves != 0) break;
      const uint32_t unit = first + u;
      load_shared_4_if((active & 1u << u) != 0, x[u], at.x + unit * 64);
      const Octet upper = load_octet80<T>(s, 0, unit), lower = load_octet80<T>(s, 8, unit);
      multiply80(d[0], upper, lower, 0, x[u].x, x[u].y);
      multiply80(d[1], upper, lower, 2, x[u].z, x[u].w);
    }
    const uint32_t slot = (first << groups.halves) + (columns == 1 ? 2 * t : t / 2);
    const uint32_t group = slot >> groups.shift;
    const uint32_t factors = at.factors + (slot >> groups.factor_shift) * at.factor_pitch;
    const Factor low = load_factor(factors);
    // Neighbouring slots share a group if it is large, and then a factor too, whose sum counts
    // once.
    const bool other = columns == 1 && groups.shift == 0;
    Factor high = low;
    if (columns > 1) high = load_factor(factors + 8);
    if (other) high = load_factor(factors + at.factor_pitch);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float scale = load_scale80<T>(s.scales[r], group, groups);
      float& sum = y[sum_of(0, r, 0)];
      float& next = y[sum_of(0, r, 1)];
      sum += scale * low.scale * (d[0][2 * r] + d[1][2 * r]);
      next += (other ? load_scale80<T>(s.scales[r], group + 1, groups) : scale) * high.scale *
              (d[0][2 * r + 1] + d[1][2 * r + 1]);
      if constexpr (T::kAffine) {
        const float bias = load_scale80<T>(s.biases[r], group, groups);
        const bool first_of_factor = groups.factor_shift == 0 || slot % 2 == 0;
        if (columns == 1 ? true : first_of_factor) sum += bias * low.sum;
        if (columns == 1 ? groups.factor_shift == 0 : first_of_factor) {
          next += (other ? load_scale80<T>(s.biases[r], group + 1, groups) : bias) * high.sum;
        }
      }
    }
  }
}

// One chunk for up to 8 * tiles columns.
template <class T, int tiles, bool halves>
__device__ __forceinline__ void add_many80(const Stage80& s, const XAt80 (&at)[tiles],
                                           const Groups80& groups, float (&y)[8], uint32_t lane) {
  constexpr uint32_t kTimes = halves ? 2 : 1;
  const uint32_t chained = 1u << groups.factor_shift;
#pragma unroll 1
  for (uint32_t first = 0; first < T::kUnits; first += chained) {
    float d[kTimes][tiles][4] = {};
#pragma unroll
    for (uint32_t u = 0; u < (halves ? 1 : 2); ++u) {
      if (u == chained) break;
      const uint32_t unit = first + u;
      const Octet upper = load_octet80<T>(s, 0, unit), lower = load_octet80<T>(s, 8, unit);
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        const uint4 x = load_shared_4(at[j].x + unit * 64);
#pragma unroll
        for (uint32_t half = 0; half < kTimes; ++half) {
          const uint32_t keep = !halves || lane % 4 / 2 == half ? ~0u : 0;
          multiply80(d[half][j], upper, lower, 0, x.x & keep, x.y & keep);
          multiply80(d[half][j], upper, lower, 2, x.z & keep, x.w & keep);
        }
      }
    }
#pragma unroll
    for (uint32_t half = 0; half < kTimes; ++half) {
      const uint32_t slot = first * kTimes + half, group = slot >> groups.shift;
      float scale[2], bias[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        scale[r] = load_scale80<T>(s.scales[r], group, groups);
        bias[r] = T::kAffine ? load_scale80<T>(s.biases[r], group, groups) : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        const uint4 v =
            load_shared_4(at[j].factors + (slot >> groups.factor_shift) * at[j].factor_pitch);
        const float by[2] = {__uint_as_float(v.x), __uint_as_float(v.z)};
        const float sum[2] = {__uint_as_float(v.y), __uint_as_float(v.w)};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            // In this order: a scale and the size of x may be far out, in opposite directions.
            float& total = y[sum_of(j, r, i)];
            total += scale[r] * by[i] * d[half][j][2 * r + i];
            if constexpr (T::kAffine) total += bias[r] * sum[i];
          }
        }
      }
    }
  }
}

// One output from decoded weights.
template <class F>
__device__ __noinline__ float decoded_output(const ProductParams& p, const uint8_t* codes,
                                             simt::ScaleBuffers scales, int64_t n, const uint8_t* x,
                                             int64_t at) {
  const auto of = [&](const auto* elements) {
    return simt::decoded_sum<F>(p, codes, scales, n, elements + at);
  };
  if (p.x.type == simt::kBf16) return of(reinterpret_cast<const ::bfloat*>(x));
  return of(reinterpret_cast<const ::half*>(x));
}

template <class T>
class Block80 {
 public:
  __device__ __forceinline__ Block80(const Qmv80Params& params, const ProductBuffers& buffers,
                                     Tile80& tile)
      : p_(params),
        b_(buffers),
        tile_(tile),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        row_group_(warp_ / p_.parts),
        part_(warp_ % p_.parts) {
    const ProductParams& q = p_.product;
    const uint32_t group = simt::group_size<typename T::Format>(q.w.group);
    groups_ = Groups80::of(q, group).packed();
    const uint32_t units = min(p_.section, p_.chunks) * T::kUnits;
    x_.columns = shared_address(dynamic_shared());
    x_.factors = x_.columns + p_.columns * p_.column_bytes;
    factor_pitch_ = p_.columns * static_cast<uint32_t>(sizeof(Factor));
    const uint32_t sums = x_.factors + factors_of(units) * factor_pitch_;
    sums_ = sums - x_.columns;
    ring_ = sums + warps() * p_.columns * kQmv80SumsPitch * 4;
  }

  __device__ __forceinline__ void run() {
    const Share80 share = share_of(p_, b_);
    if (share.begin == share.end) return;
    Ring80<T> ring(p_, b_, share, ring_ + warp_ * p_.stages * p_.stage_bytes, row_group_, part_);
    uint32_t index = ~0u;
    for (uint32_t item = share.begin; item < share.end; ++item) {
      if (item / p_.panels != index) {
        index = item / p_.panels;
        begin_tile(index);
      }
      first_row_ = ((item - index * p_.panels) * p_.row_groups + row_group_) * kQmv80Rows;
      if (tile_.w < 0) {
        store([](uint32_t, uint32_t) { return 0.0f; });
        continue;
      }
      const uint32_t exist = tile_.rows;
      float y[8] = {};
      for (uint32_t begin = 0; begin < p_.chunks; begin += p_.section) {
        stage_x(begin);
        ring.fill_up();
        const uint32_t end = min(begin + p_.section, p_.chunks);
        if (exist == 1) {
          few<1>(ring, begin, end, exist, y);
        } else if (exist <= 4) {
          few<4>(ring, begin, end, exist, y);
        } else if (exist <= 8) {
          many<1>(ring, begin, end, exist, y);
        } else {
          many<2>(ring, begin, end, exist, y);
        }
      }
      meet();
      put(exist, y);
      meet();
      finish();
    }
  }

 private:
  __device__ __forceinline__ uint32_t warps() const { return p_.row_groups * p_.parts; }
  __device__ __forceinline__ void all_meet() const { named_barrier(0, 32 * warps()); }

  __device__ __forceinline__ void begin_tile(uint32_t index) {
    all_meet();
    if (warp_ == 0) {
      const simt::Tile tile = simt::tile_at(p_.product, b_, index);
      if (lane_ == 0) {
        tile_.rows = tile.rows;
        tile_.w = tile.w;
        tile_.matrix = simt::matrix_at(p_.product.w, tile.w);
      }
      if (lane_ < tile.rows) {
        const simt::RowPlace place = simt::row_at(p_.product, b_, tile, lane_);
        tile_.x[lane_] = place.x;
        tile_.out[lane_] = place.out;
        tile_.c[lane_] = place.c;
      }
    }
    staged_ = ~0u;
    all_meet();
  }

  __device__ __forceinline__ uint32_t factors_of(uint32_t units) const {
    const Groups80 groups = Groups80::unpacked(groups_);
    return (units << groups.halves) >> groups.factor_shift;
  }

  template <int unit>
  __device__ __forceinline__ void fill(const XSection80& section) const {
    fill_columns<typename T::Decode, unit, T::kAffine>(
        section, x_, tile_.rows, warp_, lane_, [&](uint32_t i) { return tile_.x[i]; }, warps());
  }

  // x from a chunk on, by all warps.
  __device__ __forceinline__ void stage_x(uint32_t chunk) {
    const ProductParams& q = p_.product;
    if (staged_ == chunk) return;
    if (staged_ != ~0u) all_meet();
    staged_ = chunk;
    const int64_t first = int64_t{chunk} * T::kChunk, left = q.k - first;
    const uint32_t values = min(p_.section, p_.chunks) * T::kChunk;
    const XSection80 section = {b_.x + first * q.x.col_stride * 2,
                                q.x.col_stride,
                                q.x.type,
                                p_.x_runs,
                                static_cast<uint32_t>(min(left, int64_t{values})),
                                values / kQmv80Unit,
                                p_.columns,
                                p_.column_bytes,
                                1,
                                1};
    if constexpr (T::kNvfp4) {
      fill<16>(section);
    } else if constexpr (!T::kAffine) {
      fill<32>(section);
    } else if (Groups80::unpacked(groups_).halves != 0) {
      fill<16>(section);
    } else if (Groups80::unpacked(groups_).factor_shift == 0) {
      fill<32>(section);
    } else {
      fill<64>(section);
    }
    all_meet();
  }

  // This warp's chunks of a section: f(stage, groups, units of x before it).
  template <class F>
  __device__ __forceinline__ void for_each_chunk(Ring80<T>& ring, uint32_t begin, uint32_t end,
                                                 F&& f) const {
    Stage80 s;
    const uint32_t g = lane_ / 4, t = lane_ % 4;
    const uint32_t octet = t * T::kBits;
    s.shift = T::kBits % 4 == 0 ? 0 : octet % 4 * 8;
    const uint32_t codes = g * T::kPitch + (T::kBits == 2 ? octet : octet & ~3u);
    // Where within a word the four rows of scales and biases begin, two bits each.
    uint32_t skews = 0;
    if (p_.scale_pitch > p_.scale_bytes) {
      for (uint32_t i = 0; i < (T::kAffine ? 4 : 2); ++i) {
        const int64_t row = min(int64_t{first_row_} + g + i % 2 * 8, p_.product.n - 1);
        const uint8_t* at = scale_row(p_.product, b_, tile_.matrix, i / 2 != 0, row);
        skews |= (reinterpret_cast<uintptr_t>(at) & 3) << 2 * i;
      }
    }
#pragma unroll 1
    for (uint32_t chunk = begin + part_; chunk < end; chunk += p_.parts) {
      const uint32_t stage = ring.next();
      s.codes = stage + codes;
      const uint32_t scales = scales_of_stage(stage, T::kPitch) + g * p_.scale_pitch;
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        s.scales[r] = scales + 8 * r * p_.scale_pitch + (skews >> 2 * r & 3);
        s.biases[r] = scales + (16 + 8 * r) * p_.scale_pitch + (skews >> (4 + 2 * r) & 3);
      }
      f(s, Groups80::unpacked(forgotten(groups_)), (chunk - begin) * T::kUnits);
    }
  }

  // Of the lane's column, and of the columns of its sums.
  __device__ __forceinline__ XAt80 x_at(uint32_t column, uint32_t pair) const {
    return {x_.columns + column * p_.column_bytes + lane_ % 4 * 16,
            x_.factors + pair * static_cast<uint32_t>(sizeof(Factor)), factor_pitch_};
  }
  __device__ __forceinline__ XAt80 moved(XAt80 at, uint32_t units) const {
    at.x += units * 64;
    at.factors += factors_of(units) * at.factor_pitch;
    return at;
  }
  // [warp][column][16 rows]
  __device__ __forceinline__ float* sums() const {
    return reinterpret_cast<float*>(dynamic_shared() + sums_);
  }
  // Row g + 8r of a column.
  __device__ __forceinline__ float& sum_at(uint32_t column, uint32_t r) const {
    return sums()[(warp_ * p_.columns + column) * kQmv80SumsPitch + 8 * r + lane_ / 4];
  }
  // The warps of one row group wait for each other.
  __device__ __forceinline__ void meet() const {
    if (p_.parts > 1) {
      named_barrier(1 + row_group_ % 15, 32 * p_.parts);
    } else {
      __syncwarp();
    }
  }

  template <int columns>
  __device__ __forceinline__ void few(Ring80<T>& ring, uint32_t begin, uint32_t end, uint32_t exist,
                                      float (&y)[8]) const {
    constexpr uint32_t kSlots = 8 / columns;
    const uint32_t slot = lane_ / 4 / columns, t = lane_ % 4;
    // The units, of kSlots, in which this lane's column holds x.
    uint32_t active = 1u << slot;
    if (Groups80::unpacked(groups_).halves != 0) {
      active = t / 2 == slot % 2 ? 1u << slot / 2 : 0;
    }
    const XAt80 at =
        x_at(min(lane_ / 4 % columns, exist - 1), columns == 1 || exist <= 2 ? 0 : 2 * t % 4);
    uint4 x[kSlots] = {};
    for_each_chunk(ring, begin, end, [&](const Stage80& s, const Groups80& groups, uint32_t units) {
      add_few80<T, columns>(s, moved(at, units), groups, active, x, y, lane_);
    });
  }

  template <int tiles>
  __device__ __forceinline__ void many(Ring80<T>& ring, uint32_t begin, uint32_t end,
                                       uint32_t exist, float (&y)[8]) const {
    XAt80 at[tiles];
    const uint32_t g = lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (uint32_t j = 0; j < tiles; ++j) {
      at[j] = x_at(min(8 * j + g, exist - 1), min(8 * j + 2 * t, (exist - 1) & ~1u));
    }
    for_each_chunk(ring, begin, end, [&](const Stage80& s, const Groups80& groups, uint32_t units) {
      XAt80 now[tiles];
#pragma unroll
      for (uint32_t j = 0; j < tiles; ++j) now[j] = moved(at[j], units);
      if constexpr (T::kNvfp4) {
        add_many80<T, tiles, true>(s, now, groups, y, lane_);
      } else if (!T::kAffine || groups.halves == 0) {
        add_many80<T, tiles, false>(s, now, groups, y, lane_);
      } else if constexpr (T::kAffine) {
        add_many80<T, tiles, true>(s, now, groups, y, lane_);
      }
    });
  }

  // This warp's sums to shared memory. Of few columns they are of several units: the lanes that
  // hold them add up.
  __device__ __forceinline__ void put(uint32_t exist, float (&y)[8]) const {
    const uint32_t t = lane_ % 4;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      if (exist == 1) {
        float sum = y[sum_of(0, r, 0)] + y[sum_of(0, r, 1)];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (t == 0) sum_at(0, r) = sum;
        continue;
      }
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          float sum = y[sum_of(j, r, i)];
          if (exist <= 4 && j == 0) sum += __shfl_xor_sync(~0u, sum, 2);
          const uint32_t column = 8 * j + 2 * t + i;
          if (column < exist) sum_at(column, r) = sum;
        }
      }
    }
  }

  // The item's outputs, by the warps of the row group: sum_of(row of x, row of w).
  template <class F>
  __device__ __forceinline__ void store(F&& sum_of) const {
    const ProductParams& q = p_.product;
    const bool plain = q.out.plain != 0 || tile_.w < 0;
    for (uint32_t i = part_ * 32 + lane_; i < tile_.rows * kQmv80Rows; i += 32 * p_.parts) {
      const uint32_t token = i / kQmv80Rows, row = i % kQmv80Rows;
      const int64_t n = int64_t{first_row_} + row;
      if (n >= q.n) continue;
      const simt::StorePlace to = {tile_.out[token], tile_.c[token], tile_.matrix.added, plain};
      simt::store_sum(q.out, b_, to, n, sum_of(token, row));
    }
  }

  // What the parts of K come to, in their order.
  __device__ __forceinline__ void finish() const {
    using F = typename T::Format;
    const ProductParams& q = p_.product;
    const float factor = simt::tensor_scale_at(q.w.scale, b_.w_tensor_scale, tile_.w);
    store([&](uint32_t token, uint32_t row) {
      const float* from =
          sums() + (row_group_ * p_.parts * p_.columns + token) * kQmv80SumsPitch + row;
      float total = 0.0f;
#pragma unroll 4
      for (uint32_t i = 0; i < p_.parts; ++i) total += from[i * p_.columns * kQmv80SumsPitch];
      if constexpr (!T::kAffine) total = formats::mul(total, factor);
      if (!formats::is_finite(total)) {
        const int64_t n = int64_t{first_row_} + row;
        const simt::ScaleBuffers scales = {b_.w_scales, b_.w_biases, tile_.matrix.scales,
                                           tile_.matrix.biases, factor};
        total = decoded_output<F>(q, b_.w + tile_.matrix.values + n * q.w.n_stride, scales, n, b_.x,
                                  tile_.x[token]);
      }
      return total;
    });
  }

  const Qmv80Params& p_;
  const ProductBuffers& b_;
  Tile80& tile_;  // shared
  uint32_t lane_, warp_, row_group_, part_;
  uint32_t groups_;  // packed
  XColumns x_;
  uint32_t factor_pitch_, sums_, ring_;
  uint32_t staged_ = ~0u;  // the chunk from which x stands in shared memory
  uint32_t first_row_ = 0;
};

template <class F>
__device__ __forceinline__ void qmv80(const Qmv80Params& p, const ProductBuffers& b) {
  __shared__ Tile80 tile;
  Block80<Qmv80<F>>(p, b, tile).run();
}

}  // namespace moeblas::cuda::device
