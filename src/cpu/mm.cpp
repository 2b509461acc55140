// mm_f32_*, mm_bf16_*, mm_int8_*: products of many rows with packed or dense weights, on the
// kernels of a tier (simd/mm_panels.h, simd/mm_tiles.h, simd/mm_int8.h).
//
// An item of work is a block of up to kRowBlock rows that share a matrix, and a panel of its
// outputs. K is walked in blocks that fill a panel in the L1 cache: weights are decoded into it
// once, then met by all rows of the block. Items come from one queue, without a barrier per matrix.
// Rows of x are read where they are, by pointers; what is no plain row of the panel's dtype is
// copied, once per call, and so is, into tiles, what meets panels by matrix instructions
// (mm_bf16_amx, simd/mm_amx.cpp).
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
#include <cstring>

#include "cpu/mm_weights.h"
#include "cpu/quantized_x.h"
#include "cpu/remade.h"
#include "cpu/store.h"
#include "cpu/tier.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Reason;

// Smaller groups of int8 take as long as bfloat16.
constexpr int kLeastInt8Group = 32;
constexpr int64_t kRowBlock = 512;  // sums of a panel: 128 KiB, which the L2 cache holds
// Rows of a block that meet packed weights in panels as wide as can be, and bytes of those that
// meet others, from which on x is fetched a tile ahead. Below, the machine's own fetches are in
// time, and beside a stream of floats, or in narrow panels, more of them cost 1 to 4 % (measured).
constexpr int64_t kFetchedRows = 64;
constexpr int64_t kFetchedX = 6 << 20;
// Bytes of a block's x from which on it drives out of L2 what was fetched there an item ago: a
// panel's next weights are fetched once more, into L1, while the rows meet those before.
constexpr int64_t kLargeX = 1 << 20;
// Panels that meet one block of K of x, which stays in the L2 cache meanwhile, one after the other:
// where matrices are multiplied, x from behind that cache would be what bounds them.
constexpr int64_t kMostTogether = 4;
constexpr int64_t kRowsTogether = 128;  // rows of a block on average, from which on
constexpr int64_t kItemsPerThread = 4;  // no fewer than these for it

using FetchedPanel = WeightPanels::Fetch<WeightPanels::Cache::l2>;
using FetchedBlock = WeightPanels::Fetch<WeightPanels::Cache::l1>;

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of a number of x.
int64_t number_size(Panel panel) { return panel == Panel::int8 ? 1 : panel == Panel::bf16 ? 2 : 4; }

// As indices of the kernels' tables.
int at(Panel panel) { return static_cast<int>(panel); }
int at(DType dtype) { return element_index(dtype); }

// Where the sums of a row of x go.
struct RowOfX {
  int64_t pair;
  int64_t row;
};

// Rows that meet the same weights.
struct RowBlock {
  int64_t begin, end;
  int64_t tile;  // its first, where rows lie in tiles
  int64_t rows() const { return end - begin; }
  int64_t tiles() const { return (rows() + kMatrixRows - 1) / kMatrixRows; }
};

// The workspace, offsets in bytes.
struct Layout {
  bool direct;     // rows of x are used where they are
  bool by_pair;    // copies of x: one per pair, or one per matrix of x
  int64_t pitch;   // bytes from one copied row to the next
  int64_t groups;  // int8: from a copied row to its groups
  int64_t begins, blocks, rows, at, x, tiles, scratch, per_slot;
  int64_t row_in_tile;  // bytes
  // Within a worker's share, for each of the panels together.
  WeightPanels::Layout weights;
  int64_t sums, per_panel;

  Layout(const MatmulProblem& p, const MmWay& way) : weights(p, way.panel, way.kernels.cols) {
    const Panel kind = way.panel;
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
    at = rows + aligned(all_rows * static_cast<int64_t>(sizeof(RowOfX)));
    // Rows beyond the last one are fetched, and never read.
    x = at + aligned((all_rows + kTileRows) * static_cast<int64_t>(sizeof(const uint8_t*)));
    tiles = x + copies * pitch;
    row_in_tile = (p.k + kMatrixStep - 1) / kMatrixStep * kMatrixStep * 2;
    int64_t tiled = 0;
    if (way.matrix != nullptr) {
      // The last tile of each matrix, and of the rows without one, is filled up.
      const int64_t runs = std::min(pairs, p.w.values.count() + 1);
      tiled = all_rows + runs * (kMatrixRows - 1);
    }
    scratch = tiles + tiled * row_in_tile;
    sums = weights.bytes;
    per_panel = sums + kRowBlock * way.kernels.cols * 4;
    per_slot = per_panel * (way.matrix != nullptr ? kMostTogether : 1);
  }
};

