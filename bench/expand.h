// From settings to the cases that they name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/settings.h"

namespace moeblas::bench {

// The row that the library would choose for a case; "" where there is none.
using Choose = std::function<std::string(const CaseSpec&)>;

// The groups: cases of one operation, shape and number of tokens are timed side by side. Throws
// std::invalid_argument for settings that name nothing.
std::vector<std::vector<CaseSpec>> expand(const Settings& settings, const Choose& choose);

// 1 to `most` at every 2^n and 3 * 2^n, and both sides of every change of chosen(tokens), with the
// number after it. Changes are looked for at every number up to 1024 and between neighbouring
// points after that: a row that comes and goes between two of those is missed.
std::vector<int64_t> sweep_points(int64_t most, const std::function<std::string(int64_t)>& chosen);

// The shapes, operations and routings, for --list.
void print_list(const Settings& settings);

}  // namespace moeblas::bench
