// The host's half of the kernels of qmm_sm90 that hold rows of x in registers.
#pragma once

#include "cuda/queue.h"
#include "dispatch/problem.h"

namespace moeblas::cuda {

struct QmmRows;

// Rows of x that matrices of an expert layer have on the average, at the least: from there on
// qmm_sm90_holds_runs and qmm_sm90_holds_gates take what is faster so. Mixtral's gates and ups of 8
// tokens took 111 us for 114, in mxfp4 110 for 126, of 4 tokens 84 for 85, its layers 173 for 165.
inline constexpr int64_t kHeldLeastRunRows = 2;

// Whether they take the problem and are the faster ones.
bool qmm_sm90_is_held(const dispatch::MatmulProblem& p);
void qmm_sm90_run_held(const dispatch::MatmulProblem& p, Queue& queue);

// The same for rows of several matrices, which are grouped by lists (QmmRows::sources).
bool qmm_sm90_holds_runs(const dispatch::MatmulProblem& p);
void qmm_sm90_run_held_runs(const dispatch::MatmulProblem& p, const QmmRows& rows, Queue& queue);

// The same for a layer's gates and ups, of which `p` has the ones and `lower` the others:
// silu(gate)
// * up, staged in the order of the runs for a product of 4-bit codes, `pitch` values apart.
bool qmm_sm90_holds_gates(const dispatch::MatmulProblem& p, const dispatch::Operand& lower);
void qmm_sm90_run_held_gates(const dispatch::MatmulProblem& p, const dispatch::Operand& lower,
                             bool first_is_up, const QmmRows& rows, uint8_t* staged, int64_t pitch,
                             Queue& queue);

}  // namespace moeblas::cuda
