// mm_f32_*, mm_bf16_*, mm_int8_*: products of many rows with packed or dense weights, on the
// kernels of a tier (simd/mm_panels.h, simd/mm_tiles.h, simd/mm_int8.h).
//
// An item of work is a block of up to kRowBlock rows that share a matrix, and a panel of its
// outputs. K is walked in blocks that fill a panel in the L1 cache: weights are decoded into it
// once, then met by all rows of the block. Items come from one queue, without a barrier per matrix.
// Rows of x are read where they are, by pointers; only what is no plain row of the panel's dtype
// is copied, once per call.
//
// mm_f32 multiplies in float32, whatever x and w are, and its weights are the numbers that
// dequantize gives. mm_bf16 multiplies pairs of bfloat16: weights are rounded to it where it does
// not hold them, and numbers below 2^-126, products included, count as 0. mm_int8, which `fast`
// asks for, rounds the values of x that one group of weights meets to 127ths of their largest
// magnitude; sums that are not finite are made again (cpu/remade.h). A sum's order depends on K and
// the format alone in all of them.
//
// The time goes into the multiply-adds from some 64 rows per matrix on, into decoding below.
#include "cpu/mm.h"

#include <algorithm>
#include <bit>

#include "cpu/mm_weights.h"
#include "cpu/quantized_x.h"
#include "cpu/remade.h"
#include "cpu/store.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Reason;

// Smaller groups of int8 take as long as bfloat16.
constexpr int kLeastInt8Group = 32;
constexpr int64_t kRowBlock = 512;  // sums of a panel: 128 KiB, which the L2 cache holds
// Bytes of a block's rows from which on they are fetched a tile ahead. Below, the machine's own
// fetches are in time and more of them cost 1 to 3 % (measured).
constexpr int64_t kFetchedX = 6 << 20;

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of a number of x.
int64_t number_size(Panel panel) { return panel == Panel::int8 ? 1 : panel == Panel::bf16 ? 2 : 4; }

// As indices of the kernels' tables.
int at(Panel panel) { return static_cast<int>(panel); }
int at(DType dtype) { return element_index(dtype); }

// One row of x and where its sums go.
struct RowOfX {
  const uint8_t* x;  // from the pair's range of K on
  int64_t pair;
  int64_t row;
};

// Rows that meet the same weights.
struct RowBlock {
  int64_t begin, end;
};

// The workspace, offsets in bytes.
struct Layout {
  bool direct;     // rows of x are used where they are
  bool by_pair;    // copies of x: one per pair, or one per matrix of x
  int64_t pitch;   // bytes from one copied row to the next
  int64_t groups;  // int8: from a copied row to its groups
  int64_t begins, blocks, rows, x, scratch, per_slot;
  // Within a worker's share.
  WeightPanels::Layout weights;
  int64_t sums;

  Layout(const MatmulProblem& p, Panel kind, int cols) : weights(p, kind, cols) {
    const dispatch::Matrices& values = p.x.values;
    const int64_t pairs = pair_count(p), all_rows = p.total_rows();
    const DType dtype = kind == Panel::bf16 ? DType::bf16 : DType::f32;
    direct = kind != Panel::int8 && p.x.form == Form::dense && values.dtype == dtype &&
             values.col_stride == 1;
    by_pair = p.x.form != Form::dense || values.count() > pairs;
    pitch = aligned(p.k * number_size(kind));
    groups = pitch;
    if (kind == Panel::int8)
      pitch += aligned(p.k / p.w.spec->group_size * static_cast<int64_t>(sizeof(Int8Group)));
    const int64_t copies = direct ? 0 : (by_pair ? pairs : values.count()) * p.m;
    begins = aligned(pairs * static_cast<int64_t>(sizeof(Pair)));
    blocks = begins + aligned((pairs + 1) * static_cast<int64_t>(sizeof(int64_t)));
    rows = blocks +
           aligned((pairs + all_rows / kRowBlock + 1) * static_cast<int64_t>(sizeof(RowBlock)));
    x = rows + aligned(all_rows * static_cast<int64_t>(sizeof(RowOfX)));
    scratch = x + copies * pitch;
    sums = weights.bytes;
    per_slot = sums + kRowBlock * cols * 4;
  }
};

