// The models whose bytes the fuzzers begin with, and read any other bytes as.
#pragma once

#include "checkpoints/tiny_model.h"

namespace moeblas::test {

inline const Tiny kFuzzModels[] = {
    {.layout = Layout::separate},
    {.layout = Layout::stacked, .dtype = DType::f32, .tied = true},
    {.layout = Layout::mlx, .spec = QuantSpec{Mode::affine, 4, 16}, .attention_bias = true},
    {.architecture = checkpoint::Architecture::qwen3_moe,
     .layout = Layout::mlx,
     .spec = QuantSpec{Mode::mxfp8},
     .hidden = 32},
};

}  // namespace moeblas::test
