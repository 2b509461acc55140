// Where the operands of qmv_sm90 lie: strides, rows and tensor maps, as its parameters state them.
#pragma once

#include <optional>

#include "cuda/qmv_sm90_plan.h"

namespace moeblas::cuda {

// The one stride that leads through a batch, in elements; none if it takes several.
std::optional<int64_t> single_stride(const dispatch::Matrices& m);
// Of scales or biases, and of codes, whose columns are values.
uint32_t row_bytes(const dispatch::Matrices& m);
uint32_t code_bytes(const dispatch::MatmulProblem& p);
bool is_affine(const dispatch::MatmulProblem& p);

// Where rows of x and of the output lie, and where their matrices are named.
dispatch::Reason place_pairs(const dispatch::MatmulProblem& p, QmvParams& q);
void place_rows(const dispatch::MatmulProblem& p, QmvParams& q);
// How scales come: by boxes with every stage, or a tile's rows as runs (scale_slots > 0).
dispatch::Reason place_scales(const dispatch::MatmulProblem& p, const QmvLayer& layer,
                              QmvParams& q);
// Whether rows of codes are slabs without a rest, wherever they begin.
bool has_whole_slabs(const dispatch::MatmulProblem& p, const QmvLayer& layer);
QmvWeights weights(const dispatch::Operand& w, const dispatch::Matrices& added);
// Of an operand whose stages are cut.
dispatch::Reason map_operand(const dispatch::MatmulProblem& p, const dispatch::Operand& w,
                             const QmvParams& q, TensorMapShape* maps);

}  // namespace moeblas::cuda
