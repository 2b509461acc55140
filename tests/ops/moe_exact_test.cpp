// The fused layer against its parts, and the parts against each other, bit for bit: what the
// portable kernels promise.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/glu.h"
#include "moeblas/ops.h"
#include "support/codec.h"
#include "support/execute.h"
#include "support/ffn_case.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

// A copy in float32, which holds every value of the smaller dtypes.
Operand widened(const TensorView& t) {
  Operand wide(plain(DType::f32, t.shape), Side::right, kPoison);
  for (int64_t i = 0; i < t.numel(); ++i) {
    wide.set(i, load_value(t.data, t.dtype, offset_of(i, t.shape, t.strides)));
  }
  return wide;
}

// rows of x (P, K) float32 times the matrix of each pair's expert, + its bias: (P, N) float32.
Operand gathered(const Operand& x, const ExpertsLayout& e, const ExpertsOperands& o,
                 const Operand& experts) {
  const int64_t pairs = experts.numel();
  Operand out(plain(DType::f32, {pairs, 1, e.n}), Side::right, kPoison);
  const TensorView rows(x.view.data, DType::f32, {pairs, 1, e.k});
  if (e.weights.format) {
    gather_qmm(rows, o.weights.quantized(), {}, experts.view, true, false, out.view);
  } else {
    const Operand wide = widened(o.weights.w.view);
    TensorView transposed = wide.view;
    std::swap(transposed.shape[1], transposed.shape[2]);
    std::swap(transposed.strides[1], transposed.strides[2]);
    gather_mm(rows, transposed, {}, experts.view, false, out.view);
  }
  for (int64_t i = 0; o.bias.view && i < out.numel(); ++i) {
    const int64_t expert = load_index(experts.view.data, DType::i64, i / e.n);
    if (expert < 0) continue;
    const auto bias = static_cast<float>(o.bias.get(expert * e.n + i % e.n));
    out.set(i, static_cast<float>(out.get(i)) + bias);
  }
  return out;
}

// The layer part by part, with the two roundings that moeblas.h documents and no other.
std::vector<double> composed(const FfnCase& c, const FfnOperands& o) {
  const std::vector<int64_t> ids = o.experts(c);
  const int64_t pairs = c.tokens * c.top_k, n = c.intermediate;
  const Operand experts(plain(DType::i64, {pairs}), Side::right, kPoison);
  Operand x(plain(DType::f32, {pairs, c.hidden}), Side::right, kPoison);
  for (int64_t p = 0; p < pairs; ++p) {
    store_index(experts.view.data, DType::i64, p, ids[static_cast<size_t>(p)]);
    for (int64_t h = 0; h < c.hidden; ++h) {
      x.set(p * c.hidden + h, o.x.get(p / c.top_k * c.hidden + h));
    }
  }
  const Operand gate_up = gathered(x, c.gate_up, o.gate_up, experts);
  const Operand up = c.separate ? gathered(x, c.up, o.up, experts) : Operand();
  Operand hidden(plain(DType::f32, {pairs, n}), Side::right, kPoison);
  for (int64_t i = 0; i < pairs * n; ++i) {
    const int64_t row = i / n * c.gate_up.n, col = i % n;
    const bool interleaved = c.glu_layout == GluLayout::interleaved && !c.separate;
    const bool swapped = c.glu_layout == GluLayout::up_gate && !c.separate;
    const int64_t g = interleaved ? 2 * col : swapped ? n + col : col;
    const int64_t u = interleaved ? 2 * col + 1 : swapped ? col : n + col;
    const double gate = gate_up.get(row + g), other = c.separate ? up.get(i) : gate_up.get(row + u);
    const float value = cpu::glu(c.activation, static_cast<float>(gate), static_cast<float>(other),
                                 c.alpha, c.limit);
    hidden.set(i, round_to(float_format(c.dtype), value));
  }
  const Operand down = gathered(hidden, c.down, o.down, experts);
  std::vector<double> out;
  for (int64_t i = 0; i < c.tokens * c.hidden; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < c.top_k; ++j) {
      const int64_t p = i / c.hidden * c.top_k + j;
      if (ids[static_cast<size_t>(p)] < 0) continue;
      const auto y = static_cast<float>(down.get(p * c.hidden + i % c.hidden));
      sum += static_cast<float>(o.weights.get(p)) * y;
    }
    out.push_back(round_to(float_format(c.dtype), sum));
  }
  return out;
}

