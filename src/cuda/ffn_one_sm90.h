// What the kernels of ffn_one_sm90 are given, and the sizes that host and device must agree on.
#pragma once

#include "cuda/qmv_sm90.h"

namespace moeblas::cuda {

enum {
  kOneConsumers = kQmvConsumers,           // warps; one more brings the weights,
  kOneThreads = 32 * (kOneConsumers + 2),  // and one prepares the words of activations
  kOneMostExperts = 32,                    // of a token
  kOneMostStages = 6,
  kOneMostSlots = 8,          // of scales
  kOneStageBytes = 32 << 10,  // each warp's 32 rows of kQmvItemBytes
  kOneBlockRows = 16,         // gates, and as many ups, that meet in an item
  kOneMaps = 3,               // gates (or both, where they take turns), ups, down
  kOneWarpUnits = 8,          // of activations that a warp has converted
  // A word of activations: its value of 16 bits, and whether it has been written.
  kOneWritten = 1 << 16,
};

// One of the layer's products: how its rows lie in memory and in shared memory. What the functions
// of a warp's item ask for has the names that it has in QmvParams.
struct FfnOneProduct {
  static constexpr uint32_t columns = 2, column_bytes = 0;  // one row of x

  uint32_t k, n;
  uint32_t row_groups;  // items of a stage one above the other, 1, 2 or 4
  uint32_t parts;       // and side by side along K
  uint32_t slabs;       // of a stage
  uint32_t row_slabs;   // of a row, the last one perhaps not full
  uint32_t group, group_shift, last_group;
  int32_t scale_type;
  uint32_t scale_pitch;  // bytes of a row's scales
  uint32_t scale_kind;   // bytes from a slot's scales to its biases
};

struct FfnOneParams {
  uint32_t stages, slots, slot_bytes;
  uint32_t stages_under_way;  // at most, whose bytes have yet to come

  // Gates and ups: blocks of kOneBlockRows rows of each.
  FfnOneProduct first;
  uint32_t steps;        // stages of a tile
  uint32_t blocks;       // of an expert
  uint32_t turns;        // 1: gates and ups take turns, a block is 32 rows of one operand
  uint32_t half_bytes;   // in a stage, from a block's gates to its ups
  uint32_t box_bytes;    // of gates or ups, or, where they take turns, of both
  uint32_t whole_slabs;  // one copy brings a box's slabs
  uint32_t units;        // of 32 values of x, padded to whole stages

  // Down: so many rows are this thread block's, of every expert.
  FfnOneProduct second;
  uint32_t rows;

  const unsigned char* x;
  int32_t x_type;
  uint32_t top_k;
  const unsigned char* ids;
  int32_t id_type;
  int64_t id_step;
  QmvPairs experts;  // of it: matrices and the map
  const float* weights;
  int64_t weight_step;
  unsigned char* out;
  uint32_t* words;  // [experts that there are][n of the first]

  QmvWeights w[3];  // gates, ups, down
  simt::GluParams glu;
};

}  // namespace moeblas::cuda
