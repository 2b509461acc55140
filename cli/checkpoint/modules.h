// What the supported architectures are made of: names and shapes of every tensor, once.
#pragma once

#include <functional>
#include <string>

#include "checkpoint/config.h"
#include "moeblas/tensor.h"

namespace moeblas::checkpoint {

struct Module {
  enum Kind {
    norm,     // path.weight (K)
    matrix,   // path.weight (N, K): a linear module or an embedding
    router,   // a matrix whose rows are the experts' logits
    experts,  // (E, N, K), in one of the layouts that Checkpoint::experts knows
  };
  Kind kind{};
  std::string path;  // of experts: as MLX stacks them, "...mlp.switch_mlp.gate_proj"
  Shape shape;
  bool bias = false;       // there is path.bias (N)
  std::string mlp;         // of experts: "...mlp"
  std::string projection;  // of experts: gate_proj, up_proj or down_proj
};

// In the model's order. The names are those of Hugging Face and MLX, which differ in the experts.
void visit_modules(const Config& config, const std::function<void(const Module&)>& visit);

}  // namespace moeblas::checkpoint
