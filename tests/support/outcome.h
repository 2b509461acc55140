// What came of a case.
#pragma once

#include <string>

#include "support/tolerance.h"

namespace moeblas::test {

struct Outcome {
  std::string failure{};  // "" if everything held
  std::string refusal{};  // the message, if the forced kernel does not take the case
  std::string kernel{};   // what ran; "" for an empty output
  Agreement agreement{};

  bool ok() const { return failure.empty(); }
  // Whether there is a result to look at.
  bool ran() const { return failure.empty() && refusal.empty(); }
};

}  // namespace moeblas::test
