// grouped_mm and grouped_qmm: rows sorted by expert, with the end of each expert's rows.
#include "bench/operations.h"
#include "bench/product.h"

namespace moeblas::bench {
namespace {

class Grouped : public ProductCase {
 public:
  Grouped(Device& device, const CaseSpec& s, bool quantized)
      : ProductCase(device, s, product_shape(s), quantized, Rows::grouped) {}

 protected:
  Shape x_shape() const override { return {rows(), shape().k}; }
  Shape index_shape() const override { return {shape().experts}; }
  Shape out_shape() const override { return {rows(), shape().n}; }
  std::vector<int32_t> index(const std::vector<int32_t>& experts) const override {
    return expert_ends(experts, shape().experts);
  }
};

class GroupedMm final : public Grouped {
 public:
  GroupedMm(Device& device, const CaseSpec& s) : Grouped(device, s, false) {}

 protected:
  void run(const Operands& o, const Options& options) override {
    grouped_mm(o.x, o.dense, o.index, o.out, options);
  }
};

class GroupedQmm final : public Grouped {
 public:
  GroupedQmm(Device& device, const CaseSpec& s) : Grouped(device, s, true) {}

 protected:
  void run(const Operands& o, const Options& options) override {
    grouped_qmm(o.x, o.w, o.index, true, o.out, options);
  }
};

}  // namespace

std::unique_ptr<Case> make_grouped_mm(Device& device, const CaseSpec& spec) {
  return std::make_unique<GroupedMm>(device, spec);
}
std::unique_ptr<Case> make_grouped_qmm(Device& device, const CaseSpec& spec) {
  return std::make_unique<GroupedQmm>(device, spec);
}

}  // namespace moeblas::bench
