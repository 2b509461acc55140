#include "moe_jobs.h"

#include <cmath>
#include <limits>

#include "maker.h"
#include "support/generator.h"
#include "support/reference.h"

namespace moeblas::gpu {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr double kUnit = 0x1p-24;

double gamma(int64_t n) {
  return static_cast<double>(n) * kUnit / (1 - static_cast<double>(n) * kUnit);
}
double unit_of(DType d) { return d == DType::f32 ? kUnit : d == DType::f16 ? 0x1p-11 : 0x1p-8; }

// |got - exact| <= bound for every element; NaN fails.
Judgement within(std::span<const uint8_t> got, DType dtype, std::span<const double> exact,
                 std::span<const double> bound) {
  Judgement j;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double y = cpu::load_float(got.data(), dtype, static_cast<int64_t>(i));
    const double least = dtype == DType::f16 ? 0x1p-25 : 0x1p-149;
    const double off = std::fabs(y - exact[i]), most = bound[i] + least;
    if (!(off <= most)) {
      char text[160];
      std::snprintf(text, sizeof text, "element %zu is %.9g, expected %.9g within %.3g", i, y,
                    exact[i], most);
      j.failure = text;
      return j;
    }
    j.worst = std::max(j.worst, off / most);
  }
  return j;
}

}  // namespace

QuantSpec draw_format(test::Random& random, bool block_only) {
  const auto formats = test::all_formats();
  for (;;) {
    const QuantSpec spec = formats[static_cast<size_t>(random.below(std::ssize(formats)))];
    if (!block_only || spec.mode != Mode::affine) return spec;
  }
}

Job route_job(uint64_t seed) {
  Maker m("moe_route", seed);
  Router router;
  router.n_group = m.random.pick({1, 1, 2, 4, 8});
  const int64_t experts = router.n_group * m.random.pick({1, 2, 3, 8, 16, 32, 33});
  router.topk_group = static_cast<int>(m.random.between(1, router.n_group));
  const int64_t reachable = experts / router.n_group * router.topk_group;
  router.top_k = static_cast<int>(std::min<int64_t>(reachable, m.random.pick({1, 2, 4, 6, 8, 10})));
  router.score = m.random.pick({Score::softmax, Score::sigmoid});
  router.normalize = m.random.one_in(2);
  router.scaling_factor = m.random.pick({1.0f, 2.5f});
  const int64_t tokens = m.random.pick({1, 2, 7, 32, 33, 100});
  const int logits = m.floats(kFloats[seed % 3], {tokens, experts});
  const int bias = m.random.one_in(2) ? m.floats(DType::f32, {experts}, 0.5) : -1;
  const int ids = m.add(Role::output, DType::i32, {tokens, router.top_k});
  const int weights = m.add(Role::output, DType::f32, {tokens, router.top_k});
  m.job.call = [=](Views v, const Options& o) {
    const auto at = [&](int i) { return i < 0 ? TensorView() : v[static_cast<size_t>(i)]; };
    moe_route(at(logits), at(bias), router, at(ids), at(weights), o);
  };
  // The choice is the CPU's; a weight may differ by what exp and the sum of E of them may.
  const auto pairs = static_cast<size_t>(tokens * router.top_k);
  m.job.judge = [=](const std::string&, std::span<const uint8_t> cuda,
                    std::span<const uint8_t> cpu) {
    Judgement j;
    for (size_t i = 0; i < pairs; ++i) {
      const auto a = cpu::load_as<int32_t>(cuda.data(), static_cast<int64_t>(i));
      const auto b = cpu::load_as<int32_t>(cpu.data(), static_cast<int64_t>(i));
      if (a == b) continue;
      j.failure = "pair " + std::to_string(i) + " went to expert " + std::to_string(a) +
                  ", expected " + std::to_string(b);
      return j;
    }
    std::vector<double> exact, bound;
    for (size_t i = 0; i < pairs; ++i) {
      const double w = cpu::load_float(cpu.data() + 4 * pairs, DType::f32, static_cast<int64_t>(i));
      exact.push_back(w);
      bound.push_back(2 * gamma(experts + 12) * std::fabs(w));
    }
    return within(cuda.subspan(4 * pairs), DType::f32, exact, bound);
  };
  return m.job;
}

