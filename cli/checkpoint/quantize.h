// quantize_checkpoint: a folder of floats becomes the folder that mlx-lm would make of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/error.h"
#include "moeblas/quant.h"

namespace moeblas::checkpoint {

struct QuantizeOptions {
  QuantSpec spec{};
  // Shell patterns of MLX's module paths ("*.mlp.gate", "lm_head"): these modules stay floats.
  std::vector<std::string> skip{};
  uint64_t shard_bytes = uint64_t{5} << 30;  // of tensors in one file; a larger tensor has its own
};

struct QuantizeResult {
  uint64_t tensors = 0;
  uint64_t parameters = 0;
  uint64_t bytes = 0;  // of all tensors
};

// Reads the float checkpoint `in` (OLMoE or Qwen3-MoE, any expert layout that Checkpoint reads) and
// writes `out` in the layout of mlx-lm 0.32:
//   - the experts of a layer stacked on axis 0 as mlp.switch_mlp.{gate,up,down}_proj;
//   - every matrix P whose K is a multiple of group_size as P.weight, P.scales and, for affine,
//     P.biases, by moeblas::quantize, with scales and biases of the matrix's dtype; norms, biases
//     and skipped modules as they are;
//   - Qwen3-MoE's routers affine 8-bit in groups of 64, whatever the rest, noted in the config;
//   - files of at most shard_bytes and their index, the config with "quantization" and its
//     duplicate "quantization_config", the tokenizer's files and generation_config.json.
// Refused: a checkpoint that is incomplete, has unknown tensors, is quantized already, or holds a
// matrix with a value that is not finite; a pattern that matches nothing; an `out` that exists.
//
// The folder is made as `out`.partial, config.json last, and renamed when all of it is durable.
// Whenever the process is killed, `in` is untouched, `out` is complete or not there, and so is the
// config.json of `out`.partial, without which it does not load. What is left is to be removed
// before the next try. An error removes it.
//
// progress is told the parameters done and to do, now and then, from this thread.
QuantizeResult quantize_checkpoint(const std::filesystem::path& in,
                                   const std::filesystem::path& out, const QuantizeOptions& options,
                                   const std::function<void(uint64_t, uint64_t)>& progress = {});

}  // namespace moeblas::checkpoint
