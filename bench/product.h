// What products of activations with stacks of weight matrices have in common: data, buffer sets
// (see Selection), counting and the check. An operation adds how its index tensor is laid out and
// the call.
#pragma once

#include "bench/case.h"
#include "bench/selection.h"
#include "bench/weights.h"

namespace moeblas::bench {

class ProductCase : public Case {
 public:
  // How rows of x and of the output belong together.
  enum class Rows : uint8_t {
    shared,   // x has a row per token, the output one per (token, choice)
    paired,   // both have a row per (token, choice)
    grouped,  // the same, sorted by expert
  };
  ProductCase(Device& device, const CaseSpec& spec, const ProductShape& shape, bool quantized,
              Rows rows);

  Work work() const override;
  Sizes sizes() const final;
  int pieces() const final { return quantized_ ? 3 : 6; }
  int64_t footprint(int64_t sets) const final;
  void prepare(int64_t sets) final;
  void call(int64_t set, const Options& options) final;
  void poison(int64_t set) final;
  Verdict check(int64_t set, const Options& options, const Tamper& tamper) final;

 protected:
  // The tensors of one set.
  struct Operands {
    TensorView x, index, out;
    Quantized w;       // quantized cases
    TensorView dense;  // others
    int64_t set = 0;
  };
  virtual Shape x_shape() const = 0;
  virtual Shape index_shape() const { return {0}; }
  // The index tensor (int32) from the expert of every output row.
  virtual std::vector<int32_t> index(const std::vector<int32_t>& experts) const { return experts; }
  virtual Shape out_shape() const = 0;
  virtual void run(const Operands& operands, const Options& options) = 0;
  // What the operation's definition does to a row of x before the product; for the check.
  virtual void transform_x(std::span<double>) const {}
  // Once x of all sets is there.
  virtual void prepare_x(int64_t) {}

  int64_t tokens() const { return spec().tokens; }
  int64_t rows() const { return selection_.rows(); }  // of the output
  int64_t x_rows() const { return row_rule_ == Rows::shared ? tokens() : rows(); }
  const ProductShape& shape() const { return shape_; }
  const Selection& selection() const { return selection_; }
  Device& device() const { return device_; }
  TensorView x_of(int64_t set) const { return x_.view(set); }

 private:
  Operands operands(int64_t set) const;

  Device& device_;
  ProductShape shape_;
  bool quantized_;
  Rows row_rule_;
  Selection selection_;
  Weights weights_;
  Source x_source_;

  bool prepared_ = false;
  Slab x_, index_, out_;
  std::vector<Operands> operands_;
};

// The shape of one of these cases: for operations of products, by the projection that is asked for.
ProductShape product_shape(const CaseSpec& spec);

}  // namespace moeblas::bench
