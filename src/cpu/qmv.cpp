// The launcher of the qmv and mv rows: packed or dense weights times few rows per matrix, by the
// kernels of cpu/simd.
//
// Rows of x are prepared once (in the order in which codes are unpacked), whatever number of
// matrices they meet. An item of work is a panel of one matrix's rows, so long that its stream is
// worth starting, and all rows of x that chose the matrix; items are taken from one queue, without
// a barrier per matrix. Sums that are not finite are made again (cpu/remade.h).
#include "cpu/qmv.h"

#include <algorithm>

#include "cpu/decode.h"
#include "cpu/pairs.h"
#include "cpu/remade.h"
#include "cpu/row_kernels.h"
#include "cpu/simd/qmv.h"
#include "cpu/store.h"
#include "cpu/tier.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::MatmulProblem;
using dispatch::Reason;

// Rows per matrix, on average, from which on what fills a panel for all rows is faster (measured).
constexpr int64_t kMostRows = 8;
constexpr int64_t kMostRowsMxfp8 = 4;
constexpr int64_t kMostRowsDense = 5;

// A panel is so long that its stream is worth starting, and short enough for every thread to have
// several.
constexpr int64_t kLeastPanelBytes = 16 << 10;
constexpr int64_t kMostPanelBytes = 512 << 10;
constexpr int64_t kMostPanel = 256;  // rows of w
constexpr int64_t kPanelsPerThread = 16;
constexpr int64_t kPart = 1024;  // values of x prepared at a time
// Values of x from which on preparing them is shared out.
constexpr int64_t kWorthThreads = 1 << 16;

ScaleKind scale_kind(const MatmulProblem& p) {
  switch (p.w.form == dispatch::Form::dense ? p.w.values.dtype : p.w.scales.dtype) {
    case DType::f32:
      return ScaleKind::f32;
    case DType::f16:
      return ScaleKind::f16;
    case DType::bf16:
      return ScaleKind::bf16;
    default:
      return p.w.spec->mode == Mode::nvfp4 ? ScaleKind::e4m3 : ScaleKind::e8m0;
  }
}

// Rows of x to prepare: those of the tensor or, where pairs are fewer, those of the pairs.
struct XRows {
  bool by_pair;
  int64_t count;

  explicit XRows(const MatmulProblem& p)
      : by_pair(p.x.values.count() > pair_count(p)),
        count((by_pair ? pair_count(p) : p.x.values.count()) * p.m) {}
};

// The workspace: pairs, runs, how each row of x was prepared, and the prepared rows.
struct Layout {
  size_t begins, ways, x, total;
  int64_t row;  // bytes of a prepared row

  explicit Layout(const MatmulProblem& p) {
    const auto pairs = static_cast<size_t>(pair_count(p));
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    row = qmv_prepared_bytes(p.k);
    begins = aligned(pairs * sizeof(Pair));
    ways = begins + aligned((pairs + 1) * sizeof(int64_t));
    x = ways + aligned(static_cast<size_t>(XRows(p).count));
    total = x + static_cast<size_t>(XRows(p).count * row);
  }
};

QmvWay way(const Qmv& q, const MatmulProblem& p) {
  if (!p.w.spec) return q.dense[static_cast<int>(scale_kind(p))];
  switch (p.w.spec->mode) {
    case Mode::affine:
      return q.affine[p.w.spec->bits];
    case Mode::mxfp4:
      return q.mxfp4;
    case Mode::nvfp4:
      return q.nvfp4;
    default:
      return q.mxfp8;
  }
}

// One call: what its items share.
class Product {
 public:
  // Rows of x that `first` cannot prepare without loss are multiplied as `second` does.
  Product(const MatmulProblem& p, const Qmv& first, const Qmv& second,
          dispatch::Workspace workspace)
      : p_(p),
        ways_{way(first, p), way(second, p)},
        layout_(p),
        x_rows_(p),
        base_(static_cast<char*>(workspace.data)),
        remade_(p) {
    pairs_ = {reinterpret_cast<Pair*>(base_), static_cast<size_t>(pair_count(p))};
    begins_ = reinterpret_cast<int64_t*>(base_ + layout_.begins);
    way_of_ = reinterpret_cast<uint8_t*>(base_ + layout_.ways);
    format_.k = p.k;
    format_.scale_kind = scale_kind(p);
    const RowKernels* rows = row_kernels();
    if (rows != nullptr && p.epilogue.trivial())
      store_row_ = rows->store_row[element_index(p.out.dtype)];
    if (!p.w.spec) return;
    format_.group_size = static_cast<int>(p.w.spec->group_size);
    formats::visit_format(p.w.spec->mode, p.w.spec->bits, [&]<class Format>() {
      if constexpr (!formats::kIsAffine<Format> && int(Format::kBits) == 4)
        format_.code_values = code_values<Format>().data();
    });
  }

