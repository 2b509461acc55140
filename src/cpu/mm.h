#pragma once

#include "cpu/mm_kernels.h"
#include "dispatch/row.h"

namespace moeblas::cpu {

// A tier's kernels, what its panels hold, and what multiplies them if not the same.
struct MmWay {
  const MmKernels& kernels;
  Panel panel;
  const MatrixKernels* matrix = nullptr;
};

dispatch::Reason mm_reject(const dispatch::MatmulProblem& p, const MmWay& way);
size_t mm_workspace(const dispatch::MatmulProblem& p, const MmWay& way);
void mm(const dispatch::MatmulProblem& p, dispatch::Workspace workspace, const MmWay& way);

// The functions of a row.
template <const MmKernels& kKernels, Panel kPanel, const MatrixKernels* kMatrix = nullptr>
struct Mm {
  static dispatch::Reason reject(const dispatch::MatmulProblem& p) {
    return mm_reject(p, {kKernels, kPanel, kMatrix});
  }
  static size_t workspace(const dispatch::MatmulProblem& p) {
    return mm_workspace(p, {kKernels, kPanel, kMatrix});
  }
  static void launch(const dispatch::MatmulProblem& p, dispatch::Workspace workspace) {
    mm(p, workspace, {kKernels, kPanel, kMatrix});
  }
};

}  // namespace moeblas::cpu