Job permute_job(uint64_t seed) {
  Maker m("moe_permute", seed);
  const int64_t tokens = m.random.pick({0, 1, 2, 5, 31, 64, 129, 400});
  const int64_t k = m.random.pick({1, 2, 8}), hidden = m.random.pick({1, 3, 32, 72, 128});
  const int64_t experts = m.random.pick({1, 2, 8, 60, 128, 257});
  const bool mapped = m.random.one_in(2);
  const int64_t known = mapped ? experts * 2 : experts;
  const int x = m.floats(kFloats[seed % 3], {tokens, hidden});
  const int ids =
      m.ids(known > 100 ? DType::i32 : test::draw_integer(m.random), {tokens, k}, known, 6);
  const int map = mapped ? m.ids(DType::i32, {known}, experts, 3) : -1;
  if (mapped) m.job.tensors.back().role = Role::input;
  const int rows = m.add(Role::output, kFloats[seed % 3], {tokens * k, hidden});
  const int offsets = m.add(Role::output, DType::i32, {experts});
  const int inverse = m.add(Role::output, DType::i32, {tokens, k});
  m.job.call = [=](Views v, const Options& o) {
    const auto at = [&](int i) { return i < 0 ? TensorView() : v[static_cast<size_t>(i)]; };
    moe_permute(at(x), at(ids), at(map), experts, at(rows), at(offsets), at(inverse), o);
  };
  return m.job;
}

Job unpermute_job(uint64_t seed) {
  Maker m("moe_unpermute", seed);
  const int64_t tokens = m.random.pick({1, 2, 5, 31, 64, 129});
  const int64_t k = m.random.pick({1, 2, 8}), hidden = m.random.pick({1, 3, 32, 72, 128, 257});
  const int64_t given = m.random.pick<int64_t>({1, tokens, tokens * k});
  const DType dtype = kFloats[seed % 3];
  const int y = m.floats(dtype, {given, hidden});
  const int inverse = m.ids(m.random.pick({DType::i32, DType::i64}), {tokens, k}, given, 5);
  const int weights = m.random.one_in(3) ? -1 : m.floats(DType::f32, {tokens, k});
  const int out = m.add(Role::output, dtype, {tokens, hidden});
  m.job.call = [=](Views v, const Options& o) {
    const auto at = [&](int i) { return i < 0 ? TensorView() : v[static_cast<size_t>(i)]; };
    moe_unpermute(at(y), at(inverse), at(weights), at(out), o);
  };
  const auto views = m.views();
  m.job.judge = [=, keeps = m.job.keeps](const std::string&, std::span<const uint8_t> cuda,
                                         std::span<const uint8_t>) {
    const auto source = test::indices_of(views[static_cast<size_t>(inverse)]);
    std::vector<double> exact, bound;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < hidden; ++h) {
        double sum = 0, size = 0;
        for (int64_t j = 0; j < k; ++j) {
          const int64_t r = source[static_cast<size_t>(t * k + j)];
          if (r < 0 || r >= given) continue;
          const double w = weights < 0 ? 1
                                       : cpu::load_float(views[static_cast<size_t>(weights)].data,
                                                         DType::f32, t * k + j);
          const double p =
              w * cpu::load_float(views[static_cast<size_t>(y)].data, dtype, r * hidden + h);
          sum += p;
          size += std::fabs(p);
        }
        exact.push_back(sum);
        const double slack = gamma(k + 1) * size;
        bound.push_back(slack + unit_of(dtype) * (std::fabs(sum) + slack));
      }
    }
    return within(cuda, dtype, exact, bound);
  };
  return m.job;
}

namespace {

// Makes `count` rows of mxfp4, or of floats that become it, other than normal values do: scales far
// apart in a row, all far from 1, zeros under a scale, zeros alone, NaN.
void spread_scales(Maker& m, const PackedAt& at, int64_t rows, int64_t k, int64_t count) {
  constexpr int64_t kGroup = 32;
  const bool packed = at.scales >= 0;
  const int64_t groups = k / kGroup;
  for (; count > 0; --count) {
    const int64_t row = m.random.below(rows), group = row * groups + m.random.below(groups);
    const auto scale_group = [&](int64_t g, int power) {
      if (packed) {
        m[at.scales].bytes()[static_cast<size_t>(g)] += static_cast<uint8_t>(power);
        return;
      }
      for (int64_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
        m[at.codes].set(i, std::ldexp(m[at.codes].get(i), power));
      }
    };
    const auto clear_group = [&](int64_t g) {
      for (int64_t i = 0; i < kGroup / 2 && packed; ++i) {
        m[at.codes].bytes()[static_cast<size_t>(g * kGroup / 2 + i)] = 0;
      }
      for (int64_t i = g * kGroup; i < (g + 1) * kGroup && !packed; ++i) m[at.codes].set(i, 0);
    };
    switch (m.random.below(6)) {
      case 0:
        scale_group(group, m.random.pick({-20, -15, -14, -13, 13, 14, 15, 20}));
        break;
      case 1:
        for (int64_t g = row * groups; g < (row + 1) * groups; ++g) scale_group(g, -70);
        break;
      case 2:
        clear_group(group);
        break;
      case 3:
        clear_group(group);
        scale_group(group, m.random.pick({-40, 40}));
        break;
      case 4:
        for (int64_t g = row * groups; g < (row + 1) * groups; ++g) clear_group(g);
        break;
      default:
        if (packed) {
          m[at.scales].bytes()[static_cast<size_t>(group)] = 255;
        } else {
          m[at.codes].set(group * kGroup, std::numeric_limits<float>::quiet_NaN());
        }
        break;
    }
  }
}

}  // namespace

