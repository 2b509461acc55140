// moe_ffn as the composition of its parts, like the CPU backend's.
#pragma once

#include "simt/plan.h"

namespace moeblas::simt {

// How the layer's products run: any kernel that takes gather problems with an epilogue and a
// float32 output.
struct ProductRunner {
  size_t (*workspace)(const dispatch::MatmulProblem&);
  void (*run)(const dispatch::MatmulProblem&, dispatch::Workspace, Queue&);
};

// Ids out of range are left out; a backend that offers check_ids looks at them before.
size_t simt_ffn_workspace(const dispatch::FfnProblem& p, const ProductRunner& products);
void simt_ffn(const dispatch::FfnProblem& p, dispatch::Workspace workspace, Queue& queue,
              const ProductRunner& products);

// The expert of each pair (tokens, k) that is here, or -1.
void simt_map_experts(const dispatch::FfnProblem& p, int32_t* experts, Queue& queue);

// The activation alone: hidden (pairs, I) in x's dtype from gate_up (pairs, 2I) float32.
void simt_glu(const dispatch::FfnProblem& p, const float* gate_up, const int32_t* experts,
              void* hidden, Queue& queue);

}  // namespace moeblas::simt
