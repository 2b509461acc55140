// What the host and the kernels of qmm_sm90 agree on: parameters, and the shape of a block.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "cuda/qmm_sm90/wider.h"
#include "simt/pairs.h"
#include "simt/permute_params.h"

namespace moeblas::cuda {

// K is taken in blocks of so many; rows of x are staged padded to whole blocks.
inline constexpr uint32_t kBlockK = 128;
// Slots of the rings that are the same for all tiles.
inline constexpr uint32_t kScaleSlots = 2, kRecordSlots = 4;
// Rows that products write themselves: bytes of a row that go at once, rows that a warp claims, and
// rows that are counted together.
inline constexpr uint32_t kAheadPiece = 4096, kChunkRows = 32, kReadyRows = 256;

// How the rows of one call are divided among blocks. A block owns 64 rows of w per consumer
// warpgroup and a cluster of two blocks one tile of tokens; a run of rows is cut into tiles of
// kMostTokens, the last as narrow as kLeastTokens. A warpgroup holds kHalves of a block of K
// decoded and has kOutBuffers for kOutTokens of its results each. kGathers: experts' rows of x come
// by a list (qmm_sm90/gather.cuh); tiles of 256 took 11 % longer so than copies in memory do. (The
// registers of all widths in one kernel add up: no two fit beside four row groups.)
struct Tiles256 {
  static constexpr uint32_t kRowGroups = 2, kMostTokens = 256, kLeastTokens = 64, kExtra = 0;
  static constexpr uint32_t kXSlotBytes = 32768, kXSlots = 4, kCodeSlots = 4;
  static constexpr uint32_t kOutBuffers = 2, kOutTokens = 64, kHalves = 2;
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
  static constexpr bool kGathers = false;
};
// Room for wide scales.
struct Tiles256Any : Tiles256 {
  static constexpr uint32_t kXSlots = 3;
};
struct Tiles128 {
  static constexpr uint32_t kRowGroups = 3, kMostTokens = 128, kLeastTokens = 64, kExtra = 0;
  static constexpr uint32_t kXSlotBytes = 32768, kXSlots = 3, kCodeSlots = 4;
  static constexpr uint32_t kOutBuffers = 2, kOutTokens = 64, kHalves = 2;
  static constexpr int kConsumerRegisters = 152, kProducerRegisters = 40;
  static constexpr bool kGathers = true;
};
struct Tiles64 {
  static constexpr uint32_t kRowGroups = 4, kMostTokens = 64, kLeastTokens = 64, kExtra = 0;
  static constexpr uint32_t kXSlotBytes = 16384, kXSlots = 4, kCodeSlots = 4;
  static constexpr uint32_t kOutBuffers = 1, kOutTokens = 32, kHalves = 2;
  static constexpr int kConsumerRegisters = 104, kProducerRegisters = 56;
  static constexpr bool kGathers = true;
};
struct Tiles32 {
  static constexpr uint32_t kRowGroups = 4, kMostTokens = 32, kLeastTokens = 32, kExtra = 0;
  static constexpr uint32_t kXSlotBytes = 8192, kXSlots = 4, kCodeSlots = 4;
  static constexpr uint32_t kOutBuffers = 1, kOutTokens = 32, kHalves = 2;
  static constexpr int kConsumerRegisters = 104, kProducerRegisters = 56;
  static constexpr bool kGathers = true;
};

// A run's last tile may have up to kExtra tokens more than a power of two, in steps, so that an
// expert which meets some rows more than the average has no tile for them alone. (With 272 tokens
// beside 256 and 288, products would wait for each other.) For experts: K is never shared out.
// Sums of all widths lie in the same registers. Where all experts meet as many rows these are some
// percent slower than the others: the device chooses (Runs::wider).
struct Tiles288 {
  static constexpr uint32_t kRowGroups = 2, kMostTokens = 288, kLeastTokens = 64, kExtra = 32;
  static constexpr uint32_t kExtraStep = 32;
  static constexpr uint32_t kXSlotBytes = 36864, kXSlots = 4, kCodeSlots = 4;
  static constexpr uint32_t kOutBuffers = 2, kOutTokens = 32, kHalves = 2;
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
  static constexpr bool kGathers = false;
};
struct Tiles160 {
  static constexpr uint32_t kRowGroups = 3, kMostTokens = 160, kLeastTokens = 64, kExtra = 32;
  static constexpr uint32_t kExtraStep = 16;
  static constexpr uint32_t kXSlotBytes = 40960, kXSlots = 3, kCodeSlots = 3;
  static constexpr uint32_t kOutBuffers = 2, kOutTokens = 32, kHalves = 2;
  static constexpr int kConsumerRegisters = 152, kProducerRegisters = 40;
  static constexpr bool kGathers = true;
};
struct Tiles96 {
  static constexpr uint32_t kRowGroups = 4, kMostTokens = 96, kLeastTokens = 32, kExtra = 32;
  static constexpr uint32_t kExtraStep = 16;
  static constexpr uint32_t kXSlotBytes = 24576, kXSlots = 3, kCodeSlots = 3;
  static constexpr uint32_t kOutBuffers = 1, kOutTokens = 32, kHalves = 1;
  static constexpr int kConsumerRegisters = 104, kProducerRegisters = 56;
  static constexpr bool kGathers = true;
};
// In blocks of so many row groups, of which one may have nothing to do but its 24 registers.
template <uint32_t kTokens, uint32_t kRowGroups>
struct WiderTilesOf;
template <>
struct WiderTilesOf<288, 2> : Tiles288 {};
template <>
struct WiderTilesOf<160, 3> : Tiles160 {};
template <>
struct WiderTilesOf<160, 4> : Tiles160 {
  static constexpr uint32_t kHalves = 1;
  static constexpr int kConsumerRegisters = 136, kProducerRegisters = 48;
};
template <>
struct WiderTilesOf<96, 4> : Tiles96 {};

// Weights that need no decoding have pieces of twice the bytes. Beside 128 tokens three row groups
// of them ask the L2 cache for 43 bytes a clock, two would for 48.
template <class Tiles>
struct DenseTiles : Tiles {
  static constexpr uint32_t kCodeSlots = 3;
};
// Rows of 16 bits come from further apart than packed ones: more of them are on their way, and
// results leave 32 tokens at a time by one buffer.
template <>
struct DenseTiles<Tiles256> : Tiles256 {
  static constexpr uint32_t kCodeSlots = 5, kOutBuffers = 1, kOutTokens = 32;
};
template <>
struct DenseTiles<Tiles128> : Tiles128 {
  static constexpr uint32_t kOutBuffers = 1, kOutTokens = 32;
};
template <>
struct DenseTiles<Tiles288> : Tiles288 {
  static constexpr uint32_t kOutBuffers = 1;
};

// The wider tiles beside these, in one kernel.
template <class Tiles, uint32_t kTokens, class = void>
struct WiderThan {
  using Type = WiderTilesOf<kTokens, Tiles::kRowGroups>;
};
template <>
struct WiderThan<DenseTiles<Tiles256>, 288> {
  using Type = DenseTiles<Tiles288>;
};

// The same for products that write rows of x themselves (qmm_sm90/ahead.cuh): so many pieces of
// them are on their way at once, for which results leave 32 tokens at a time. Who writes wants 56
// registers, so that 224 are left to who multiplies.
template <class Tiles, int kConsumers>
struct AheadTiles : Tiles {
  static constexpr uint32_t kOutTokens = 32;
  static constexpr int kConsumerRegisters = kConsumers;
  static constexpr int kProducerRegisters = kConsumers == 224 ? 56 : 40;
};
// Beside rows of 16 bits, and beside slots of 288 rows, there is room for less.
template <int kConsumers>
struct AheadTiles<DenseTiles<Tiles256>, kConsumers> : DenseTiles<Tiles256> {
  static constexpr uint32_t kCodeSlots = 4;
  static constexpr int kConsumerRegisters = kConsumers, kProducerRegisters = 56;
};
template <int kConsumers>
struct AheadTiles<Tiles288, kConsumers> : Tiles288 {
  static constexpr uint32_t kOutBuffers = 1;
  static constexpr int kConsumerRegisters = kConsumers, kProducerRegisters = 56;
};
template <class Tiles>
inline constexpr uint32_t kAheadPieces = 0;
template <class Tiles>
inline constexpr uint32_t kAheadPieceBytes = kAheadPiece;
template <class Tiles, int kConsumers>
inline constexpr uint32_t kAheadPieces<AheadTiles<Tiles, kConsumers>> = 5;
template <int kConsumers>
inline constexpr uint32_t kAheadPieces<AheadTiles<Tiles288, kConsumers>> = 7;
template <int kConsumers>
inline constexpr uint32_t kAheadPieceBytes<AheadTiles<Tiles288, kConsumers>> = kAheadPiece / 2;
template <int kConsumers>
inline constexpr uint32_t kAheadPieces<AheadTiles<DenseTiles<Tiles256>, kConsumers>> = 7;
template <int kConsumers>
inline constexpr uint32_t kAheadPieceBytes<AheadTiles<DenseTiles<Tiles256>, kConsumers>> =
    kAheadPiece / 2;

// Formats have these, or their own.
template <class Tiles>
using SameTiles = Tiles;

// Codes of four bits leave room for a fourth row group beside 128 tokens: half a block is decoded
// at a time, and results leave 32 tokens at a time by one buffer.
template <class Tiles>
struct NibbleTiles : Tiles {};
template <>
struct NibbleTiles<Tiles128> : Tiles128 {
  static constexpr uint32_t kRowGroups = 4, kOutBuffers = 1, kOutTokens = 32, kHalves = 1;
  static constexpr int kConsumerRegisters = 112, kProducerRegisters = 32;
};

// Two widths in one kernel: few runs of some 32 rows need a second tile.
template <>
struct NibbleTiles<Tiles64> : Tiles64 {
  static constexpr uint32_t kLeastTokens = 32;
};
template <>
struct NibbleTiles<Tiles32> : Tiles32 {
  static constexpr uint32_t kLeastTokens = 16;
};

// Codes of 2, 3, 5 and 6 bits come by whole blocks of K.
template <uint32_t kBits>
struct FieldTiles {
  template <class Tiles>
  struct Of : Tiles {
    static constexpr uint32_t kFieldBits = kBits;
    static constexpr uint32_t kCodeSlots = kBits == 6 && Tiles::kRowGroups == 3 ? 2 : 3;
  };
};
template <class Tiles, uint32_t kTokens>
struct WiderThan<Tiles, kTokens, std::void_t<decltype(Tiles::kFieldBits)>> {
  using Type =
      typename FieldTiles<Tiles::kFieldBits>::template Of<WiderTilesOf<kTokens, Tiles::kRowGroups>>;
};

template <class Tiles>
struct BlockShape {
  static constexpr uint32_t kRows = 64 * Tiles::kRowGroups;  // of w
  static constexpr uint32_t kThreads = 128 * (Tiles::kRowGroups + 1);
};

// How weights come to shared memory: codes by pieces of a block of K, scales by chunks of blocks,
// of which a row has so many bytes of each of kOperands, scales and biases, or by whole rows.
template <uint32_t kBits, uint32_t kOperands, uint32_t kScaleBytes, uint32_t kBlocks>
struct WeightBytes {
  static constexpr uint32_t kPiece = 64;  // of a row
  static constexpr uint32_t kPieces = kBlockK * kBits / 8 / kPiece;
  static constexpr uint32_t kScaleOperands = kOperands, kScales = kScaleBytes;
  static constexpr uint32_t kChunkBlocks = kBlocks;
};
// 64 values of 16 bits.
struct DenseBytes {
  static constexpr uint32_t kPiece = 128, kPieces = 2, kChunkBlocks = 1;
  static constexpr uint32_t kScaleOperands = 0, kScales = 0;
};
template <uint32_t kBits>  // 16 bits each, groups of 32
using AffineBytes = WeightBytes<kBits, 2, 32, 4>;
template <uint32_t kBits>  // 32 bits each, groups of 16
using AnyAffineBytes = WeightBytes<kBits, 2, 64, 2>;
template <uint32_t kBits>  // as AffineBytes, a lane's 32 codes in a piece
struct FieldBytes : AffineBytes<8> {
  static constexpr uint32_t kPiece = kBlockK * kBits / 8, kPieces = 1;
};
using Mxfp4Bytes = WeightBytes<4, 1, 32, 8>;
using Mxfp8Bytes = WeightBytes<8, 1, 16, 4>;
using Nvfp4Bytes = WeightBytes<4, 1, 32, 4>;

// The ring of codes. Where up to 128 tokens meet codes of four bits, two blocks of K lie side by
// side in a slot: beside its bytes each piece of a row costs time, and products wait for copies (at
// 128 tokens by 3 to 4 %).
template <class Bytes, class Tiles>
struct CodeRing {
  static constexpr uint32_t kBaseTokens = Tiles::kMostTokens - Tiles::kExtra;
  static constexpr bool kSlabs = Bytes::kPieces == 1 && Bytes::kPiece == 64 && kBaseTokens <= 128;
  static constexpr uint32_t kBlocks = kSlabs ? 2 : 1;
  // Beside rows of 128 tokens there is room for two.
  static constexpr uint32_t kSlots = !kSlabs ? Tiles::kCodeSlots : kBaseTokens <= 64 ? 3 : 2;
  static constexpr uint32_t kRowBytes = Bytes::kPiece * kBlocks;
  // Else, where codes and rows of x both come a block at a time, to rings of as many slots, they
  // share a slot.
  static constexpr bool kOneRing = !kSlabs && Bytes::kPieces == 1 &&
                                   Tiles::kXSlots == Tiles::kCodeSlots &&
                                   Tiles::kXSlotBytes == Tiles::kMostTokens * kBlockK * 2;
  // Either way a chunk of scales has as many blocks as fill its bytes of a row.
  static constexpr bool kByBlocks = kSlabs || kOneRing;
  // Beside those of four bits there is room for whole rows of scales, or, where they come by
  // chunks and begin anywhere, for copies of 8 bytes, not 4.
  static constexpr bool kWholeScales = kByBlocks && Bytes::kPiece == 64;
  static constexpr uint32_t kScaleUnit = kWholeScales && Tiles::kExtra == 0 ? 8 : 4;
  // Pieces of scales cost as codes' do, in bytes that are fewer: beside rows of few tokens there is
  // room for twice as long ones.
  static constexpr bool kFew = kSlabs && Tiles::kMostTokens <= 32;
  static constexpr uint32_t kScaleChunks = kFew ? 2 : 1;
};

// What a block keeps in shared memory, by offset from a multiple of 1024.
template <class Bytes, class Tiles>
struct BlockMemory {
  static constexpr uint32_t kRows = BlockShape<Tiles>::kRows;
  static constexpr uint32_t kOutBytes = 64 * Tiles::kOutTokens * 2;
  using Codes = CodeRing<Bytes, Tiles>;
  static constexpr uint32_t kCodeSlotBytes = kRows * Codes::kRowBytes;
  // With what it takes to begin anywhere.
  static constexpr uint32_t kScaleSlotBytes =
      kRows * Bytes::kScaleOperands * (Codes::kScaleChunks * Bytes::kScales + Codes::kScaleUnit);
  // Barriers of scales are those of slots, or of the whole rows of each warpgroup.
  static constexpr uint32_t kScaleBarriers =
      Codes::kWholeScales && Tiles::kRowGroups > kScaleSlots ? Tiles::kRowGroups : kScaleSlots;

  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kOut = kX + Tiles::kXSlots * Tiles::kXSlotBytes;
  static constexpr uint32_t kCodes = kOut + Tiles::kRowGroups * Tiles::kOutBuffers * kOutBytes;
  static constexpr uint32_t kOutRows = kCodes + Codes::kSlots * kCodeSlotBytes;
  static constexpr uint32_t kRecords = kOutRows + kRecordSlots * Tiles::kMostTokens * 8;
  // Boxes go to multiples of 128.
  static constexpr uint32_t kScales = (kRecords + kRecordSlots * 32 + 127) / 128 * 128;
  static constexpr uint32_t kMost = 227 * 1024 - 1024;  // with what a multiple of 1024 takes
  // Behind all else, those of wider tiles in front of the others': who does not know yet which of
  // both it makes has the barriers of both.
  static constexpr uint32_t kBarrierBytes = 320;
  static constexpr uint32_t kBarriers = kMost - (Tiles::kExtra != 0 ? 2 : 1) * kBarrierBytes;
  static_assert(16 * (Tiles::kXSlots + Codes::kSlots + kScaleBarriers + kRecordSlots) +
                    (Tiles::kGathers ? 8 * Tiles::kXSlots : 0) + 8 * kAheadPieces<Tiles> <=
                kBarrierBytes);
  // Pieces of rows that are written ahead.
  static constexpr uint32_t kAhead =
      kMost - 2 * kBarrierBytes - kAheadPieces<Tiles> * kAheadPieceBytes<Tiles>;
  static constexpr uint32_t kScaleRoom = kAhead - kScales;
  static_assert(kScales <= kAhead, "a block has 227 KiB");
  static_assert(kScaleSlots * kScaleSlotBytes <= kScaleRoom, "a block has 227 KiB");
  static constexpr uint32_t kBytes = 1024 + kMost;
};

// Runs of result matrices (pairs of x and w) that share a matrix of w, as pairs.metal writes them:
// runs[0] their number, runs[1 + r] where run r begins, runs[1 + runs[0]] the number of pairs.
struct Runs {
  const simt::Pair* pairs;  // null: `matrices`, or one run, of matrix 0
  const uint32_t* order;    // null: each pair is a run
  const uint32_t* runs;
  const int32_t* matrices;  // of each run, -1: none; null: as the pairs say
  uint32_t pair_count;
  uint32_t rows_per_pair;
  // Where a kernel has two widths of tiles to choose from: whether it takes those of more tokens
  // (kExtra), as place_rows says. Null: there is no choice.
  const uint32_t* wider;
};

// Rows of x that the products write themselves, in the order in which tiles want them and ahead of
// those, from where x is staged once (qmm_sm90/ahead.cuh).
struct RowsAhead {
  const uint8_t* from;  // null: they are all there
  uint8_t* to;
  const uint32_t* sources;  // which row of `from` each is
  // Where a run's rows lie: those of its whole tiles, and those of its last one, if that has
  // another width, less those in front of it.
  const uint32_t* placed;
  uint64_t from_pitch;  // bytes from row to row of `from`; of `to`:
  uint32_t row_bytes;
  uint32_t first;     // those before are there: a multiple of kReadyRows
  uint32_t* claimed;  // chunks of kChunkRows; and of each kReadyRows, how many are there:
  uint32_t* ready;    // zeros at first
};

// A float32 for all matrices, or for each.
struct SumFactor {
  const float* data;  // null: `host`
  int64_t stride;
  float host;
};

// Scales or biases, in bytes.
struct ScaleRows {
  const uint8_t* data;
  int64_t row_stride, matrix_stride;
};

// What becomes of the sums: rows of out in x's type, or what an expert layer needs of its two
// products (qmm_sm90/layer.cuh): activations of gates and ups, staged for the second; float32 rows.
enum class Ending { rounded, activations, sums };

// One number for each row of a matrix, to be added. Strides in elements.
struct AddedRows {
  const uint8_t* data;  // null: nothing
  int64_t matrix_stride, step;
  int32_t type;  // a simt::ElementType
};

// A layer's first product: w is gates and ups, eight rows of one and eight of the other in turn.
// Rows come in the order in which the second product wants what they make of x, staged: runs of
// eight rows, four of which lie 1 << run_shift apart.
struct GluRows {
  CUtensorMap last_codes;  // codes of the rows from whole_rows on
  uint32_t rows;           // of gates, and of ups
  uint32_t whole_rows;     // what fills periods of four distances
  uint32_t run_shift;      // 5 or 4
  uint32_t first_is_up;    // the upper rows are, the lower ones are gates
  uint32_t pitch;          // of a row of activations, in elements
  int64_t second_scales;   // from the upper rows' scales to the lower ones', in bytes
  int64_t second_biases;
  SumFactor second_factor;  // the lower rows' tensor_scale
  simt::GluParams glu;
};

struct QmmSm90Params {
  static constexpr int kBoxes = 5;