  void run() {
    fill_pairs(p_, pairs_);
    const int64_t runs = find_runs(pairs_, begins_);
    if (p_.k > 0) prepare_x();
    const int64_t bits =
        p_.w.spec ? p_.w.spec->bits : 8 * static_cast<int64_t>(size_of(p_.w.values.dtype));
    const int64_t row_bytes = std::max<int64_t>(1, p_.k * bits / 8);
    const auto rows_of = [&](int64_t bytes) {
      return std::clamp<int64_t>(bytes / row_bytes / 16 * 16, 16, kMostPanel);
    };
    const int64_t threads = threads::num_threads();
    const int64_t share = runs * p_.n / (threads * kPanelsPerThread) / 16 * 16;
    panel_ = std::clamp(share, rows_of(kLeastPanelBytes), rows_of(kMostPanelBytes));
    panels_ = (p_.n + panel_ - 1) / panel_;
    threads::for_each_item_and_next(
        runs * panels_, static_cast<int>(threads), [&](int64_t item, int64_t next) {
          multiply(item, next < runs * panels_ && matrix_of(next) != kNoMatrix ? next : item);
        });
  }

 private:
  int64_t x_row_of(int64_t pair, int64_t row) const {
    const int64_t matrix = x_rows_.by_pair ? pair : pairs_[static_cast<size_t>(pair)].x;
    return matrix * p_.m + row;
  }
  char* prepared(int64_t x_row) const {
    return base_ + layout_.x + static_cast<size_t>(x_row * layout_.row);
  }

  void prepare_x() const {
    const int64_t items = x_rows_.count * p_.k < kWorthThreads ? 1 : x_rows_.count;
    threads::for_each_item(items, threads::num_threads(), [&](int64_t item, int) {
      const int64_t end = items == 1 ? x_rows_.count : item + 1;
      for (int64_t r = item; r < end; ++r) prepare_row(r);
    });
  }

  void prepare_row(int64_t r) const {
    const int64_t i = r / p_.m, row = r % p_.m;
    if (x_rows_.by_pair && pairs_[static_cast<size_t>(i)].w == kNoMatrix) return;
    const int64_t matrix = x_rows_.by_pair ? pairs_[static_cast<size_t>(i)].x : i;
    const dispatch::Matrices& x = p_.x.values;
    const int64_t at = x.offset(matrix) + row * x.row_stride;
    for (uint8_t way = 0; way < 2; ++way) {
      bool lossless = true;
      float values[kPart];
      for (int64_t k = 0; k < p_.k && lossless; k += kPart) {
        const int64_t count = std::min(kPart, p_.k - k);
        load_floats(x.data, x.dtype, at + k * x.col_stride, x.col_stride, count, values);
        lossless = ways_[way].prepare(format_, values, k, count, prepared(r));
      }
      way_of_[r] = way;
      if (lossless) return;
    }
  }

  int64_t matrix_of(int64_t item) const {
    return pairs_[static_cast<size_t>(begins_[item / panels_])].w;
  }
  // The first row of an item.
  QmvRow row_of(int64_t item) const {
    const int64_t w = matrix_of(item);
    const int64_t n = item % panels_ * panel_;
    if (!p_.w.spec) return {dense_row(w, n), nullptr, nullptr};
    const PackedRow row = packed_row(p_.w, w, n, w);
    return {row.codes, static_cast<const uint8_t*>(row.scales),
            static_cast<const uint8_t*>(row.biases)};
  }

