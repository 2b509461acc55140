// expert_loop: what a layer would do without gather_qmm. Rows already sorted by expert, one
// quantized_matmul for each expert that has rows; the sorting, which gather_qmm includes, is not
// timed, and the host knows the counts.
#include <algorithm>
#include <map>

#include "bench/operations.h"
#include "bench/product.h"

namespace moeblas::bench {
namespace {

TensorView from_row(TensorView t, int64_t row, int64_t count) {
  if (!t) return t;
  if (t.data != nullptr) {
    t.data =
        static_cast<char*>(t.data) + row * t.strides[0] * static_cast<int64_t>(size_of(t.dtype));
  }
  t.shape[0] = count;
  return t;
}

// Matrix e of a stack, without the stack's dimension.
TensorView matrix(const TensorView& stack, int64_t e) {
  if (!stack) return stack;
  const TensorView one = from_row(stack, e, 1);
  return {one.data, one.dtype, std::span(one.shape.begin() + 1, one.shape.end()), one.device};
}

class ExpertLoop final : public ProductCase {
 public:
  ExpertLoop(Device& device, const CaseSpec& s)
      : ProductCase(device, s, product_shape(s), true, Rows::grouped) {}

 protected:
  Shape x_shape() const override { return {rows(), shape().k}; }
  Shape out_shape() const override { return {rows(), shape().n}; }
  void prepare_x(int64_t sets) override {
    for (int64_t set = 0; set < sets; ++set) {
      segments_.push_back(segments(selection().experts(set)));
    }
  }
  void run(const Operands& o, const Options& options) override {
    if (options.query != nullptr) return ask(o, options);
    for (const Segment& s : segments_[static_cast<size_t>(o.set)]) product(o, s, options);
  }

 private:
  struct Segment {
    int32_t expert;
    int64_t first, count;
  };

  static std::vector<Segment> segments(const std::vector<int32_t>& experts) {
    std::vector<Segment> segments;
    for (size_t i = 0; i < experts.size(); ++i) {
      if (segments.empty() || segments.back().expert != experts[i]) {
        segments.push_back({experts[i], static_cast<int64_t>(i), 0});
      }
      ++segments.back().count;
    }
    return segments;
  }

  void product(const Operands& o, const Segment& s, const Options& options) const {
    Quantized w = o.w;
    for (TensorView* part : {&w.codes, &w.scales, &w.biases, &w.tensor_scale}) {
      *part = matrix(*part, s.expert);
    }
    quantized_matmul(from_row(o.x, s.first, s.count), w, true, from_row(o.out, s.first, s.count),
                     options);
  }

  // The row of the largest product, and the workspace that is enough for each.
  void ask(const Operands& o, const Options& options) const {
    std::map<int64_t, Segment> by_count;
    for (const Segment& s : segments(selection().labels())) by_count[s.count] = s;
    size_t workspace = 0;
    for (const auto& [count, s] : by_count) {
      product(o, s, options);
      workspace = std::max(workspace, options.query->workspace_bytes);
    }
    options.query->workspace_bytes = workspace;
  }

  std::vector<std::vector<Segment>> segments_;  // of each set
};

}  // namespace

std::unique_ptr<Case> make_expert_loop(Device& device, const CaseSpec& spec) {
  return std::make_unique<ExpertLoop>(device, spec);
}

}  // namespace moeblas::bench
