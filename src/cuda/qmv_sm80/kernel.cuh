// qmv_sm80: decode on sm_80 and newer. quantized_matmul, gather_qmm, gather_qmv and grouped_qmm for
// few rows per matrix, w packed along K, in every format, with any groups, scales and alignment,
// where no kernel of one architecture takes it; one device body for all of them, the work list
// (simt/pairs.metal) tells them apart.
//
// A block of 8 warps (4 where shared memory is small) takes a share of all panels of rows of all
// tiles of the list. A panel has row_groups times 16 rows (or 32); the chunks of K of each 16 are
// shared by `parts` warps, which bring them from memory by asynchronous copies, each into stages of
// its own, through panels and matrices without a break:
//
//   stage    16 rows x 512 values (qmv_sm80/params.h): codes as they lie, scales, biases
//   x        in shared memory for all of K, or section by section, as the products want it
//   one row  of x times integer codes, in kernels of their own: x as four limbs of a byte, exact
//            sums (qmv_sm80/bytes.cuh)
//   else     float16 columns of x, as float32 three of them (qmv_sm80/halves.cuh)
//
// A group's sum is scaled in float32, the bias enters by the group sum of x. Parts of K meet in
// shared memory in the order of the warps. Sums that are not finite are made again from decoded
// weights. On Hopper a launch begins before its predecessor ends, and waits for it before it reads
// anything.
//
// The time goes into reading w, once for up to 16 rows of x; below some 20 MB of w, into what
// happens before the first copy and after the last.
#pragma once

#include "cuda/device/decoded_output.cuh"
#include "cuda/device/x_bytes.cuh"
#include "cuda/device/x_columns.cuh"
#include "cuda/qmv_sm80/bytes.cuh"
#include "cuda/qmv_sm80/halves.cuh"

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
  uint32_t limbs, column_step;  // columns of a row
};

template <class T>
class Block80 {
 public:
  __device__ __forceinline__ Block80(const Qmv80Params& params, const ProductBuffers& buffers,
                                     Tile80& tile)
      : p_(params), b_(buffers), tile_(tile) {}

  __device__ __forceinline__ void run() {
    if (p_.alone == 0) wait_for_previous();
    const Share80 share = share_of(p_, b_);
    if (share.begin == share.end) return;
    if constexpr (T::kOne) clear_zeros();
    Ring80<T> ring(p_, b_, share);
    uint32_t index = ~0u;
    for (uint32_t item = share.begin; item < share.end; ++item) {
      if (tile_of(p_, item) != index) {
        index = tile_of(p_, item);
        begin_tile(index);
      }
      first_row_ = ((item - index * p_.panels) * p_.row_groups + row_group()) * T::kRows;
      if (tile_.w < 0) {
        store([](uint32_t, uint32_t) { return 0.0f; });
        continue;
      }
      const uint32_t exist = tile_.rows * p_.limbs;
      float y[T::kOne ? T::kRows / 8 : 8] = {};
      for (uint32_t begin = 0; begin < p_.chunks; begin += p_.section) {
        stage_x(begin);
        ring.fill_up();
        add_section(ring, begin, min(begin + p_.section, p_.chunks), exist, y);
      }
      meet();
      put(exist, y);
      meet();
      finish();
    }
  }

 private:
  // What a warp can tell from its number or the launch is worth no register.
  __device__ __forceinline__ uint32_t lane_of_warp() const { return this_thread() % 32; }
  __device__ __forceinline__ uint32_t warp() const { return this_thread() / 32; }
  __device__ __forceinline__ uint32_t row_group() const { return warp() >> p_.parts_shift; }
  __device__ __forceinline__ uint32_t part() const { return warp() & (p_.parts - 1); }
  __device__ __forceinline__ uint32_t warps() const { return p_.row_groups * p_.parts; }
  __device__ __forceinline__ Groups80 groups() const {
    return Groups80::of(p_.product, simt::group_size<typename T::Format>(p_.product.w.group));
  }
  __device__ __forceinline__ XColumns x_columns() const {
    const uint32_t base = shared_address(dynamic_shared());
    return {base, base + p_.factors_at};
  }
  // Of one row, behind x.
  __device__ __forceinline__ uint32_t zeros() const {
    return x_columns().factors - kQmv80ZeroBytes;
  }
  __device__ __forceinline__ uint32_t factor_pitch() const {
    return p_.columns * static_cast<uint32_t>(sizeof(Factor));
  }
  __device__ __forceinline__ void all_meet() const { named_barrier(0, 32 * warps()); }