  // Elements from one output's row to the next.
  int64_t dense_stride() const {
    return p_.transpose ? p_.w.values.row_stride : p_.w.values.col_stride;
  }
  const uint8_t* dense_row(int64_t w, int64_t n) const {
    const dispatch::Matrices& m = p_.w.values;
    return static_cast<const uint8_t*>(m.data) +
           (m.offset(w) + n * dense_stride()) * static_cast<int64_t>(size_of(m.dtype));
  }

  QmvPanel panel_of(int64_t item, int64_t next, int64_t rows) const {
    const dispatch::Operand& o = p_.w;
    if (!o.spec) {
      return {.first = row_of(item),
              .next = row_of(next),
              .code_stride = dense_stride() * static_cast<int64_t>(size_of(o.values.dtype)),
              .rows = rows};
    }
    const auto bytes = [](const dispatch::Matrices& m) {
      return m.data == nullptr ? 0 : m.row_stride * static_cast<int64_t>(size_of(m.dtype));
    };
    return {.first = row_of(item),
            .next = row_of(next),
            .code_stride = bytes(o.values),
            .scale_stride = bytes(o.scales),
            .bias_stride = bytes(o.biases),
            .rows = rows,
            .tensor_scale = load_tensor_scale(o.tensor_scale, matrix_of(item))};
  }

  // All rows of a run times a panel of outputs.
  void multiply(int64_t item, int64_t next) const {
    const int64_t run = item / panels_, n = item % panels_ * panel_;
    const int64_t count = std::min(panel_, p_.n - n), w = matrix_of(item);
    const int64_t rows = (begins_[run + 1] - begins_[run]) * p_.m;
    if (w == kNoMatrix || p_.k == 0) {
      float zeros[kMostPanel];
      for (int64_t r = 0; r < rows; ++r) {
        std::fill_n(zeros, count, 0.0f);
        store_sums(p_, pair_at(run, r), r % p_.m, n, count, zeros);
      }
      return;
    }
    const QmvPanel panel = panel_of(item, next, count);
    fetch_results(run, rows, n, count);
    int64_t chunk[2][kQmvMost];
    int64_t size[2] = {0, 0};
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t way = way_of_[x_row_of(begins_[run] + r / p_.m, r % p_.m)];
      chunk[way][size[way]++] = r;
      if (size[way] == kQmvMost) multiply_chunk(ways_[way], panel, run, n, chunk[way], &size[way]);
    }
    for (int way = 0; way < 2; ++way) {
      if (size[way] > 0) multiply_chunk(ways_[way], panel, run, n, chunk[way], &size[way]);
    }
  }

  // Lines of results, which the claim of the next item would wait for: an atomic operation lets no
  // store be late.
  void fetch_results(int64_t run, int64_t rows, int64_t n, int64_t count) const {
    const auto size = static_cast<int64_t>(size_of(p_.out.dtype));
    for (int64_t r = 0; r < rows && p_.out.col_stride == 1; ++r) {
      const int64_t first = pair_at(run, r).out + r % p_.m * p_.out.row_stride + n;
      const char* const to = static_cast<const char*>(p_.out.data) + first * size;
      for (int64_t byte = 0; byte < count * size; byte += 64) __builtin_prefetch(to + byte, 1, 3);
    }
  }

  const Pair& pair_at(int64_t run, int64_t r) const {
    return pairs_[static_cast<size_t>(begins_[run] + r / p_.m)];
  }

  // These rows of a run, of which none is left afterwards.
  void multiply_chunk(const QmvWay& way, const QmvPanel& panel, int64_t run, int64_t n,
                      const int64_t* rows, int64_t* size) const {
    const void* x[kQmvMost];
    float sums[kQmvMost * kMostPanel];
    for (int64_t i = 0; i < *size; ++i)
      x[i] = prepared(x_row_of(begins_[run] + rows[i] / p_.m, rows[i] % p_.m));
    way.multiply(format_, panel, x, *size, sums, kMostPanel);
    for (int64_t i = 0; i < *size; ++i) {
      const Pair& pair = pair_at(run, rows[i]);
      const int64_t row = rows[i] % p_.m;
      float* const of_row = sums + i * kMostPanel;
      remade_(pair, row, n, panel.rows, of_row);
      store(pair, row, n, panel.rows, of_row);
    }
    *size = 0;
  }

  void store(const Pair& pair, int64_t row, int64_t n, int64_t count, float* sums) const {
    if (store_row_ == nullptr) return store_sums(p_, pair, row, n, count, sums);
    const int64_t first = pair.out + row * p_.out.row_stride + n;
    const auto size = static_cast<int64_t>(size_of(p_.out.dtype));
    store_row_(sums, count, static_cast<char*>(p_.out.data) + first * size);
  }

  const MatmulProblem& p_;
  const QmvWay ways_[2];
  const Layout layout_;
  const XRows x_rows_;
  char* const base_;
  std::span<Pair> pairs_;
  int64_t* begins_ = nullptr;
  uint8_t* way_of_ = nullptr;  // for each row of x
  int64_t panel_ = 0;
  int64_t panels_ = 0;
  QmvFormat format_;
  const RemadeSums remade_;
  // Where sums are results.
  void (*store_row_)(const float* sums, int64_t count, void* out) = nullptr;
};

