// The launcher of the qmv rows: packed weights times few rows per matrix, by the kernels of
// cpu/simd.
//
// Rows of x are prepared once (in the order in which codes are unpacked), whatever number of
// matrices they meet. An item of work is a panel of one matrix's rows, so long that its stream is
// worth starting, and all rows of x that chose the matrix; items are taken from one queue, without
// a barrier per matrix. Sums that are not finite are made again from decoded weights: where the
// unscaled sum of a group overflows, or 0 meets infinity, the factored sum differs from the product
// that the operation means.
#include "cpu/qmv.h"

#include <algorithm>
#include <cmath>

#include "cpu/decode.h"
#include "cpu/pairs.h"
#include "cpu/simd/qmv.h"
#include "cpu/store.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::MatmulProblem;
using dispatch::Reason;

constexpr int64_t kMostRows = 4;  // per matrix, on average

constexpr int64_t kPanelBytes = 64 << 10;  // of codes
constexpr int64_t kMostPanel = 128;        // rows of a panel
constexpr int64_t kChunk = 16;             // rows of x that a panel meets at a time
constexpr int64_t kMaxGroup = 128;
constexpr int64_t kPart = 1024;  // values of x prepared at a time
// Values of x from which on preparing them is shared out.
constexpr int64_t kWorthThreads = 1 << 16;

