// The products: what each operation means, as a checked problem. Every operation has an infer_
// form, which looks at shapes and dtypes alone, and a form that binds the output. moeblas.h has the
// contract of each.
#pragma once

#include "dispatch/problem.h"

namespace moeblas::ops {

using dispatch::MatmulProblem;

Spec infer_quantized_matmul(const TensorView& x, const Quantized& w, bool transpose);
MatmulProblem quantized_matmul(const TensorView& x, const Quantized& w, bool transpose,
                               const TensorView& out, const Options& options);

Spec infer_gather_mm(const TensorView& a, const TensorView& b, const TensorView& lhs,
                     const TensorView& rhs);
MatmulProblem gather_mm(const TensorView& a, const TensorView& b, const TensorView& lhs,
                        const TensorView& rhs, bool sorted, const TensorView& out,
                        const Options& options);

Spec infer_gather_qmm(const TensorView& x, const Quantized& w, const TensorView& lhs,
                      const TensorView& rhs, bool transpose);
MatmulProblem gather_qmm(const TensorView& x, const Quantized& w, const TensorView& lhs,
                         const TensorView& rhs, bool transpose, bool sorted, const TensorView& out,
                         const Options& options);

Spec infer_gather_qmv(const TensorView& x, const Quantized& w, const TensorView& ids);
MatmulProblem gather_qmv(const TensorView& x, const Quantized& w, const TensorView& ids,
                         const TensorView& out, const Options& options);

Spec infer_segmented_mm(const TensorView& a, const TensorView& b, const TensorView& segments);
MatmulProblem segmented_mm(const TensorView& a, const TensorView& b, const TensorView& segments,
                           const TensorView& out, const Options& options);

Spec infer_grouped_mm(const TensorView& x, const TensorView& w, const TensorView& offsets);
MatmulProblem grouped_mm(const TensorView& x, const TensorView& w, const TensorView& offsets,
                         const TensorView& out, const Options& options);

Spec infer_grouped_qmm(const TensorView& x, const Quantized& w, const TensorView& offsets,
                       bool transpose);
MatmulProblem grouped_qmm(const TensorView& x, const Quantized& w, const TensorView& offsets,
                          bool transpose, const TensorView& out, const Options& options);

}  // namespace moeblas::ops
