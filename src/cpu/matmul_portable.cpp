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
#include "cpu/encode.h"
#include "cpu/pairs.h"
#include "cpu/quantized_x.h"
#include "cpu/store.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::Form;
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

template <class Format>
void decode_packed(const MatmulProblem& p, int64_t w, int64_t n, int64_t count, int64_t, int64_t,
                   float* panel, int64_t pitch) {
  const int64_t group = p.w.spec->group_size;
  if (p.transpose) {
    for (int64_t j = 0; j < count; ++j) {
      decode_row<Format>(packed_row(p.w, w, n + j, w), group, 0, p.k, panel + j * pitch, 1);
    }
  } else {
    for (int64_t k = 0; k < p.k; ++k) {
      decode_row<Format>(packed_row(p.w, w, k, w), group, n, count, panel + k, pitch);
    }
  }
}

// Floats that count as if quantized: groups along K, so w is (n, k).
template <class Format>
void decode_on_the_fly(const MatmulProblem& p, int64_t w, int64_t n, int64_t count, int64_t k_begin,
                       int64_t k_end, float* panel, int64_t pitch) {
  decode_dense(p, w, n, count, k_begin, k_end, panel, pitch);
  const float tensor_scale = load_tensor_scale(p.w.tensor_scale, w);
  for (int64_t j = 0; j < count; ++j)
    round_trip<Format>(panel + j * pitch, p.k, tensor_scale, tensor_scale);
}

DecodePanel decoder_of(const MatmulProblem& p) {
  DecodePanel decode = decode_dense;
  if (p.w.form == Form::dense) return decode;
  formats::visit_format(p.w.spec->mode, p.w.spec->bits, [&]<class Format>() {
    decode = decode_packed<Format>;
    if constexpr (!formats::kIsAffine<Format>) {
      if (p.w.form == Form::on_the_fly) decode = decode_on_the_fly<Format>;
    }
  });
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

// The workspace: pairs, runs, x as float32 where it is quantized, and per worker a decoded panel
// and a row of x.
struct Layout {
  int64_t pitch;  // floats from one row of K values to the next
  size_t begins;  // offsets in bytes
  size_t x;
  size_t scratch;
  size_t per_slot;

  explicit Layout(const MatmulProblem& p) {
    const auto pairs = static_cast<size_t>(pair_count(p));
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    pitch = (p.k + 15) / 16 * 16;
    const size_t row = static_cast<size_t>(pitch) * sizeof(float);
    begins = aligned(pairs * sizeof(Pair));
    x = begins + aligned((pairs + 1) * sizeof(int64_t));
    scratch = x + (p.x.form == Form::dense ? 0 : static_cast<size_t>(p.total_rows()) * row);
    per_slot = (kPanel + 1) * row;
  }
};

// One call: what its items share.
class Product {
 public:
  Product(const MatmulProblem& p, dispatch::Workspace workspace)
      : p_(p), layout_(p), base_(static_cast<char*>(workspace.data)), decode_(decoder_of(p)) {
    // The thread count may have grown since the workspace was sized.
    const size_t room =
        layout_.per_slot == 0 ? 1 : (workspace.bytes - layout_.scratch) / layout_.per_slot;
    slots_ = static_cast<int>(std::min<size_t>(static_cast<size_t>(threads::num_threads()), room));
    pairs_ = {reinterpret_cast<Pair*>(base_), static_cast<size_t>(pair_count(p))};
    begins_ = reinterpret_cast<int64_t*>(base_ + layout_.begins);
  }

  void run() {
    fill_pairs(p_, pairs_);
    const int64_t runs = find_runs(pairs_, begins_);
    if (p_.x.form != Form::dense) prepare_x();
    const int64_t panels = (p_.n + kPanel - 1) / kPanel;
    threads::for_each_item(runs * panels, slots_, [&](int64_t item, int slot) {
      multiply(item / panels, item % panels * kPanel, slot);
    });
  }

 private:
  float* prepared_x(int64_t pair, int64_t row) const {
    return reinterpret_cast<float*>(base_ + layout_.x) + (pair * p_.m + row) * layout_.pitch;
  }

  void prepare_x() const {
    threads::for_each_item(p_.total_rows(), threads::num_threads(), [&](int64_t item, int) {
      const Pair& pair = pairs_[static_cast<size_t>(item / p_.m)];
      if (pair.w != kNoMatrix)
        quantized_x_row(p_, pair, item % p_.m, 0, p_.k, true, prepared_x(item / p_.m, item % p_.m));
    });
  }

  // K values of a row of x from the pair's range on; `scratch` holds them where they must be
  // converted.
  const float* x_row(int64_t i, int64_t row, float* scratch) const {
    if (p_.x.form != Form::dense) return prepared_x(i, row);
    const Pair& pair = pairs_[static_cast<size_t>(i)];
    const dispatch::Matrices& x = p_.x.values;
    const int64_t at = x.offset(pair.x) + row * x.row_stride + pair.k_begin * x.col_stride;
    if (x.dtype == DType::f32 && x.col_stride == 1) return static_cast<const float*>(x.data) + at;
    load_floats(x.data, x.dtype, at, x.col_stride, pair.k_end - pair.k_begin, scratch);
    return scratch;
  }

  // All rows of one run times outputs [n, n + kPanel).
  void multiply(int64_t run, int64_t n, int slot) const {
    const int64_t count = std::min(kPanel, p_.n - n);
    const int64_t pitch = layout_.pitch;
    float* panel = reinterpret_cast<float*>(base_ + layout_.scratch +
                                            static_cast<size_t>(slot) * layout_.per_slot);
    float* scratch = panel + kPanel * pitch;
    const Pair& first = pairs_[static_cast<size_t>(begins_[run])];
    const int64_t k = first.w == kNoMatrix ? 0 : first.k_end - first.k_begin;
    if (k > 0) {
      decode_(p_, first.w, n, count, first.k_begin, first.k_end, panel, pitch);
      // Outputs that fill up the last tile are computed and dropped.
      for (int64_t j = count; j % kTile != 0; ++j) std::fill_n(panel + j * pitch, k, 0.0f);
    }
    for (int64_t i = begins_[run]; i < begins_[run + 1]; ++i) {
      for (int64_t row = 0; row < p_.m; ++row) {
        const float* x = k > 0 ? x_row(i, row, scratch) : nullptr;
        float sums[kPanel] = {};
        for (int64_t j = 0; k > 0 && j < count; j += kTile)
          dot_tile(x, panel + j * pitch, pitch, k, sums + j);
        store_sums(p_, pairs_[static_cast<size_t>(i)], row, n, count, sums);
      }
    }
  }

  const MatmulProblem& p_;
  const Layout layout_;
  char* const base_;
  const DecodePanel decode_;
  int slots_ = 1;
  std::span<Pair> pairs_;
  int64_t* begins_ = nullptr;
};

}  // namespace

size_t matmul_portable_workspace(const MatmulProblem& p) {
  const Layout layout(p);
  return layout.scratch + static_cast<size_t>(threads::num_threads()) * layout.per_slot;
}

void matmul_portable(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, workspace).run();
}

}  // namespace moeblas::cpu
