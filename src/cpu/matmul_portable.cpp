// matmul_portable: any product, in plain C++; the reference for every other CPU row and the row
// that takes what they do not.
//
// An item of work is one matrix of w and a panel of kPanel of its outputs. The panel is decoded
// once to float32, [kPanel][K], and meets every row of x that chose the matrix; items are taken
// from one queue, without a barrier per matrix. Each sum is formed by one thread in an order that
// depends on K alone, so results do not depend on threads, on M or on other rows.
//
// The time goes into decoding where few rows share a matrix, into the dot products where many do.
#include "cpu/matmul_portable.h"

#include <algorithm>

#include "cpu/decode.h"
#include "cpu/pairs.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::MatmulProblem;

constexpr int64_t kPanel = 16;  // outputs of an item; a group of packed columns holds a whole panel
constexpr int64_t kLanes = 8;   // partial sums per output
constexpr int64_t kTile = 4;    // outputs whose sums are kept in registers together
static_assert(kPanel % kTile == 0, "tiles fill a panel");

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

// Decodes values [k_begin, k_end) of outputs [n, n + count) of matrix `w` to panel[j][k - k_begin],
// rows `pitch` apart.
using DecodePanel = void (*)(const MatmulProblem& p, int64_t w, int64_t n, int64_t count,
                             int64_t k_begin, int64_t k_end, float* panel, int64_t pitch);

void decode_dense(const MatmulProblem& p, int64_t w, int64_t n, int64_t count, int64_t k_begin,
                  int64_t k_end, float* panel, int64_t pitch) {
  const dispatch::Matrices& m = p.w.values;
  const int64_t n_stride = p.transpose ? m.row_stride : m.col_stride;
  const int64_t k_stride = p.transpose ? m.col_stride : m.row_stride;
  const int64_t base = m.offset(w);
  for (int64_t j = 0; j < count; ++j) {
    load_floats(m.data, m.dtype, base + (n + j) * n_stride + k_begin * k_stride, k_stride,
                k_end - k_begin, panel + j * pitch);
  }
}

// Row r of matrix w as stored.
PackedRow packed_row(const dispatch::Weights& weights, int64_t w, int64_t r) {
  const auto at = [](const dispatch::Matrices& m, int64_t matrix, int64_t row) {
    return static_cast<char*>(m.data) +
           (m.offset(matrix) + row * m.row_stride) * static_cast<int64_t>(size_of(m.dtype));
  };
  return {reinterpret_cast<const uint8_t*>(at(weights.values, w, r)), at(weights.scales, w, r),
          weights.biases.data != nullptr ? at(weights.biases, w, r) : nullptr, weights.scales.dtype,
          load_tensor_scale(weights.tensor_scale, w)};
}

template <class Format>
void decode_quantized(const MatmulProblem& p, int64_t w, int64_t n, int64_t count, int64_t, int64_t,
                      float* panel, int64_t pitch) {
  const int64_t group = p.w.spec->group_size;
  if (p.transpose) {
    for (int64_t j = 0; j < count; ++j) {
      decode_row<Format>(packed_row(p.w, w, n + j), group, 0, p.k, panel + j * pitch, 1);
    }
  } else {
    for (int64_t k = 0; k < p.k; ++k) {
      decode_row<Format>(packed_row(p.w, w, k), group, n, count, panel + k, pitch);
    }
  }
}

DecodePanel decoder_of(const MatmulProblem& p) {
  DecodePanel decode = decode_dense;
  if (p.w.spec) {
    formats::visit_format(p.w.spec->mode, p.w.spec->bits,
                          [&]<class Format>() { decode = decode_quantized<Format>; });
  }
  return decode;
}

// sums[j] = x . panel[j], in kLanes partial sums folded in a fixed order.
void dot_tile(const float* x, const float* panel, int64_t pitch, int64_t k, float sums[kTile]) {
  Vector lanes[kTile] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Vector xs;
    __builtin_memcpy(&xs, x + i, sizeof xs);
    for (int64_t j = 0; j < kTile; ++j) {
      Vector ws;
      __builtin_memcpy(&ws, panel + j * pitch + i, sizeof ws);
      lanes[j] += xs * ws;
    }
  }
  for (int64_t j = 0; j < kTile; ++j) {
    float tail[kLanes];
    __builtin_memcpy(tail, &lanes[j], sizeof tail);
    for (int64_t t = i; t < k; ++t) tail[t - i] += x[t] * panel[j * pitch + t];
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t l = 0; l < width; ++l) tail[l] += tail[l + width];
    }
    sums[j] = tail[0];
  }
}

