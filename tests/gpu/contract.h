// ExecuTorch's contract of gather_qmv, and the shapes of its test module: y[p] = w[ids[p]] @ x[p],
// 4-bit, two codes a byte.
#pragma once

#include <ostream>

#include "generated_jobs.h"

namespace moeblas::gpu {

struct Contract {
  int64_t experts, n, k;
  int group;
  const char* kernel;  // the portable row that is to run it
};

inline constexpr Contract kContracts[] = {
    {4, 32, 64, 32, "qmv_simt"},
    {8, 1024, 2048, 32, "gather_qmv_fast_simt"},
    {2, 8, 512, 64, "gather_qmv_fast_simt"},
    {2, 8, 512, 128, "gather_qmv_fast_simt"},
    {2, 5, 512, 32, "qmv_simt"},
    {2, 6, 512, 32, "qmv_simt"},
    {2, 7, 512, 32, "qmv_simt"},
    {2, 8, 544, 32, "qmv_simt"},
};

inline std::ostream& operator<<(std::ostream& out, const Contract& c) {
  return out << "E " << c.experts << ", N " << c.n << ", K " << c.k << ", groups of " << c.group;
}

inline test::Case contract_case(const Contract& c, DType dtype, int64_t pairs) {
  test::Case made = product_case(test::Op::gather_qmv, QuantSpec{Mode::affine, 4, c.group}, dtype,
                                 true, pairs, c.n, c.k, test::Ids::uniform, c.experts);
  made.codes.dtype = DType::u8;
  made.codes.shape[2] *= 4;
  made.codes.strides = contiguous_strides(made.codes.shape);
  return made;
}

}  // namespace moeblas::gpu
