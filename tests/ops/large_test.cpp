// Offsets beyond 32 bits: tensors of more than 2^31 elements, of which only a few pages exist.
#include <gtest/gtest.h>

#include "support/cases.h"
#include "support/codec.h"

namespace moeblas::test {
namespace {

// An operand whose memory is zero and without pages until it is touched.
struct Sparse {
  GuardedMemory memory;
  TensorView view;

  explicit Sparse(const Layout& layout) {
    int64_t elements = 1;
    for (int i = 0; i < layout.shape.ndim(); ++i) {
      elements += (layout.shape[i] - 1) * layout.strides[i];
    }
    const size_t element = size_of(layout.dtype);
    memory = GuardedMemory(static_cast<size_t>(elements) * element, Side::right, 0, element);
    view = {memory.data(), layout.dtype, layout.shape, layout.strides};
  }
  uint8_t* at(int64_t offset) const {
    return memory.data() + offset * static_cast<int64_t>(size_of(view.dtype));
  }
};

void expect_close(const Product& product, const TensorView& out, Path path) {
  const std::vector<Expected> expected = evaluate(product, path, out.dtype);
  std::vector<double> got;
  for (int64_t i = 0; i < out.numel(); ++i) {
    got.push_back(load_value(out.data, out.dtype, offset_of(i, out.shape, out.strides)));
  }
  EXPECT_EQ(compare(expected, got, out.dtype, false), "");
}

constexpr int64_t kExperts = 70'000;
constexpr int64_t kChosen[] = {0, 1, 32'767, 32'768, 65'535, 65'537, 69'999};

TEST(Large, PackedWeightsOfMoreThan2To31Elements) {
  constexpr int64_t n = 16, k = 2048, pairs = std::size(kChosen);
  static_assert(kExperts * n * k > int64_t{1} << 31);
  for (const QuantSpec& format : {kMxfp8, kAffine4}) {
    Case c;
    set_weights(c, format, {kExperts, n, k}, DType::f16);
    const Sparse codes(c.codes), scales(c.scales), biases(c.biases.present ? c.biases : c.scales);
    const Operand x(plain(DType::f32, {pairs, k}), Side::left, 0),
        ids(plain(DType::i32, {pairs}), Side::left, 0);
    const Operand out(plain(DType::f32, {pairs, n}), Side::left, kPoison);
    Random random(1);
    for (int64_t p = 0; p < pairs; ++p) {
      const int64_t words = n * c.codes.shape[2], groups = n * c.scales.shape[2];
      store_index(ids.view.data, DType::i32, p, kChosen[p]);
      for (int64_t i = 0; i < k; ++i)
        store_value(x.view.data, DType::f32, p * k + i, random.normal());
      for (int64_t i = 0; i < words; ++i) {
        store_index(codes.at(kChosen[p] * words + i), DType::u32, 0,
                    random.below(1 << 30) & 0x3f3f3f3f);
      }
      for (int64_t i = 0; i < groups; ++i) {
        const int64_t at = kChosen[p] * groups + i;
        if (format == kMxfp8) {
          *scales.at(at) = static_cast<uint8_t>(random.between(120, 130));
        } else {
          store_value(scales.at(at), DType::f16, 0, random.normal());
          store_value(biases.at(at), DType::f16, 0, random.normal());
        }
      }
    }
    Quantized q{format, codes.view, scales.view, {}, {}, {}};
    if (format == kAffine4) q.biases = biases.view;
    gather_qmv(x.view, q, ids.view, out.view);
    expect_close(gather_qmv_product(x.view, q, ids.view), out.view, Path::decoded);
  }
}

TEST(Large, DenseWeightsBeyond4GiB) {
  constexpr int64_t n = 512, k = 64, pairs = std::size(kChosen);
  const Sparse w(plain(DType::bf16, {kExperts, k, n}));
  ASSERT_GT(w.memory.size(), size_t{1} << 32);
  const Operand a(plain(DType::bf16, {pairs, 1, k}), Side::left, 0),
      ids(plain(DType::u32, {pairs}), Side::left, 0);
  const Operand out(plain(DType::bf16, {pairs, 1, n}), Side::left, kPoison);
  Random random(2);
  for (int64_t p = 0; p < pairs; ++p) {
    store_index(ids.view.data, DType::u32, p, kChosen[p]);
    for (int64_t i = 0; i < k; ++i)
      store_value(a.view.data, DType::bf16, p * k + i, random.normal());
    for (int64_t i = 0; i < k * n; ++i) {
      store_value(w.at(kChosen[p] * k * n + i), DType::bf16, 0, random.normal());
    }
  }
  gather_mm(a.view, w.view, {}, ids.view, false, out.view);
  expect_close(gather_mm_product(a.view, w.view, {}, ids.view), out.view, Path::decoded);
}

TEST(Large, RowStridesBeyond2To31Elements) {
  constexpr int64_t rows = 3, n = 5, k = 64, stride = (int64_t{1} << 31) + 7;
  const Sparse x({DType::f16, {rows, k}, {stride, 1}, true});
  const Sparse out({DType::f16, {rows, n}, {stride + 2, 1}, true});
  Case c = grouped_case(kMxfp4, DType::f16, rows, 2, n, k);
  c.ids = Ids::sorted;
  const Operands o = build(c, Side::right, kPoison);
  Random random(3);
  for (int64_t i = 0; i < rows * k; ++i) {
    store_value(x.at(i / k * stride + i % k), DType::f16, 0, random.normal());
  }
  grouped_qmm(x.view, o.quantized(), o.ranges.view, true, out.view);
  expect_close(grouped_qmm_product(x.view, o.quantized(), o.ranges.view, true), out.view,
               Path::decoded);
}

TEST(Large, BroadcastWeightsOfMoreThan2To31Elements) {
  Case c = expert_case(kAffine4, DType::f32, 3, 2, 4'000'000, 24, 128);
  c.codes.strides[0] = c.scales.strides[0] = c.biases.strides[0] = 0;
  c.rhs.dtype = DType::i64;
  expect_right(c);
}

}  // namespace
}  // namespace moeblas::test