// Where the order of a sum must not depend on the number of rows, what is for many serves any. A
// caller that asks for a row by its name gets it.
Reason reject_many_rows(const MatmulProblem& p, int64_t most) {
  if (p.options.kernel != nullptr) return {};
  if (p.options.deterministic) return Reason::of("more rows would be summed in another order");
  const int64_t matrices = std::max<int64_t>(1, p.w.values.count());
  if (p.total_rows() <= most * matrices) return {};
  return Reason::of("%lld rows for %lld matrices are more than %lld each",
                    static_cast<long long>(p.total_rows()), static_cast<long long>(matrices),
                    static_cast<long long>(most));
}

// The same border for bfloat16 pairs, by what unpacking costs here and in filling a panel. What
// `fast` has for many rows pays off from fewer on.
int64_t most_rows_of_pairs(const MatmulProblem& p) {
  if (p.w.spec->mode == Mode::mxfp8) return 24;
  if (p.options.precision == Precision::fast || p.w.spec->bits == 8) return kMostRows;
  return p.w.spec->bits > 4 ? 12 : 16;
}

Reason reject_packed(const MatmulProblem& p, int64_t most) {
  if (!p.transpose) return Reason::of("w is packed along N, it takes rows along K");
  return reject_many_rows(p, most);
}

}  // namespace

size_t qmv_workspace(const MatmulProblem& p) { return Layout(p).total; }

Reason qmv_reject(const MatmulProblem& p) {
  return reject_packed(p, p.w.spec->mode == Mode::mxfp8 ? kMostRowsMxfp8 : kMostRows);
}

Reason mv_reject(const MatmulProblem& p) {
  const dispatch::Matrices& w = p.w.values;
  const int64_t along_k = p.transpose ? w.col_stride : w.row_stride;
  if (along_k != 1 && p.k > 1)
    return Reason::of("w has stride %lld along K, it takes 1", static_cast<long long>(along_k));
  return reject_many_rows(p, kMostRowsDense);
}

Reason qmv_dot_reject(const MatmulProblem& p) {
  if (p.options.precision == Precision::exact)
    return Reason::of("its products are of bfloat16 pairs, precision is exact");
  if (made_by_intel() && p.options.kernel == nullptr &&
      p.total_rows() > std::max<int64_t>(1, p.w.values.count()))
    return Reason::of("of several rows this processor multiplies float32 numbers faster");
  return reject_packed(p, most_rows_of_pairs(p));
}

#if defined(__x86_64__)
void qmv_avx2(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, avx2::qmv, avx2::qmv, workspace).run();
}
void qmv_avx512(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, avx512::qmv, avx512::qmv, workspace).run();
}
void mv_avx2(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, avx2::mv, avx2::mv, workspace).run();
}
void mv_avx512(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, avx512::mv, avx512::mv, workspace).run();
}
void qmv_dot_avx512_bf16(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, avx512_bf16::qmv_dot, avx512::qmv, workspace).run();
}
#elif defined(__aarch64__)
void qmv_neon(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, neon::qmv, neon::qmv, workspace).run();
}
void mv_neon(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, neon::mv, neon::mv, workspace).run();
}
#endif

}  // namespace moeblas::cpu
