// Selection: the first row that takes the problem, a forced row, or the reasons why none does.
#pragma once

#include <span>
#include <string>

#include "dispatch/row.h"

namespace moeblas::dispatch {

// How messages call a device: "cpu", "cuda:0".
std::string device_name(const Device& device);

// Why `row` does not take `problem` on a device of this capability; empty if it does.
template <class Problem>
Reason why_not(const Row<Problem>& row, const Problem& problem, int capability);

// The row that runs. `forced` names the only row of the table to consider (nullptr: all). Where
// `explanation` is given, it gets a line for every row that was looked at. Throws Error
// (unsupported) with every row's reason if none takes the problem.
template <class Problem>
const Row<Problem>& select(std::span<const Row<Problem>> table, const Problem& problem,
                           int capability, const char* forced, std::string* explanation = nullptr);

// The row for a part of a larger problem: `select`, with MOEBLAS_KERNEL where it names a row of
// this table.
template <class Problem>
const Row<Problem>& select_part(const Backend& backend, const Problem& part, int capability);

// The first of `rows` that takes a part of a larger problem; nullptr if none does.
template <class Problem>
const Row<Problem>* first_of(std::span<const Row<Problem>* const> rows, const Problem& part,
                             int capability) {
  for (const auto* row : rows) {
    if (!why_not(*row, part, capability)) return row;
  }
  return nullptr;
}

// Selects and runs, or answers the problem's query. `backends` is the registry. Throws Error
// (invalid argument) if a row is forced that the table does not hold.
template <class Problem>
void run(std::span<const Backend* const> backends, const Problem& problem);

// The columns in words, for tables and reasons.
std::string describe(Formats formats);
std::string describe(DTypes dtypes);
std::string describe(Groupings groupings);
std::string describe(RowRange rows);

}  // namespace moeblas::dispatch
