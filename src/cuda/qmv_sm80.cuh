// qmv_sm80: decode on sm_80 and newer. quantized_matmul, gather_qmm, gather_qmv and grouped_qmm for
// few rows per matrix, w packed along K, in every format, with any groups, scales and alignment,
// where no kernel of one architecture takes it; one device body for all of them, the work list
// (simt/pairs.metal) tells them apart.
//
// A block of 16 warps (8 where shared memory is small) takes a share of all panels of rows of all
// tiles of the list. A panel has row_groups times 16 rows; the chunks of K of each 16 are shared
// by `parts` warps, which bring them from memory by asynchronous copies, each into stages of its
// own, through panels and matrices without a break:
//
//   stage    16 rows x 256 values (512 of 2 or 3 bits): codes as they lie, scales, biases
//   step     16 rows x 32 values, a unit: mma.m16n8k16 with w as the 16-row operand; lane t of a row
//            has eight neighbours, which become float16 by a few operations on words (decode.cuh)
//   x        float16 columns in shared memory for all of K (x_columns.cuh), or section by section
//
// Products are exact, sums float32. A group's sum is scaled in float32, the bias enters by the group
// sum of x. The eight columns of a product are
//
//   one or two columns of x   times 8 or 4 units: a column holds x in one unit and zeros in the
//                             others, so that one set of sums serves them all
//   more                      8 columns of x, once or twice; sums of a unit, then its scale
//
// and where groups are of 16, half a unit takes the place of a unit. Parts of K meet in shared
// memory in the order of the warps. Sums that are not finite are made again from decoded weights.
//
// The time goes into reading w, once for up to 16 columns of x (float32 x takes two each); below
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
  uint32_t k, units, columns, column_bytes, limbs, column_step;
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

// The scale (or bias) of a group, from shared memory.
template <class T>
__device__ __forceinline__ float load_scale80(uint32_t at, uint32_t group, int type) {
  if constexpr (T::kAffine) {
    if (type == simt::kF32) return load_shared_float(at + group * 4);
    const uint32_t bits = load_shared_u16(at + group * 2);
    return type == simt::kBf16 ? __uint_as_float(bits << 16)
                               : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
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
  uint32_t x, factors, factor_pitch;  // the pitch: between units (halves of units)
};

// Groups of a chunk: log2 of units in one, or halves of units.
struct Groups80 {
  uint32_t shift, halves;
  int type;
};

// One chunk for one or two columns. y[r][i]: rows g and g + 8, of the lane's units in column i.
template <class T, int columns>
__device__ __forceinline__ void add_few80(const Stage80& s, const XAt80& at, const Groups80& groups,
                                          uint32_t active, uint4 (&x)[8 / columns],
                                          float (&y)[2][2], uint32_t lane) {
  constexpr uint32_t kSlots = 8 / columns;
  const uint32_t t = lane % 4;
#pragma unroll 1
  for (uint32_t first = 0; first < T::kUnits; first += kSlots) {
    // Two sets, as products of one wait for each other.
    float d[2][4] = {};
    const auto add = [&](uint32_t unit) {
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t slot = unit * (groups.halves + 1) + (columns == 1 ? 2 * t + i : t);
          const uint32_t group = slot >> groups.shift;
          const Factor f =
              load_factor(at.factors + slot * at.factor_pitch + (columns == 1 ? 0 : i * 8));
          const float scale = load_scale80<T>(s.scales[r], group, groups.type);
          y[r][i] += scale * f.scale * (d[0][2 * r + i] + d[1][2 * r + i]);
          if constexpr (T::kAffine) {
            y[r][i] += load_scale80<T>(s.biases[r], group, groups.type) * f.sum;
          }
        }
      }
    };
#pragma unroll
    for (uint32_t u = 0; u < kSlots; ++u) {
      const uint32_t unit = first + u;
      load_shared_4_if((active >> u & 1) != 0, x[u], at.x + unit * 64);
      const Octet upper = load_octet80<T>(s, 0, unit), lower = load_octet80<T>(s, 8, unit);
      multiply80(d[0], upper, lower, 0, x[u].x, x[u].y);
      multiply80(d[1], upper, lower, 2, x[u].z, x[u].w);
      if (u == kSlots / 2 - 1 && groups.halves != 0) {
        add(first);
#pragma unroll
        for (int i = 0; i < 4; ++i) d[0][i] = d[1][i] = 0.0f;
      }
    }
    add(groups.halves != 0 ? first + kSlots / 2 : first);
  }
}

