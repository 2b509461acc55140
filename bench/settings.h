// What a run is asked to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/case.h"
#include "bench/clock.h"

namespace moeblas::bench {

// Of a case. Calls of a few hundred bytes stay in the cache all the same.
inline constexpr int64_t kMostSets = 2048;

struct Settings {
  std::vector<std::string> ops{"gather_qmm"};
  std::vector<std::string> shapes;  // names, or lines of the shapes file; none: the first that fits
  std::string projection = "gate_up";
  std::vector<int64_t> tokens;  // none: the M of the shape, or 1 and 16 where it has none
  // Not 0: instead of `tokens`, 1 to this at every 2^n and 3 * 2^n and beside every border between
  // rows, each with every row.
  int64_t sweep_tokens = 0;
  std::vector<std::string> beside;  // operations to be timed together with each of `ops`
  std::vector<std::string> modes;   // none: the format of the shape
  std::vector<int> bits{0};         // 0: the mode's default
  std::vector<int> group_sizes{0};
  std::vector<std::string> dtypes{"bfloat16"};
  std::string scale_dtype = "bfloat16";
  std::vector<std::string> scale_layouts{"rows"};  // or swizzled
  int64_t row_pitch = 1;                           // of weights, in lengths of a row
  std::vector<std::string> routings{"uniform"};
  std::string precision = "native";
  bool deterministic = false;
  // Rows by name; "chosen": what the library would use; "all": every row that takes the problem.
  std::vector<std::string> kernels{"chosen"};
  std::string device = "auto";  // see devices()
  std::vector<int> threads{0};  // of the CPU; 0: the library's default
  Budget budget;
  int64_t rotate_bytes = -1;  // -1: three times the last-level cache
  uint64_t seed = 1;
  std::string shapes_file;  // empty: the one that was built in
  std::string json_file;    // empty: none
  std::string commit;       // of what this was built from; empty: as the build found it
  Tamper tamper;            // for tests: spoils outputs before they are checked
};

}  // namespace moeblas::bench
