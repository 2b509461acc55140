// The shapes file (shapes/moe.txt): models and matrices by name. The file's head states its syntax.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moeblas/quant.h"

namespace moeblas::bench {

enum class Kind : uint8_t { moe, experts, dense, segmented, qqmm };
const char* name(Kind kind);

// One line of the file. Keys that the kind does not have are 0 or empty.
struct ShapeEntry {
  Kind kind = Kind::dense;
  std::string name;
  int64_t experts = 0, top_k = 0;        // moe, experts
  int64_t hidden = 0, intermediate = 0;  // moe
  int64_t m = 0, n = 0, k = 0, segments = 0;
  QuantSpec format;                 // what the checkpoint holds
  std::string glu = "split";        // moe: split | interleaved
  std::string activation = "silu";  // moe: silu | swiglu_clamped
  bool biases = false;              // moe: both products add one
};

// One product of an entry: E matrices (N, K) of which every token takes top_k. E = 0: one matrix,
// no choice.
struct ProductShape {
  int64_t experts = 0, top_k = 1, n = 0, k = 0;
};

// `projection` counts for moe alone: gate_up, gate or down.
ProductShape product_shape(const ShapeEntry& entry, std::string_view projection);

// Parses the text of a shapes file, or one line of it; throws std::invalid_argument with the line's
// number, what was expected and what came.
std::vector<ShapeEntry> parse_shapes(std::string_view text);

// The text of shapes/moe.txt as it was when this was built.
std::string_view builtin_shapes();

// The entries that `wanted` names: "all", a name, the beginning of exactly one name, or that of
// several followed by *; for a shape that is not in the file, a whole line in its syntax, or MxNxK
// (dense) and MxNxKxS (segmented). Throws std::invalid_argument.
std::vector<ShapeEntry> find_shapes(const std::vector<ShapeEntry>& shapes,
                                    const std::string& wanted);

// "affine4", "affine4g32", "mxfp4", ...; throws std::invalid_argument.
QuantSpec parse_format(std::string_view text);
std::string format_name(const QuantSpec& spec);

}  // namespace moeblas::bench
