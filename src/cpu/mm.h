#pragma once

#include "cpu/mm_kernels.h"
#include "dispatch/row.h"

namespace moeblas::cpu {

dispatch::Reason mm_reject(const dispatch::MatmulProblem& p, Panel panel);
size_t mm_workspace(const dispatch::MatmulProblem& p, const MmKernels& kernels, Panel panel);
void mm(const dispatch::MatmulProblem& p, dispatch::Workspace workspace, const MmKernels& kernels,
        Panel panel);

// The functions of a row: a tier's kernels and what its panels hold.
template <const MmKernels& kKernels, Panel kPanel>
struct Mm {
  static dispatch::Reason reject(const dispatch::MatmulProblem& p) { return mm_reject(p, kPanel); }
  static size_t workspace(const dispatch::MatmulProblem& p) {
    return mm_workspace(p, kKernels, kPanel);
  }
  static void launch(const dispatch::MatmulProblem& p, dispatch::Workspace workspace) {
    mm(p, workspace, kKernels, kPanel);
  }
};

}  // namespace moeblas::cpu
