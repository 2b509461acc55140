// The host's half of the kernels of qmm_sm90 that hold rows of x in registers.
#pragma once

#include "cuda/queue.h"
#include "dispatch/problem.h"

namespace moeblas::cuda {

struct QmmRows;

// Of fewer rows of x for each matrix of an expert layer, on the average, it does not take runs.
inline constexpr int64_t kHeldLeastRunRows = 2;

// Whether they take the problem and are the faster ones.
bool qmm_sm90_is_held(const dispatch::MatmulProblem& p);
void qmm_sm90_run_held(const dispatch::MatmulProblem& p, Queue& queue);

// The same for rows of several matrices, which are grouped by lists (QmmRows::sources).
bool qmm_sm90_holds_runs(const dispatch::MatmulProblem& p);
void qmm_sm90_run_held_runs(const dispatch::MatmulProblem& p, const QmmRows& rows, Queue& queue);

// The same for a layer's gates and ups, of which `p` has the ones and `lower` the others:
// silu(gate) * up, staged in the order of the runs for a product of 4-bit codes, `pitch` values
// apart.
bool qmm_sm90_holds_gates(const dispatch::MatmulProblem& p, const dispatch::Operand& lower);
void qmm_sm90_run_held_gates(const dispatch::MatmulProblem& p, const dispatch::Operand& lower,
                             bool first_is_up, const QmmRows& rows, uint8_t* staged, int64_t pitch,
                             Queue& queue);

}  // namespace moeblas::cuda
