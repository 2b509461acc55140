// What tests of the CUDA table share: formats, and that the build has the rows.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cuda/table.h"
#include "moeblas/quant.h"

namespace moeblas::test {

inline constexpr QuantSpec kAffine4{Mode::affine, 4, 64}, kAffine8{Mode::affine, 8, 64};
inline constexpr QuantSpec kMxfp4{Mode::mxfp4, 4, 32}, kMxfp8{Mode::mxfp8, 8, 32},
    kNvfp4{Mode::nvfp4, 4, 16};
inline constexpr DType kBf16 = DType::bf16;

// Kernels of sm_90a are in the tables of builds that have their code.
class CudaTable : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& row : cuda::backend().matmul) {
      if (std::string(row.name.text) == "qmv_sm90" && row.arch.least > 90) {
        GTEST_SKIP() << "this build has no code for sm_90a";
      }
    }
  }
};

}  // namespace moeblas::test
