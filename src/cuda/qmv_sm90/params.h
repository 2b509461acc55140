// What the kernels of qmv_sm90 are given, and the sizes that host and device must agree on.
#pragma once

#include "formats/portable.h"
#include "simt/permute_params.h"
#include "simt/shared.h"

namespace moeblas::cuda {

enum {
  kQmvConsumers = 16,                      // warps; one more brings the weights
  kQmvThreads = 32 * (kQmvConsumers + 4),  // roles are of four warps: registers move between fours
  kQmvHelpers = 3,                         // warps beside the one that brings the weights
  kQmvNoIndex = -1,
  kQmvMostRows = 512,
  kQmvMostMatrices = 1024,
  kQmvMostStages = 8,
  kQmvMostSlots = 8,
  kQmvSumsColumns = 4,     // whose sums meet at once
  kQmvSumsPitch = 36,      // floats between columns of 32 rows, so that lanes meet no banks twice
  kQmvSlab = 128,          // bytes of a row's codes that lie together in shared memory
  kQmvItemRows = 32,       // a warp's share of a stage: so many rows
  kQmvItemBytes = 64,      // by so many bytes of each
  kQmvUnit = 32,           // values of a row that meet in one step
  kQmvMostColumns = 16,    // of x at a time
  kQmvMaps = 3,            // of an operand: codes, scales, biases
  kQmvMapOfX = kQmvMaps,   // where x comes with the stages there is no second operand
  kQmvLine = 256,          // bytes of sections of x, as their map has them
  kQmvMostPrefetch = 512,  // of a thread block, in slabs of a row
};

// A tensor of w in global memory, for the sums that are made term by term. Strides in bytes.
struct QmvTensor {
  const unsigned char* data;
  int64_t matrix_stride;
  int64_t row_stride;
};

// Stacked matrices that rows are multiplied by.
struct QmvWeights {
  QmvTensor codes;
  QmvTensor scales;
  QmvTensor biases;
  const float* tensor_scale;  // null: the number
  int64_t tensor_scale_step;
  float tensor_scale_number;
  // What is added to a matrix's outputs; null: nothing. Strides in elements.
  int32_t added_type;
  const unsigned char* added;
  int64_t added_matrix_stride;
  int64_t added_step;
};

// Pair (i, j) of [..][inner]: where its row of x, its output and its index of w lie.
struct QmvPairs {
  uint32_t inner;
  uint32_t inner_inverse;  // 2^20 / inner, rounded up: exact for what there is of pairs
  uint32_t matrices;
  int32_t index_type;  // of w's indices, kQmvNoIndex: the position itself
  int32_t w_step[2];   // to the index or the position
  int32_t x_step[2];   // elements of x
  int32_t out_step[2];
  // Indices of w lead through this map, which knows so many of them; null: they are the matrices.
  const unsigned char* map;
  int64_t map_step;
  int64_t known;
  int32_t map_type;
};

// An expert layer's last step: the weighted sum of each token's rows, by the thread blocks that see
// the last of them written.
struct QmvCombine {
  uint32_t* counters;  // one for each box of rows of w, 0 before; null: another launch sums up
  const float* rows;   // (pairs, N): what `out` is
  const float* weights;
  int64_t weights_stride[2];
  unsigned char* out;
  int64_t out_row_stride;
  int32_t out_type;
  uint32_t tokens;
  uint32_t top_k;
};

struct QmvParams {
  // What is read first stands together: constants come by lines, and a line takes as long to come
  // as a hundred instructions.
  uint32_t one_matrix;  // every row meets matrix 0
  uint32_t stages;      // in shared memory
  uint32_t stage_bytes;
  uint32_t k_steps;    // stages of a tile
  uint32_t share;      // one matrix: tiles of each thread block,
  uint32_t remainder;  // and how many have one more
  uint32_t rows;       // of all pairs
  uint32_t n;
  uint32_t ahead;    // of the first tile, stages that come before all else
  uint32_t x_bytes;  // of x that come with a stage; 0: all of x stands beside the stages
  // A tile: `tile_blocks` blocks of `box_rows` rows, a box of each operand for each, and all of K.
  uint32_t box_rows;
  uint32_t tile_blocks;
  uint32_t blocks;         // of a matrix,
  uint32_t tiles;          // which shares of the work are counted in,
  uint32_t section_tiles;  // and those of a section of K, of which x is in shared memory at a time
  uint32_t section_inverse;  // 2^32 / section_tiles, rounded up; 0: there is one section
  uint32_t block_bytes;      // that a stage gets for a block
  uint32_t tokens;           // rows of x that are columns at a time
  uint32_t x_first;          // the first pass's rows of x come by copies
  uint32_t byte_rows;        // passes of no more rows may have them as bytes
  uint32_t x_room;           // columns that there is room for beside the stages
  uint32_t column_costs;     // of a tile in a pass of up to one, two, four and eight columns, in
                             // sixteenths of the least, a byte each
  uint32_t pass_cost;        // the same of `tokens` rows
  uint32_t matrix_step;      // 0: one matrix stands for all
  uint32_t scale_slots;      // 0: scales come with every stage
  uint32_t paired;           // 1: outputs are activations of gates (w[0]) and ups (w[1])
  uint32_t combined;         // rows of x are the previous launch's, and are summed up in the end
  uint32_t one_x;            // all rows of x are the same one
  uint32_t row_groups;       // items one above the other: 1, 2, 4 or 8
  uint32_t parts;            // items side by side along K,
  uint32_t parts_shift;      // and log2 of it
  uint32_t slabs;            // of a stage
  uint32_t whole_slabs;      // one copy brings a box's slabs
  uint32_t slab_rows;        // between the slabs of a box
  uint32_t box_bytes;        // between the boxes of a stage
  uint32_t box_shift;        // log2 of a box's row groups, if a tile has several boxes; else 3
  uint32_t operand_shift;    // paired: log2 of the row groups from a gate's to its up's
  uint32_t scales_at;        // in a stage
  // Scales and, for affine, biases: `scale_pitch` bytes a row. They come with every stage, or,
  // where rows follow each other without a gap, a tile's at once into slots of their own.
  uint32_t scale_pitch;
  uint32_t scale_bytes;    // of a tile's rows, of each of the two
  uint32_t scale_step;     // bytes from stage to stage in a row,
  uint32_t scale_odd;      // and which of them a copy does not begin with
  uint32_t scale_runs;     // of a slot: one holds both of paired operands, or there are two
  uint32_t scale_operand;  // from the first operand's first row to the second's, in a slot
  uint32_t group_shift;    // log2 of the group, in units
  uint32_t scale_words;    // bytes that a row's scales of an item's groups can be loaded by: 4, 2
                           // (where they are of one byte), or 0: each for itself
  uint32_t last_group;     // in what a warp sees of a row: there is nothing behind it

