// moe_ffn composed of portable kernels, with the CPU backend's products between them: the CPU
// backend's bits, except where erf is not the C library's.
#include "simt/ffn.h"

#include <cmath>

#include "cpu/matmul_portable.h"
#include "ops/moe.h"
#include "simt/emulated.h"

namespace moeblas::test {
namespace {

constexpr simt::ProductRunner kProducts = {
    cpu::matmul_portable_workspace,
    [](const dispatch::MatmulProblem& p, dispatch::Workspace workspace, simt::Queue&) {
      cpu::matmul_portable(p, workspace);
    }};

struct Case {
  std::string name{};
  Activation activation = Activation::silu;
  GluLayout layout = GluLayout::gate_up;
  bool separate = false;
  bool biases = false;
  bool map = false;
  DType dtype = DType::f32;
  std::optional<QuantSpec> spec{};  // of gate_up; none: dense
  std::optional<QuantSpec> down_spec{};
  int64_t tokens = 7;
  int64_t top_k = 3;
  int64_t hidden = 64;
  int64_t intermediate = 32;
  int64_t experts = 5;
  DType id_type = DType::i32;
  Shape x_strides{};
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// A stack of expert matrices, dense or quantized.
struct Weights {
  Quantized q;
  Strided codes, scales, biases;

  Weights() = default;
  Weights(const std::optional<QuantSpec>& spec, DType dtype, const Shape& shape, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    Strided w(dtype, shape);
    w.fill([&](int64_t) { return normal(random) * 0.2f; });
    if (!spec) {
      codes = w;
      q.spec.mode = Mode::dense;
      q.codes = codes;
      return;
    }
    const QuantizedSpec s = infer_quantize(w, *spec);
    codes = Strided(s.codes.dtype, s.codes.shape);
    scales = Strided(s.scales.dtype, s.scales.shape);
    q = {.spec = *spec, .codes = codes, .scales = scales};
    if (s.biases) {
      biases = Strided(s.biases->dtype, s.biases->shape);
      q.biases = biases;
    }
    quantize(w, q);
  }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;
};

struct Layer {
  Weights first, up, down;
  Strided first_bias, up_bias, down_bias, map;
  FfnLayer layer;

  explicit Layer(const Case& c)
      : first(c.spec, c.dtype,
              {c.experts, c.separate ? c.intermediate : 2 * c.intermediate, c.hidden}, 1),
        up(c.spec, c.dtype, {c.experts, c.intermediate, c.hidden}, 2),
        down(c.down_spec, c.dtype, {c.experts, c.hidden, c.intermediate}, 3) {
    layer.activation = c.activation;
    layer.glu_layout = c.layout;
    layer.down = down.q;
    if (c.separate) {
      layer.gate = first.q;
      layer.up = up.q;
    } else {
      layer.gate_up = first.q;
    }
    const auto bias = [&](int64_t n, float size) {
      Strided b(DType::f32, {c.experts, n});
      return b.fill([=](int64_t i) { return size * static_cast<float>(i % 11 - 5); });
    };
    if (c.biases) {
      first_bias = bias(c.separate ? c.intermediate : 2 * c.intermediate, 0.5f);
      down_bias = bias(c.hidden, 0.1f);
      layer.down_bias = down_bias;
      if (c.separate) {
        up_bias = bias(c.intermediate, 0.3f);
        layer.gate_bias = first_bias;
        layer.up_bias = up_bias;
      } else {
        layer.gate_up_bias = first_bias;
      }
    }
    if (c.map) {
      map = Strided(DType::i32, {3 * c.experts});
      map.fill_integers([&](int64_t i) { return i % 3 == 0 ? i / 3 : -1; });
      layer.expert_map = map;
    }
  }
  Layer(const Layer&) = delete;
};

void check(const Case& c, emu::Schedule schedule) {
  const Layer layer(c);
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  const Shape x_shape{c.tokens, c.hidden}, pairs{c.tokens, c.top_k};
  Strided x(c.dtype, x_shape, c.x_strides.ndim() > 0 ? c.x_strides : contiguous_strides(x_shape));
  x.fill([&](int64_t) { return normal(random); });
  Strided ids(c.id_type, pairs, {1, c.tokens + 1});
  const int64_t known = c.map ? 3 * c.experts : c.experts;
  ids.fill_integers([&](int64_t) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(known + 2)) - 1;
  });
  Strided weights(DType::f32, pairs);
  weights.fill([&](int64_t) { return std::fabs(normal(random)); });
  Strided expected(c.dtype, x_shape, {c.hidden + 1, 1}), out = expected;
  moe_ffn(x, layer.layer, ids, weights, expected);
  EmulatorQueue queue(schedule);
  queue.input(x).input(ids).input(weights).input(layer.map).output(out);
  const auto problem = ops::moe_ffn(x, layer.layer, ids, weights, out, {});
  if (!problem.empty()) {
    EXPECT_FALSE(simt::simt_ffn_reject(problem));
    const auto workspace = queue.workspace(simt::simt_ffn_workspace(problem, kProducts));
    simt::simt_ffn(problem, workspace, queue, kProducts);
  }
  if (c.activation != Activation::gelu_erf) return expect_same_bytes(out, expected, "out");
  // An error of a few 2^-24 of each hidden value, some of which round the other way.
  const float unit = c.dtype == DType::f32    ? std::ldexp(1.0f, -24)
                     : c.dtype == DType::bf16 ? std::ldexp(1.0f, -9)
                                              : std::ldexp(1.0f, -12);
  float largest = 0.0f;
  for (int64_t i = 0; i < out.numel(); ++i) largest = std::max(largest, std::fabs(expected.get(i)));
  const float bound = 8.0f * unit * static_cast<float>(c.intermediate) * largest;
  for (int64_t i = 0; i < out.numel(); ++i) EXPECT_NEAR(out.get(i), expected.get(i), bound) << i;
}

class Ffn : public testing::TestWithParam<Case> {};

TEST_P(Ffn, IsTheCpuBackends) { check(GetParam(), emu::Schedule::forward); }

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, Case c) {
    c.name = std::move(name);
    all.push_back(std::move(c));
  };
  const DType floats[] = {DType::f32, DType::f16, DType::bf16};
  const char* activations[] = {"silu", "gelu_erf", "gelu_tanh", "relu", "clamped_swiglu"};
  const char* layouts[] = {"gate_up", "up_gate", "interleaved", "separate"};
  for (int a = 0; a < 5; ++a) {
    for (int l = 0; l < 4; ++l) {
      Case c;
      c.activation = static_cast<Activation>(a);
      c.separate = l == 3;
      c.layout = c.separate ? GluLayout::gate_up : static_cast<GluLayout>(l);
      c.biases = (a + l) % 2 == 0;
      c.dtype = floats[(a + l) % 3];
      add(std::string(activations[a]) + "_" + layouts[l], c);
    }
  }
  for (DType dtype : floats)
    add(std::string("map_") + name(dtype), {.map = true, .dtype = dtype, .id_type = DType::i64});
  add("affine4", {.biases = true,
                  .spec = QuantSpec{Mode::affine},
                  .down_spec = QuantSpec{Mode::affine, 8, 32}});
  add("mxfp4",
      {.dtype = DType::bf16, .spec = QuantSpec{Mode::mxfp4}, .down_spec = QuantSpec{Mode::mxfp4}});
  add("nvfp4_separate", {.separate = true,
                         .dtype = DType::f16,
                         .spec = QuantSpec{Mode::nvfp4},
                         .down_spec = QuantSpec{Mode::mxfp8}});
  add("odd_sizes", {.biases = true, .hidden = 13, .intermediate = 7});
  add("x_by_columns", {.dtype = DType::bf16, .x_strides = {1, 9}});
  add("one_token", {.tokens = 1, .top_k = 1});
  add("no_tokens", {.tokens = 0});
  add("no_choice", {.top_k = 0});
  add("no_hidden", {.hidden = 0});
  add("no_intermediate", {.biases = true, .intermediate = 0});
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Simt, Ffn, testing::ValuesIn(cases()), case_name);