Job qqmm_job(uint64_t seed) {
  constexpr const char* kOps[] = {"qqmm", "gather_qqmm", "grouped_qqmm"};
  const auto kind = seed % 3;
  Maker m(kOps[kind], seed);
  // What kernels fold into fp8: tiles of their own, and rows that do not fold.
  const bool folds = seed % 6 == 3;
  const QuantSpec drawn = draw_format(m.random, true);
  const QuantSpec spec = (folds ? QuantSpec{Mode::mxfp4} : drawn).resolved();
  const int64_t k = test::packed_unit(spec) * (folds ? m.random.pick({1, 3, 4, 5, 8, 17})
                                                     : m.random.pick({1, 2, 3, 5, 9, 16}));
  const int64_t n = folds ? m.random.pick({7, 8, 40, 64, 136, 264, 520})
                          : m.random.pick({1, 7, 8, 17, 32, 64, 65, 130, 264});
  const int64_t experts = m.random.between(1, 6);
  const bool layer = kind == 1 && m.random.one_in(2);  // tokens that go to top_k experts each
  const int64_t top_k = m.random.between(1, 3);
  const int64_t pairs = layer ? m.random.pick({1, 9, 70}) : m.random.between(1, 9);
  int64_t rows = folds ? m.random.pick({1, 30, 160, 161, 330, 520})
                       : m.random.pick({1, 2, 5, 16, 17, 33, 70, 130, 300});
  const Precision precision = folds || m.random.one_in(4)
                                  ? Precision::fast
                                  : m.random.pick({Precision::native, Precision::exact});
  constexpr int64_t kMostProducts = 4'000'000;  // the reference does them all in float64
  while (rows * n * k > kMostProducts) rows /= 2;
  // Rows of the table that are for many rows of x then take few.
  const bool deterministic = folds || m.random.one_in(4);
  const Shape x_shape = layer       ? Shape{pairs, 1, 1, k}
                        : kind == 1 ? Shape{pairs, std::min<int64_t>(rows, 5), k}
                                    : Shape{rows, k};
  const Shape w_shape = kind == 0 ? Shape{n, k} : Shape{experts, n, k};
  const DType dtype = folds || m.random.one_in(2) ? DType::bf16 : kFloats[seed / 3 % 3];
  // Packed, or floats that are quantized on the fly.
  const auto operand = [&](const Shape& shape, int floats) {
    if (!m.random.one_in(floats)) return m.packed(spec, shape, dtype, 1.0);
    PackedAt at{spec, m.floats(dtype, shape), -1, -1, {}};
    if (spec.mode == Mode::nvfp4) at.tensor_scale = 0.004f;
    return at;
  };
  PackedAt x = operand(x_shape, 2), w = operand(w_shape, 4);
  if (folds) {
    if (m.random.one_in(2)) spread_scales(m, x, rows, k, m.random.between(1, 5));
    if (m.random.one_in(4)) spread_scales(m, w, n, k, 1);
  }
  // On the device: one for all, or of a packed w one for each matrix.
  const auto moved = [&](PackedAt& at, bool each) {
    if (!at.tensor_scale || m.random.one_in(2)) return;
    const bool many = each && at.scales >= 0 && m.random.one_in(2);
    at.tensor_scale_at = m.add(Role::input, DType::f32, many ? Shape{experts} : Shape{});
    for (int64_t e = 0; e < (many ? experts : 1); ++e) {
      m[at.tensor_scale_at].set(e, *at.tensor_scale * static_cast<float>(e + 1));
    }
  };
  moved(x, false);
  moved(w, kind != 0);
  const bool x_packed = x.scales >= 0;
  const DType out_dtype =
      x_packed && !folds ? m.random.pick({DType::f32, DType::f16, DType::bf16}) : dtype;
  const int ids = kind == 0   ? -1
                  : layer     ? m.ids(DType::i32, {pairs, top_k}, experts, 5)
                  : kind == 1 ? m.ids(DType::i32, {pairs}, experts, 5)
                              : m.add(Role::ids, DType::i32, {experts});
  if (kind == 2) {
    for (int64_t e = 0; e < experts; ++e) m[ids].set_integer(e, m.random.between(-1, rows + 1));
  }
  const Shape out_shape = layer       ? Shape{pairs, top_k, 1, n}
                          : kind == 1 ? Shape{pairs, x_shape[1], n}
                                      : Shape{rows, n};
  const bool plain = folds || m.random.one_in(2);
  const float alpha = plain ? 1.0f : 0.75f, beta = plain ? 0.0f : -1.5f;
  const int c = plain ? -1 : m.floats(DType::f32, out_shape);
  const int bias = plain ? -1 : m.floats(DType::bf16, kind == 0 ? Shape{n} : Shape{experts, n});
  const int out = m.add(Role::output, out_dtype, out_shape);
  m.job.call = [=](Views v, const Options& options) {
    Options o = options;
    o.precision = precision;
    o.deterministic = deterministic;
    const auto at = [&](int i) { return i < 0 ? TensorView() : v[static_cast<size_t>(i)]; };
    const Epilogue e{alpha, beta, at(c), at(bias)};
    if (kind == 0) return qqmm(x.in(v), w.in(v), at(out), e, o);
    if (kind == 1) return gather_qqmm(x.in(v), w.in(v), {}, at(ids), false, at(out), e, o);
    return grouped_qqmm(x.in(v), w.in(v), at(ids), at(out), e, o);
  };
  const auto views = m.views();
  m.job.judge = [=, keeps = m.job.keeps](const std::string& kernel, std::span<const uint8_t> cuda,
                                         std::span<const uint8_t>) {
    // The values that both operands stand for, then the product of those.
    const auto values = [&](const PackedAt& at, const Shape& shape) {
      test::Array floats(DType::f32, shape);
      Quantized q = at.in(views);
      if (at.scales < 0) {
        const QuantizedSpec s = infer_quantize(q.codes, spec);
        test::Array codes(s.codes.dtype, s.codes.shape), scales(s.scales.dtype, s.scales.shape);
        const Quantized packed{spec, codes, scales, {}, {}, at.tensor_scale};
        quantize(q.codes, packed);
        dequantize(packed, floats);
      } else {
        dequantize(q, floats);
      }
      return floats;
    };
    const test::Array fx = values(x, x_shape), fw = values(w, w_shape);
    const auto transposed = [](TensorView t) {
      const int last = t.ndim() - 1;
      std::swap(t.shape[last], t.shape[last - 1]);
      std::swap(t.strides[last], t.strides[last - 1]);
      return t;
    };
    const TensorView right = transposed(fw.view());
    const test::Product product =
        kind == 2 ? test::grouped_mm_product(fx, right, views[static_cast<size_t>(ids)])
                  : test::gather_mm_product(
                        fx, right, {}, ids < 0 ? TensorView() : views[static_cast<size_t>(ids)]);
    auto expected = test::evaluate(product, test::path_of(kernel), DType::f32);
    std::vector<double> got(expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      got[i] = cpu::load_float(cuda.data(), out_dtype, at);
      test::Expected& e = expected[i];
      const int64_t per_pair = product.x.rows() * n;
      const test::Pair& pair = product.pairs[static_cast<size_t>(at / per_pair)];
      if (plain || !pair.selected) continue;
      const double added =
          beta * cpu::load_float(views[static_cast<size_t>(c)].data, DType::f32, at);
      const double b = cpu::load_float(views[static_cast<size_t>(bias)].data, DType::bf16,
                                       (kind == 0 ? 0 : pair.w * n) + at % n);
      e.single = static_cast<float>(alpha * e.single + added + b);
      e.exact = alpha * e.exact + added + b;
      e.magnitude = alpha * e.magnitude + std::fabs(added) + std::fabs(b);
      e.slack = alpha * e.slack + gamma(4) * e.magnitude;
      e.scatter = alpha * alpha * e.scatter + kUnit * kUnit * e.magnitude * e.magnitude;
    }
    Judgement j;
    test::Agreement agreement;
    j.failure = test::compare(expected, got, out_dtype, false, &agreement);
    j.worst = agreement.worst;
    j.rms = agreement.rms;
    return j;
  };
  return m.job;
}