  const unsigned char* x;
  int64_t x_col_stride;  // in elements
  int32_t x_row_stride;  // within a pair
  int32_t x_type;
  int32_t x_runs;        // neighbours that can be read at once: 8, 4 or 0
  uint32_t limbs;        // columns that hold a row of x,
  uint32_t column_step;  // and columns from row to row
  uint32_t column_bytes;
  uint32_t columns;     // between the factors of two units: all columns, made even
  uint32_t units;       // of 32 values in a column, padded to whole stages,
  uint32_t step_units;  // and in a stage
  // 1 or 0, as products of these cost less than choices: whether scales are counted from the tile's
  // first, and come with the stage; whether x is counted from its first, and comes with the stage.
  uint32_t scales_of_tile, scales_in_stage, x_whole, x_in_stage;
  uint32_t x_at;            // in a stage
  unsigned char* staged_x;  // [pass][stage] columns and factors of x, as they will stand in a stage
  uint32_t k;
  uint32_t filled_units;  // of 32 values, that a section's rows of w have

  uint32_t m;             // rows of each pair
  uint32_t m_inverse;     // as inner_inverse
  uint32_t grid_inverse;  // 2^32 / thread blocks, rounded down
  const unsigned char* w_index;
  QmvPairs pairs;

  unsigned char* out;
  int32_t out_row_stride;
  int32_t out_type;
  int64_t section_step;  // from a section's outputs to the next one's, in elements
  uint32_t added;        // bit i: something is added to the outputs of w[i]
  int32_t scale_type;
  uint32_t group;  // values

  // What few blocks read, and late.
  QmvWeights w[2];
  simt::GluParams glu;
  QmvCombine combine;
  uint32_t* cleared;  // counters for a later launch, and how many
  uint32_t cleared_count;
  // What each thread block fetches into the L2 cache before ids are known: rows of each operand, 0
  // if too few of them would be read, and bytes of a row.
  uint32_t likely_rows, likely_codes, likely_scales;
};

// What a tile costs in a pass over so many rows of x, more than none.
MB_FN uint32_t pass_cost(const QmvParams& p, uint32_t rows) {
  const uint32_t columns = (rows - 1) * p.column_step + p.limbs;
  const uint32_t at = columns <= 1 ? 0 : columns <= 2 ? 8 : columns <= 4 ? 16 : 24;
  const uint32_t cost = p.column_costs >> at & 255u;
  return columns <= 8 ? cost : 2 * cost - (p.column_costs & 255u);
}

}  // namespace moeblas::cuda
