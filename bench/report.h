// Records as a table for people and as JSON for plot.py and comparisons. bench/README.md documents
// the JSON.
#pragma once

#include <string>
#include <vector>

#include "bench/run.h"

namespace moeblas::bench {

void print_header(const Run& run);
void print_group(const Run& run, size_t group);

// The row that the library would run for a case beside the fastest of those that were timed.
struct Choice {
  const Record* chosen = nullptr;
  const Record* best = nullptr;
  int rows = 0;
  double ratio() const { return chosen->samples.median() / best->samples.median(); }
};
// Of every case that has been timed with the row that is chosen and with others.
std::vector<Choice> choices(const Run& run);
void print_choices(const Run& run);

std::string to_json(const Run& run);

}  // namespace moeblas::bench