  __device__ __forceinline__ void begin_tile(uint32_t index) {
    all_meet();
    if (warp() == 0) {
      const simt::Tile tile = tile_at(p_, b_, index);
      if (lane_of_warp() == 0) {
        tile_.rows = tile.rows;
        tile_.w = tile.w;
        tile_.matrix = simt::matrix_at(p_.product.w, tile.w);
      }
      if (lane_of_warp() < tile.rows) {
        const simt::RowPlace place = simt::row_at(p_.product, b_, tile, lane_of_warp());
        tile_.x[lane_of_warp()] = place.x;
        tile_.out[lane_of_warp()] = place.out;
        tile_.c[lane_of_warp()] = place.c;
      }
    }
    staged_ = ~0u;
    all_meet();
  }

  // Seen by all from the first tile's begin on.
  __device__ __forceinline__ void clear_zeros() const {
    for (uint32_t at = this_thread() * 16; at < kQmv80ZeroBytes; at += warps() * 512) {
      store_shared_4(zeros() + at, uint4{0, 0, 0, 0});
    }
  }

  __device__ __forceinline__ uint32_t factors_of(uint32_t units) const {
    const Groups80 groups = this->groups();
    return (units << groups.halves) >> groups.factor_shift;
  }

  template <int unit>
  __device__ __forceinline__ void fill(const XSection80& section) const {
    fill_columns<typename T::Decode, unit, T::kAffine>(
        section, x_columns(), 0, section.units, tile_.rows, warp(), lane_of_warp(),
        [&](uint32_t i) { return tile_.x[i]; }, warps());
  }

  // x from a chunk on, by all warps.
  __device__ __forceinline__ void stage_x(uint32_t chunk) {
    const ProductParams& q = p_.product;
    if (staged_ == chunk) return;
    if (staged_ != ~0u) all_meet();
    staged_ = chunk;
    const int64_t first = int64_t{chunk} * T::kChunk, left = q.k - first;
    const uint32_t values = min(p_.section, p_.chunks) * T::kChunk;
    const Groups80 groups = this->groups();
    const auto k = static_cast<uint32_t>(min(left, int64_t{values}));
    const uint32_t units = values / kQmv80Unit;
    const unsigned char* x = b_.x + first * q.x.col_stride * (q.x.type == simt::kF32 ? 4 : 2);
    if constexpr (T::kOne) {
      const int64_t row = tile_.x[0] * (q.x.type == simt::kF32 ? 4 : 2);
      const XRow from = {x + row, q.x.col_stride, q.x.type, p_.x_runs, k, units};
      if (groups.factor_shift != 0) {
        fill_bytes<T::kBits, 64>(from, x_columns(), warp(), lane_of_warp(), warps());
      } else if (groups.halves == 0) {
        fill_bytes<T::kBits, 32>(from, x_columns(), warp(), lane_of_warp(), warps());
      } else if constexpr (T::kHalvesInBytes) {
        fill_bytes<T::kBits, 16>(from, x_columns(), warp(), lane_of_warp(), warps());
      }
      return all_meet();
    }
    const XSection80 section = {x,     q.x.col_stride, q.x.type,        p_.x_runs, k,
                                units, p_.columns,     p_.column_bytes, p_.limbs,  p_.limbs};
    if constexpr (T::kNvfp4) {
      fill<16>(section);
    } else if constexpr (!T::kAffine) {
      fill<32>(section);
    } else if (groups.halves != 0) {
      fill<16>(section);
    } else if (groups.factor_shift == 0) {
      fill<32>(section);
    } else {
      fill<64>(section);
    }
    all_meet();
  }

  // How many columns of float16 x meets a stage as.
  enum Way { kOneColumn, kFour, kEight, kSixteen };
  __device__ __forceinline__ Way way_of(uint32_t exist) const {
    if (!T::kAffine && exist <= 4) return exist == 1 ? kOneColumn : kFour;
    return exist <= 8 ? kEight : kSixteen;
  }

