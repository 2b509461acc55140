#include <gtest/gtest.h>

#include "support/seeds.h"

namespace moeblas::test {
namespace {

TEST(QuantizedMatmul, Generated) { run_generated(Op::quantized_matmul, 432); }

}  // namespace
}  // namespace moeblas::test
