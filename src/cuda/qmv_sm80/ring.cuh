// A warp's stages of qmv_sm80 in shared memory, and how they are filled: 16 rows of codes and their
// scales, chunk by chunk through all of the block's work, by copies that the warp itself waits for.
#pragma once

#include <type_traits>

#include "cuda/device/copy_async.cuh"
#include "cuda/device/decode.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmv_sm80/params.h"
#include "simt/tiles.h"

namespace moeblas::cuda::device {

using simt::ProductBuffers;
using simt::ProductParams;

// What a kernel is an instance for: a format, one row of x or more. Of more rows, eight neighbours
// of a row of w are a lane's, whatever their width.
template <class F, bool one>
struct Qmv80 {
  using Format = F;
  struct Decode : Decoder<F> {
    enum { kPerWord = 8 };
  };
  static constexpr int kBits = F::kBits;
  static constexpr bool kAffine = simt::IsAffine<F>::value;
  static constexpr bool kNvfp4 = int(F::kMode) == MOEBLAS_NVFP4;
  static constexpr bool kOne = one, kHalvesInBytes = qmv80_in_bytes(kBits, 16);
  static constexpr uint32_t kRows = qmv80_rows(kBits, one);
  static constexpr uint32_t kSumsPitch = qmv80_sums_pitch(kBits, one);
  static constexpr uint32_t kChunk = qmv80_chunk(kBits, one), kUnits = kChunk / kQmv80Unit;
  static constexpr uint32_t kCodeBytes = qmv80_code_bytes(kBits, one);
  static constexpr uint32_t kPitch = qmv80_code_pitch(kBits, one);
};

// Bytes of a stage's parts.
template <class T>
__device__ __forceinline__ uint32_t scales_of_stage(uint32_t stage) {
  return stage + T::kRows * T::kPitch;
}

// A launch that began before its predecessor's end waits for that, and lets the next one begin.
__device__ __forceinline__ void wait_for_previous() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  wait_for_previous_launch();
  let_next_launch_begin();
#endif
}

