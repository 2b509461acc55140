// What a tier brings to the products of many rows (mm.cpp): pointers to functions, so that no
// inline function is shared with code that is compiled for another instruction set.
//
// A panel is kPanelSteps x cols words, outputs side by side in a vector's lanes: a step holds one
// value of K for every output (float32), two of them (a pair of bfloat16) or four codes (int8).
#pragma once

#include <cstdint>

namespace moeblas::cpu {

enum class Panel : uint8_t { f32, bf16, int8 };
inline constexpr int kPanelKinds = 3;
inline constexpr int kPanelSteps = 128;  // 32 KiB with 64 outputs: the L1 cache holds it
inline constexpr int kChunk = 16;        // the smallest group
inline constexpr int kMostCols = 64;     // outputs of a panel
inline constexpr int kTileRows = 6;      // rows of x that meet a panel together, at most

// Codes by what decodes them, and the dtypes of floats.
enum class Codes : uint8_t { u2, u3, u4, u5, u6, u8, e2m1, e4m3 };
inline constexpr int kCodeKinds = 8;
enum class Element : uint8_t { f32, f16, bf16 };
inline constexpr int kElements = 3;

// A block of weights on its way into a panel.
struct WeightBlock {
  // Along K: one for each output of the panel, from the block's first value on; outputs that do
  // not exist repeat the last. Along N: one for each of the block's values of K, from the panel's
  // first output on.
  const uint8_t* const* rows = nullptr;
  int64_t k = 0;      // values of K, at most a panel's
  int64_t count = 0;  // outputs that exist
  // Along K [group][cols], along N [k][cols / kChunk]; biases where codes are affine.
  const float* scales = nullptr;
  const float* biases = nullptr;
  int group_shift = 0;        // groups of 1 << group_shift
  float factor = 1.0f;        // of scales that are codes themselves
  uint32_t* words = nullptr;  // room for kPanelSteps x kChunk
  void* panel = nullptr;
};

// A group of values of x as int8: value i is scale * number i. `sum` is that of the numbers.
struct Int8Group {
  float scale;
  int32_t sum;
};

// sums[r][cols] (+)= x[r] . panel over k values.
struct PanelProduct {
  const uint8_t* const* x = nullptr;  // the panel's numbers
  int64_t x_at = 0;                   // bytes from there on
  int64_t rows = 0;                   // kTileRows at most
  int64_t k = 0;
  const void* panel = nullptr;
  float* sums = nullptr;
  bool first = false;  // from 0
  // The kTileRows rows to be met next are fetched meanwhile, and the sums; null: none.
  const uint8_t* const* next_x = nullptr;
  int64_t next_at = 0;
  // int8: scales and biases as in WeightBlock, and the rows' groups.
  Codes codes = Codes::u8;
  const float* scales = nullptr;
  const float* biases = nullptr;
  int group_shift = 0;
  const Int8Group* const* x_groups = nullptr;
};

// A tile of kMatrixRows rows of x against a panel of bfloat16 and 64 outputs, by instructions that
// multiply matrices. x: [steps][kMatrixRows][kMatrixStep], zeros where nothing is; so is the panel,
// behind K.
inline constexpr int kMatrixRows = 16;
inline constexpr int kMatrixStep = 32;  // values of K
struct MatrixProduct {
  const void* x = nullptr;
  int64_t steps = 0;
  const void* panel = nullptr;
  float* sums = nullptr;  // [kMatrixRows][64]
  bool first = false;     // from 0
};

// Panels are filled by the kernels of the tier below.
struct MatrixKernels {
  // Before and after a thread's products.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
  void (*multiply)(const MatrixProduct&) = nullptr;
  // k values of each of `rows` rows, which may be none, into a tile.
  void (*copy_rows)(const uint8_t* const* x, int64_t rows, int64_t k, void* tile) = nullptr;
};

struct MmKernels {
  int cols = 0;  // outputs of a panel, a multiple of kChunk
  using Fill = void (*)(const WeightBlock&);
  Fill packed_along_k[kPanelKinds][kCodeKinds] = {};
  Fill packed_along_n[kPanelKinds][kCodeKinds] = {};
  Fill dense_along_k[kPanelKinds][kElements] = {};
  Fill dense_along_n[kPanelKinds][kElements] = {};
  // Scales of block formats, a byte each, along K into a panel of float32.
  Fill e8m0_scales = nullptr;
  Fill e4m3_scales = nullptr;
  void (*multiply[kPanelKinds])(const PanelProduct&) = {};
  // `count` values of x, whole groups, as int8 in the order of an int8 panel of such codes.
  void (*quantize_x[kElements])(const void* x, int64_t count, int64_t group, Codes codes,
                                uint8_t* numbers, Int8Group* groups) = {};
  // Rows of count numbers; stored ones times `factor`, rounded once.
  void (*load[kElements])(const void* from, int64_t count, float* to) = {};
  void (*store[kElements])(const float* from, float factor, int64_t count, void* to) = {};
};

namespace avx2 {
extern const MmKernels mm_kernels;
}
namespace avx512 {
extern const MmKernels mm_kernels;
}
namespace avx512_bf16 {
extern const MmKernels mm_kernels;
}
namespace amx {
extern const MatrixKernels matrix_kernels;
}
namespace neon {
extern const MmKernels mm_kernels;
}

}  // namespace moeblas::cpu
