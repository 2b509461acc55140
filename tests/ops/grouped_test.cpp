#include <gtest/gtest.h>

#include "support/seeds.h"

namespace moeblas::test {
namespace {

TEST(GroupedMm, Generated) { run_generated(Op::grouped_mm, 240); }
TEST(GroupedQmm, Generated) { run_generated(Op::grouped_qmm, 432); }

}  // namespace
}  // namespace moeblas::test
