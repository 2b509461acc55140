#include <gtest/gtest.h>

#include "support/seeds.h"

namespace moeblas::test {
namespace {

TEST(GatherMm, Generated) { run_generated(Op::gather_mm, 240); }
TEST(GatherQmm, Generated) { run_generated(Op::gather_qmm, 864); }
TEST(GatherQmv, Generated) { run_generated(Op::gather_qmv, 216); }

}  // namespace
}  // namespace moeblas::test
