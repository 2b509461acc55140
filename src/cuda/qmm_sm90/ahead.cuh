// Rows of x that the products write themselves. Written top_k times in front of the products they
// cost their whole time; here they are written while others are multiplied, by the warp of each
// block that else waits for tiles: from x, or a copy of it, to where boxes read it, in chunks
// that warps claim as they come free. Tiles come by width, the widest first, and rows lie in that
// order: in the order of the runs wide tiles waited for all that lies between their rows, and for
// warps that held a chunk back, their own clusters' narrower tiles being ready already.
//
//   launch in front      rows 0 .. first           claimed: chunks, by an atomic counter
//   products' warps      | chunk | chunk | ...     ready:   of each kReadyRows, how many are there
//
// Nothing can hang: who has claimed a chunk runs, and waits for nobody until it is written; who
// waits for rows takes chunks meanwhile. Rows go through some KB of shared memory by bulk copies,
// each lane its own piece at a time, so that neither registers nor instructions of any number are
// taken from those who multiply.
#pragma once

#include "cuda/device/bulk_store.cuh"
#include "cuda/device/hand_over.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90/params.h"

namespace moeblas::cuda {

// A warp's. kPieces lanes have kBytes of shared memory each, from `slots` on, and a barrier each,
// from `barriers` on.
template <uint32_t kPieces, uint32_t kBytes>
class WriteAhead {
 public:
  static_assert(kPieces <= 32 && kChunkRows >= 2 * kPieces, "see `step`");

  __device__ WriteAhead(const RowsAhead& ahead, const Runs& all, uint32_t slots, uint32_t barriers)
      : a_(ahead),
        slot_(slots + threadIdx.x % 32 * kBytes),
        barrier_(barriers + threadIdx.x % 32 * 8),
        row_pieces_((ahead.row_bytes + kBytes - 1) / kBytes) {
    part_ = 65535 / row_pieces_ + 1;
    // Rows without a matrix, which are the last run's, are none of the products'.
    const uint32_t runs = all.runs[0];
    const uint32_t pairs = runs == 0 ? 0 : all.runs[all.matrices[runs - 1] < 0 ? runs : runs + 1];
    rows_ = pairs * all.rows_per_pair;
    ready_ = a_.first / kReadyRows;
    if (a_.first < rows_) {
      chunk_ = received(claim());
      source_ = source_of(chunk_);
    }
  }

  // Whether the rows before `end` are there, as far as was last seen.
  __device__ bool ready(uint32_t end) const { return end <= ready_ * kReadyRows; }
  // What was written of rows that are, is seen from here on.
  __device__ static void see() {
    device::fence_gpu();
    device::fence_async_proxy();
  }
  // Looks how many rows are there.
  __device__ uint32_t look() const {
    const uint32_t group = ready_ + lane();
    return group * kReadyRows < rows_ ? device::load_word(a_.ready + group) : 0;
  }
  __device__ void seen(uint32_t count) {
    const uint32_t first = (ready_ + lane()) * kReadyRows;
    const bool full = first < rows_ && count >= min(kReadyRows, rows_ - first);
    const auto left = static_cast<int>(~__ballot_sync(kAll, full));
    ready_ += left == 0 ? 32 : __ffs(left) - 1;
  }

  // The next pieces, one a lane; false where there are none. The chunk that follows is asked for
  // with a chunk's first pieces, and known before the last ones, which may reach into it.
  __device__ bool step(bool looks) {
    if (chunk_ == kNone) {
      tell();
      if (looks) seen(look());
      return false;
    }
    const uint32_t count = looks ? look() : 0;
    const uint32_t pieces = kChunkRows * row_pieces_;
    const bool first = piece_ < kPieces;
    uint32_t claimed = 0;
    if (first) claimed = claim();
    uint32_t piece = piece_ + lane();
    const bool second = piece >= pieces;
    if (second) piece -= pieces;
    const uint32_t within = piece * part_ >> 16, at = (piece - within * row_pieces_) * kBytes;
    const uint32_t sources[] = {__shfl_sync(kAll, source_, within),
                                __shfl_sync(kAll, next_source_, within)};
    const uint32_t chunk = second ? next_ : chunk_;
    const uint32_t row = a_.first + chunk * kChunkRows + within;
    const bool mine = lane() < kPieces && chunk != kNone && row < rows_;
    const uint32_t bytes = min(kBytes, a_.row_bytes - at);
    if (mine) {
      const uint64_t source = second ? sources[1] : sources[0];
      device::barrier_expect(barrier_, bytes);
      device::copy_run(slot_, a_.from + source * a_.from_pitch + at, bytes, barrier_);
    }
    // What the last pieces wrote is there by now.
    tell();
    if (mine) {
      device::barrier_wait(barrier_, parity_);
      parity_ ^= 1;
      device::store_run(a_.to + uint64_t{row} * a_.row_bytes + at, slot_, bytes);
      device::bulk_store_commit();
      device::bulk_store_wait_read<0>();
    }
    __syncwarp();
    if (first) {
      next_ = received(claimed);
      next_source_ = source_of(next_);
    }
    if (looks) seen(count);
    piece_ += kPieces;
    if (piece_ >= pieces) {
      piece_ -= pieces;
      written_ = chunk_;
      chunk_ = next_;
      source_ = next_source_;
    }
    return true;
  }

 private:
  static constexpr uint32_t kAll = 0xffffffffu, kNone = 0xffffffffu;

  __device__ static uint32_t lane() { return threadIdx.x % 32; }

  // The chunk that was written, to who waits for it.
  __device__ void tell() {
    if (written_ == kNone) return;
    device::bulk_store_wait();
    device::fence_async_proxy();
    __syncwarp();
    if (lane() == 0) {
      const uint32_t first = a_.first + written_ * kChunkRows;
      device::add_release(a_.ready + first / kReadyRows, min(kChunkRows, rows_ - first));
    }
    written_ = kNone;
  }

  __device__ uint32_t claim() const { return lane() == 0 ? atomicAdd(a_.claimed, 1u) : 0; }
  __device__ uint32_t received(uint32_t claimed) const {
    const uint32_t chunk = __shfl_sync(kAll, claimed, 0);
    return a_.first + uint64_t{chunk} * kChunkRows < rows_ ? chunk : kNone;
  }
  // Of row `lane` of the chunk.
  __device__ uint32_t source_of(uint32_t chunk) const {
    const uint32_t row = a_.first + chunk * kChunkRows + lane();
    return chunk == kNone || lane() >= kChunkRows || row >= rows_ ? 0 : __ldg(a_.sources + row);
  }

  const RowsAhead& a_;
  uint32_t slot_, barrier_, parity_ = 0;  // this lane's
  uint32_t row_pieces_, part_;            // of a row; 1 / row_pieces_ in 65536ths, rounded up
  uint32_t rows_, ready_;                 // that there are; kReadyRows of them that are there
  uint32_t chunk_ = kNone, next_ = kNone, written_ = kNone;
  uint32_t source_ = 0, next_source_ = 0;  // of row `lane` of the chunk, and of the next
  uint32_t piece_ = 0;                     // of the chunk, the first lane's
};

}  // namespace moeblas::cuda
