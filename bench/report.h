// Records as a table for people and as JSON for plot.py and comparisons. bench/README.md documents
// the JSON.
#pragma once

#include <string>

#include "bench/run.h"

namespace moeblas::bench {

void print_header(const Run& run);
void print_group(const Run& run, size_t group);
std::string to_json(const Run& run);

}  // namespace moeblas::bench
