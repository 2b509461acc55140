// The operations that the bench knows: one row each. A new one is a row here and a file in ops/.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "bench/case.h"

namespace moeblas::bench {

constexpr unsigned kind_bit(Kind kind) { return 1u << static_cast<unsigned>(kind); }

struct Operation {
  const char* name;
  unsigned kinds;  // of shapes that it takes, as bits
  // Which of a case's choices mean something to it; the others are not varied.
  bool takes_format;
  bool takes_tokens;
  bool takes_routing;
  std::unique_ptr<Case> (*make)(Device& device, const CaseSpec& spec);
  // Both operands in blocks: only the modes for that; where a shape names another, nvfp4.
  bool blocks = false;
  // What is always timed beside it: of qqmm, x in codes, and x in floats that count as they are,
  // which is its product alone.
  const char* beside[2] = {};
  bool takes_scale_layout = false;  // in block formats

  // One product of a model; the others are about whole layers or have no experts.
  bool takes_projection() const { return (kinds & kind_bit(Kind::experts)) != 0; }
};

std::span<const Operation> operations();
// Throws std::invalid_argument with the list.
const Operation& find_operation(std::string_view name);

std::unique_ptr<Case> make_quantized_matmul(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_gather_qmm(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_gather_qmv(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_gather_mm(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_grouped_mm(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_grouped_qmm(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_segmented_mm(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_qqmm(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_qqmm_packed(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_gather_qqmm(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_grouped_qqmm(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_moe_ffn(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_moe_route(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_moe_permute(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_moe_unpermute(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_expert_loop(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_quantize(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_quantize_dual(Device& device, const CaseSpec& spec);
std::unique_ptr<Case> make_dequantize(Device& device, const CaseSpec& spec);

}  // namespace moeblas::bench
