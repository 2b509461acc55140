// The portable products: what they take, the workspace they want, and their launches. Any backend
// that brings a Queue can make rows of its table of these.
#pragma once

#include <optional>

#include "dispatch/problem.h"
#include "dispatch/row.h"
#include "simt/pairs.h"
#include "simt/plan.h"

namespace moeblas::simt {

// Decode: few rows per matrix, w packed along K, x dense.
dispatch::Reason simt_qmv_reject(const dispatch::MatmulProblem& p);
size_t simt_qmv_workspace(const dispatch::MatmulProblem& p);
void simt_qmv(const dispatch::MatmulProblem& p, dispatch::Workspace workspace, Queue& queue);

// The same for one row per pair, 4-bit affine w, K in whole stretches of 512 and N of 8. It wants
// the workspace of qmv.
dispatch::Reason simt_gather_qmv_fast_reject(const dispatch::MatmulProblem& p);
void simt_gather_qmv_fast(const dispatch::MatmulProblem& p, dispatch::Workspace workspace,
                          Queue& queue);

// Any product.
dispatch::Reason simt_qmm_reject(const dispatch::MatmulProblem& p);
size_t simt_qmm_workspace(const dispatch::MatmulProblem& p);
void simt_qmm(const dispatch::MatmulProblem& p, dispatch::Workspace workspace, Queue& queue);

// What a threadgroup of a product makes, and with how many threads.
struct TileSize {
  uint32_t rows;
  uint32_t cols;
  uint32_t threads;
  // Of columns times K: tiles that have less share a threadgroup, while there are enough of them,
  // and with it the search for their rows and the staging of x.
  int64_t enough_k = 0;
};
// Makes the work list; then the launch of a kernel with MB_PRODUCT_ARGUMENTS (tiles.h), a
// threadgroup per tile of rows and columns.
Step product_step(const dispatch::MatmulProblem& p, dispatch::Workspace workspace,
                  const char* kernel, const TileSize& tile, Queue& queue);
// The same for kernels that need no work list, as there is one pair or they find pairs themselves.
Step listless_step(const dispatch::MatmulProblem& p, const char* kernel, const TileSize& tile);
// Of w: its place in formats::AllFormats, whose number stands for dense.
size_t weight_format(const dispatch::MatmulProblem& p);
// The largest power of two up to 16 that divides where every row begins, in bytes.
int32_t row_alignment(const dispatch::Matrices& m);
// The same along the axis whose neighbours lie next to each other; 1 if there is none.
int32_t neighbour_alignment(const dispatch::Matrices& m);

// For options.check_ids, before the product: the step that writes a BadId to device memory at
// `result`, aligned to 8 bytes; none where no index can be out of range. Its reader hands the BadId
// to require_good_ids, which throws the Error that names position and value.
std::optional<Step> bad_id_step(const dispatch::MatmulProblem& p, void* result);
void require_good_ids(const dispatch::MatmulProblem& p, const BadId& bad);

}  // namespace moeblas::simt