TEST(SimtFfn, AllSchedules) {
  for (emu::Schedule schedule : kSchedules) {
    SCOPED_TRACE(emu::name_of(schedule));
    check({.layout = GluLayout::interleaved, .biases = true, .map = true}, schedule);
  }
}

// The activations on a line of gates, for an up of 1: those with exp and tanh have the CPU's bits
// by way of the layer above; erf is compared with the real one, and NaN and infinity go where they
// must.
TEST(SimtGlu, ErfIsOfFloat32Class) {
  constexpr int64_t kCount = 20001;
  dispatch::FfnProblem p;
  p.tokens = p.top_k = 1;
  p.intermediate = kCount;
  p.activation = Activation::gelu_erf;
  p.x.dtype = DType::f32;
  Strided gate_up(DType::f32, {2 * kCount}), experts(DType::i32, {1}), hidden(DType::f32, {kCount});
  gate_up.fill([](int64_t i) {
    return i < kCount ? -8.0f + 16.0f * static_cast<float>(i) / (kCount - 1) : 1.0f;
  });
  gate_up.set(0, NAN);
  gate_up.set(1, INFINITY);
  gate_up.set(2, -50.0f);
  experts.set_integer(0, 0);
  EmulatorQueue queue;
  queue.input(gate_up).input(experts).output(hidden);
  simt::simt_glu(p, static_cast<const float*>(gate_up.view().data),
                 static_cast<const int32_t*>(experts.view().data), hidden.view().data, queue);
  EXPECT_TRUE(std::isnan(hidden.get(0)));
  EXPECT_EQ(hidden.get(1), INFINITY);
  EXPECT_EQ(hidden.get(2), 0.0f);
  double worst = 0;
  for (int64_t i = 3; i < kCount; ++i) {
    const double g = gate_up.get(i);
    const double exact = 0.5 * g * (1.0 + std::erf(g * std::sqrt(0.5)));
    worst = std::max(worst, std::fabs(hidden.get(i) - exact) / std::fabs(g));
  }
  // 3 units of erf, half of them in the result, and the roundings around it.
  EXPECT_LE(worst, 4.0 * std::ldexp(1.0, -24));
}

}  // namespace
}  // namespace moeblas::test
