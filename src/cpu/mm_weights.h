// The weights of a product of many rows: which lie where, and how a panel is filled with them.
#pragma once

#include "cpu/decode.h"
#include "cpu/mm_kernels.h"
#include "cpu/pairs.h"

namespace moeblas::cpu {

constexpr int64_t panel_depth(Panel panel) {
  return kPanelSteps * (panel == Panel::int8 ? 4 : panel == Panel::bf16 ? 2 : 1);
}

// Elements from one output, or one value of K, to the next.
inline int64_t n_step(const dispatch::MatmulProblem& p) {
  return p.transpose ? p.w.values.row_stride : p.w.values.col_stride;
}
inline int64_t k_step(const dispatch::MatmulProblem& p) {
  return p.transpose ? p.w.values.col_stride : p.w.values.row_stride;
}

// Outputs [n, n + count) of one matrix.
struct PanelWeights {
  int64_t matrix, n, count;
  int64_t k;               // values of K; 0: there are no weights
  PackedRow packed;        // row 0
  const uint8_t* values;   // of row 0 or, dense, of the matrix's first value
  int64_t n_step, k_step;  // bytes
  float factor = 1.0f;     // of the sums
};

class WeightPanels {
 public:
  // What a worker needs to fill panels, as offsets in bytes.
  struct Layout {
    int64_t panel, words, scales, biases, quantized, bytes;
    Layout(const dispatch::MatmulProblem& p, Panel kind, int cols);
  };
  struct Scratch {
    void* panel;
    uint32_t* words;
    float *scales, *biases;
    uint8_t* quantized;
    Scratch(const Layout& layout, char* own);
  };

  WeightPanels(const dispatch::MatmulProblem& p, const MmKernels& kernels, Panel kind);

  // The panel that begins with output n. Without a matrix, or with an empty range of K, there are
  // no weights.
  PanelWeights panel(const Pair& pair, int64_t n) const;

  // Values [k, k + count) of K, at most a panel's depth. Blocks are filled in ascending order, from
  // k = 0 on.
  void fill(const PanelWeights& w, int64_t k, int64_t count, const Scratch& scratch) const;

  // Of what fill() left in scratch.scales or biases, where the block of K that begins at k begins.
  const float* scales_from(int64_t k, const float* scales) const {
    return scales + k / group_ % kScaleGroups * kernels_.cols;
  }

  // Weights that are fetched line by line, by so many calls, into the L1 or the L2 cache.
  enum class Cache : uint8_t { l1, l2 };
  template <Cache kInto>
  class Fetch {
   public:
    Fetch() = default;
    // `rows` of so many bytes, `step` apart.
    Fetch(const uint8_t* from, int64_t rows, int64_t bytes, int64_t step, int64_t calls);
    // One of the calls.
    void some();

   private:
    const uint8_t* row_ = nullptr;
    int64_t step_ = 0, bytes_ = 0, at_ = 0, left_ = 0, share_ = 0;
  };
  // A panel's, in the order of memory: as many as L2 may hold beside the rest, none where they lie
  // along N.
  Fetch<Cache::l2> all(const PanelWeights& w, int64_t calls) const;
  // Those of the block [k, k + count), as many as L1 may hold beside a panel.
  Fetch<Cache::l1> block(const PanelWeights& w, int64_t k, int64_t count, int64_t calls) const;

 private:
  static constexpr int64_t kScaleGroups = kPanelSteps;  // transposed at a time

  void quantize(const PanelWeights& w, int64_t k, int64_t count, uint8_t* to) const;
  void scales_along_k(const PanelWeights& w, int64_t first, int64_t count,
                      const Scratch& scratch) const;
  void scales_along_n(const PanelWeights& w, int64_t k, int64_t count,
                      const Scratch& scratch) const;
  float block_scale(const PackedRow& row, int64_t group) const;
  int64_t panel_value_size() const { return kind_ == Panel::bf16 ? 2 : 4; }

  const dispatch::MatmulProblem& p_;
  const MmKernels& kernels_;
  const Panel kind_;
  bool along_k_ = true;
  MmKernels::Fill fill_ = nullptr;
  int64_t bits_ = 0;  // of a weight; 0 where it is quantized on the fly
  int64_t group_ = 1;
};

}  // namespace moeblas::cpu