  // This warp's chunks of a section times one row of x, by the size of groups, those of 64 by their
  // scales as well.
  __device__ __forceinline__ void add_section(Ring80<T>& ring, uint32_t begin, uint32_t end,
                                              uint32_t, float (&y)[T::kRows / 8]) const {
    const Groups80 groups = this->groups();
    if (groups.factor_shift != 0) {
      if (groups.shift != 1 || groups.wide || p_.easy == 0) {
        return add_bytes<64, kAnyScale>(ring, begin, end, y);
      }
      if (groups.half) return add_bytes<64, simt::kF16>(ring, begin, end, y);
      return add_bytes<64, simt::kBf16>(ring, begin, end, y);
    }
    if (groups.halves == 0) return add_bytes<32, kAnyScale>(ring, begin, end, y);
    if constexpr (T::kHalvesInBytes) add_bytes<16, kAnyScale>(ring, begin, end, y);
  }
  template <int group, int scale>
  __device__ __forceinline__ void add_bytes(Ring80<T>& ring, uint32_t begin, uint32_t end,
                                            float (&y)[T::kRows / 8]) const {
    const Groups80 groups = this->groups();
    const uint32_t skews = scale == kAnyScale ? skews_of_scales() : 0;
    const uint32_t lane = lane_of_warp();
    auto x = ByteLane<group>::of(x_columns(), zeros(), lane, part() * T::kUnits);
    const uint32_t pitch = scale == kAnyScale ? p_.scale_pitch : T::kChunk / 32;
    ring.for_each_stage(chunks_of(begin, end), [&](uint32_t stage) {
      Stage80<T> s = stage_at(stage, skews, pitch);
      s.codes += lane % 4 * (4 * T::kBits);
      add_bytes80<T, group, scale>(s, x, groups, lane, y);
      x.advance(lane, p_.parts * T::kUnits);
    });
  }
  // Of this warp.
  __device__ __forceinline__ uint32_t chunks_of(uint32_t begin, uint32_t end) const {
    return (end - begin + p_.parts - 1 - part()) >> p_.parts_shift;
  }

  // Where within a word the lane's rows of scales and biases begin, two bits each.
  __device__ __forceinline__ uint32_t skews_of_scales() const {
    constexpr uint32_t kRows = T::kRows / 8, kAll = kRows * (T::kAffine ? 2 : 1);
    uint32_t skews = 0;
    if (p_.scale_pitch > p_.scale_bytes) {
      for (uint32_t i = 0; i < kAll; ++i) {
        const int64_t row =
            min(int64_t{first_row_} + lane_of_warp() / 4 + i % kRows * 8, p_.product.n - 1);
        const uint8_t* at = scale_row(p_.product, b_, tile_.matrix, i / kRows != 0, row);
        skews |= (reinterpret_cast<uintptr_t>(at) & 3) << 2 * i;
      }
    }
    return skews;
  }
  __device__ __forceinline__ Stage80<T> stage_at(uint32_t stage, uint32_t skews,
                                                 uint32_t scale_pitch) const {
    const uint32_t g = lane_of_warp() / 4;
    Stage80<T> s;
    s.codes = stage + g * T::kPitch;
    const uint32_t scales = scales_of_stage<T>(stage) + g * scale_pitch;
#pragma unroll
    for (uint32_t r = 0; r < s.kRows; ++r) {
      s.scales[r] = scales + 8 * r * scale_pitch + (skews >> 2 * r & 3);
      s.biases[r] = scales + (T::kRows + 8 * r) * scale_pitch + (skews >> 2 * (s.kRows + r) & 3);
    }
    return s;
  }

  // The same of more rows of x, and of block formats.
  __device__ __forceinline__ void add_section(Ring80<T>& ring, uint32_t begin, uint32_t end,
                                              uint32_t exist, float (&y)[8]) const {
    const Way way = way_of(exist);
    const uint32_t skews = skews_of_scales();
    uint32_t units = part() * T::kUnits;
    ring.for_each_stage(chunks_of(begin, end), [&](uint32_t stage) {
      add_chunk(way, stage_at(stage, skews, p_.scale_pitch), units, exist, y);
      units += p_.parts * T::kUnits;
    });
  }

  // units: of x before the chunk.
  __device__ __forceinline__ void add_chunk(Way way, const Stage80<T>& s, uint32_t units,
                                            uint32_t exist, float (&y)[8]) const {
    const Groups80 groups = this->groups();
    if constexpr (T::kAffine) {
      const bool eight = way == kEight;
      if (groups.halves != 0) {
        return eight ? many<0, 1>(s, groups, units, exist, y)
                     : many<0, 2>(s, groups, units, exist, y);
      }
      if (groups.factor_shift == 0) {
        return eight ? many<1, 1>(s, groups, units, exist, y)
                     : many<1, 2>(s, groups, units, exist, y);
      }
      return eight ? many<2, 1>(s, groups, units, exist, y)
                   : many<2, 2>(s, groups, units, exist, y);
    } else {
      constexpr int kChained = T::kNvfp4 ? 0 : 1;
      if (way == kOneColumn) return few<1>(s, units, exist, y);
      if (way == kFour) return few<4>(s, units, exist, y);
      if (way == kEight) return many<kChained, 1>(s, groups, units, exist, y);
      many<kChained, 2>(s, groups, units, exist, y);
    }
  }