// One call: what its items share.
class Product {
 public:
  Product(const MatmulProblem& p, dispatch::Workspace workspace, const MmKernels& kernels,
          Panel kind)
      : p_(p),
        kernels_(kernels),
        kind_(kind),
        weights_(p, kernels, kind),
        layout_(p, kind, kernels.cols),
        base_(static_cast<char*>(workspace.data)),
        size_(number_size(kind)),
        remade_(p) {
    // The thread count may have grown since the workspace was sized.
    const auto room = (static_cast<int64_t>(workspace.bytes) - layout_.scratch) / layout_.per_slot;
    slots_ = static_cast<int>(std::min<int64_t>(threads::num_threads(), room));
    pairs_ = {reinterpret_cast<Pair*>(base_), static_cast<size_t>(pair_count(p))};
    rows_ = reinterpret_cast<RowOfX*>(base_ + layout_.rows);
    blocks_ = reinterpret_cast<RowBlock*>(base_ + layout_.blocks);
  }

  void run() {
    fill_pairs(p_, pairs_);
    auto* begins = reinterpret_cast<int64_t*>(base_ + layout_.begins);
    const int64_t runs = find_runs(pairs_, begins);
    int64_t blocks = 0;
    for (int64_t run = 0; run < runs; ++run) {
      const int64_t end = begins[run + 1] * p_.m;
      for (int64_t row = begins[run] * p_.m; row < end; row += kRowBlock)
        blocks_[blocks++] = {row, std::min(row + kRowBlock, end)};
    }
    if (!layout_.direct) copy_x();
    find_rows();
    panels_ = (p_.n + kernels_.cols - 1) / kernels_.cols;
    items_ = blocks * panels_;
    threads::for_each_item(items_, slots_, [&](int64_t item, int slot) { multiply(item, slot); });
  }

 private:
  uint8_t* copied_row(int64_t matrix, int64_t row) const {
    return reinterpret_cast<uint8_t*>(base_) + layout_.x + (matrix * p_.m + row) * layout_.pitch;
  }

  void copy_x() const {
    const int64_t matrices = layout_.by_pair ? pair_count(p_) : p_.x.values.count();
    threads::for_each_item(matrices * p_.m, threads::num_threads(), [&](int64_t item, int) {
      const int64_t matrix = item / p_.m, row = item % p_.m;
      uint8_t* to = copied_row(matrix, row);
      Pair pair{0, matrix, 0, 0, 0, p_.k};
      if (layout_.by_pair) {
        pair = pairs_[static_cast<size_t>(matrix)];
        if (pair.w == kNoMatrix) return;
      }
      if (p_.x.form != Form::dense) return copy_quantized_row(pair, row, to);
      if (kind_ == Panel::int8) return copy_as_int8(pair, row, to);
      const dispatch::Matrices& x = p_.x.values;
      const int64_t first = x.offset(pair.x) + row * x.row_stride;
      if (kind_ == Panel::bf16) {
        for (int64_t k = 0; k < p_.k; ++k)
          store_as(to, k, load_as<uint16_t>(x.data, first + k * x.col_stride));
      } else if (x.dtype != DType::f32 && x.col_stride == 1) {
        const auto* from = static_cast<const uint16_t*>(x.data) + first;
        kernels_.load[at(x.dtype)](from, p_.k, reinterpret_cast<float*>(to));
      } else {
        load_floats(x.data, x.dtype, first, x.col_stride, p_.k, reinterpret_cast<float*>(to));
      }
    });
  }

  // Codes times scales are exact in bfloat16; a tensor_scale waits for the sums there.
  void copy_quantized_row(const Pair& pair, int64_t row, uint8_t* to) const {
    if (kind_ == Panel::f32)
      return quantized_x_row(p_, pair, row, 0, p_.k, true, reinterpret_cast<float*>(to));
    constexpr int64_t kPart = 1024;
    float part[kPart];
    for (int64_t first = 0; first < p_.k; first += kPart) {
      const int64_t count = std::min(kPart, p_.k - first);
      quantized_x_row(p_, pair, row, first, count, false, part);
      store_floats(to, DType::bf16, first, count, part);
    }
  }

