#include <gtest/gtest.h>

#include "support/seeds.h"

namespace moeblas::test {
namespace {

TEST(Quantize, Generated) { run_generated(Op::quantize, 648); }
TEST(Dequantize, Generated) { run_generated(Op::dequantize, 324); }
TEST(ToFp8, Generated) { run_generated(Op::to_fp8, 90); }
TEST(FromFp8, Generated) { run_generated(Op::from_fp8, 90); }

}  // namespace
}  // namespace moeblas::test
