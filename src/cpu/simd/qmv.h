// What the launcher of the qmv and mv rows (cpu/qmv.cpp) and their kernels tell each other: plain
// data, so that a kernel's translation unit needs nothing else.
#pragma once

#include <cstdint>

namespace moeblas::cpu {

// How a packed matrix holds its scales, a dense one its values.
enum class ScaleKind : uint8_t { f32, f16, bf16, e8m0, e4m3 };

// What all rows of a packed matrix share.
struct QmvFormat {
  int64_t k = 0;
  int group_size = 0;
  ScaleKind scale_kind = ScaleKind::f32;
  const float* code_values = nullptr;  // of the sixteen E2M1 codes
};

// Room for a prepared row: whole blocks of values, as any kernel has them, and the sums of its
// groups, a multiple of sixteen.
constexpr int64_t qmv_prepared_bytes(int64_t k) {
  return ((k + 127) / 128 * (128 + 8) + 16) * static_cast<int64_t>(sizeof(float));
}

// Where a row's codes, scales and biases lie.
struct QmvRow {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  const uint8_t* biases = nullptr;  // affine
};

// Consecutive rows of one matrix; strides in bytes.
struct QmvPanel {
  QmvRow first;
  QmvRow next;  // the first row that the same thread reads after this panel
  int64_t code_stride = 0;
  int64_t scale_stride = 0;
  int64_t bias_stride = 0;
  int64_t rows = 0;
  float tensor_scale = 1.0f;  // nvfp4
};

// sums[j * pitch + n] = panel row n times prepared row j of x. A sum that is not finite, or meets a
// NaN among the codes, may be any number that is not finite.
using QmvKernel = void (*)(const QmvFormat& format, const QmvPanel& panel, const void* const* x,
                           int64_t count, float* sums, int64_t pitch);

constexpr int kQmvMost = 16;  // rows of x that a kernel takes at a time

// Puts values [first, first + count) of a row, at x, to their places in a prepared row; first is a
// multiple of 128, count another or what is left. False: some cannot be prepared without loss.
using QmvPrepare = bool (*)(const QmvFormat& format, const float* x, int64_t first, int64_t count,
                            void* prepared);

// One way to multiply weights of some format.
struct QmvWay {
  QmvPrepare prepare = nullptr;
  QmvKernel multiply = nullptr;
};

// A way for each format, null where there is none.
struct Qmv {
  QmvWay affine[9] = {};  // by bits
  QmvWay mxfp4 = {};
  QmvWay nvfp4 = {};
  QmvWay mxfp8 = {};
  QmvWay dense[3] = {};  // by ScaleKind: rows of floats, K of any number
};

#if defined(__x86_64__)
namespace avx2 {
extern const Qmv qmv, mv;
}
namespace avx512 {
extern const Qmv qmv, mv;
}
namespace avx512_bf16 {
extern const Qmv qmv_dot;  // bfloat16 x
}  // namespace avx512_bf16
#elif defined(__aarch64__)
namespace neon {
extern const Qmv qmv, mv;
}
#endif

}  // namespace moeblas::cpu