Job dual_job(uint64_t seed) {
  Maker m("quantize_dual", seed);
  // Every format in each dtype, one after the other.
  const auto formats = test::all_formats();
  const QuantSpec spec = formats[static_cast<size_t>(seed / 3) % formats.size()].resolved();
  // Twice in three both directions in whole lanes of 32, as the kernel that writes both wants them.
  constexpr int64_t kLane = 32;
  const int64_t packed = test::packed_unit(spec);
  const int64_t unit = m.random.one_in(3) ? packed : std::max(packed, kLane);
  const int64_t more = m.random.one_in(3) ? 6 : 0;  // of several tiles
  const int64_t r = unit * m.random.between(1, 3 + more), k = unit * m.random.between(1, 4 + more);
  const Shape lead = m.random.one_in(2) ? Shape{} : Shape{m.random.between(1, 3)};
  const auto with = [&](int64_t a, int64_t b) {
    Shape s = lead;
    s.push_back(a);
    s.push_back(b);
    return s;
  };
  const bool swizzled = spec.mode != Mode::affine && m.random.one_in(2);
  const int w = m.floats(kFloats[seed % 3], with(r, k));
  const auto outputs = [&](const Shape& shape) {
    const QuantizedSpec s = infer_quantize(test::Array(kFloats[seed % 3], shape), spec);
    Shape scales = s.scales.shape;
    if (swizzled) {
      const int last = scales.ndim() - 1;
      scales[last - 1] = (scales[last - 1] + 127) / 128 * 128;
      scales[last] = (scales[last] + 3) / 4 * 4;
    }
    PackedAt at{spec,
                m.add(Role::output, s.codes.dtype, s.codes.shape),
                m.add(Role::output, s.scales.dtype, scales),
                -1,
                {}};
    if (s.biases) at.biases = m.add(Role::output, s.biases->dtype, s.biases->shape);
    if (spec.mode == Mode::nvfp4) at.tensor_scale = 0.004f;
    return at;
  };
  const PackedAt rows = outputs(with(r, k)), columns = outputs(with(k, r));
  m.job.line += swizzled ? " swizzled" : "";
  m.job.call = [=](Views v, const Options& o) {
    Quantized a = rows.in(v), b = columns.in(v);
    b.host_tensor_scale.reset();  // the one of rows serves both
    a.scale_layout = b.scale_layout = swizzled ? ScaleLayout::swizzled_128x4 : ScaleLayout::rows;
    quantize_dual(v[static_cast<size_t>(w)], a, b, o);
  };
  return m.job;
}

