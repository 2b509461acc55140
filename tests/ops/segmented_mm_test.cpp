#include <gtest/gtest.h>

#include "support/seeds.h"

namespace moeblas::test {
namespace {

TEST(SegmentedMm, Generated) { run_generated(Op::segmented_mm, 240); }

}  // namespace
}  // namespace moeblas::test
