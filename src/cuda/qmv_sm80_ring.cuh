// A warp's stages of qmv_sm80 in shared memory, and how they are filled: 16 rows of codes and their
// scales, chunk by chunk through all of the block's work, by copies that the warp itself waits for.
#pragma once

#include <type_traits>

#include "cuda/device/copy_async.cuh"
#include "cuda/device/decode.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmv_sm80_params.h"
#include "simt/tiles.h"

namespace moeblas::cuda::device {

using simt::ProductBuffers;
using simt::ProductParams;

// What a kernel is an instance for. Eight neighbours of a row are a lane's, whatever their width.
template <class F>
struct Qmv80 {
  using Format = F;
  struct Decode : Decoder<F> {
    enum { kPerWord = 8 };
  };
  static constexpr int kBits = F::kBits;
  static constexpr bool kAffine = simt::IsAffine<F>::value;
  static constexpr bool kNvfp4 = int(F::kMode) == MOEBLAS_NVFP4;
  static constexpr bool kHalvesInBytes = qmv80_in_bytes(kBits, 16);
  static constexpr uint32_t kChunk = qmv80_chunk(kBits), kUnits = kChunk / kQmv80Unit;
  static constexpr uint32_t kCodeBytes = qmv80_code_bytes(kBits);
  static constexpr uint32_t kPitch = qmv80_code_pitch(kBits);
};

// Bytes of a stage's parts.
__device__ __forceinline__ uint32_t scales_of_stage(uint32_t stage, uint32_t pitch) {
  return stage + kQmv80Rows * pitch;
}

// Shares of the work: items (a panel of rows of a matrix, times the rows of x of one tile) from
// `begin` to `end`, counted through the tiles.
struct Share80 {
  uint32_t begin, end;
};
__device__ __forceinline__ Share80 share_of(const Qmv80Params& p, const ProductBuffers& b) {
  const uint32_t tiles =
      p.product.source == simt::kGroupedPairs ? b.tiles[b.runs[0]] : p.product.tiles;
  const uint64_t items = uint64_t{tiles} * p.panels;
  return {static_cast<uint32_t>(items * blockIdx.x / gridDim.x),
          static_cast<uint32_t>(items * (blockIdx.x + 1) / gridDim.x)};
}

__device__ __forceinline__ uint32_t scale_size(const ProductParams& p) {
  return p.w.scale.type == simt::kF32 ? 4 : p.w.scale.type == simt::kU8 ? 1 : 2;
}

// Where a row of scales or biases of the matrix begins.
__device__ __forceinline__ const uint8_t* scale_row(const ProductParams& p, const ProductBuffers& b,
                                                    const simt::MatrixPlace& matrix, bool biases,
                                                    int64_t row) {
  const int64_t at = biases ? matrix.biases + row * p.w.bias_row_stride
                            : matrix.scales + row * p.w.scale.row_stride;
  return (biases ? b.w_biases : b.w_scales) + at * scale_size(p);
}

template <class T>
class Ring80 {
 public:
  __device__ __forceinline__ Ring80(const Qmv80Params& params, const ProductBuffers& buffers,
                                    const Share80& share, uint32_t at, uint32_t row_group,
                                    uint32_t part)
      : p_(params),
        b_(buffers),
        lane_(threadIdx.x % 32),
        row_group_(row_group),
        part_(part),
        at_(at),
        item_(share.begin),
        end_(share.end),
        chunk_(part) {
    if (part_ >= p_.chunks) item_ = end_;
    bring();
  }

  // All stages but one under way. The first is from the beginning; the others would stand in the
  // way of what is needed before any of them.
  __device__ __forceinline__ void fill_up() {
    if (full_) return;
    full_ = true;
    for (uint32_t i = 2; i < p_.stages; ++i) bring();
  }

  // The next stage, once it is there for the whole warp. It stays until the next call.
  __device__ __forceinline__ uint32_t next() {
    wait_for_oldest();
    __syncwarp();
    if (__builtin_expect(easy_ != 0, 1)) {
      bring_easily();
    } else {
      bring();
    }
    const uint32_t stage = at_ + taken_ * p_.stage_bytes;
    if (++taken_ == p_.stages) taken_ = 0;
    return stage;
  }

 private:
  __device__ __forceinline__ void wait_for_oldest() const {
    static_assert(kQmv80MostStages == 4, "a wait for each number of stages");
    if (p_.stages == 2) {
      copies_wait<0>();
    } else if (p_.stages == 3) {
      copies_wait<1>();
    } else {
      copies_wait<2>();
    }
  }

