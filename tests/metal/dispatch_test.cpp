// Which of Metal's rows takes what.
#include <gtest/gtest.h>

#include <string>

#include "moeblas/kernels.h"

namespace moeblas::test {
namespace {

constexpr Device kMetal{MOEBLAS_METAL, 0};

// What gather_qmv would run for ExecuTorch's arguments; no data is looked at.
Plan contract_plan(int64_t n, int64_t k, int group, int bits = 4) {
  const int64_t experts = 8, pairs = 4;
  const Quantized w{.spec = {Mode::affine, bits, group},
                    .codes = {nullptr, DType::u8, {experts, n, k * bits / 8}, kMetal},
                    .scales = {nullptr, DType::bf16, {experts, n, k / group}, kMetal},
                    .biases = {nullptr, DType::bf16, {experts, n, k / group}, kMetal}};
  const TensorView x(nullptr, DType::bf16, {pairs, k}, kMetal);
  const TensorView ids(nullptr, DType::i64, {pairs}, kMetal);
  const TensorView out(nullptr, DType::bf16, {pairs, n}, kMetal);
  return plan([&](const Options& o) { gather_qmv(x, w, ids, out, o); });
}

TEST(MetalDispatch, WholeStretchesOfKTakeTheFastRow) {
  EXPECT_EQ(contract_plan(8, 512, 32).kernel, "gather_qmv_fast_simt");
  EXPECT_EQ(contract_plan(1024, 2048, 64).kernel, "gather_qmv_fast_simt");
  EXPECT_EQ(contract_plan(32, 64, 32).kernel, "qmv_simt");
  EXPECT_EQ(contract_plan(8, 544, 32).kernel, "qmv_simt");
  for (int64_t n : {5, 6, 7}) EXPECT_EQ(contract_plan(n, 512, 32).kernel, "qmv_simt");
  EXPECT_EQ(contract_plan(8, 512, 32, 8).kernel, "qmv_simt");
}

TEST(MetalDispatch, TheReasonHasTheNumbers) {
  EXPECT_NE(contract_plan(8, 544, 32)
                .explanation.find("gather_qmv_fast_simt: K = 544 is not a multiple of 512"),
            std::string::npos);
  EXPECT_NE(contract_plan(7, 512, 32).explanation.find("N = 7 is not a multiple of 8"),
            std::string::npos);
}

TEST(MetalDispatch, TheTableIsListed) {
  std::string rows;
  for (const moeblas_kernel& row : kernels()) {
    if (std::string(row.backend) == "metal") rows += std::string(row.name) + " ";
  }
  EXPECT_EQ(rows,
            "gather_qmv_fast_simt qmv_simt qmm_simt quantize_simt fp8_simt route_simt permute_simt "
            "ffn_simt ");
}

}  // namespace
}  // namespace moeblas::test
