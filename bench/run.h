// A run of the bench: from settings to records, through checks and timings.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/settings.h"

namespace moeblas::bench {

// One (case, kernel).
struct Record {
  CaseSpec spec;
  Sizes sizes;
  Work work;
  bool copies = false;
  int pieces = 3;
  std::string kernel;
  bool chosen = false;  // by the library, for this problem
  Precision precision = Precision::native;
  int threads = 0;  // 0: not a matter of threads
  int64_t sets = 0;
  int64_t workspace_bytes = 0;
  size_t group = 0;  // the records that were timed together
  Verdict verdict;
  Samples samples;
};

// Records that were interleaved, and the machine before and after them.
struct Group {
  Ceilings before, after;
  double gap = 0;  // the larger of the relative changes of read and f32
};

// What could not be timed, and why.
struct Skip {
  std::string what, why;
};

struct Run {
  std::string device_kind, device_model;
  int64_t cache_bytes = 0;
  std::string precision;
  bool deterministic = false;
  Regime regime;
  std::string commit;
  bool dirty = false;
  std::vector<Group> groups;
  std::vector<Record> records;  // right answers, timed
  std::vector<Record> wrong;    // wrong answers, not timed
  std::vector<Skip> skipped;
};

// The least time that a record's work can take on its group's ceilings (the higher of before
// and after: what else runs can only lower a ceiling), and which ceiling that is.
struct Floor {
  double seconds = 0;
  const char* bound = "";  // "read", "copy", "f32", "bf16", ...
  bool moves = true;       // read or copy
};
Floor floor_of(const Record& record, const Group& group);

// "gather_qmm qwen3-30b-a3b gate_up T=16 affine4g64 bfloat16 uniform"
std::string describe(const CaseSpec& spec);

// Runs everything; `progress` gets each group as it is finished. Throws std::invalid_argument for
// settings that name nothing.
Run run(const Settings& settings,
        const std::function<void(const Run&, size_t group)>& progress = {});

// run, printed to stdout and written to settings.json_file. True if no answer was wrong and
// something was timed.
bool run_and_report(const Settings& settings);

}  // namespace moeblas::bench
