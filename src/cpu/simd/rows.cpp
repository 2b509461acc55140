// Activations and weighted sums of rows for one tier. exp is a polynomial of degree 6 after two
// steps of range reduction, within 2 units in the last place; gelu by erf has no kernel here.
//
// Bound by memory where rows come from it; in the cache by the divisions of the sigmoid.
#include "cpu/row_kernels.h"
#include "cpu/simd/elements.h"

namespace moeblas::cpu::MOEBLAS_TIER {
namespace {

using Floats = Simd::Floats;
constexpr int kLanes = Simd::kLanes;

// e^x; 0 below -87, infinity above 88.72, NaN of NaN.
Floats exponential(Floats x) {
  const Floats most = Simd::all(88.72f);
  const Floats in = Simd::largest(Simd::all(-87.0f), Simd::least(most, x));
  const Floats n = Simd::round(Simd::mul(in, Simd::all(1.44269504f)));
  Floats r = Simd::fma(n, Simd::all(-0.693359375f), in);
  r = Simd::fma(n, Simd::all(2.12194440e-4f), r);
  Floats p = Simd::all(1.0f / 720);
  for (float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = Simd::fma(p, r, Simd::all(c));
  // In two steps, since 2^128 is no float32.
  const Floats half = Simd::round(Simd::mul(n, Simd::all(0.5f)));
  p = Simd::mul(Simd::mul(p, Simd::power_of_two(half)),
                Simd::power_of_two(Simd::add(n, Simd::mul(half, Simd::all(-1.0f)))));
  return Simd::where_less(most, x, Simd::all(__builtin_inff()), p);
}

Floats sigmoid(Floats x) {
  const Floats one = Simd::all(1.0f);
  return Simd::div(one, Simd::add(one, exponential(Simd::mul(x, Simd::all(-1.0f)))));
}

template <Activation kActivation>
Floats glu(Floats gate, Floats up, float alpha, float limit) {
  if constexpr (kActivation == Activation::silu) {
    return Simd::mul(Simd::mul(gate, sigmoid(gate)), up);
  } else if constexpr (kActivation == Activation::gelu_tanh) {
    // (1 + tanh t) / 2 is the sigmoid of 2 t.
    const Floats cube = Simd::mul(Simd::mul(gate, gate), gate);
    const Floats t = Simd::mul(Simd::all(0.79788456080286536f),
                               Simd::add(gate, Simd::mul(Simd::all(0.044715f), cube)));
    return Simd::mul(Simd::mul(gate, sigmoid(Simd::add(t, t))), up);
  } else if constexpr (kActivation == Activation::relu) {
    return Simd::mul(Simd::largest(Simd::zero(), gate), up);
  } else {
    const Floats most = Simd::all(limit);
    const Floats g = Simd::least(most, gate);
    const Floats u = Simd::largest(Simd::all(-limit), Simd::least(most, up));
    return Simd::mul(Simd::add(u, Simd::all(1.0f)),
                     Simd::mul(g, sigmoid(Simd::mul(Simd::all(alpha), g))));
  }
}

// Every second number from p on.
Floats every_second(const float* p, int64_t count) {
  const int64_t floats = 2 * count - 1;
  const Floats low = Simd::load_f32(p, in_vector(floats));
  const Floats high =
      floats > kLanes ? Simd::load_f32(p + kLanes, in_vector(floats - kLanes)) : Simd::zero();
  return Simd::evens(low, high);
}

template <Activation kActivation, Element kElement>
void glu_row(const GluRow& row, void* out) {
  for (int64_t i = 0; i < row.count; i += kLanes) {
    const int count = in_vector(row.count - i);
    const bool apart = row.step != 1;
    const Floats gate =
        apart ? every_second(row.gate + 2 * i, count) : Simd::load_f32(row.gate + i, count);
    const Floats up =
        apart ? every_second(row.up + 2 * i, count) : Simd::load_f32(row.up + i, count);
    store_elements<kElement>(out, i, glu<kActivation>(gate, up, row.alpha, row.limit), count);
  }
}

template <Element kElement>
void add_row(const void* row, float weight, int64_t count, float* sums) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int n = in_vector(count - i);
    const Floats v = load_elements<kElement>(row, i, n);
    const Floats sum = Simd::load_f32(sums + i, n);
    Simd::store_f32(sums + i, Simd::add(sum, Simd::mul(Simd::all(weight), v)), n);
  }
}

template <Element kElement>
void store_row(const float* sums, int64_t count, void* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int n = in_vector(count - i);
    store_elements<kElement>(out, i, Simd::load_f32(sums + i, n), n);
  }
}

template <Element kElement>
constexpr void set(RowKernels& k) {
  constexpr int at = static_cast<int>(kElement);
  const auto of = [&](Activation a) -> auto& { return k.glu[static_cast<int>(a)][at]; };
  of(Activation::silu) = glu_row<Activation::silu, kElement>;
  of(Activation::gelu_tanh) = glu_row<Activation::gelu_tanh, kElement>;
  of(Activation::relu) = glu_row<Activation::relu, kElement>;
  of(Activation::clamped_swiglu) = glu_row<Activation::clamped_swiglu, kElement>;
  k.add_row[at] = add_row<kElement>;
  k.store_row[at] = store_row<kElement>;
}

constexpr RowKernels kernels() {
  RowKernels k{};
  set<Element::f32>(k);
  set<Element::f16>(k);
  set<Element::bf16>(k);
  return k;
}

}  // namespace

constinit const RowKernels row_kernels = kernels();

}  // namespace moeblas::cpu::MOEBLAS_TIER