TEST(MoeExact, TheLayerIsItsParts) {
  // One kernel for all products: the parts here have other dtypes and forms than the layer's.
  setenv("MOEBLAS_KERNEL", "matmul_portable", 1);
  run_seeds(240, [](uint64_t seed) {
    FfnCase c = make_ffn_case(seed + 500'000);
    c.activation = Activation::relu;  // the others' bits are their kernels'
    SeededCase seeded_case = seeded(c);
    seeded_case.run = [c](const char*) -> Outcome {
      const FfnOperands o = build(c, Side::right, kPoison);
      moe_ffn(o.x.view, o.layer(c), o.ids.view, o.weights.view, o.out.view, forcing("ffn_parts"));
      const std::vector<double> expected = composed(c, o);
      for (int64_t i = 0; i < o.out.numel(); ++i) {
        const double want = expected[static_cast<size_t>(i)], got = o.out.get(i);
        if (got == want || (std::isnan(got) && std::isnan(want))) continue;
        return {"element " + std::to_string(i) + " is " + std::to_string(got) +
                ", its parts give " + std::to_string(want)};
      }
      return {};
    };
    return seeded_case;
  });
  unsetenv("MOEBLAS_KERNEL");
}

// The offsets form of a layer's product: permute, grouped_qmm, unpermute equal gather_qmm and the
// weighted sum.
TEST(MoeExact, PermuteGroupedUnpermuteIsGatherAndSum) {
  constexpr int64_t tokens = 23, top_k = 3, experts = 6, n = 45, k = 128;
  for (const QuantSpec& format :
       {QuantSpec{Mode::affine, 4, 64}, QuantSpec{Mode::nvfp4}, QuantSpec{Mode::mxfp8}}) {
    FfnCase c = ffn_case(DType::f32, format, tokens, top_k, experts, k, 64);
    c.id_kind = Ids::mixed;
    c.gate_up.n = n;
    for (Layout* t : {&c.gate_up.weights.codes, &c.gate_up.weights.scales}) {
      *t = plain(t->dtype, {experts, n, t->shape[2]});
    }
    if (c.gate_up.weights.biases.present) c.gate_up.weights.biases = c.gate_up.weights.scales;
    const FfnOperands o = build(c, Side::right, kPoison);
    const Quantized w = o.gate_up.view();
    const auto tensor = [](DType dtype, const Shape& shape) {
      return Operand(plain(dtype, shape), Side::right, kPoison);
    };
    const Operand rows = tensor(DType::f32, {tokens * top_k, k});
    const Operand offsets = tensor(DType::i32, {experts});
    const Operand inverse = tensor(DType::i32, {tokens, top_k});
    const Operand products = tensor(DType::f32, {tokens * top_k, n});
    const Operand out = tensor(DType::f32, {tokens, n});
    moe_permute(o.x.view, o.ids.view, {}, experts, rows.view, offsets.view, inverse.view);
    grouped_qmm(rows.view, w, offsets.view, true, products.view);
    moe_unpermute(products.view, inverse.view, o.weights.view, out.view);

    const Operand gathered_products = tensor(DType::f32, {tokens, top_k, 1, n});
    const TensorView x(o.x.view.data, DType::f32, {tokens, 1, 1, k});
    gather_qmm(x, w, {}, o.ids.view, true, false, gathered_products.view);
    const std::vector<int64_t> chosen = o.experts(c);
    for (int64_t i = 0; i < tokens * n; ++i) {
      float sum = 0;
      for (int64_t j = 0; j < top_k; ++j) {
        const int64_t p = i / n * top_k + j;
        if (chosen[static_cast<size_t>(p)] < 0) continue;
        sum += static_cast<float>(o.weights.get(p)) *
               static_cast<float>(gathered_products.get(p * n + i % n));
      }
      ASSERT_EQ(out.get(i), sum) << name(format.mode) << " element " << i;
    }
  }
}

TEST(MoeExact, AnyNumberOfThreads) {
  FfnCase c = ffn_case(DType::bf16, QuantSpec{Mode::mxfp4}, 33, 4, 8, 96, 160);
  std::vector<uint8_t> first;
  for (int threads : {1, 2, 3, 8}) {
    const FfnOperands o = build(c, Side::left, static_cast<uint8_t>(threads));
    with_threads(threads,
                 [&] { moe_ffn(o.x.view, o.layer(c), o.ids.view, o.weights.view, o.out.view); });
    if (first.empty()) first = element_bytes(o.out);
    EXPECT_EQ(element_bytes(o.out), first) << threads << " threads";
  }
}

}  // namespace
}  // namespace moeblas::test