  // Sixteen rows, a chunk and scales that exist, in large pieces: what most chunks are, and all
  // that stands between two of them.
  __device__ __forceinline__ void bring_easily() {
    const uint32_t stage = at_ + slot_ * p_.stage_bytes;
    bring_whole_codes(stage);
    if (T::kAffine || lane_ % 2 == 0) {
      const uint32_t to =
          scales_of_stage(stage, T::kPitch) + (lane_ / 2 + lane_ % 2 * kQmv80Rows) * p_.scale_pitch;
      if (p_.scale_pitch == 8) {
        copy_async<8>(to, scales_, true);
      } else {
        copy_async<16>(to, scales_, true);
#pragma unroll 1
        for (uint32_t at = 16; at < p_.scale_pitch; at += 16) {
          copy_async<16>(to + at, scales_ + at, true);
        }
      }
    }
    --easy_;
    advance();
  }
  __device__ __forceinline__ void advance() {
    codes_ += p_.parts * T::kCodeBytes;
    scales_ += p_.parts * p_.scale_bytes;
    chunk_ += p_.parts;
    if (chunk_ >= p_.chunks) {
      chunk_ = part_;
      ++item_;
    }
    copies_end_group();
    if (++slot_ == p_.stages) slot_ = 0;
  }

  // One more chunk, or none where there is nothing left: a group of copies all the same.
  __device__ __forceinline__ void bring() {
    while (item_ < end_ && chunk_ == part_ && !begin_item()) ++item_;
    if (item_ >= end_) {
      copies_end_group();
      if (++slot_ == p_.stages) slot_ = 0;
      return;
    }
    if (easy_ != 0) return bring_easily();
    const uint32_t stage = at_ + slot_ * p_.stage_bytes;
    bring_codes(stage);
    bring_scales(scales_of_stage(stage, T::kPitch));
    advance();
  }

  // Finds the rows of an item; whether they are of a matrix.
  __device__ __forceinline__ bool begin_item() {
    const uint32_t tile = item_ / p_.panels;
    const int64_t w = simt::tile_at(p_.product, b_, tile).w;
    if (w < 0) return false;
    const simt::MatrixPlace matrix = simt::matrix_at(p_.product.w, w);
    // Rows that do not exist give way to the last one.
    const auto n = static_cast<uint32_t>(p_.product.n);
    const uint32_t first =
        min(((item_ - tile * p_.panels) * p_.row_groups + row_group_) * kQmv80Rows, n - 1);
    last_row_ = min(n - 1 - first, uint32_t{kQmv80Rows - 1});
    codes_ = b_.w + matrix.values + first * p_.product.w.n_stride + chunk_ * T::kCodeBytes;
    const uint8_t* row = scale_row(p_.product, b_, matrix, T::kAffine && lane_ % 2 != 0,
                                   first + min(lane_ / 2, last_row_));
    skew_ = p_.scale_pitch > p_.scale_bytes ? reinterpret_cast<uintptr_t>(row) & 3 : 0;
    scales_ = row - skew_ + chunk_ * p_.scale_bytes;
    const uint32_t whole = static_cast<uint32_t>(p_.product.k / T::kChunk);
    const bool easy = p_.easy != 0 && last_row_ == kQmv80Rows - 1 && whole > part_;
    easy_ = easy ? (whole - part_ + p_.parts - 1) / p_.parts : 0;
    return true;
  }
  __device__ __forceinline__ const uint8_t* codes_of(uint32_t i) const {
    return codes_ + min(i, last_row_) * p_.product.w.n_stride;
  }
  // Bytes that a row still has from this chunk on.
  __device__ __forceinline__ uint32_t codes_left() const {
    const int64_t bytes = p_.product.k / 8 * T::kBits - int64_t{chunk_} * T::kCodeBytes;
    return static_cast<uint32_t>(min(bytes, int64_t{T::kCodeBytes}));
  }
  static __device__ __forceinline__ uint32_t part_of(uint32_t left, uint32_t at, uint32_t piece) {
    return left > at ? min(left - at, piece) : 0;
  }
  // The first `have` of kBytes, then zeros. What is copied is read as a whole, so that the last of
  // a row come word by word, and the last of these byte by byte.
  template <uint32_t kBytes>
  static __device__ __forceinline__ void copy_first(uint32_t to, const uint8_t* from,
                                                    uint32_t have) {
    if (have == kBytes || have == 0) return copy_async<kBytes>(to, from, have != 0);
    for (uint32_t at = 0; at < kBytes; at += 4) {
      const uint32_t bytes = part_of(have, at, 4);
      if (bytes == 4 || bytes == 0) {
        copy_async<4>(to + at, from + at, bytes != 0);
      } else {
        store_shared_u32(to + at, read_bytes(from + at, bytes));
      }
    }
  }
  static __device__ __forceinline__ uint32_t read_bytes(const uint8_t* from, uint32_t bytes) {
    uint32_t word = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < bytes; ++i) word |= uint32_t{from[i]} << 8 * i;
    return word;
  }

