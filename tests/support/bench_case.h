// Cases for the bench's tests, in few words.
#pragma once

#include "bench/case.h"
#include "bench/shapes.h"

namespace moeblas::bench {

inline ShapeEntry shape(const std::string& name) {
  return find_shapes(parse_shapes(builtin_shapes()), name).at(0);
}
inline CaseSpec spec(const std::string& op, const ShapeEntry& entry, int64_t tokens,
                     QuantSpec format, DType dtype) {
  CaseSpec s;
  s.op = op, s.shape = entry, s.tokens = tokens, s.format = format.resolved(), s.dtype = dtype;
  return s;
}

}  // namespace moeblas::bench