ScaleKind scale_kind(const MatmulProblem& p) {
  switch (p.w.scales.dtype) {
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

// The workspace: pairs, runs, prepared rows.
struct Layout {
  size_t begins, x, total;
  int64_t row;  // bytes of a prepared row

  explicit Layout(const MatmulProblem& p) {
    const auto pairs = static_cast<size_t>(pair_count(p));
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    row = qmv_prepared_bytes(p.k);
    begins = aligned(pairs * sizeof(Pair));
    x = begins + aligned((pairs + 1) * sizeof(int64_t));
    total = x + static_cast<size_t>(XRows(p).count * row);
  }
};

// One output from decoded weights.
template <class Format>
float decoded_sum(const MatmulProblem& p, const Pair& pair, int64_t row, int64_t n) {
  const dispatch::Matrices& x = p.x.values;
  const PackedRow packed = packed_row(p.w, pair.w, n, pair.w);
  const int64_t group = p.w.spec->group_size;
  const int64_t at = x.offset(pair.x) + row * x.row_stride;
  float weights[kMaxGroup], values[kMaxGroup], sum = 0.0f;
  for (int64_t k = 0; k < p.k; k += group) {
    decode_row<Format>(packed, group, k, group, weights, 1);
    load_floats(x.data, x.dtype, at + k * x.col_stride, x.col_stride, group, values);
    for (int64_t i = 0; i < group; ++i) sum += values[i] * weights[i];
  }
  return sum;
}

// One call: what its items share.
class Product {
 public:
  Product(const MatmulProblem& p, const Qmv& qmv, dispatch::Workspace workspace)
      : p_(p), qmv_(qmv), layout_(p), base_(static_cast<char*>(workspace.data)) {
    pairs_ = {reinterpret_cast<Pair*>(base_), static_cast<size_t>(pair_count(p))};
    begins_ = reinterpret_cast<int64_t*>(base_ + layout_.begins);
    format_.k = p.k;
    format_.group_size = static_cast<int>(p.w.spec->group_size);
    format_.scale_kind = scale_kind(p);
    formats::visit_format(p.w.spec->mode, p.w.spec->bits, [&]<class Format>() {
      decoded_sum_ = decoded_sum<Format>;
      if constexpr (formats::kIsAffine<Format>) {
        kernel_ = qmv.affine[Format::kBits];
      } else if constexpr (int(Format::kBits) == 4) {
        kernel_ = qmv.e2m1;
        format_.code_values = code_values<Format>().data();
      } else {
        kernel_ = qmv.e4m3;
      }
    });
  }

  void run() {
    fill_pairs(p_, pairs_);
    const int64_t runs = find_runs(pairs_, begins_);
    if (p_.k > 0) prepare_x();
    const int64_t row_bytes = std::max<int64_t>(1, p_.k * p_.w.spec->bits / 8);
    panel_ = std::clamp<int64_t>(kPanelBytes / row_bytes / 16 * 16, 16, kMostPanel);
    const int64_t panels = (p_.n + panel_ - 1) / panel_;
    threads::for_each_item(runs * panels, threads::num_threads(), [&](int64_t item, int) {
      multiply(item / panels, item % panels * panel_);
    });
  }

 private:
  char* prepared(int64_t i, const Pair& pair, int64_t row) const {
    return base_ + layout_.x +
           static_cast<size_t>(((XRows(p_).by_pair ? i : pair.x) * p_.m + row) * layout_.row);
  }

  void prepare_x() const {
    const XRows rows(p_);
    const dispatch::Matrices& x = p_.x.values;
    const int64_t blocks = rows.count * p_.k < kWorthThreads ? 1 : rows.count;
    threads::for_each_item(blocks, threads::num_threads(), [&](int64_t block, int) {
      const int64_t end = blocks == 1 ? rows.count : block + 1;
      for (int64_t r = block; r < end; ++r) prepare_row(rows, x, r);
    });
  }

  void prepare_row(const XRows& rows, const dispatch::Matrices& x, int64_t r) const {
    const int64_t i = r / p_.m, row = r % p_.m;
    if (rows.by_pair && pairs_[static_cast<size_t>(i)].w == kNoMatrix) return;
    const int64_t matrix = rows.by_pair ? pairs_[static_cast<size_t>(i)].x : i;
    const int64_t at = x.offset(matrix) + row * x.row_stride;
    char* const out = base_ + layout_.x + static_cast<size_t>(r * layout_.row);
    float values[kPart];
    for (int64_t k = 0; k < p_.k; k += kPart) {
      const int64_t count = std::min(kPart, p_.k - k);
      load_floats(x.data, x.dtype, at + k * x.col_stride, x.col_stride, count, values);
      qmv_.prepare(values, k, count, out);
    }
  }

  QmvPanel panel_of(int64_t w, int64_t n, int64_t count) const {
    const dispatch::Operand& o = p_.w;
    const auto bytes = [](const dispatch::Matrices& m) {
      return m.row_stride * static_cast<int64_t>(size_of(m.dtype));
    };
    const PackedRow row = packed_row(o, w, n, w);
    return {row.codes,
            static_cast<const uint8_t*>(row.scales),
            static_cast<const uint8_t*>(row.biases),
            bytes(o.values),
            bytes(o.scales),
            row.biases != nullptr ? bytes(o.biases) : 0,
            count,
            row.tensor_scale};
  }

  // All rows of one run times outputs [n, n + panel_).
  void multiply(int64_t run, int64_t n) const {
    const int64_t count = std::min(panel_, p_.n - n);
    const int64_t w = pairs_[static_cast<size_t>(begins_[run])].w;
    const int64_t rows = (begins_[run + 1] - begins_[run]) * p_.m;
    float sums[kChunk * kMostPanel];
    const bool any = w != kNoMatrix && p_.k > 0;
    const QmvPanel panel = any ? panel_of(w, n, count) : QmvPanel();
    for (int64_t first = 0; first < rows; first += kChunk) {
      const int64_t chunk = std::min(kChunk, rows - first);
      const void* x[kChunk];
      const auto pair_at = [&](int64_t r) { return begins_[run] + (first + r) / p_.m; };
      if (any) {
        for (int64_t r = 0; r < chunk; ++r) {
          const int64_t i = pair_at(r);
          x[r] = prepared(i, pairs_[static_cast<size_t>(i)], (first + r) % p_.m);
        }
        kernel_(format_, panel, x, chunk, sums, kMostPanel);
      } else {
        std::fill_n(sums, chunk * kMostPanel, 0.0f);
      }
      for (int64_t r = 0; r < chunk; ++r) {
        const Pair& pair = pairs_[static_cast<size_t>(pair_at(r))];
        const int64_t row = (first + r) % p_.m;
        float* const of_row = sums + r * kMostPanel;
        for (int64_t j = 0; j < count; ++j) {
          if (!std::isfinite(of_row[j])) of_row[j] = decoded_sum_(p_, pair, row, n + j);
        }
        store_sums(p_, pair, row, n, count, of_row);
      }
    }
  }

  const MatmulProblem& p_;
  const Qmv& qmv_;
  const Layout layout_;
  char* const base_;
  std::span<Pair> pairs_;
  int64_t* begins_ = nullptr;
  int64_t panel_ = 0;
  QmvFormat format_;
  QmvKernel kernel_ = nullptr;
  float (*decoded_sum_)(const MatmulProblem&, const Pair&, int64_t, int64_t) = nullptr;
};

}  // namespace

size_t qmv_workspace(const MatmulProblem& p) { return Layout(p).total; }

Reason qmv_reject(const MatmulProblem& p) {
  if (!p.transpose) return Reason::of("w is packed along N, which it reads one row per k of");
  // What decodes a panel once for all rows is faster beyond, and where the order of a sum must not
  // depend on the number of rows it serves any number.
  if (p.options.deterministic) return Reason::of("more rows would be summed in another order");
  const int64_t matrices = std::max<int64_t>(1, p.w.values.count());
  if (p.total_rows() > kMostRows * matrices) {
    return Reason::of("%lld rows for %lld matrices are more than %lld each",
                      static_cast<long long>(p.total_rows()), static_cast<long long>(matrices),
                      static_cast<long long>(kMostRows));
  }
  return {};
}

#if defined(__x86_64__)
void qmv_avx2(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, avx2::qmv, workspace).run();
}
void qmv_avx512(const MatmulProblem& p, dispatch::Workspace workspace) {
  Product(p, avx512::qmv, workspace).run();
}
#endif

}  // namespace moeblas::cpu