  // Sixteen rows and a chunk that exist. Neighbouring lanes bring neighbouring pieces, as many as
  // divide a row.
  static constexpr uint32_t kPieces = T::kCodeBytes / 16;
  static constexpr uint32_t kWide = kPieces % 8 == 0 ? 8 : kPieces % 4 == 0 ? 4 : 2;
  static constexpr uint32_t kRowsAtOnce = 32 / kWide;
  __device__ __forceinline__ void bring_whole_codes(uint32_t stage) const {
    const uint32_t row = lane_ / kWide, at = lane_ % kWide * 16;
    const uint8_t* from = codes_ + row * p_.product.w.n_stride + at;
    const int64_t step = kRowsAtOnce * p_.product.w.n_stride;
    stage += row * T::kPitch + at;
#pragma unroll
    for (uint32_t i = 0; i < kQmv80Rows / kRowsAtOnce; ++i, from += step) {
#pragma unroll
      for (uint32_t c = 0; c < kPieces; c += kWide) {
        copy_async<16>(stage + i * kRowsAtOnce * T::kPitch + c * 16, from + c * 16, true);
      }
    }
  }
  __device__ __forceinline__ void bring_codes(uint32_t stage) const {
    const uint32_t lane = forgotten(lane_);
    const uint32_t left = codes_left();
    if (p_.code_piece == 16) {
      for (uint32_t i = 0; i < kQmv80Rows / kRowsAtOnce; ++i) {
        const uint32_t row = i * kRowsAtOnce + lane / kWide;
        const uint8_t* from = codes_of(row);
        for (uint32_t c = 0; c < kPieces; c += kWide) {
          const uint32_t at = (c + lane % kWide) * 16;
          copy_first<16>(stage + row * T::kPitch + at, from + at, part_of(left, at, 16));
        }
      }
    } else if (p_.code_piece >= 4) {
      for (uint32_t i = lane; i < kQmv80Rows * T::kCodeBytes / 4; i += 32) {
        const uint32_t row = i / (T::kCodeBytes / 4), at = i % (T::kCodeBytes / 4) * 4;
        copy_first<4>(stage + row * T::kPitch + at, codes_of(row) + at, part_of(left, at, 4));
      }
    } else {
      for (uint32_t i = lane; i < kQmv80Rows * T::kCodeBytes / 4; i += 32) {
        const uint32_t row = i / (T::kCodeBytes / 4), at = i % (T::kCodeBytes / 4) * 4;
        store_shared_u32(stage + row * T::kPitch + at,
                         read_bytes(codes_of(row) + at, part_of(left, at, 4)));
      }
    }
  }

  // Even lanes bring scales, odd ones biases, a row each.
  __device__ __forceinline__ void bring_scales(uint32_t to) const {
    const uint32_t lane = forgotten(lane_);
    if (!T::kAffine && lane % 2 != 0) return;
    // To the end of the row, where that comes first.
    const int64_t groups = p_.product.k / p_.product.w.group;
    const auto left = static_cast<uint32_t>(
        min(groups * scale_size(p_.product) - int64_t{chunk_} * p_.scale_bytes + skew_,
            int64_t{p_.scale_pitch}));
    to += (lane / 2 + lane % 2 * kQmv80Rows) * p_.scale_pitch;
    const auto bring_all = [&](auto piece) {
      constexpr uint32_t kBytes = decltype(piece)::value;
      for (uint32_t at = 0; at < p_.scale_pitch; at += kBytes) {
        copy_first<kBytes>(to + at, scales_ + at, part_of(left, at, kBytes));
      }
    };
    if (p_.scale_piece == 16) {
      bring_all(std::integral_constant<uint32_t, 16>{});
    } else if (p_.scale_piece == 8) {
      bring_all(std::integral_constant<uint32_t, 8>{});
    } else {
      bring_all(std::integral_constant<uint32_t, 4>{});
    }
  }

  const Qmv80Params& p_;
  const ProductBuffers& b_;
  uint32_t lane_, row_group_, part_, at_;
  // What is brought next, and to which slot; which one is used next.
  uint32_t item_, end_, chunk_;
  uint32_t slot_ = 0, taken_ = 0;
  bool full_ = false;
  uint32_t easy_ = 0;  // chunks of the item from the present one on that exist as a whole
  // Of the item: its rows after the first; where that one's codes and this lane's scales of the
  // chunk are.
  uint32_t last_row_ = 0, skew_ = 0;
  const uint8_t *codes_ = nullptr, *scales_ = nullptr;
};

}  // namespace moeblas::cuda::device
