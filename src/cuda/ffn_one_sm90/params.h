// What the kernels of ffn_one_sm90 are given, and the sizes that host and device must agree on.
#pragma once

#include "cuda/qmv_sm90/params.h"

namespace moeblas::cuda {

enum {
  kOneConsumers = kQmvConsumers,  // warps
  kOneTeam = 4,                   // consumers that share a chunk
  kOneTeams = kOneConsumers / kOneTeam,
  kOneMostExperts = 32,      // of a token
  kOneChunkBytes = 8 << 10,  // of codes: two pieces for each of a team
  kOneMostChunks = 24,       // in shared memory
  kOneTileSums = 4,          // tiles whose sums may wait to become activations
  kOnePieceRows = 16,        // by kQmvItemBytes of each
  kOneBlockRows = 16,        // gates, and as many ups, that are a tile
  kOneTileSlabs = 2,         // of a tile in a chunk
  kOneMostRows = 64,         // of down, of a thread block
  kOneMaps = 4,       // gates (or both, where they take turns), ups, down, and of fewer rows of it
  kOneWarpUnits = 8,  // of activations that a warp has converted
  // What a lane has to know of down, for all lanes of the consumers.
  kOneSetUpBytes = 3 * 16 * 32 * kOneConsumers,
  // A word of activations: its value of 16 bits, and whether it has been written.
  kOneWritten = 1 << 16,
};

// Warps beside those that multiply: one makes activations of what they sum up, the others bring
// codes and scales, as each takes several times as long to ask for a chunk as memory to send it.
// Where a thread block has few chunks, more warps cost more than they bring. With their registers
// whole warpgroups' are what a block is given.
template <int producers>
struct OneWarps {
  static constexpr uint32_t kProducers = producers;
  static constexpr uint32_t kThreads = 32 * (kOneConsumers + (producers + 1 + 3) / 4 * 4);
  // Chunks that have a place, and that may be under way, whose bytes have yet to come.
  static constexpr uint32_t kPlaces = producers == 3 ? uint32_t{kOneMostChunks} : 12;
  static constexpr uint32_t kUnderWay = producers == 3 ? 10 : kPlaces;
  static constexpr int kConsumerRegisters = producers == 3 ? 104 : 88, kOtherRegisters = 64;
};
using OneFew = OneWarps<3>;
using OneMany = OneWarps<6>;

// Whether codes are multiplied as bytes, x being four limbs of 8 bits: 4 bits, but groups of 16, of
// which a unit of 32 values has two. A unit of x, and what its sums are multiplied by, in bytes.
constexpr bool one_has_limbs(int bits, int group) { return bits == 4 && group > 16; }
constexpr uint32_t one_unit_bytes(bool limbs) { return limbs ? 128 : 64; }
constexpr uint32_t one_factor_bytes(bool limbs) { return limbs ? 16 : 8; }

// One of the layer's products: what functions that know QmvParams ask for has its names.
struct FfnOneProduct {
  static constexpr uint32_t columns = 1, column_bytes = 0;  // one row of x

  uint32_t k, n;
  uint32_t slabs;        // of a row, the last one perhaps not full
  uint32_t chunks;       // of a tile, or of an expert's rows
  uint32_t lines;        // of 128 bytes, from slab to slab in a chunk
  uint32_t whole_slabs;  // one copy brings a box's slabs
  uint32_t group, group_shift;
  int32_t scale_type;
  // Of a row's scales: how many bytes a chunk has and copies, how many at a time, how far rows are
  // apart in a chunk, where its biases begin, and how many bytes there are in all.
  uint32_t span, copied, piece, pitch, biases, row_bytes;
  uint32_t one_piece;  // of 16 bytes is all that is copied
};

// Scales of gates, of ups, or of down. Strides in bytes.
struct FfnOneScales {
  const unsigned char* data;
  int64_t matrix_stride;
  int64_t row_stride;
  int64_t to_biases;  // which lie alike
};

struct FfnOneParams {
  // What is read first stands together: constants come by lines.
  const unsigned char* ids;
  int64_t id_step;
  const float* weights;
  int64_t weight_step;
  int32_t id_type;
  uint32_t top_k;
  QmvPairs experts;  // of it: matrices and the map

  uint32_t chunks;       // in shared memory,
  uint32_t scale_bytes;  // of each, beside its codes,

  // Gates and ups: tiles of kOneBlockRows rows of each, and two slabs of them in a chunk.
  FfnOneProduct first;
  uint32_t blocks;  // of an expert
  uint32_t turns;   // 1: gates and ups take turns, a block is 32 rows of one operand
  uint32_t units;   // of 32 values of x, padded to whole chunks

  // Down: so many rows are this thread block's, of every expert; so many slabs of them in a chunk.
  // The first thread blocks, which have a tile of gates more than the others, have kOnePieceRows.
  FfnOneProduct second;
  uint32_t rows, fewer;
  uint32_t down_slabs;
  uint32_t down_pieces;  // one above the other: 1, 2 or 4

  const unsigned char* x;
  int32_t x_type;
  unsigned char* out;
  uint32_t* words;  // [experts that there are][n of the first]

  QmvWeights w[3];         // gates, ups, down
  FfnOneScales scales[3];  // gates, ups (where they take turns, sixteen rows further on), down
  simt::GluParams glu;
};

}  // namespace moeblas::cuda
