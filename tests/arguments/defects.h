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
  std::string says;                // and holds this
  moeblas_status expected = MOEBLAS_INVALID_ARGUMENT;
  bool in_infer = true;  // infer refuses it
  bool in_query = true;  // a query refuses it: it is not about memory
};

std::vector<Defect> defects_of(const Case& valid);

// The defects of one call as they are made; `names` are those of which the message has one.
struct DefectList {
  Defect& add(const std::string& label, std::vector<std::string> names);

  const Case& valid;
  std::vector<Defect> defects;
};
// Of its tensors, and of everything else.
void add_tensor_defects(DefectList& list);
void add_struct_defects(DefectList& list);

// Whether `name` stands in `message` as a word.
bool names_argument(const std::string& message, const std::string& name);

}  // namespace moeblas::test