// One chunk for up to 8 * tiles columns. y[r][j]: of tile j, columns 2t and 2t + 1.
template <class T, int tiles, bool halves>
__device__ __forceinline__ void add_many80(const Stage80& s, const XAt80 (&at)[tiles],
                                           const Groups80& groups, float (&y)[2][tiles][2],
                                           uint32_t lane) {
  constexpr uint32_t kTimes = halves ? 2 : 1;
#pragma unroll 2
  for (uint32_t unit = 0; unit < T::kUnits; ++unit) {
    const Octet upper = load_octet80<T>(s, 0, unit), lower = load_octet80<T>(s, 8, unit);
    uint4 x[tiles];
#pragma unroll
    for (int j = 0; j < tiles; ++j) x[j] = load_shared_4(at[j].x + unit * 64);
#pragma unroll
    for (uint32_t half = 0; half < kTimes; ++half) {
      const uint32_t slot = unit * kTimes + half, group = slot >> groups.shift;
      const uint32_t keep = !halves || lane % 4 / 2 == half ? ~0u : 0;
      float scale[2], bias[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        scale[r] = load_scale80<T>(s.scales[r], group, groups.type);
        bias[r] = T::kAffine ? load_scale80<T>(s.biases[r], group, groups.type) : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        float d[4] = {};
        multiply80(d, upper, lower, 0, x[j].x & keep, x[j].y & keep);
        multiply80(d, upper, lower, 2, x[j].z & keep, x[j].w & keep);
        const uint4 v = load_shared_4(at[j].factors + slot * at[j].factor_pitch);
        const float by[2] = {__uint_as_float(v.x), __uint_as_float(v.z)};
        const float sum[2] = {__uint_as_float(v.y), __uint_as_float(v.w)};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            // In this order: a scale and the size of x may be far out, in opposite directions.
            y[r][j][i] += scale[r] * by[i] * d[2 * r + i];
            if constexpr (T::kAffine) y[r][j][i] += bias[r] * sum[i];
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
  if (p.x.type == simt::kF16) return of(reinterpret_cast<const ::half*>(x));
  return of(reinterpret_cast<const float*>(x));
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
    groups_ = {group > kQmv80Unit ? static_cast<uint32_t>(__ffs(group) - 6) : 0, group == 16,
               q.w.scale.type};
    const uint32_t units = min(p_.section, p_.chunks) * T::kUnits;
    x_.columns = shared_address(dynamic_shared());
    x_.factors = x_.columns + p_.columns * p_.column_bytes;
    factor_pitch_ = p_.columns * static_cast<uint32_t>(sizeof(Factor));
    const uint32_t sums = x_.factors + (units << groups_.halves) * factor_pitch_;
    sums_ = reinterpret_cast<float*>(dynamic_shared() + (sums - x_.columns));
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
      const uint32_t exist = (tile_.rows - 1) * p_.column_step + p_.limbs;
      if (exist == 1) {
        few<1>(ring);
      } else if (exist == 2) {
        few<2>(ring);
      } else if (exist <= 8) {
        many<1>(ring, exist);
      } else {
        many<2>(ring, exist);
      }
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

  // x from a chunk on, by all warps.
  __device__ __forceinline__ void stage_x(uint32_t chunk) {
    const ProductParams& q = p_.product;
    if (staged_ == chunk) return;
    if (staged_ != ~0u) all_meet();
    staged_ = chunk;
    const int64_t first = int64_t{chunk} * T::kChunk, left = q.k - first;
    const uint32_t values = min(p_.section, p_.chunks) * T::kChunk;
    const XSection80 section = {
        b_.x + first * q.x.col_stride * (q.x.type == simt::kF32 ? 4 : 2),
        q.x.col_stride,
        q.x.type,
        p_.x_runs,
        static_cast<uint32_t>(min(left, int64_t{values})),
        values / kQmv80Unit,
        p_.columns,
        p_.column_bytes,
        p_.limbs,
        p_.column_step};
    const auto row_at = [&](uint32_t i) { return tile_.x[i]; };
    constexpr bool kMayHaveHalves = T::kAffine || T::kNvfp4;
    if (kMayHaveHalves && groups_.halves != 0) {
      fill_columns<typename T::Decode, 16, T::kAffine>(section, x_, tile_.rows, warp_, lane_,
                                                       row_at, warps());
    } else if (!T::kNvfp4) {
      fill_columns<typename T::Decode, 32, T::kAffine>(section, x_, tile_.rows, warp_, lane_,
                                                       row_at, warps());
    }
    all_meet();
  }

  // All chunks of this warp's: f(stage, units of x before it).
  template <class F>
  __device__ __forceinline__ void for_each_chunk(Ring80<T>& ring, F&& f) {
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
    for (uint32_t begin = 0; begin < p_.chunks; begin += p_.section) {
      stage_x(begin);
      const uint32_t end = min(begin + p_.section, p_.chunks);
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
        f(s, (chunk - begin) * T::kUnits);
      }
    }
  }

  // Of the lane's column, and of the columns of its sums.
  __device__ __forceinline__ XAt80 x_at(uint32_t column, uint32_t pair) const {
    return {x_.columns + column * p_.column_bytes + lane_ % 4 * 16,
            x_.factors + pair * static_cast<uint32_t>(sizeof(Factor)), factor_pitch_};
  }
  __device__ __forceinline__ XAt80 moved(XAt80 at, uint32_t units) const {
    at.x += units * 64;
    at.factors += (units << groups_.halves) * at.factor_pitch;
    return at;
  }
  // Row g + 8r of a column.
  __device__ __forceinline__ float& sum_at(uint32_t column, uint32_t r) const {
    return sums_[(warp_ * p_.columns + column) * kQmv80SumsPitch + 8 * r + lane_ / 4];
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
  __device__ __forceinline__ void few(Ring80<T>& ring) {
    constexpr uint32_t kSlots = 8 / columns;
    const uint32_t slot = lane_ / 4 / columns, t = lane_ % 4;
    // The units, of kSlots, in which this lane's column holds x.
    uint32_t active = 1u << slot;
    if (groups_.halves != 0) {
      active = t / 2 == slot % 2 ? (1u << slot / 2) * (1u | 1u << kSlots / 2) : 0;
    }
    const XAt80 at = x_at(lane_ / 4 % columns, 0);
    uint4 x[kSlots] = {};
    float y[2][2] = {};
    for_each_chunk(ring, [&](const Stage80& s, uint32_t units) {
      add_few80<T, columns>(s, moved(at, units), groups_, active, x, y, lane_);
    });
    // Columns of other units: the lanes that hold them add up.
    meet();
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      if constexpr (columns == 1) y[r][0] += y[r][1];
#pragma unroll
      for (uint32_t i = 0; i < columns; ++i) {
        y[r][i] += __shfl_xor_sync(~0u, y[r][i], 1);
        y[r][i] += __shfl_xor_sync(~0u, y[r][i], 2);
        if (t == 0) sum_at(i, r) = y[r][i];
      }
    }
  }

  template <int tiles>
  __device__ __forceinline__ void many(Ring80<T>& ring, uint32_t exist) {
    XAt80 at[tiles];
    const uint32_t g = lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (uint32_t j = 0; j < tiles; ++j) {
      at[j] = x_at(min(8 * j + g, exist - 1), min(8 * j + 2 * t, (exist - 1) & ~1u));
    }
    float y[2][tiles][2] = {};
    for_each_chunk(ring, [&](const Stage80& s, uint32_t units) {
      XAt80 now[tiles];
#pragma unroll
      for (uint32_t j = 0; j < tiles; ++j) now[j] = moved(at[j], units);
      if constexpr (T::kNvfp4) {
        add_many80<T, tiles, true>(s, now, groups_, y, lane_);
      } else if (!T::kAffine || groups_.halves == 0) {
        add_many80<T, tiles, false>(s, now, groups_, y, lane_);
      } else if constexpr (T::kAffine) {
        add_many80<T, tiles, true>(s, now, groups_, y, lane_);
      }
    });
    meet();
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
#pragma unroll
      for (uint32_t j = 0; j < tiles; ++j) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t column = 8 * j + 2 * t + i;
          if (column < exist) sum_at(column, r) = y[r][j][i];
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
    meet();
    const float factor = simt::tensor_scale_at(q.w.scale, b_.w_tensor_scale, tile_.w);
    store([&](uint32_t token, uint32_t row) {
      const float* from =
          sums_ + (row_group_ * p_.parts * p_.columns + token * p_.column_step) * kQmv80SumsPitch +
          row;
      float total = 0.0f;
#pragma unroll 1
      for (uint32_t limb = 0; limb < p_.limbs; ++limb, from += kQmv80SumsPitch) {
        float sum = 0.0f;
#pragma unroll 4
        for (uint32_t i = 0; i < p_.parts; ++i) sum += from[i * p_.columns * kQmv80SumsPitch];
        total += sum;
      }
      if constexpr (!T::kAffine) total = formats::mul(total, factor);
      if (!formats::is_finite(total)) {
        const int64_t n = int64_t{first_row_} + row;
        const simt::ScaleBuffers scales = {b_.w_scales, b_.w_biases, tile_.matrix.scales, tile_.matrix.biases,
                                           factor};
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
  Groups80 groups_;
  XColumns x_;
  uint32_t factor_pitch_, ring_;
  float* sums_;  // [warp][column][16 rows]
  uint32_t staged_ = ~0u;  // the chunk from which x stands in shared memory
  uint32_t first_row_ = 0;
};

template <class F>
__device__ __forceinline__ void qmv80(const Qmv80Params& p, const ProductBuffers& b) {
  __shared__ Tile80 tile;
  Block80<Qmv80<F>>(p, b, tile).run();
}

}  // namespace moeblas::cuda::device