  CUtensorMap codes;                    // words: K, N, matrices; dense: values, or N, K, matrices
  CUtensorMap scale_boxes, bias_boxes;  // bytes: a chunk of them, N, matrices
  CUtensorMap x[kBoxes];                // staged rows; boxes of 64 k and 8 << i rows
  Runs runs;
  const int64_t* out_rows;  // where each row of the runs goes, in elements of out
  // Which staged row each is; null: staged rows lie in the order of the runs, and come by boxes.
  const uint32_t* sources;
  ScaleRows scales, biases;
  SumFactor tensor_scale;
  uint8_t* out;
  // What make_again reads: w and the staged rows as they lie.
  const uint8_t* w;
  const uint16_t* staged;
  int64_t w_row_stride, w_matrix_stride;  // bytes
  uint32_t n, k;
  uint32_t blocks;      // of K
  uint32_t group;       // values
  uint32_t scale_type;  // a simt::ElementType
  uint32_t scale_bytes;
  uint32_t scale_row_bytes;  // that exist, of a row
  uint32_t scale_chunk;      // of a row and chunk
  uint32_t scale_pitch;      // the same in shared memory, where rows begin within a unit
  uint32_t scale_unit;       // of a copy: 16, 8, 4
  // There, from a row of w to the next, and to the one that is eight further: where rows come whole
  // those eight may be the other half's of a layer, whose rows lie between.
  uint32_t scale_next, scale_eighth;
  uint32_t whole_scales;     // not by chunks, but all of a row of w: so many rows by a copy; or 0
  uint32_t scales_in_boxes;  // chunks can come by scale_boxes and bias_boxes
  uint32_t chunk_shift;      // log2 of the blocks of a chunk, where products go by blocks
  uint32_t matrix_step;      // 0: all matrices lie in one place
  uint32_t wide_out;         // eight neighbours may be written as one
  // K shared out: so many products of share_blocks each make a tile (qmm_sm90/shares.cuh).
  uint32_t shares, share_blocks;
  float4* shared_sums;
  uint32_t* shares_done;  // zeros, by staging
  // Of an expert layer.
  AddedRows added[2];  // to the sums of the upper and the lower rows
  GluRows glu_rows;
};

// Of kernels that write rows ahead.
struct QmmSm90AheadParams : QmmSm90Params {
  RowsAhead ahead;
};
template <class Tiles>
using QmmParamsOf = std::conditional_t<kAheadPieces<Tiles> != 0, QmmSm90AheadParams, QmmSm90Params>;

// Rows of x as they are read, and as they are staged.
struct StagedRows {
  const uint8_t* x;
  uint8_t* staged;     // null: the products read x itself
  int64_t col_stride;  // of x, in elements
  uint32_t k, staged_k;
  uint32_t wide;  // eight neighbours of x may be read as one
};

// stage_rows: every row of the runs, in their order, in parts of so many blocks of K.
struct StageRowsParams {
  StagedRows rows;
  Runs runs;
  WiderTiles wider;  // to be chosen for the products
  int64_t* out_rows;
  uint8_t* out;
  int64_t row_stride, out_row_stride;
  uint32_t row_count, n;
  uint32_t row_parts, part_blocks;
  uint32_t* zeros;  // to be made so
  uint32_t zero_count;
};

// count_pairs, then place_rows: the same for a layer of experts, whose pairs are `top_k` to each
// matrix of x, without the launches of pairs.metal. A block of place_rows takes block_pairs of
// them, a warp of count_pairs counts as many.
inline constexpr uint32_t kStageThreads = 256, kPlaceMatrices = 1024, kPlaceMostPairs = 4096;
inline constexpr uint32_t kPlaceBlocks = 528, kListBlocks = 128;  // about so many
struct PlaceRowsParams {
  simt::PairParams pairs;
  StagedRows rows;
  const uint8_t* w_index;
  // Pairs of each matrix and of none: by block, before it among the blocks that one block counts;
  // and of all those.
  uint32_t* counts;
  uint32_t* totals;
  uint32_t* runs;     // as Runs
  int32_t* matrices;  // as Runs
  int64_t* out_rows;
  uint32_t* sources;  // null: the rows themselves are placed
  uint8_t* out;
  int64_t row_stride, out_row_stride;
  uint32_t rows_per_pair, top_k, n;
  uint32_t blocks, block_pairs;
  // From matrix to matrix of x and from pair to pair that meet it: to w's position or its index,
  // and in out.
  int64_t w_steps[2], out_steps[2];
  uint32_t counters;                // blocks of count_pairs that count; the others stage
  uint32_t row_parts, part_blocks;  // of a row of x
  WiderTiles wider;                 // to be chosen for the products, of rows_per_pair
  // place_front, with sources: the first so many rows in the order of the matrices are placed as
  // well, for products that write the others themselves, and what these count by is made zeros.
  // From where RowsAhead says, in chunks of 16 bytes.
  const uint8_t* front_from;
  uint8_t* front;
  uint64_t front_from_chunks;  // from row to row
  uint32_t front_chunks, front_rows;
  uint32_t* placed;  // as RowsAhead, by tiles as `wider` has them
  // out_rows are in the order of the matrices all the same: of a layer, whose second product has
  // its rows so.
  uint32_t out_rows_by_runs;
  uint32_t* zeros;
  uint32_t zero_count;
};

}  // namespace moeblas::cuda
