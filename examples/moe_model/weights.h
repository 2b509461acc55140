// The weights of a mixture-of-experts language model, as views of where they lie in the mapped
// checkpoint, in the form in which the operations take them.
#pragma once

#include <vector>

#include "checkpoint/checkpoint.h"
#include "moeblas/moe.h"

namespace moeblas::examples {

// y = x @ weight^T + bias.
struct Linear {
  Quantized weight;  // or floats, mode dense
  TensorView bias;   // may be absent
};

struct Layer {
  TensorView attention_norm, q_norm, k_norm;
  Linear q, k, v, o;
  TensorView ffn_norm;
  Linear router;  // absent in a layer without experts
  // One stack of all experts, or each expert by itself, or a layer's only MLP.
  std::vector<FfnLayer> experts;
};

struct Weights {
  Quantized embedding;
  std::vector<Layer> layers;
  TensorView final_norm;
  Linear head;

  // Throws checkpoint::Error, naming what is missing or has another shape than the config says.
  explicit Weights(const checkpoint::Checkpoint& checkpoint);
};

}  // namespace moeblas::examples
