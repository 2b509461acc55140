#include <gtest/gtest.h>

#include "support/qqmm_case.h"

namespace moeblas::test {
namespace {

TEST(Qqmm, Generated) {
  run_seeds(540, [](uint64_t seed) { return seeded(make_qqmm_case(QqmmKind::batched, seed)); });
}
TEST(GatherQqmm, Generated) {
  run_seeds(540, [](uint64_t seed) { return seeded(make_qqmm_case(QqmmKind::gathered, seed)); });
}
TEST(GroupedQqmm, Generated) {
  run_seeds(540, [](uint64_t seed) { return seeded(make_qqmm_case(QqmmKind::grouped, seed)); });
}

}  // namespace
}  // namespace moeblas::test
