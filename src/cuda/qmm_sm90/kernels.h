// The kernels of qmm_sm90: their names and shapes, and which one takes a problem.
#pragma once

#include <cstdint>

#include "dispatch/problem.h"

namespace moeblas::cuda {

struct QmmSm90Kernel {
  const char* name;
  uint32_t rows;                  // of w, in a block
  uint32_t tokens, least_tokens;  // of a tile
  uint32_t extra, extra_step;     // of those of the widest, beyond a power of two
  uint32_t threads;
  uint32_t shared_bytes;
  uint32_t code_blocks;  // of K, in a copy of codes
  bool by_blocks;
  bool gathers;
  uint32_t whole_scales;  // bytes of them, at most
  uint32_t scale_unit;    // of copies, where rows begin anywhere
  uint32_t scale_chunks;  // of the format's that one copy may bring
};

// By format, dtype, and how many rows of x a matrix of w meets on the average.
const QmmSm90Kernel& qmm_sm90_kernel(const dispatch::MatmulProblem& p);
// One that has wider tiles beside its own, which may be the faster ones as experts meet unlike
// numbers of rows: the device chooses.
struct QmmSm90Either {
  const char* name = nullptr;  // null: there is none
  QmmSm90Kernel wider{};       // as if there were nothing else
  uint32_t loss = 0;           // WiderTiles::loss
};
// In the place of qmm_sm90_kernel(p), or of qmm_sm90_ahead(p, ..); null: there is none.
const QmmSm90Either* qmm_sm90_either(const dispatch::MatmulProblem& p, bool ahead);
// One whose products write rows of x themselves, where there are `products` of them in turn, the
// first of which does; null: there is none.
const QmmSm90Kernel* qmm_sm90_ahead(const dispatch::MatmulProblem& p, int64_t products);
// Whether qmm_sm90_kernel(p) decodes packed weights in the natural order of k, that of x.
bool qmm_sm90_is_natural(const dispatch::MatmulProblem& p);
// Blocks of K whose scales come together at the least.
uint32_t qmm_sm90_chunk_blocks(const dispatch::MatmulProblem& p);
// Whether the format has kernels for both products of an expert layer.
bool qmm_sm90_has_layers(const dispatch::MatmulProblem& p);

// Dense weights lie in rows of K, or across: in rows of N.
int64_t k_stride(const dispatch::MatmulProblem& p);
int64_t n_stride(const dispatch::MatmulProblem& p);
bool across(const dispatch::MatmulProblem& p);

}  // namespace moeblas::cuda
