// Bad calls, derived from a valid one: every argument made wrong in every way that its place in the
// signature allows.
#pragma once

#include <string>
#include <vector>

#include "arguments/operations.h"

namespace moeblas::test {

struct Defect {
  std::string label;  // "x: float64"
  Case bad;
  std::vector<std::string> names;  // the message names one of these
  moeblas_status expected = MOEBLAS_INVALID_ARGUMENT;
  bool in_call = true;   // the operation refuses it
  bool in_infer = true;  // infer refuses it
};

std::vector<Defect> defects_of(const Case& valid);

// Whether `name` stands in `message` as a word.
bool names_argument(const std::string& message, const std::string& name);

}  // namespace moeblas::test