// Per worker: a decoded panel and one row of x.
int64_t scratch_floats(const MatmulProblem& p) {
  const int64_t pitch = (p.k + 15) / 16 * 16;
  return (kPanel + 1) * pitch;
}

struct Layout {
  size_t begins;   // offset of the run table
  size_t scratch;  // offset of the workers' scratch
  size_t per_slot;

  explicit Layout(const MatmulProblem& p) {
    const auto pairs = static_cast<size_t>(pair_count(p));
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    begins = aligned(pairs * sizeof(Pair));
    scratch = begins + aligned((pairs + 1) * sizeof(int64_t));
    per_slot = static_cast<size_t>(scratch_floats(p)) * sizeof(float);
  }
};

}  // namespace

size_t matmul_portable_workspace(const MatmulProblem& p) {
  const Layout layout(p);
  return layout.scratch + static_cast<size_t>(threads::num_threads()) * layout.per_slot;
}

dispatch::Reason matmul_portable_reject(const MatmulProblem& p) {
  if (p.x_spec) return dispatch::Reason::of("x is to be quantized on the fly");
  return {};
}

void matmul_portable(const MatmulProblem& p, dispatch::Workspace workspace) {
  const Layout layout(p);
  char* base = static_cast<char*>(workspace.data);
  const std::span<Pair> pairs(reinterpret_cast<Pair*>(base), static_cast<size_t>(pair_count(p)));
  auto* begins = reinterpret_cast<int64_t*>(base + layout.begins);
  fill_pairs(p, pairs);
  const int64_t runs = find_runs(pairs, begins);
  const int64_t panels = (p.n + kPanel - 1) / kPanel;
  const DecodePanel decode = decoder_of(p);
  const int64_t pitch = (p.k + 15) / 16 * 16;
  const auto x_size = static_cast<int64_t>(size_of(p.x.dtype));
  const bool x_in_place = p.x.dtype == DType::f32 && p.x.col_stride == 1;
  // The thread count may have grown since the workspace was sized.
  const int slots = static_cast<int>(std::min<size_t>(
      static_cast<size_t>(threads::num_threads()),
      layout.per_slot == 0 ? 1 : (workspace.bytes - layout.scratch) / layout.per_slot));

  threads::for_each_item(runs * panels, slots, [&](int64_t item, int slot) {
    const int64_t run = item / panels;
    const int64_t n = item % panels * kPanel;
    const int64_t count = std::min(kPanel, p.n - n);
    float* panel = reinterpret_cast<float*>(base + layout.scratch +
                                            static_cast<size_t>(slot) * layout.per_slot);
    float* x_row = panel + kPanel * pitch;
    const Pair& first = pairs[static_cast<size_t>(begins[run])];
    const bool zero = first.w == kNoMatrix;
    const int64_t k = zero ? 0 : first.k_end - first.k_begin;
    if (k > 0) {
      decode(p, first.w, n, count, first.k_begin, first.k_end, panel, pitch);
      // Outputs that fill up the last tile are computed and dropped.
      for (int64_t j = count; j % kTile != 0; ++j) std::fill_n(panel + j * pitch, k, 0.0f);
    }
    for (int64_t i = begins[run]; i < begins[run + 1]; ++i) {
      const Pair& pair = pairs[static_cast<size_t>(i)];
      for (int64_t row = 0; row < p.m; ++row) {
        const int64_t out = pair.out + row * p.out.row_stride + n;
        const float* x = x_row;
        if (k > 0) {
          const int64_t at = pair.x + row * p.x.row_stride + pair.k_begin * p.x.col_stride;
          if (x_in_place) {
            x = reinterpret_cast<const float*>(static_cast<const char*>(p.x.data) + at * x_size);
          } else {
            load_floats(p.x.data, p.x.dtype, at, p.x.col_stride, k, x_row);
          }
        }
        for (int64_t j = 0; j < count; j += kTile) {
          float sums[kTile] = {};
          if (k > 0) dot_tile(x, panel + j * pitch, pitch, k, sums);
          for (int64_t t = 0; t < std::min(kTile, count - j); ++t) {
            store_float(p.out.data, p.out.dtype, out + j + t, sums[t]);
          }
        }
      }
    }
  });
}

}  // namespace moeblas::cpu
