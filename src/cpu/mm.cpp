// mm_f32_*, mm_bf16_*: products of many rows with packed or dense weights, on the kernels of a tier
// (simd/mm_panels.h, simd/mm_tiles.h).
//
// An item of work is a block of up to kRowBlock rows that share a matrix, and a panel of its
// outputs. K is walked in blocks that fill a panel in the L1 cache: weights are decoded into it
// once, then met by all rows of the block. Items come from one queue, without a barrier per matrix.
// Rows of x are read where they are, by pointers; only what is no plain row of the panel's dtype
// is copied, once per call.
//
// mm_f32 multiplies in float32, whatever x and w are, and its weights are the numbers that
// dequantize gives. mm_bf16 multiplies pairs of bfloat16: weights are rounded to it where it does
// not hold them, and numbers below 2^-126, products included, count as 0. A sum's order depends on
// K alone in both.
//
// The time goes into the multiply-adds from some 64 rows per matrix on, into decoding below.
#include "cpu/mm.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cpu/decode.h"
#include "cpu/mm_kernels.h"
#include "cpu/pairs.h"
#include "cpu/quantized_x.h"
#include "cpu/store.h"
#include "threads/parallel.h"

namespace moeblas::cpu {
namespace {

using dispatch::Form;
using dispatch::MatmulProblem;
using dispatch::Reason;

constexpr int64_t kRowBlock = 512;  // sums of a panel: 128 KiB, which the L2 cache holds
constexpr int64_t kScaleGroups = kPanelSteps;  // transposed at a time
constexpr int kMostCols = 64;

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr int per_step(Panel panel) { return panel == Panel::bf16 ? 2 : 1; }
constexpr int64_t depth_of(Panel panel) { return kPanelSteps * per_step(panel); }

// As indices of the kernels' tables.
int at(Panel panel) { return static_cast<int>(panel); }
int at(DType dtype) { return element_index(dtype); }
int at(const QuantSpec& spec) { return code_index(spec); }

int64_t n_step(const MatmulProblem& p) {
  return p.transpose ? p.w.values.row_stride : p.w.values.col_stride;
}
int64_t k_step(const MatmulProblem& p) {
  return p.transpose ? p.w.values.col_stride : p.w.values.row_stride;
}

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
  bool direct;        // rows of x are used where they are
  bool by_pair;       // copies of x: one per pair, or one per matrix of x
  int64_t pitch;      // bytes from one copied row to the next
  int64_t begins, blocks, rows, x, scratch, per_slot;
  // Within a worker's share.
  int64_t panel, words, scales, biases, quantized, sums;

