// How wide tiles of qmm_sm90 are where experts meet few rows of x.
#include <gtest/gtest.h>

#include <utility>

#include "cuda/qmm_sm90/kernels.h"
#include "nowhere.h"
#include "table_case.h"

namespace moeblas::test {
namespace {

// 32 tokens up to 24 rows an expert; up to 12 where tiles of eight experts are one round of
// clusters, which one expert more would make two.
TEST_F(CudaTable, FewTilesAreWiderFromFewerRowsOn) {
  const Layer &mixtral = kLayers[0], &qwen = kLayers[1];
  for (const QuantSpec& spec : {kAffine4, kMxfp4, kNvfp4}) {
    const auto tokens = [&](const Layer& l, bool down, int64_t rows) {
      const auto p = product_nowhere(l, down, spec, kBf16, kBf16, rows * l.experts / l.top_k);
      return cuda::qmm_sm90_kernel(p).tokens;
    };
    EXPECT_EQ(tokens(mixtral, true, 12), 32u);
    EXPECT_EQ(tokens(mixtral, true, 13), 64u);
    for (const auto& [layer, down] : {std::pair{mixtral, false}, {qwen, false}, {qwen, true}}) {
      EXPECT_EQ(tokens(layer, down, 24), 32u) << layer.name;
      EXPECT_EQ(tokens(layer, down, 25), 64u) << layer.name;
    }
  }
}

}  // namespace
}  // namespace moeblas::test
