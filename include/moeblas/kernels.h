// The dispatch table as seen from outside: which kernels there are, which one a call would use, and
// how many threads the CPU's kernels get.
#pragma once

#include <string>
#include <vector>

#include "moeblas/error.h"
#include "moeblas/ops.h"

namespace moeblas {

// Every row of every backend, in table order: the first that takes a problem runs.
inline std::vector<moeblas_kernel> kernels() {
  std::vector<moeblas_kernel> rows(static_cast<size_t>(moeblas_kernel_count()));
  for (size_t i = 0; i < rows.size(); ++i)
    check(moeblas_kernel_at(static_cast<int32_t>(i), &rows[i]));
  return rows;
}

// What a call would do.
struct Plan {
  std::string kernel;  // empty: nothing has to run
  size_t workspace_bytes = 0;
  std::string explanation;  // every row before the chosen one, and why it would not take the call
};

// Asks instead of running: `call` is given options that only query.
//   Plan p = plan([&](const Options& o) { gather_qmm(x, w, {}, ids, true, false, out, o); });
template <class Call>
Plan plan(Call&& call, Options options = {}) {
  std::string text(16384, '\0');
  moeblas_query query{sizeof(moeblas_query), nullptr, 0, text.data(), text.size()};
  options.query = &query;
  call(options);
  text.resize(text.find('\0'));
  return {query.kernel ? query.kernel : "", query.workspace_bytes, std::move(text)};
}

inline void set_num_threads(int n) { check(moeblas_set_num_threads(n)); }
inline int get_num_threads() { return moeblas_get_num_threads(); }
inline void advise_huge_pages(const void* data, size_t bytes) {
  check(moeblas_advise_huge_pages(data, bytes));
}

}  // namespace moeblas
