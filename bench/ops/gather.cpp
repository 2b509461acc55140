// gather_qmm and gather_mm: rows of tokens meet the experts that their ids choose, in the layout of
// an unsorted expert layer: x (T, 1, 1, K), ids (T, top_k), out (T, top_k, 1, N). gather_qmv: one
// row of x per choice.
#include "bench/operations.h"
#include "bench/product.h"

namespace moeblas::bench {
namespace {

class Gather : public ProductCase {
 public:
  Gather(Device& device, const CaseSpec& s, bool quantized)
      : ProductCase(device, s, product_shape(s), quantized, Rows::shared) {}

 protected:
  Shape x_shape() const override { return {tokens(), 1, 1, shape().k}; }
  Shape index_shape() const override { return {tokens(), shape().top_k}; }
  Shape out_shape() const override { return {tokens(), shape().top_k, 1, shape().n}; }
};

class GatherQmm final : public Gather {
 public:
  GatherQmm(Device& device, const CaseSpec& s) : Gather(device, s, true) {}

 protected:
  void run(const Operands& o, const Options& options) override {
    gather_qmm(o.x, o.w, {}, o.index, true, false, o.out, options);
  }
};

class GatherMm final : public Gather {
 public:
  GatherMm(Device& device, const CaseSpec& s) : Gather(device, s, false) {}

 protected:
  void run(const Operands& o, const Options& options) override {
    gather_mm(o.x, o.dense, {}, o.index, false, o.out, options);
  }
};

class GatherQmv final : public ProductCase {
 public:
  GatherQmv(Device& device, const CaseSpec& s)
      : ProductCase(device, s, product_shape(s), true, Rows::paired) {}

 protected:
  Shape x_shape() const override { return {rows(), shape().k}; }
  Shape index_shape() const override { return {rows()}; }
  Shape out_shape() const override { return {rows(), shape().n}; }
  void run(const Operands& o, const Options& options) override {
    gather_qmv(o.x, o.w, o.index, o.out, options);
  }
};

}  // namespace

std::unique_ptr<Case> make_gather_qmm(Device& device, const CaseSpec& spec) {
  return std::make_unique<GatherQmm>(device, spec);
}
std::unique_ptr<Case> make_gather_mm(Device& device, const CaseSpec& spec) {
  return std::make_unique<GatherMm>(device, spec);
}
std::unique_ptr<Case> make_gather_qmv(Device& device, const CaseSpec& spec) {
  return std::make_unique<GatherQmv>(device, spec);
}

}  // namespace moeblas::bench
