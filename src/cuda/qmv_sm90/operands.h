// Where the operands of qmv_sm90 lie: strides, rows and tensor maps, as its parameters state them.
#pragma once

#include "cuda/qmv_sm90/plan.h"

namespace moeblas::cuda {

// Of scales or biases, and of codes, whose columns are values.
uint32_t row_bytes(const dispatch::Matrices& m);
uint32_t code_bytes(const dispatch::MatmulProblem& p);
bool is_affine(const dispatch::MatmulProblem& p);

// Why the kernels cannot walk through w.
dispatch::Reason why_not_w(const dispatch::Operand& w);
QmvTensor tensor(const dispatch::Matrices& m);
// Whether so many values of any row can be read or written at once.
bool has_runs_of(size_t values, const dispatch::Matrices& m);
// Rows of `row` bytes of matrices, in boxes of `bytes` of `rows` rows of one matrix.
TensorMapShape map_of(const dispatch::Matrices& m, uint32_t row, uint32_t bytes, uint32_t rows);
// Whether rows are slabs without a rest, wherever they begin; then in slabs, `slabs` of them in a
// box.
bool has_whole_slabs(const dispatch::Matrices& m, uint32_t row);
TensorMapShape map_in_slabs(const dispatch::Matrices& m, uint32_t row, uint32_t slabs,
                            uint32_t rows);
// Whether sixteen rows of scales, and all from them on, are a run that can be copied as it is, of
// `bytes` a row: its own, or another operand's between them too.
bool is_run(const dispatch::Matrices& m, uint64_t bytes);

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
