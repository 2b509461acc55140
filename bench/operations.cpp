#include "bench/operations.h"

#include <stdexcept>

namespace moeblas::bench {
namespace {

constexpr unsigned kStacks = kind_bit(Kind::moe) | kind_bit(Kind::experts);
constexpr unsigned kModel = kind_bit(Kind::moe);
constexpr unsigned kMatrix = kind_bit(Kind::dense) | kind_bit(Kind::qqmm);

// clang-format off
constexpr Operation kOperations[] = {
  // name              shapes                      format tokens routing
  {"quantized_matmul", kMatrix,                    true,  true,  false, make_quantized_matmul},
  {"gather_qmm",       kStacks,                    true,  true,  true,  make_gather_qmm},
  {"gather_qmv",       kStacks,                    true,  true,  true,  make_gather_qmv},
  {"gather_mm",        kStacks,                    false, true,  true,  make_gather_mm},
  {"grouped_mm",       kStacks,                    false, true,  true,  make_grouped_mm},
  {"grouped_qmm",      kStacks,                    true,  true,  true,  make_grouped_qmm},
  {"segmented_mm",     kind_bit(Kind::segmented),  false, false, true,  make_segmented_mm},
  {"qqmm",             kMatrix,                    true,  true,  false, make_qqmm,         true, {"qqmm_packed", "quantized_matmul"}},
  {"qqmm_packed",      kMatrix,                    true,  true,  false, make_qqmm_packed,  true},
  {"gather_qqmm",      kStacks,                    true,  true,  true,  make_gather_qqmm,  true},
  {"grouped_qqmm",     kStacks,                    true,  true,  true,  make_grouped_qqmm, true},
  {"moe_ffn",          kModel,                     true,  true,  true,  make_moe_ffn},
  {"moe_route",        kModel,                     false, true,  false, make_moe_route},
  {"moe_permute",      kModel,                     false, true,  true,  make_moe_permute},
  {"moe_unpermute",    kModel,                     false, true,  true,  make_moe_unpermute},
  {"expert_loop",      kStacks,                    true,  true,  true,  make_expert_loop},
  {"quantize",         kMatrix,                    true,  false, false, make_quantize,     false, {}, true},
  {"quantize_dual",    kMatrix,                    true,  false, false, make_quantize_dual},
  {"dequantize",       kMatrix,                    true,  false, false, make_dequantize},
};
// clang-format on

}  // namespace

std::span<const Operation> operations() { return kOperations; }

const Operation& find_operation(std::string_view name) {
  std::string known;
  for (const Operation& op : kOperations) {
    if (name == op.name) return op;
    known += std::string(" ") + op.name;
  }
  throw std::invalid_argument("'" + std::string(name) + "' is no operation of the bench:" + known);
}

}  // namespace moeblas::bench