  void copy_as_int8(const Pair& pair, int64_t row, uint8_t* to) const {
    constexpr int64_t kPart = 1024;  // a multiple of every group
    const dispatch::Matrices& x = p_.x.values;
    const int64_t first = x.offset(pair.x) + row * x.row_stride, group = p_.w.spec->group_size;
    const auto codes = static_cast<Codes>(code_index(*p_.w.spec));
    auto* groups = reinterpret_cast<Int8Group*>(to + layout_.groups);
    if (x.col_stride == 1) {
      const void* from =
          static_cast<const char*>(x.data) + first * static_cast<int64_t>(size_of(x.dtype));
      return kernels_.quantize_x[at(x.dtype)](from, p_.k, group, codes, to, groups);
    }
    float part[kPart];
    for (int64_t k = 0; k < p_.k; k += kPart) {
      const int64_t count = std::min(kPart, p_.k - k);
      load_floats(x.data, x.dtype, first + k * x.col_stride, x.col_stride, count, part);
      kernels_.quantize_x[at(DType::f32)](part, count, group, codes, to + k, groups + k / group);
    }
  }

  void find_rows() const {
    const dispatch::Matrices& x = p_.x.values;
    RowOfX* next = rows_;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const Pair& pair = pairs_[i];
      const bool none = pair.w == kNoMatrix;
      const int64_t matrix = layout_.by_pair ? static_cast<int64_t>(i) : pair.x;
      const int64_t offset = layout_.direct && !none ? x.offset(pair.x) : 0;
      for (int64_t row = 0; row < p_.m; ++row, ++next) {
        const uint8_t* from = nullptr;
        if (none) {
          // Nothing is read.
        } else if (layout_.direct) {
          from = static_cast<const uint8_t*>(x.data) + (offset + row * x.row_stride) * size_;
        } else {
          from = copied_row(matrix, row);
        }
        *next = {none ? nullptr : from + pair.k_begin * size_, static_cast<int64_t>(i), row};
      }
    }
  }

  const RowBlock& block_of(int64_t item) const { return blocks_[item / panels_]; }
  PanelWeights weights_of(int64_t item) const {
    const Pair& pair = pairs_[static_cast<size_t>(rows_[block_of(item).begin].pair)];
    return weights_.panel(pair, item % panels_ * kernels_.cols);
  }

  void multiply(int64_t item, int slot) const {
    char* own = base_ + layout_.scratch + slot * layout_.per_slot;
    const WeightPanels::Scratch scratch(layout_.weights, own);
    auto* sums = reinterpret_cast<float*>(own + layout_.sums);
    const RowBlock& block = block_of(item);
    const PanelWeights w = weights_of(item);
    if (w.k == 0) {
      std::fill_n(sums, (block.end - block.begin) * kernels_.cols, 0.0f);
    } else {
      // What this worker will probably take next is fetched meanwhile.
      WeightPanels::Fetch fetch;
      if (item + slots_ < items_) fetch = {weights_, weights_of(item + slots_)};
      const int64_t depth = panel_depth(kind_);
      const int64_t blocks = (w.k + depth - 1) / depth;
      for (int64_t k = 0; k < w.k; k += depth) {
        const int64_t here = std::min(depth, w.k - k);
        weights_.fill(w, k, here, scratch);
        multiply_rows(block, k, here, scratch, sums, fetch, blocks);
      }
    }
    finish(block, w, sums);
  }

  // Tiles of as equal heights as can be.
  void multiply_rows(const RowBlock& block, int64_t k, int64_t count,
                     const WeightPanels::Scratch& scratch, float* sums, WeightPanels::Fetch& fetch,
                     int64_t blocks) const {
    const uint8_t* x[kTileRows];
    const Int8Group* groups[kTileRows];
    PanelProduct tile{.x = x, .k = count, .panel = scratch.panel, .first = k == 0};
    if (kind_ == Panel::int8) {
      tile.codes = static_cast<Codes>(code_index(*p_.w.spec));
      tile.scales = weights_.scales_from(k, scratch.scales);
      tile.biases = weights_.scales_from(k, scratch.biases);
      tile.group_shift = std::countr_zero(static_cast<uint64_t>(p_.w.spec->group_size));
      tile.x_groups = groups;
    }
    const int64_t tiles = (block.end - block.begin + kTileRows - 1) / kTileRows;
    const bool fetch_x = (block.end - block.begin) * p_.k * size_ >= kFetchedX;
    const uint8_t* next_x[kTileRows];
    int64_t row = block.begin;
    for (int64_t left = tiles; left > 0; --left) {
      fetch.some(tiles * blocks);
      tile.rows = (block.end - row + left - 1) / left;
      tile.sums = sums;
      for (int64_t r = 0; r < tile.rows; ++r) {
        const uint8_t* of_row = rows_[row + r].x;
        x[r] = of_row + k * size_;
        if (kind_ == Panel::int8)
          groups[r] =
              reinterpret_cast<const Int8Group*>(of_row + layout_.groups) + (k >> tile.group_shift);
      }
      row += tile.rows;
      if (fetch_x) {
        for (int64_t r = 0; r < kTileRows; ++r)
          next_x[r] = rows_[std::min(row + r, block.end - 1)].x + k * size_;
        tile.next_x = next_x;
      }
      kernels_.multiply[at(kind_)](tile);
      sums += tile.rows * kernels_.cols;
    }
  }

  // Sums into the output.
  void finish(const RowBlock& block, const PanelWeights& w, float* sums) const {
    const auto store = kernels_.store[at(p_.out.dtype)];
    const auto size = static_cast<int64_t>(size_of(p_.out.dtype));
    for (int64_t r = block.begin; r < block.end; ++r, sums += kernels_.cols) {
      const RowOfX& row = rows_[r];
      const Pair& pair = pairs_[static_cast<size_t>(row.pair)];
      float factor = w.factor;
      if (!p_.epilogue.trivial() || kind_ == Panel::int8) {
        for (int64_t j = 0; factor != 1 && j < w.count; ++j) sums[j] *= factor;
        factor = 1;
      }
      if (kind_ == Panel::int8 && w.k > 0) remade_(pair, row.row, w.n, w.count, sums);
      if (p_.epilogue.trivial()) {
        const int64_t first = pair.out + row.row * p_.out.row_stride + w.n;
        store(sums, factor, w.count, static_cast<char*>(p_.out.data) + first * size);
      } else {
        store_sums(p_, pair, row.row, w.n, w.count, sums);
      }
    }
  }

  const MatmulProblem& p_;
  const MmKernels& kernels_;
  const Panel kind_;
  const WeightPanels weights_;
  const Layout layout_;
  char* const base_;
  int slots_ = 1;
  const int64_t size_;  // of the panel's numbers in x
  const RemadeSums remade_;
  std::span<Pair> pairs_;
  RowOfX* rows_ = nullptr;
  RowBlock* blocks_ = nullptr;
  int64_t panels_ = 0;
  int64_t items_ = 0;
};

}  // namespace