  Layout(const MatmulProblem& p, Panel kind, int cols) {
    const dispatch::Matrices& values = p.x.values;
    const int64_t pairs = pair_count(p), all_rows = p.total_rows();
    const DType dtype = kind == Panel::bf16 ? DType::bf16 : DType::f32;
    direct = p.x.form == Form::dense && values.dtype == dtype && values.col_stride == 1;
    by_pair = p.x.form != Form::dense || values.count() > pairs;
    pitch = aligned(p.k * static_cast<int64_t>(size_of(dtype)));
    const int64_t copies = direct ? 0 : (by_pair ? pairs : values.count()) * p.m;
    begins = aligned(pairs * static_cast<int64_t>(sizeof(Pair)));
    blocks = begins + aligned((pairs + 1) * static_cast<int64_t>(sizeof(int64_t)));
    rows = blocks +
           aligned((pairs + all_rows / kRowBlock + 1) * static_cast<int64_t>(sizeof(RowBlock)));
    x = rows + aligned(all_rows * static_cast<int64_t>(sizeof(RowOfX)));
    scratch = x + copies * pitch;
    panel = 0;
    words = panel + int64_t{kPanelSteps} * cols * 4;
    scales = words + int64_t{kPanelSteps} * kChunk * 4;
    // Along N a block of K has cols / kChunk scales per value.
    const int64_t most_scales =
        std::max(kScaleGroups * cols, depth_of(kind) * cols / kChunk);
    biases = scales + most_scales * 4;
    quantized = biases + most_scales * 4;
    sums = quantized + (p.w.form == Form::on_the_fly ? depth_of(kind) * cols * 4 : 0);
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
        layout_(p, kind, kernels.cols),
        base_(static_cast<char*>(workspace.data)) {
    // The thread count may have grown since the workspace was sized.
    const auto room =
        (static_cast<int64_t>(workspace.bytes) - layout_.scratch) / layout_.per_slot;
    slots_ = static_cast<int>(std::min<int64_t>(threads::num_threads(), room));
    pairs_ = {reinterpret_cast<Pair*>(base_), static_cast<size_t>(pair_count(p))};
    rows_ = reinterpret_cast<RowOfX*>(base_ + layout_.rows);
    blocks_ = reinterpret_cast<RowBlock*>(base_ + layout_.blocks);
    size_ = kind == Panel::bf16 ? 2 : 4;
    if (p.w.form == Form::on_the_fly) {
      along_k_ = true;
      fill_ = kernels.dense_along_k[at(kind)][at(DType::f32)];
    } else if (p.w.form == Form::packed) {
      along_k_ = p.transpose;
      fill_ = (along_k_ ? kernels.packed_along_k : kernels.packed_along_n)[at(kind)][at(*p.w.spec)];
      bits_ = p.w.spec->bits;
      group_ = p.w.spec->group_size;
    } else {
      const DType dtype = p.w.values.dtype;
      along_k_ = k_step(p) == 1;
      fill_ = (along_k_ ? kernels.dense_along_k : kernels.dense_along_n)[at(kind)][at(dtype)];
      bits_ = 8 * static_cast<int64_t>(size_of(dtype));
    }
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
    threads::for_each_item(items_, slots_,
                           [&](int64_t item, int slot) { multiply(item, slot); });
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
      if (p_.x.form != Form::dense)
        return quantized_x_row(p_, pair, row, reinterpret_cast<float*>(to));
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

  // What a worker has of its own.
  struct Scratch {
    void* panel;
    uint32_t* words;
    float *scales, *biases, *quantized, *sums;
  };

  // The weights of an item: outputs [n, n + count) of one matrix.
  struct Weights {
    int64_t matrix, n, count;
    int64_t k;               // values of K; 0: there are no weights
    PackedRow packed;        // row 0
    const uint8_t* values;   // of row 0 or, dense, of the matrix's first value
    int64_t n_step, k_step;  // bytes
    float factor = 1.0f;     // of the sums
  };

  const RowBlock& block_of(int64_t item) const { return blocks_[item / panels_]; }
  // None where the rows of an item have no matrix, or an empty range of K.
  Weights weights_of(int64_t item) const {
    const Pair& pair = pairs_[static_cast<size_t>(rows_[block_of(item).begin].pair)];
    Weights w{};
    w.matrix = pair.w;
    w.n = item % panels_ * kernels_.cols;
    w.count = std::min<int64_t>(kernels_.cols, p_.n - w.n);
    w.k = pair.w == kNoMatrix ? 0 : pair.k_end - pair.k_begin;
    if (w.k == 0) return w;
    const dispatch::Matrices& m = p_.w.values;
    const auto size = static_cast<int64_t>(size_of(m.dtype));
    if (p_.w.form == Form::packed) {
      w.packed = packed_row(p_.w, pair.w, 0, pair.w);
      w.values = w.packed.codes;
      w.n_step = w.k_step = m.row_stride * size;
      // A tensor_scale that is no power of two would cost bfloat16 weights bits that they do not
      // have, a tiny one all of them: what is not used waits for the sum.
      const float scale = w.packed.tensor_scale;
      if (kind_ == Panel::bf16 && std::isfinite(scale) && scale != 0) {
        const int exponent = std::max(std::ilogb(scale), -100);
        w.packed.tensor_scale = std::ldexp(1.0f, exponent);
        w.factor = std::ldexp(scale, -exponent);
      }
    } else {
      w.n_step = n_step(p_) * size;
      w.k_step = k_step(p_) * size;
      w.values = static_cast<const uint8_t*>(m.data) + m.offset(pair.w) * size +
                 pair.k_begin * w.k_step;
    }
    return w;
  }

  void multiply(int64_t item, int slot) const {
    char* own = base_ + layout_.scratch + slot * layout_.per_slot;
    const Scratch scratch{own + layout_.panel, reinterpret_cast<uint32_t*>(own + layout_.words),
                          reinterpret_cast<float*>(own + layout_.scales),
                          reinterpret_cast<float*>(own + layout_.biases),
                          reinterpret_cast<float*>(own + layout_.quantized),
                          reinterpret_cast<float*>(own + layout_.sums)};
    const RowBlock& block = block_of(item);
    const Weights w = weights_of(item);
    if (w.k == 0) {
      std::fill_n(scratch.sums, (block.end - block.begin) * kernels_.cols, 0.0f);
    } else {
      // What this worker will probably take next is fetched meanwhile.
      Fetch fetch;
      if (item + slots_ < items_) fetch = {*this, weights_of(item + slots_)};
      const int64_t depth = depth_of(kind_);
      const int64_t blocks = (w.k + depth - 1) / depth;
      for (int64_t k = 0; k < w.k; k += depth) {
        const int64_t here = std::min(depth, w.k - k);
        fill_panel(w, k, here, scratch);
        multiply_rows(block, k, here, scratch, fetch, blocks);
      }
    }
    finish(block, w, scratch.sums);
  }

  // The weights of an item, line by line in the order of memory: as many as the L2 cache may hold
  // beside the rest.
  class Fetch {
   public:
    Fetch() = default;
    Fetch(const Product& product, const Weights& w) {
      const int64_t per_row = w.k * product.bits_ / 8;
      if (!product.along_k_ || product.bits_ == 0 || per_row * w.count > kMostFetched) return;
      from_ = w.values + w.n * w.n_step;
      step_ = w.n_step;
      per_row_ = per_row;
      bytes_ = per_row * w.count;
    }
    // One of `parts` calls.
    void some(int64_t parts) {
      constexpr int64_t kLine = 64;
      const int64_t share = (bytes_ / kLine + parts - 1) / parts;
      for (int64_t i = 0; i < share && row_ * per_row_ < bytes_; ++i) {
        __builtin_prefetch(from_ + row_ * step_ + at_, 0, 2);
        at_ += kLine;
        if (at_ >= per_row_) {
          at_ = 0;
          ++row_;
        }
      }
    }

   private:
    static constexpr int64_t kMostFetched = 512 << 10;
    const uint8_t* from_ = nullptr;
    int64_t step_ = 0, per_row_ = 0, bytes_ = 0, row_ = 0, at_ = 0;
  };

  // Tiles of as equal heights as can be.
  void multiply_rows(const RowBlock& block, int64_t k, int64_t count, const Scratch& scratch,
                     Fetch& fetch, int64_t blocks) const {
    float* sums = scratch.sums;
    const int64_t tiles = (block.end - block.begin + kTileRows - 1) / kTileRows;
    int64_t row = block.begin;
    for (int64_t left = tiles; left > 0; --left) {
      fetch.some(tiles * blocks);
      const int64_t height = (block.end - row + left - 1) / left;
      const uint8_t* x[kTileRows];
      for (int64_t r = 0; r < height; ++r) x[r] = rows_[row + r].x + k * size_;
      kernels_.multiply[at(kind_)](x, height, count, scratch.panel, sums, k == 0);
      row += height;
      sums += height * kernels_.cols;
    }
  }

  void fill_panel(const Weights& w, int64_t k, int64_t here, const Scratch& scratch) const {
    const uint8_t* rows[std::max(int64_t{kMostCols}, depth_of(Panel::bf16))];
    WeightBlock b;
    b.rows = rows;
    b.k = here;
    b.count = w.count;
    b.group_shift = std::countr_zero(static_cast<uint64_t>(group_));
    b.words = scratch.words;
    b.panel = scratch.panel;
    if (p_.w.form == Form::on_the_fly) {
      quantize_weights(w, k, here, scratch.quantized);
      for (int64_t j = 0; j < kernels_.cols; ++j)
        rows[j] = reinterpret_cast<uint8_t*>(scratch.quantized + std::min(j, w.count - 1) * here);
    } else if (along_k_) {
      for (int64_t j = 0; j < kernels_.cols; ++j)
        rows[j] = w.values + (w.n + std::min(j, w.count - 1)) * w.n_step + k * bits_ / 8;
    } else {
      for (int64_t i = 0; i < here; ++i) rows[i] = w.values + (k + i) * w.k_step + w.n * bits_ / 8;
    }
    if (p_.w.form == Form::packed) {
      b.scales = scratch.scales;
      b.biases = scratch.biases;
      if (!along_k_) {
        scales_along_n(w, k, here, scratch);
      } else {
        // Several blocks' worth at a time.
        const int64_t group = k / group_, within = group % kScaleGroups;
        if (within == 0) {
          const int64_t groups = std::min(kScaleGroups, p_.k / group_ - group);
          scales_along_k(w, group, groups, scratch);
        }
        b.scales += within * kernels_.cols;
        b.biases += within * kernels_.cols;
      }
    }
    fill_(b);
  }

  // Values [k, k + count) of K of every output, as if quantized and dequantized.
  void quantize_weights(const Weights& w, int64_t k, int64_t count, float* to) const {
    const dispatch::Matrices& m = p_.w.values;
    const int64_t first = m.offset(w.matrix) + k * k_step(p_);
    const float tensor_scale = load_tensor_scale(p_.w.tensor_scale, w.matrix);
    formats::visit_format(p_.w.spec->mode, p_.w.spec->bits, [&]<class Format>() {
      if constexpr (!formats::kIsAffine<Format>) {
        for (int64_t j = 0; j < w.count; ++j, to += count) {
          load_floats(m.data, m.dtype, first + (w.n + j) * n_step(p_), k_step(p_), count, to);
          round_trip<Format>(to, count, tensor_scale);
        }
      }
    });
  }

  // scales[g][j] for groups [first, first + count) of the panel's outputs.
  void scales_along_k(const Weights& w, int64_t first, int64_t count,
                      const Scratch& scratch) const {
    const dispatch::Operand& o = p_.w;
    if (w.packed.swizzled_row >= 0) {
      PackedRow row = w.packed;
      for (int64_t j = 0; j < w.count; ++j) {
        row.swizzled_row = w.n + j;
        for (int64_t g = 0; g < count; ++g)
          scratch.scales[g * kernels_.cols + j] = block_scale(row, first + g);
      }
      return;
    }
    const uint8_t* rows[kMostCols];
    WeightBlock b;
    b.rows = rows;
    b.k = count;
    b.count = w.count;
    b.factor = w.packed.tensor_scale;
    b.words = scratch.words;
    const auto transpose = [&](const void* row0, const dispatch::Matrices& m, MmKernels::Fill fill,
                               float* to) {
      const auto size = static_cast<int64_t>(size_of(m.dtype));
      for (int64_t j = 0; j < kernels_.cols; ++j) {
        rows[j] = static_cast<const uint8_t*>(row0) +
                  ((w.n + std::min(j, w.count - 1)) * m.row_stride + first) * size;
      }
      b.panel = to;
      fill(b);
    };
    const auto* floats = kernels_.dense_along_k[at(Panel::f32)];
    const MmKernels::Fill fill = o.spec->mode == Mode::affine
                                     ? floats[at(o.scales.dtype)]
                                 : o.spec->mode == Mode::nvfp4 ? kernels_.e4m3_scales
                                                               : kernels_.e8m0_scales;
    transpose(w.packed.scales, o.scales, fill, scratch.scales);
    if (o.spec->mode == Mode::affine) transpose(w.packed.biases, o.biases, fill, scratch.biases);
  }

  // scales[i][chunk] for values [k, k + count) of K.
  void scales_along_n(const Weights& w, int64_t k, int64_t count, const Scratch& scratch) const {
    const dispatch::Operand& o = p_.w;
    const int64_t chunks = kernels_.cols / kChunk, used = w.count / kChunk;
    PackedRow row = w.packed;
    for (int64_t i = 0; i < count; ++i) {
      if (w.packed.swizzled_row >= 0) row.swizzled_row = k + i;
      const int64_t at = w.packed.swizzled_row >= 0 ? 0 : (k + i) * o.scales.row_stride;
      row.scales = static_cast<const char*>(w.packed.scales) +
                   at * static_cast<int64_t>(size_of(o.scales.dtype));
      for (int64_t c = 0; c < used; ++c) {
        const int64_t group = (w.n + c * kChunk) / group_;
        if (o.spec->mode == Mode::affine) {
          scratch.scales[i * chunks + c] = load_float(row.scales, o.scales.dtype, group);
          scratch.biases[i * chunks + c] =
              load_float(w.packed.biases, o.biases.dtype, (k + i) * o.biases.row_stride + group);
        } else {
          scratch.scales[i * chunks + c] = block_scale(row, group);
        }
      }
    }
  }

  float block_scale(const PackedRow& row, int64_t group) const {
    const auto byte = load_as<uint8_t>(row.scales, row.scale_index(group));
    const float scale = p_.w.spec->mode == Mode::nvfp4 ? formats::Nvfp4::decode_scale(byte)
                                                       : formats::Mxfp4::decode_scale(byte);
    return formats::mul(scale, row.tensor_scale);
  }

  // Sums into the output.
  void finish(const RowBlock& block, const Weights& w, float* sums) const {
    const auto store = kernels_.store[at(p_.out.dtype)];
    const auto size = static_cast<int64_t>(size_of(p_.out.dtype));
    for (int64_t r = block.begin; r < block.end; ++r, sums += kernels_.cols) {
      const RowOfX& row = rows_[r];
      const Pair& pair = pairs_[static_cast<size_t>(row.pair)];
      if (p_.epilogue.trivial()) {
        const int64_t first = pair.out + row.row * p_.out.row_stride + w.n;
        store(sums, w.factor, w.count, static_cast<char*>(p_.out.data) + first * size);
      } else {
        for (int64_t j = 0; w.factor != 1 && j < w.count; ++j) sums[j] *= w.factor;
        store_sums(p_, pair, row.row, w.n, w.count, sums);
      }
    }
  }

  const MatmulProblem& p_;
  const MmKernels& kernels_;
  const Panel kind_;
  const Layout layout_;
  char* const base_;
  int slots_ = 1;
  int64_t size_;  // of the panel's numbers in x
  std::span<Pair> pairs_;
  RowOfX* rows_ = nullptr;
  RowBlock* blocks_ = nullptr;
  int64_t panels_ = 0;
  int64_t items_ = 0;
  bool along_k_ = true;
  MmKernels::Fill fill_ = nullptr;
  int64_t bits_ = 0;  // of a weight; 0 where it is quantized on the fly
  int64_t group_ = 1;
};

}  // namespace

Reason mm_reject(const MatmulProblem& p, Panel panel) {
  if (panel == Panel::bf16 && p.options.precision == Precision::exact)
    return Reason::of("rounds weights to bfloat16, which `exact` rules out");
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
