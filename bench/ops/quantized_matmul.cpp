// quantized_matmul: tokens (M, K) times one quantized matrix (N, K).
#include "bench/operations.h"
#include "bench/product.h"

namespace moeblas::bench {
namespace {

class QuantizedMatmul final : public ProductCase {
 public:
  QuantizedMatmul(Device& device, const CaseSpec& s)
      : ProductCase(device, s, product_shape(s), true, Rows::shared) {}

 protected:
  Shape x_shape() const override { return {tokens(), shape().k}; }
  Shape out_shape() const override { return {tokens(), shape().n}; }
  void run(const Operands& o, const Options& options) override {
    quantized_matmul(o.x, o.w, true, o.out, options);
  }
};

}  // namespace

std::unique_ptr<Case> make_quantized_matmul(Device& device, const CaseSpec& spec) {
  return std::make_unique<QuantizedMatmul>(device, spec);
}

}  // namespace moeblas::bench
