#include "cases_on_blocks.h"

#include "ops/products.h"
#include "support/codec.h"

namespace moeblas::test {

dispatch::MatmulProblem problem_of(const Case& c, const Operands& o) {
  Options options;
  options.precision = c.precision;
  const Quantized w = o.quantized();
  switch (c.op) {
    case Op::quantized_matmul:
      return ops::quantized_matmul(o.x.view, w, c.transpose, o.out.view, options);
    case Op::gather_qmm:
      return ops::gather_qmm(o.x.view, w, o.lhs.view, o.rhs.view, c.transpose, c.sorted, o.out.view,
                             options);
    case Op::grouped_qmm:
      return ops::grouped_qmm(o.x.view, w, o.ranges.view, c.transpose, o.out.view, options);
    default:
      return ops::gather_qmv(o.x.view, w, o.rhs.view, o.out.view, options);
  }
}

std::vector<double> values_of(const Case& c, const Operands& o) {
  const std::vector<uint8_t> bytes = element_bytes(o.out);
  std::vector<double> values(static_cast<size_t>(o.out.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = load_value(bytes.data(), c.out.dtype, static_cast<int64_t>(i));
  }
  return values;
}

}  // namespace moeblas::test
