// What products of activations with stacks of weight matrices have in common: data, routing, buffer
// sets, counting and the check. An operation adds how its index tensor is laid out and the call.
//
// Buffer sets. One routing is drawn per case, so that every call does the same work. The set
// decides which experts stand behind it: the distinct experts of the routing move to places of the
// stack that no other set uses, and to further stacks when the first is full. Only experts that
// some set uses are ever written.
#pragma once

#include <optional>

#include "bench/case.h"
#include "bench/data.h"

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

  Work work() const final;
  Sizes sizes() const final;
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
    TensorView dense;  // others: (E, K, N), a transposed view of (E, N, K)
  };
  virtual Shape x_shape() const = 0;
  virtual Shape index_shape() const { return {0}; }
  // The index tensor (int32) from the expert of every output row.
  virtual std::vector<int32_t> index(const std::vector<int32_t>& experts) const { return experts; }
  virtual Shape out_shape() const = 0;
  virtual void run(const Operands& operands, const Options& options) = 0;
  // What the operation's definition does to a row of x before the product; for the check.
  virtual void transform_x(std::span<double>) const {}

  int64_t tokens() const { return spec().tokens; }
  int64_t rows() const { return rows_; }  // of the output
  const ProductShape& shape() const { return shape_; }

 private:
  struct Place {
    int64_t stack = 0;
    std::vector<int32_t> experts;  // of each label
  };
  Place place(int64_t set) const;
  int64_t stacks(int64_t sets) const;
  int64_t matrices() const { return std::max<int64_t>(shape_.experts, 1); }
  int64_t matrix_bytes() const;
  int64_t x_rows() const;
  std::vector<int32_t> experts_of(int64_t set) const;
  Operands operands(int64_t set) const;
  void fill_matrix(int64_t stack, int64_t matrix);
  // Row n of a matrix, and its magnitudes (see Sum).
  void weight_row(int64_t stack, int64_t matrix, int64_t n, std::vector<double>& w,
                  std::vector<double>& m) const;

  Device& device_;
  ProductShape shape_;
  bool quantized_;
  Rows row_rule_;
  int64_t rows_ = 0;
  std::vector<int32_t> labels_;  // of each output row: 0 .. distinct_ - 1
  int64_t distinct_ = 1;
  std::vector<int32_t> order_;  // of places in a stack
  QuantizedData data_;
  Source dense_source_, x_source_;

  bool prepared_ = false;
  Slab x_, index_, out_, weights_, scales_, biases_, tensor_scales_;
  std::vector<Operands> operands_;
};

}  // namespace moeblas::bench
