// What this binary was built from; bench/build_info.cmake writes the values at every build.
#pragma once

namespace moeblas::bench {

struct BuildInfo {
  const char* commit;  // "unknown" outside of a git checkout
  bool dirty;          // the checkout had changes that are not in the commit
  const char* compiler;
  const char* type;
};
extern const BuildInfo kBuild;

}  // namespace moeblas::bench