// One call: what its items share.
class Product {
 public:
  Product(const MatmulProblem& p, dispatch::Workspace workspace, const MmWay& way)
      : p_(p),
        kernels_(way.kernels),
        matrix_(way.matrix),
        kind_(way.panel),
        weights_(p, way.kernels, way.panel),
        layout_(p, way),
        base_(static_cast<char*>(workspace.data)),
        size_(number_size(way.panel)),
        remade_(p) {
    // The thread count may have grown since the workspace was sized.
    const auto room = (static_cast<int64_t>(workspace.bytes) - layout_.scratch) / layout_.per_slot;
    slots_ = static_cast<int>(std::min<int64_t>(threads::num_threads(), room));
    pairs_ = {reinterpret_cast<Pair*>(base_), static_cast<size_t>(pair_count(p))};
    rows_ = reinterpret_cast<RowOfX*>(base_ + layout_.rows);
    x_ = reinterpret_cast<const uint8_t**>(base_ + layout_.at);
    blocks_ = reinterpret_cast<RowBlock*>(base_ + layout_.blocks);
  }

  void run() {
    fill_pairs(p_, pairs_);
    auto* begins = reinterpret_cast<int64_t*>(base_ + layout_.begins);
    const int64_t runs = find_runs(pairs_, begins);
    int64_t blocks = 0, tiles = 0;
    for (int64_t run = 0; run < runs; ++run) {
      const int64_t end = begins[run + 1] * p_.m;
      for (int64_t row = begins[run] * p_.m; row < end; row += kRowBlock) {
        blocks_[blocks] = {row, std::min(row + kRowBlock, end), tiles};
        tiles += blocks_[blocks++].tiles();
      }
    }
    if (!layout_.direct) copy_x();
    find_rows();
    panels_ = (p_.n + kernels_.cols - 1) / kernels_.cols;
    if (matrix_ != nullptr) copy_tiles(blocks, tiles);
    if (matrix_ != nullptr && tiles * kMatrixRows >= blocks * kRowsTogether) {
      while (together_ < kMostTogether &&
             blocks * panels_ >= 2 * together_ * kItemsPerThread * slots_)
        together_ *= 2;
    }
    per_block_ = (panels_ + together_ - 1) / together_;
    items_ = blocks * per_block_;
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
    const uint8_t** x_next = x_;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const Pair& pair = pairs_[i];
      const bool none = pair.w == kNoMatrix;
      const int64_t matrix = layout_.by_pair ? static_cast<int64_t>(i) : pair.x;
      const int64_t offset = layout_.direct && !none ? x.offset(pair.x) : 0;
      for (int64_t row = 0; row < p_.m; ++row) {
        const uint8_t* from = nullptr;
        if (none) {
          // Nothing is read.
        } else if (layout_.direct) {
          from = static_cast<const uint8_t*>(x.data) + (offset + row * x.row_stride) * size_;
        } else {
          from = copied_row(matrix, row);
        }
        *next++ = {static_cast<int64_t>(i), row};
        *x_next++ = none ? nullptr : from + pair.k_begin * size_;
      }
    }
    std::fill_n(x_next, kTileRows, nullptr);
  }

  // Of `count` values of K, bytes of a tile.
  int64_t tile_bytes(int64_t count) const {
    return (count + kMatrixStep - 1) / kMatrixStep * kMatrixStep * kMatrixRows * size_;
  }
  // A tile's values from k on, a multiple of a panel's depth: a block has one panel's of all tiles
  // after another's.
  char* tile_at(const RowBlock& block, int64_t tile, int64_t k, int64_t count) const {
    return base_ + layout_.tiles + block.tile * kMatrixRows * layout_.row_in_tile +
           block.tiles() * kMatrixRows * k * size_ + tile * tile_bytes(count);
  }

  void copy_tiles(int64_t blocks, int64_t tiles) const {
    const int64_t depth = panel_depth(kind_);
    threads::for_each_item(tiles, threads::num_threads(), [&](int64_t item, int) {
      const RowBlock* const behind = std::upper_bound(
          blocks_, blocks_ + blocks, item, [](int64_t t, const RowBlock& b) { return t < b.tile; });
      const RowBlock& block = behind[-1];
      const int64_t tile = item - block.tile, first = tile * kMatrixRows;
      const int64_t rows = std::min<int64_t>(kMatrixRows, block.rows() - first);
      const uint8_t* const* const from = x_ + block.begin + first;
      if (*from == nullptr) return;
      for (int64_t k = 0; k < p_.k; k += depth) {
        const int64_t count = std::min(depth, p_.k - k);
        const uint8_t* x[kMatrixRows];
        for (int64_t r = 0; r < rows; ++r) x[r] = from[r] + k * size_;
        matrix_->copy_rows(x, rows, count, tile_at(block, tile, k, count));
      }
    });
  }

  const RowBlock& block_of(int64_t item) const { return blocks_[item / per_block_]; }
  int64_t first_panel(int64_t item) const { return item % per_block_ * together_; }
  int64_t panels_of(int64_t item) const { return std::min(together_, panels_ - first_panel(item)); }
  PanelWeights weights_of(int64_t item, int64_t panel) const {
    const Pair& pair = pairs_[static_cast<size_t>(rows_[block_of(item).begin].pair)];
    return weights_.panel(pair, (first_panel(item) + panel) * kernels_.cols);
  }

  void multiply(int64_t item, int slot) const {
    char* const own = base_ + layout_.scratch + slot * layout_.per_slot;
    const auto of_panel = [&](int64_t panel) { return own + panel * layout_.per_panel; };
    const auto sums_of = [&](int64_t panel) {
      return reinterpret_cast<float*>(of_panel(panel) + layout_.sums);
    };
    const RowBlock& block = block_of(item);
    const int64_t panels = panels_of(item);
    PanelWeights w[kMostTogether] = {};
    for (int64_t i = 0; i < panels; ++i) w[i] = weights_of(item, i);
    if (w[0].k == 0) {
      for (int64_t i = 0; i < panels; ++i)
        std::fill_n(sums_of(i), block.rows() * kernels_.cols, 0.0f);
    } else {
      const int64_t depth = panel_depth(kind_);
      const int64_t blocks = (w[0].k + depth - 1) / depth, tiles = tiles_of(block);
      // What this worker will probably take next is fetched meanwhile.
      FetchedPanel fetch[kMostTogether];
      const int64_t then = item + slots_;
      for (int64_t i = 0; then < items_ && i < panels_of(then); ++i)
        fetch[i] = weights_.all(weights_of(then, i), tiles * blocks);
      const bool large = kind_ != Panel::int8 && block.rows() * w[0].k * size_ >= kLargeX;
      if (matrix_ != nullptr) matrix_->begin();
      for (int64_t k = 0; k < w[0].k; k += depth) {
        const int64_t here = std::min(depth, w[0].k - k);
        for (int64_t i = 0; i < panels; ++i) {
          const WeightPanels::Scratch scratch(layout_.weights, of_panel(i));
          weights_.fill(w[i], k, here, scratch);
          if (matrix_ != nullptr) {
            multiply_tiles(block, k, here, scratch, sums_of(i), fetch[i]);
          } else {
            FetchedBlock next;
            if (large && k + here < w[i].k)
              next = weights_.block(w[i], k + here, std::min(depth, w[i].k - k - here), tiles);
            multiply_rows(block, k, here, scratch, sums_of(i), fetch[i], next);
          }
        }
      }
      if (matrix_ != nullptr) matrix_->end();
    }
    for (int64_t i = 0; i < panels; ++i) finish(block, w[i], sums_of(i));
  }

  void multiply_tiles(const RowBlock& block, int64_t k, int64_t count,
                      const WeightPanels::Scratch& scratch, float* sums,
                      FetchedPanel& fetch) const {
    const int64_t tiles = block.tiles();
    MatrixProduct tile{.x = nullptr,
                       .steps = (count + kMatrixStep - 1) / kMatrixStep,
                       .panel = scratch.panel,
                       .sums = sums,
                       .first = k == 0};
    // Behind K the panel has what was there before.
    const int64_t pair_bytes = kernels_.cols * 4, filled = (count + 1) / 2 * pair_bytes;
    std::memset(static_cast<char*>(scratch.panel) + filled, 0,
                static_cast<size_t>(tile.steps * kMatrixStep / 2 * pair_bytes - filled));
    for (int64_t i = 0; i < tiles; ++i) {
      fetch.some();
      tile.x = tile_at(block, i, k, count);
      matrix_->multiply(tile);
      tile.sums += kMatrixRows * kernels_.cols;
    }
  }

  int64_t tiles_of(const RowBlock& block) const {
    return matrix_ != nullptr ? block.tiles() : (block.rows() + kTileRows - 1) / kTileRows;
  }

  // Tiles of as equal heights as can be.
  void multiply_rows(const RowBlock& block, int64_t k, int64_t count,
                     const WeightPanels::Scratch& scratch, float* sums, FetchedPanel& fetch,
                     FetchedBlock& next) const {
    const Int8Group* groups[kTileRows];
    PanelProduct tile{.x = x_ + block.begin,
                      .x_at = k * size_,
                      .k = count,
                      .panel = scratch.panel,
                      .sums = sums,
                      .first = k == 0};
    if (kind_ == Panel::int8) {
      tile.codes = static_cast<Codes>(code_index(*p_.w.spec));
      tile.scales = weights_.scales_from(k, scratch.scales);
      tile.biases = weights_.scales_from(k, scratch.biases);
      tile.group_shift = std::countr_zero(static_cast<uint64_t>(p_.w.spec->group_size));
      tile.x_groups = groups;
    }
    const int64_t tiles = tiles_of(block);
    const bool fetch_x = p_.w.form == Form::packed && kernels_.cols == kMostCols
                             ? block.rows() >= kFetchedRows
                             : block.rows() * p_.k * size_ >= kFetchedX;
    for (int64_t left_rows = block.rows(), left = tiles; left > 0; --left) {
      fetch.some();
      next.some();
      tile.rows = (left_rows + left - 1) / left;
      if (kind_ == Panel::int8) {
        for (int64_t r = 0; r < tile.rows; ++r) {
          groups[r] = reinterpret_cast<const Int8Group*>(tile.x[r] + layout_.groups) +
                      (k >> tile.group_shift);
        }
      }
      if (fetch_x) {
        // After the last rows the first ones come again, further along K.
        tile.next_x = left > 1 ? tile.x + tile.rows : x_ + block.begin;
        tile.next_at = left > 1 ? tile.x_at : tile.x_at + count * size_;
      }
      kernels_.multiply[at(kind_)](tile);
      tile.x += tile.rows;
      tile.sums += tile.rows * kernels_.cols;
      left_rows -= tile.rows;
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
  const MatrixKernels* const matrix_;
  const Panel kind_;
  const WeightPanels weights_;
  const Layout layout_;
  char* const base_;
  int slots_ = 1;
  const int64_t size_;  // of the panel's numbers in x
  const RemadeSums remade_;
  std::span<Pair> pairs_;
  RowOfX* rows_ = nullptr;
  const uint8_t** x_ = nullptr;  // of rows, from the pair's range of K on
  RowBlock* blocks_ = nullptr;
  int64_t panels_ = 0;
  int64_t together_ = 1;   // panels of an item
  int64_t per_block_ = 0;  // items
  int64_t items_ = 0;
};

}  // namespace

Reason mm_reject(const MatmulProblem& p, const MmWay& way) {
  const Panel panel = way.panel;
  if (panel == Panel::bf16 && p.options.precision == Precision::exact)
    return Reason::of("rounds weights to bfloat16, which `exact` rules out");
  if (panel == Panel::bf16 && way.matrix == nullptr && made_by_intel() &&
      p.options.kernel == nullptr)
    return Reason::of("this processor multiplies float32 numbers faster than pairs of bfloat16");
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

size_t mm_workspace(const MatmulProblem& p, const MmWay& way) {
  const Layout layout(p, way);
  return static_cast<size_t>(layout.scratch + threads::num_threads() * layout.per_slot);
}

void mm(const MatmulProblem& p, dispatch::Workspace workspace, const MmWay& way) {
  Product(p, workspace, way).run();
}

}  // namespace moeblas::cpu