  // Of the lane's column, and of the columns of its sums, from a unit on.
  __device__ __forceinline__ XAt80 x_at(uint32_t column, uint32_t pair, uint32_t units) const {
    return {x_columns().columns + column * p_.column_bytes + lane_of_warp() % 4 * 16 + units * 64,
            x_columns().factors + pair * static_cast<uint32_t>(sizeof(Factor)) +
                factors_of(units) * factor_pitch(),
            factor_pitch()};
  }
  // [warp][column][rows]
  __device__ __forceinline__ float* sums() const {
    return reinterpret_cast<float*>(dynamic_shared() + p_.sums_at);
  }
  // Row g + 8r of a column.
  __device__ __forceinline__ float& sum_at(uint32_t column, uint32_t r) const {
    return sums()[(warp() * p_.columns + column) * T::kSumsPitch + 8 * r + lane_of_warp() / 4];
  }
  // The warps of one row group wait for each other.
  __device__ __forceinline__ void meet() const {
    if (p_.parts > 1) {
      named_barrier(1 + row_group() % 15, 32 * p_.parts);
    } else {
      __syncwarp();
    }
  }

  template <int columns>
  __device__ __forceinline__ void few(const Stage80<T>& s, uint32_t units, uint32_t exist,
                                      float (&y)[8]) const {
    const uint32_t slot = lane_of_warp() / 4 / columns, t = lane_of_warp() % 4;
    // The units, of 8 / columns, in which this lane's column holds x.
    const uint32_t active = !T::kNvfp4 ? 1u << slot : t / 2 == slot % 2 ? 1u << slot / 2 : 0;
    const XAt80 at = x_at(min(lane_of_warp() / 4 % columns, exist - 1),
                          columns == 1 || exist <= 2 ? 0 : 2 * t % 4, units);
    add_few80<T, columns>(s, at, active, y, lane_of_warp());
  }

  template <int chained, int tiles>
  __device__ __forceinline__ void many(const Stage80<T>& s, const Groups80& groups, uint32_t units,
                                       uint32_t exist, float (&y)[8]) const {
    XAt80 at[tiles];
    const uint32_t g = lane_of_warp() / 4, t = lane_of_warp() % 4;
#pragma unroll
    for (uint32_t j = 0; j < tiles; ++j) {
      at[j] = x_at(min(8 * j + g, exist - 1), min(8 * j + 2 * t, (exist - 1) & ~1u), units);
    }
    add_many80<T, tiles, chained>(s, at, groups, y, lane_of_warp());
  }

  // This warp's sums to shared memory. Of few columns they are of several units, or limbs: the
  // lanes that hold them add up.
  __device__ __forceinline__ void put_one(uint32_t r, float sum) const {
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane_of_warp() % 4 == 0) sum_at(0, r) = sum;
  }
  __device__ __forceinline__ void put(uint32_t, float (&y)[T::kRows / 8]) const {
#pragma unroll
    for (uint32_t r = 0; r < T::kRows / 8; ++r) put_one(r, y[r]);
  }
  __device__ __forceinline__ void put(uint32_t exist, float (&y)[8]) const {
    const uint32_t t = lane_of_warp() % 4;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      if (!T::kAffine && exist == 1) {
        put_one(r, y[sum_of(0, r, 0)] + y[sum_of(0, r, 1)]);
        continue;
      }
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          float sum = y[sum_of(j, r, i)];
          if (!T::kAffine && exist <= 4 && j == 0) sum += __shfl_xor_sync(~0u, sum, 2);
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
    for (uint32_t i = part() * 32 + lane_of_warp(); i < tile_.rows * T::kRows; i += 32 * p_.parts) {
      const uint32_t token = i / T::kRows, row = i % T::kRows;
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
          sums() + (row_group() * p_.parts * p_.columns + token * p_.limbs) * T::kSumsPitch + row;
      float total = 0.0f;
      for (uint32_t limb = 0; limb < p_.limbs; ++limb, from += T::kSumsPitch) {
        float sum = 0.0f;
#pragma unroll 4
        for (uint32_t i = 0; i < p_.parts; ++i) sum += from[i * p_.columns * T::kSumsPitch];
        total += sum;
      }
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
  Tile80& tile_;           // shared
  uint32_t staged_ = ~0u;  // the chunk from which x stands in shared memory
  uint32_t first_row_ = 0;
};

template <class F, bool one>
__device__ __forceinline__ void qmv80(const Qmv80Params& p, const ProductBuffers& b) {
  __shared__ Tile80 tile;
  Block80<Qmv80<F, one>>(p, b, tile).run();
}

}  // namespace moeblas::cuda::device

#if defined(__CUDACC__)
template <class F, bool one>
__global__ void __launch_bounds__(32 * moeblas::cuda::kQmv80MostWarps, 1)
    qmv_sm80(MB_PRODUCT_POINTERS, const __grid_constant__ moeblas::cuda::Qmv80Params p) {
  const moeblas::simt::ProductBuffers b = MB_PRODUCT_BUFFERS;
  moeblas::cuda::device::qmv80<F, one>(p, b);
}
#endif
