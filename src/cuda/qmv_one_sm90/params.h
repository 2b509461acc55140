// What the kernels of qmv_one_sm90 are given, and the sizes that host and device must agree on.
#pragma once

#include "cuda/qmv_sm90/params.h"
#include "simt/product.h"

namespace moeblas::cuda {

enum {
  kQmvOneConsumers = 16,                         // warps; one more brings the weights
  kQmvOneThreads = 32 * (kQmvOneConsumers + 4),  // registers move between fours of warps
  kQmvOneProducerRegisters = 32,
  kQmvOneConsumerRegisters = 112,
  kQmvOneRowGroups = 2,  // of a stage, one above the other,
  kQmvOneParts = 8,      // and warps of each, side by side along K
  kQmvOneMostStages = 8,
  kQmvOneUnit = 32,    // values of x that stand together
  kQmvOneBatch = 128,  // values of a row that a warp takes at a time
  kQmvOneSlab = 128,   // bytes of a row's codes that lie together in shared memory
  kQmvOneZeroBytes = 2048,
  kQmvOneMostPrefetch = 512,  // lines of memory, of a thread block
  kQmvOneMostPairs = 32,
};

// The instances: f(bits, group, rows of a warp's share of a stage, batches of each). Half a lane's
// codes are a group of 16 where their width is even.
#define MB_QMV_ONE_INSTANCES(f)                                                                    \
  f(2, 16, 32, 1) f(2, 32, 32, 2) f(2, 64, 32, 2) f(2, 128, 32, 2) f(3, 32, 32, 1) f(3, 64, 32, 1) \
      f(3, 128, 32, 1) f(4, 16, 16, 1) f(4, 32, 16, 1) f(4, 64, 16, 1) f(4, 128, 16, 1)            \
          f(5, 32, 16, 1) f(5, 64, 16, 1) f(5, 128, 16, 1) f(6, 16, 16, 1) f(6, 32, 16, 1)         \
              f(6, 64, 16, 1) f(6, 128, 16, 1) f(8, 16, 16, 1) f(8, 32, 16, 1) f(8, 64, 16, 1)     \
                  f(8, 128, 16, 1)
// Those of block-scaled floats: f(name, format, group, rows, batches), tall tiles and low ones.
#define MB_QMV_ONE_E2M1_INSTANCES(f)                                                   \
  f(mxfp4, Mxfp4, 32, 32, 1) f(mxfp4_low, Mxfp4, 32, 16, 2) f(nvfp4, Nvfp4, 16, 32, 1) \
      f(nvfp4_low, Nvfp4, 16, 16, 2)

// How an instance cuts w.
struct QmvOneShape {
  uint32_t bits, group, rows, batches;

  constexpr uint32_t tile_rows() const { return kQmvOneRowGroups * rows; }
  // Of a row in a stage.
  constexpr uint32_t values() const { return kQmvOneParts * batches * kQmvOneBatch; }
  constexpr uint32_t code_bytes() const { return values() / 8 * bits; }
  constexpr uint32_t slabs() const { return code_bytes() / kQmvOneSlab; }
  constexpr uint32_t scale_bytes(uint32_t size) const { return values() / group * size; }
};

struct QmvOneParams {
  simt::ProductParams product;
  uint32_t stages;
  uint32_t stage_bytes;
  uint32_t k_steps;               // stages of a tile
  uint32_t share;                 // tiles of each thread block,
  uint32_t remainder;             // and how many have one more
  uint32_t box_rows;              // of a tile
  uint32_t box_bytes;             // that a stage gets
  uint32_t scales_at, biases_at;  // in a stage
  uint32_t pairs;                 // whose matrices ids choose; 0: there is one matrix
  uint32_t tiles_each;            // of a matrix
  uint32_t units;                 // of x
  uint32_t x_runs;                // four neighbours of x can be read at once
  // Where all of a tile's codes are prefetched, whole lines of x, and of a row of scales; else 0.
  uint32_t x_lines, scale_lines;
  // Where parts of shared memory begin, after x and zeros.
  uint32_t factors_at, sums_at, ring_at;
  const unsigned char* ids;
  QmvPairs places;  // of pairs
  // From matrix to matrix: bytes of codes; elements.
  int64_t codes_step, scales_step, biases_step;
};

}  // namespace moeblas::cuda
