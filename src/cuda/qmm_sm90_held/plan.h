// The host's half of the kernels of qmm_sm90 that hold rows of x in registers.
#pragma once

#include "cuda/queue.h"
#include "dispatch/problem.h"

namespace moeblas::cuda {

struct ListPairsParams;

// Whether they take the problem and are the faster ones.
bool qmm_sm90_is_held(const dispatch::MatmulProblem& p);
void qmm_sm90_run_held(const dispatch::MatmulProblem& p, Queue& queue);

// The same for rows of several matrices, whose lists are left to them (QmmRows::left).
bool qmm_sm90_holds_runs(const dispatch::MatmulProblem& p);
void qmm_sm90_run_held_runs(const dispatch::MatmulProblem& p, const ListPairsParams& lists,
                            Queue& queue);

// What gates and ups come to, rows of bfloat16 in the order of the runs, `pitch` values apart: as
// they are, or staged for a product of 4-bit codes by tiles.
struct HeldActivations {
  uint8_t* rows;
  int64_t pitch;
  bool staged;
};
// The same for a layer's gates and ups, of which `p` has the ones and `lower` the others:
// silu(gate) * up. If the lists are for this product alone, they have no runs and no rows of out.
// `before_sums`: they take what is left as well.
bool qmm_sm90_holds_gates(const dispatch::MatmulProblem& p, const dispatch::Operand& lower,
                          bool before_sums);
void qmm_sm90_run_held_gates(const dispatch::MatmulProblem& p, const dispatch::Operand& lower,
                             bool first_is_up, const ListPairsParams& lists,
                             const HeldActivations& to, Queue& queue);

// The product of those, which are not staged: float32 rows of all pairs, those of each part of K
// behind another's. In how many parts; 0: they do not take it.
uint32_t qmm_sm90_held_sum_parts(const dispatch::MatmulProblem& p);
void qmm_sm90_run_held_sums(const dispatch::MatmulProblem& p, const ListPairsParams& lists,
                            const HeldActivations& from, float* sums, Queue& queue);

}  // namespace moeblas::cuda
