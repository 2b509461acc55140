// qqmm, gather_qqmm, grouped_qqmm: x, floats here, is quantized on the fly by the weights' format.
// qqmm_packed: the same product with x in codes.
#include "bench/operations.h"
#include "bench/ops/encode.h"
#include "bench/product.h"

namespace moeblas::bench {
namespace {

// nvfp4: for values whose largest is about 3.5.
constexpr float kXScale = 3.5f / (6 * 448);

// The values that quantize followed by dequantize leave of a row.
void requantize(const QuantSpec& spec, std::span<double> row) {
  const auto group = static_cast<size_t>(spec.group_size);
  formats::visit_format(spec.mode, spec.bits, [&]<class Format>() {
    if constexpr (!formats::kIsAffine<Format>) {
      const bool scaled = spec.mode == Mode::nvfp4;
      for (size_t i = 0; i < row.size(); i += group) {
        const std::vector<float> values(row.begin() + i, row.begin() + i + group);
        const EncodedGroup g = encode_group<Format>(values, scaled ? kXScale : 1.0f);
        const double scale = double{Format::decode_scale(g.byte)} * (scaled ? kXScale : 1.0f);
        for (size_t j = 0; j < group; ++j) {
          row[i + j] = scale * Format::decode_code(g.codes[j]);
        }
      }
    }
  });
}

class BlockProduct : public ProductCase {
 public:
  BlockProduct(Device& device, const CaseSpec& s, Rows rows)
      : ProductCase(device, s, product_shape(s), true, rows) {}

 protected:
  // x as these operations take floats.
  Quantized floats(const TensorView& x) const {
    Quantized q;
    q.spec = spec().format;
    q.codes = x;
    if (q.spec.mode == Mode::nvfp4) q.host_tensor_scale = kXScale;
    return q;
  }
  void transform_x(std::span<double> x) const override { requantize(spec().format, x); }
};

class Qqmm : public BlockProduct {
 public:
  Qqmm(Device& device, const CaseSpec& s) : BlockProduct(device, s, Rows::shared) {}

 protected:
  Shape x_shape() const override { return {tokens(), shape().k}; }
  Shape out_shape() const override { return {tokens(), shape().n}; }
  void run(const Operands& o, const Options& options) override {
    qqmm(floats(o.x), o.w, o.out, {}, options);
  }
};

class QqmmPacked final : public Qqmm {
 public:
  using Qqmm::Qqmm;

  Work work() const override {
    Work w = ProductCase::work();
    const auto floats = static_cast<int64_t>(size_of(spec().dtype)) * 8;
    w.read_bytes += tokens() * shape().k / 8 * (spec().format.bits - floats) +
                    tokens() * shape().k / spec().format.group_size;
    return w;
  }

 protected:
  // By the library's own quantize; the check starts from the definition all the same.
  void prepare_x(int64_t sets) override {
    codes_ = Slab(device(), DType::u32, codes_shape(), sets);
    scales_ = Slab(device(), DType::u8, scales_shape(), sets);
    Options options;
    options.stream = device().stream();
    prepared_ = true;
    for (int64_t set = 0; set < sets; ++set) quantize(x_of(set), packed(set), options);
  }
  void run(const Operands& o, const Options& options) override {
    qqmm(packed(o.set), o.w, o.out, {}, options);
  }

 private:
  Shape codes_shape() const { return {tokens(), shape().k / 32 * spec().format.bits}; }
  Shape scales_shape() const { return {tokens(), shape().k / spec().format.group_size}; }
  Quantized packed(int64_t set) const {
    const auto view = [&](const Slab& slab, DType dtype, const Shape& shape) {
      return prepared_ ? slab.view(set) : TensorView(nullptr, dtype, shape, device().handle());
    };
    Quantized q = floats(view(codes_, DType::u32, codes_shape()));
    q.scales = view(scales_, DType::u8, scales_shape());
    return q;
  }

  bool prepared_ = false;
  Slab codes_, scales_;
};

class GatherQqmm final : public BlockProduct {
 public:
  GatherQqmm(Device& device, const CaseSpec& s) : BlockProduct(device, s, Rows::shared) {}

 protected:
  Shape x_shape() const override { return {tokens(), 1, 1, shape().k}; }
  Shape index_shape() const override { return {tokens(), shape().top_k}; }
  Shape out_shape() const override { return {tokens(), shape().top_k, 1, shape().n}; }
  void run(const Operands& o, const Options& options) override {
    gather_qqmm(floats(o.x), o.w, {}, o.index, false, o.out, {}, options);
  }
};

class GroupedQqmm final : public BlockProduct {
 public:
  GroupedQqmm(Device& device, const CaseSpec& s) : BlockProduct(device, s, Rows::grouped) {}

 protected:
  Shape x_shape() const override { return {rows(), shape().k}; }
  Shape index_shape() const override { return {shape().experts}; }
  Shape out_shape() const override { return {rows(), shape().n}; }
  std::vector<int32_t> index(const std::vector<int32_t>& experts) const override {
    return expert_ends(experts, shape().experts);
  }
  void run(const Operands& o, const Options& options) override {
    grouped_qqmm(floats(o.x), o.w, o.index, o.out, {}, options);
  }
};

}  // namespace

std::unique_ptr<Case> make_qqmm(Device& device, const CaseSpec& spec) {
  return std::make_unique<Qqmm>(device, spec);
}
std::unique_ptr<Case> make_qqmm_packed(Device& device, const CaseSpec& spec) {
  return std::make_unique<QqmmPacked>(device, spec);
}
std::unique_ptr<Case> make_gather_qqmm(Device& device, const CaseSpec& spec) {
  return std::make_unique<GatherQqmm>(device, spec);
}
std::unique_ptr<Case> make_grouped_qqmm(Device& device, const CaseSpec& spec) {
  return std::make_unique<GroupedQqmm>(device, spec);
}

}  // namespace moeblas::bench