Job swizzled_job(uint64_t seed) {
  Maker m("quantize_swizzled", seed);
  constexpr Mode kModes[] = {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4};
  const QuantSpec spec = QuantSpec{kModes[seed / 3 % 3]}.resolved();
  const DType dtype = kFloats[seed % 3];
  // Tiles of scales with rows and columns to spare, and exactly.
  const int64_t r = m.random.one_in(4) ? 128 : m.random.between(1, 300);
  const int64_t k = 32 * (m.random.one_in(4) ? 16 : m.random.between(1, 30));
  const Shape lead = m.random.one_in(2) ? Shape{} : Shape{m.random.between(1, 3)};
  const auto with = [&](int64_t a, int64_t b) {
    Shape s = lead;
    s.push_back(a);
    s.push_back(b);
    return s;
  };
  const int64_t gap = m.random.one_in(3) ? 32 : 0;  // values between rows
  const int w = m.floats(dtype, with(r, k + gap));
  const QuantizedSpec s = infer_quantize(test::Array(dtype, with(r, k)), spec);
  const int last = s.scales.shape.ndim() - 1;
  PackedAt at{spec,
              m.add(Role::output, s.codes.dtype, s.codes.shape),
              m.add(Role::output, s.scales.dtype,
                    with((r + 127) / 128 * 128, (s.scales.shape[last] + 3) / 4 * 4)),
              -1,
              {}};
  if (spec.mode == Mode::nvfp4) at.tensor_scale = 0.004f;
  m.job.call = [=](Views v, const Options& o) {
    Quantized q = at.in(v);
    q.scale_layout = ScaleLayout::swizzled_128x4;
    TensorView values = v[static_cast<size_t>(w)];
    values.shape[last] = k;
    quantize(values, q, o);
  };
  return m.job;
}

}  // namespace moeblas::gpu
