#include <gtest/gtest.h>

#include "support/ffn_case.h"

namespace moeblas::test {
namespace {

TEST(MoeFfn, Generated) {
  run_seeds(480, [](uint64_t seed) { return seeded(make_ffn_case(seed)); });
}

}  // namespace
}  // namespace moeblas::test