Reason mm_reject(const MatmulProblem& p, Panel panel) {
  if (panel == Panel::bf16 && p.options.precision == Precision::exact)
    return Reason::of("rounds weights to bfloat16, which `exact` rules out");
  if (panel == Panel::int8) {
    if (p.options.precision != Precision::fast)
      return Reason::of("rounds x to int8, which only `fast` allows");
    if (!p.transpose) return Reason::of("w is packed along N, it takes rows along K");
    if (p.w.spec->group_size < kLeastInt8Group)
      return Reason::of("groups of %d, it takes %d and more", p.w.spec->group_size,
                        kLeastInt8Group);
  }
  if (p.w.form == Form::dense && k_step(p) != 1 && n_step(p) != 1) {
    return Reason::of("w has steps of %lld along K and %lld along N, and one must be 1",
                      static_cast<long long>(k_step(p)), static_cast<long long>(n_step(p)));
  }
  return {};
}

size_t mm_workspace(const MatmulProblem& p, const MmKernels& kernels, Panel panel) {
  const Layout layout(p, panel, kernels.cols);
  return static_cast<size_t>(layout.scratch + threads::num_threads() * layout.per_slot);
}

void mm(const MatmulProblem& p, dispatch::Workspace workspace, const MmKernels& kernels,
        Panel panel) {
  Product(p, workspace, kernels, panel).run();
}

}  // namespace moeblas::cpu