// Shares of the work: items (a panel of rows of a matrix, times the rows of x of one tile) from
// `begin` to `end`, counted through the tiles.
struct Share80 {
  uint32_t begin, end;
};
__device__ __forceinline__ Share80 share_of(const Qmv80Params& p, const ProductBuffers& b) {
  const uint32_t tiles =
      p.product.source == simt::kGroupedPairs ? b.tiles[b.runs[0]] : p.product.tiles;
  const uint32_t items = tiles * p.panels, each = items / gridDim.x, more = items % gridDim.x;
  const uint32_t begin = blockIdx.x * each + min(blockIdx.x, more);
  return {begin, begin + each + (blockIdx.x < more ? 1 : 0)};
}
// Which tile an item is of.
__device__ __forceinline__ uint32_t tile_of(const Qmv80Params& p, uint32_t item) {
  return p.alone != 0 ? 0 : item / p.panels;
}
__device__ __forceinline__ simt::Tile tile_at(const Qmv80Params& p, const ProductBuffers& b,
                                              uint32_t index) {
  if (p.alone != 0) return {0, 0, static_cast<uint32_t>(p.product.m), 0, 0, p.product.k};
  return simt::tile_at(p.product, b, index);
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

// What is made of it is made again wherever it is needed, and not kept through all loops.
__device__ __forceinline__ uint32_t this_thread() { return forgotten(threadIdx.x); }

// Which scales of a stage a lane brings: of two kinds and sixteen rows, even lanes scales and odd
// ones biases; of 32 rows all lanes both.
template <class T>
struct ScaleLane {
  static constexpr bool kBoth = T::kRows == 32;
  static_assert(!kBoth || T::kAffine, "two kinds");

  static __device__ __forceinline__ uint32_t row() { return this_thread() % 32 / (kBoth ? 1 : 2); }
  static __device__ __forceinline__ bool second() { return !kBoth && this_thread() % 2 != 0; }
  static __device__ __forceinline__ bool brings() { return T::kAffine || !second(); }
  // From the first row's scales on.
  static __device__ __forceinline__ uint32_t to(const Qmv80Params& p) {
    return (row() + (second() ? T::kRows : 0)) * p.scale_pitch;
  }
};

// A chunk of which something does not exist, or that does not lie as large pieces ask for.
template <class T>
struct Part80 {
  const Qmv80Params& p;
  const uint8_t* codes;  // of the chunk's first row
  uint32_t chunk, last_row;

  // Out of line: it stands wherever a stage is filled.
  static __device__ __noinline__ void bring(const Qmv80Params& p, const uint8_t* codes,
                                            const uint8_t* scales, const uint8_t* biases,
                                            uint32_t stage, uint32_t chunk, uint32_t last_row,
                                            uint32_t skews) {
    const Part80 part = {p, codes, chunk, last_row};
    part.bring_codes(stage);
    if (!ScaleLane<T>::brings()) return;
    const uint32_t to = scales_of_stage<T>(stage) + ScaleLane<T>::to(p);
    part.bring_scales(to, scales, skews & 3);
    if (ScaleLane<T>::kBoth) part.bring_scales(to + T::kRows * p.scale_pitch, biases, skews >> 2);
  }

 private:
  // Bytes that a row still has from this chunk on.
  __device__ __forceinline__ uint32_t codes_left() const {
    const int64_t bytes = p.product.k / 8 * T::kBits - int64_t{chunk} * T::kCodeBytes;
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
  // kPiece: of a copy; 1: by bytes.
  template <uint32_t kPiece>
  __device__ __forceinline__ void bring_codes_by(uint32_t stage) const {
    constexpr uint32_t kBytes = kPiece == 1 ? 4 : kPiece, kPieces = T::kCodeBytes / kBytes;
    const uint32_t left = codes_left();
#pragma unroll 1
    for (uint32_t i = this_thread() % 32; i < T::kRows * kPieces; i += 32) {
      const uint32_t row = i / kPieces, at = i % kPieces * kBytes;
      const uint8_t* from = codes + min(row, last_row) * p.product.w.n_stride + at;
      const uint32_t to = stage + row * T::kPitch + at, have = part_of(left, at, kBytes);
      if constexpr (kPiece == 1) {
        store_shared_u32(to, read_bytes(from, have));
      } else {
        copy_first<kPiece>(to, from, have);
      }
    }
  }
  __device__ __forceinline__ void bring_codes(uint32_t stage) const {
    if (p.code_piece == 16) return bring_codes_by<16>(stage);
    if (p.code_piece == 4) return bring_codes_by<4>(stage);
    bring_codes_by<1>(stage);
  }

  template <uint32_t kPiece>
  __device__ __forceinline__ void bring_scales_by(uint32_t to, const uint8_t* scales,
                                                  uint32_t skew) const {
    // To the end of the row, where that comes first.
    const int64_t groups = p.product.k / p.product.w.group;
    const auto left = static_cast<uint32_t>(
        min(groups * scale_size(p.product) - int64_t{chunk} * p.scale_bytes + skew,
            int64_t{p.scale_pitch}));
#pragma unroll 1
    for (uint32_t at = 0; at < p.scale_pitch; at += kPiece) {
      copy_first<kPiece>(to + at, scales + at, part_of(left, at, kPiece));
    }
  }
  __device__ __forceinline__ void bring_scales(uint32_t to, const uint8_t* scales,
                                               uint32_t skew) const {
    if (p.scale_piece == 16) return bring_scales_by<16>(to, scales, skew);
    if (p.scale_piece == 8) return bring_scales_by<8>(to, scales, skew);
    bring_scales_by<4>(to, scales, skew);
  }
};

template <class T>
class Ring80 {
 public:
  __device__ __forceinline__ Ring80(const Qmv80Params& params, const ProductBuffers& buffers,
                                    const Share80& share)
      : p_(params),
        b_(buffers),
        filled_(begin()),
        used_(filled_),
        item_(share.begin),
        end_(share.end),
        chunk_(p_.chunks) {
    if (part() >= p_.chunks) item_ = end_;
    find();
    if (p_.alone != 0) prefetch();
    wait_for_previous();
    bring();
  }

  // All stages but one under way. The first is from the beginning; the others would stand in the
  // way of what is needed before any of them.
  __device__ __forceinline__ void fill_up() {
    if (full_) return;
    full_ = true;
    for (uint32_t i = 2; i < p_.stages; ++i) {
      find();
      bring();
    }
  }

  // f(stage) for the next `count` stages, each once it is there for the whole warp, while what
  // comes after them is on its way. The text of what is not brought easily stands outside of the
  // loop.
  template <class F>
  __device__ __forceinline__ void for_each_stage(uint32_t count, F&& f) {
    while (count > 0) {
      const uint32_t easy = min(count, easy_), turns = max(easy, 1u);
      if (easy == 0) {
        wait_for_oldest();
        __syncwarp();
        find();
        bring();
      } else {
        easy_ -= easy;
      }
      count -= turns;
#pragma unroll 1
      for (uint32_t i = 0; i < turns; ++i) {
        wait_for_oldest();
        __syncwarp();
        if (__builtin_expect(easy != 0, 1)) bring_easily();
        f(used_);
        used_ = after(used_);
      }
    }
  }

 private:
  __device__ __forceinline__ uint32_t part() const { return this_thread() / 32 & (p_.parts - 1); }
  // This warp's first stage.
  __device__ __forceinline__ uint32_t begin() const {
    return shared_address(dynamic_shared()) + p_.ring_at +
           this_thread() / 32 * (p_.stages * p_.stage_bytes);
  }
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

  // Rows, a chunk and scales that exist, in large pieces: what most chunks are, and all
  // that stands between two of them.
  __device__ __forceinline__ void bring_easily() {
    const uint32_t stage = filled_;
    bring_whole_codes(stage);
    if (ScaleLane<T>::brings()) {
      const uint32_t to = scales_of_stage<T>(stage) + scales_to_;
      bring_whole_scales(to, scales_);
      if (ScaleLane<T>::kBoth) bring_whole_scales(to + T::kRows * p_.scale_pitch, biases_);
    }
    advance();
  }
  __device__ __forceinline__ void bring_whole_scales(uint32_t to, const uint8_t* from) const {
    if (p_.scale_pitch == 8) return copy_async<8>(to, from, true);
    copy_async<16>(to, from, true);
#pragma unroll 1
    for (uint32_t at = 16; at < p_.scale_pitch; at += 16) copy_async<16>(to + at, from + at, true);
  }
  __device__ __forceinline__ void advance() {
    codes_ += p_.parts * T::kCodeBytes;
    scales_ += p_.parts * p_.scale_bytes;
    if (ScaleLane<T>::kBoth) biases_ += p_.parts * p_.scale_bytes;
    end_stage();
  }
  __device__ __forceinline__ void end_stage() {
    copies_end_group();
    filled_ = after(filled_);
  }
  __device__ __forceinline__ uint32_t after(uint32_t stage) const {
    stage += p_.stage_bytes;
    return stage == begin() + p_.stages * p_.stage_bytes ? begin() : stage;
  }

  // The next chunk's item, if there is one.
  __device__ __forceinline__ void find() {
    bool there = easy_ != 0 || chunk_ < p_.chunks;
    for (; !there && item_ < end_; ++item_) there = begin_item();
  }
  // One more chunk, or none where there is nothing left: a group of copies all the same.
  __device__ __forceinline__ void bring() {
    if (easy_ != 0) {
      --easy_;
      return bring_easily();
    }
    if (chunk_ >= p_.chunks) return end_stage();
    Part80<T>::bring(p_, codes_ - place_of_lane(), scales_, biases_, filled_, chunk_, last_row_,
                     skews_);
    chunk_ += p_.parts;
    advance();
  }

  // This warp's first scales of a row: the word that they begin in.
  __device__ __forceinline__ const uint8_t* word_of(const uint8_t* row, uint32_t shift) {
    const uint32_t skew =
        p_.scale_pitch > p_.scale_bytes ? reinterpret_cast<uintptr_t>(row) & 3 : 0;
    skews_ |= skew << shift;
    return row - skew + part() * p_.scale_bytes;
  }

  // The first chunk, on its way into the L2 cache, where it can do no harm however old it is: the
  // previous launch may have yet to write it.
  __device__ __forceinline__ void prefetch() const {
    constexpr uint32_t kLine = 128, kRowLines = (T::kCodeBytes + kLine - 1) / kLine;
    if (easy_ == 0) return;
    const uint8_t* codes = codes_ - place_of_lane();
    for (uint32_t i = this_thread() % 32; i < T::kRows * kRowLines; i += 32) {
      prefetch_line(codes + i / kRowLines * p_.product.w.n_stride + i % kRowLines * kLine);
    }
  }

  // Finds the rows of an item; whether they are of a matrix.
  __device__ __forceinline__ bool begin_item() {
    const uint32_t tile = tile_of(p_, item_);
    const int64_t w = tile_at(p_, b_, tile).w;
    if (w < 0) return false;
    const simt::MatrixPlace matrix = simt::matrix_at(p_.product.w, w);
    // Rows that do not exist give way to the last one.
    const auto n = static_cast<uint32_t>(p_.product.n);
    const uint32_t first =
        min(((item_ - tile * p_.panels) * p_.row_groups + (this_thread() / 32 >> p_.parts_shift)) *
                T::kRows,
            n - 1);
    last_row_ = min(n - 1 - first, T::kRows - 1);
    codes_ = b_.w + matrix.values + first * p_.product.w.n_stride + part() * T::kCodeBytes +
             place_of_lane();
    const uint32_t row = first + min(ScaleLane<T>::row(), last_row_);
    skews_ = 0;
    scales_ = word_of(scale_row(p_.product, b_, matrix, ScaleLane<T>::second(), row), 0);
    if (ScaleLane<T>::kBoth) biases_ = word_of(scale_row(p_.product, b_, matrix, true, row), 2);
    const uint32_t whole = static_cast<uint32_t>(p_.product.k / T::kChunk);
    const bool easy = p_.easy != 0 && last_row_ == T::kRows - 1 && whole > part();
    easy_ = easy ? (whole - part() + p_.parts - 1) >> p_.parts_shift : 0;
    chunk_ = part() + easy_ * p_.parts;
    return true;
  }

  // Rows and a chunk that exist, by neighbouring lanes: a whole number of lines of each row, or,
  // where rows are none, one row after the other.
  static constexpr uint32_t kPieces = T::kCodeBytes / 16;
  static constexpr bool kLines = kPieces % 8 == 0;
  static constexpr uint32_t kRowsAtOnce = 4;
  // Where a lane's codes are, from the first row on.
  __device__ __forceinline__ int64_t place_of_lane() const {
    const uint32_t lane = this_thread() % 32;
    return kLines ? lane / 8 * p_.product.w.n_stride + lane % 8 * 16 : 0;
  }
  __device__ __forceinline__ void bring_whole_codes(uint32_t stage) const {
    const uint32_t lane = this_thread() % 32;
    if constexpr (kLines) {
      const uint8_t* from = codes_;
      const int64_t step = kRowsAtOnce * p_.product.w.n_stride;
      stage += lane / 8 * T::kPitch + lane % 8 * 16;
#pragma unroll
      for (uint32_t i = 0; i < T::kRows / kRowsAtOnce; ++i, from += step) {
#pragma unroll
        for (uint32_t c = 0; c < kPieces; c += 8) {
          copy_async<16>(stage + i * kRowsAtOnce * T::kPitch + c * 16, from + c * 16, true);
        }
      }
    } else {
      static_assert(T::kRows * kPieces % 32 == 0, "all lanes bring as much");
#pragma unroll
      for (uint32_t i = 0; i < T::kRows * kPieces; i += 32) {
        const uint32_t row = (i + lane) / kPieces, at = (i + lane) % kPieces * 16;
        copy_async<16>(stage + row * T::kPitch + at, codes_ + row * p_.product.w.n_stride + at,
                       true);
      }
    }
  }

  const Qmv80Params& p_;
  const ProductBuffers& b_;
  uint32_t filled_, used_;  // the stages that are filled and used next
  uint32_t scales_to_ = ScaleLane<T>::to(p_);
  // The next item to begin; of the present one, the first chunk that is not easily brought.
  uint32_t item_, end_, chunk_;
  bool full_ = false;
  uint32_t easy_ = 0;  // chunks of the item that are to come and exist as a whole
  // Of the item: its rows after the first; where this lane's codes and scales of the chunk are.
  uint32_t last_row_ = 0, skews_ = 0;
  const uint8_t *codes_ = nullptr, *scales_ = nullptr, *biases_ = nullptr;
};

}  // namespace moeblas::cuda::device
