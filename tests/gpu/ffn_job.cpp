// The fused expert layer against float64, with a bound that follows its roundings.
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "maker.h"
#include "moe_jobs.h"
#include "support/generator.h"
#include "support/reference.h"

namespace moeblas::gpu {
namespace {

constexpr double kUnit = 0x1p-24;

double gamma(int64_t n) {
  return static_cast<double>(n) * kUnit / (1 - static_cast<double>(n) * kUnit);
}

// A number and how far a float32 evaluation of it may lie from it.
struct Bounded {
  double value = 0;
  double off = 0;
};

// a(g, u) for the bounded gate and up.
Bounded activate(Activation activation, float alpha, float limit, Bounded g, Bounded u) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  double left = 0;  // the factor that g makes
  switch (activation) {
    case Activation::silu:
      left = g.value * sigmoid(g.value);
      break;
    case Activation::gelu_erf:
      left = g.value * (1 + std::erf(g.value / std::sqrt(2.0))) / 2;
      break;
    case Activation::gelu_tanh: {
      const double c = std::sqrt(2 / 3.14159265358979323846);
      left = g.value * (1 + std::tanh(c * (g.value + 0.044715 * g.value * g.value * g.value))) / 2;
      break;
    }
    case Activation::relu:
      left = std::max(g.value, 0.0);
      break;
    case Activation::clamped_swiglu: {
      const double clipped = std::min(g.value, static_cast<double>(limit));
      left = clipped * sigmoid(alpha * clipped);
      u.value = std::clamp(u.value, -static_cast<double>(limit), static_cast<double>(limit)) + 1;
      u.off += kUnit * std::fabs(u.value);
      break;
    }
  }
  // No slope of these is above 1.13. The sigmoid and its like are formed as 1 + something, which
  // loses by the size of g, not of the result.
  Bounded a;
  a.value = left * u.value;
  const double left_off = 1.13 * g.off + 8 * kUnit * std::fabs(g.value);
  a.off = left_off * (std::fabs(u.value) + u.off) + std::fabs(left) * u.off +
          4 * kUnit * std::fabs(a.value);
  return a;
}

struct Layer {
  PackedAt gate, up, down;  // joint: gate holds both
  int gate_bias = -1, up_bias = -1, down_bias = -1;
  bool separate = false;
  FfnLayer options;  // activation, layout, alpha, limit

  FfnLayer in(Views v) const {
    FfnLayer f = options;
    const auto at = [&](int i) { return i < 0 ? TensorView() : v[static_cast<size_t>(i)]; };
    (separate ? f.gate : f.gate_up) = gate.in(v);
    (separate ? f.gate_bias : f.gate_up_bias) = at(gate_bias);
    if (separate) f.up = up.in(v);
    if (separate) f.up_bias = at(up_bias);
    f.down = down.in(v);
    f.down_bias = at(down_bias);
    return f;
  }
};

test::Stack stack_of(const Quantized& q) {
  return q.spec.mode == Mode::dense ? test::Stack(q.codes) : test::Stack(q);
}

struct Reference {
  Views views;
  const Layer& layer;
  int x, ids, weights, map;
  int64_t tokens, k, hidden, inner, experts;
  DType dtype;

  double at(int tensor, int64_t i) const {
    const TensorView& t = views[static_cast<size_t>(tensor)];
    return cpu::load_float(t.data, t.dtype, i);
  }
  int64_t expert(int64_t pair) const {
    const auto integer = [&](int tensor, int64_t i) {
      const TensorView& t = views[static_cast<size_t>(tensor)];
      return cpu::load_integer(t.data, t.dtype, i);
    };
    const int64_t id = integer(ids, pair);
    const int64_t known = map < 0 ? experts : views[static_cast<size_t>(map)].shape[0];
    if (id < 0 || id >= known) return -1;
    const int64_t e = map < 0 ? id : integer(map, id);
    return e >= 0 && e < experts ? e : -1;
  }

  // How far weights of these may be rounded: affine ones, by rows for 16-bit x.
  double rounding(const PackedAt& w) const {
    const bool rounds = w.spec.mode == Mode::affine && dtype != DType::f32;
    return !rounds ? 0 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
  }

  // Row `row` of a matrix times a vector that is itself bounded.
  static Bounded dot(const test::Matrix& w, int64_t row, const std::vector<Bounded>& v,
                     double rounding) {
    Bounded sum;
    double size = 0;
    for (int64_t i = 0; i < w.cols; ++i) {
      const auto at = static_cast<size_t>(row * w.cols + i);
      const Bounded& b = v[static_cast<size_t>(i)];
      sum.value += w.value[at] * b.value;
      sum.off += std::fabs(w.value[at]) * b.off;
      size += (std::fabs(w.scaled[at]) + std::fabs(w.bias[at])) * (std::fabs(b.value) + b.off);
      sum.off += rounding * std::fabs(w.scaled[at] + w.bias[at]) * (std::fabs(b.value) + b.off);
    }
    sum.off += gamma(2 * w.cols + 16) * size;
    return sum;
  }

  std::vector<Bounded> evaluate() const {
    const test::Stack gates = stack_of(layer.gate.in(views));
    const test::Stack ups = layer.separate ? stack_of(layer.up.in(views)) : gates;
    const test::Stack downs = stack_of(layer.down.in(views));
    const double unit = dtype == DType::f32 ? kUnit : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    const double least = dtype == DType::f16 ? 0x1p-25 : 0x1p-149;
    std::vector<Bounded> out;
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<Bounded> row(static_cast<size_t>(hidden)), sum(static_cast<size_t>(hidden));
      std::vector<double> size(static_cast<size_t>(hidden));
      for (int64_t h = 0; h < hidden; ++h)
        row[static_cast<size_t>(h)].value = at(x, t * hidden + h);
      std::map<int64_t, std::vector<Bounded>> of_expert;  // which the token may name again
      for (int64_t j = 0; j < k; ++j) {
        const int64_t e = expert(t * k + j);
        if (e < 0) continue;
        std::vector<Bounded>& all = of_expert[e];
        if (!all.empty()) continue;
        std::vector<Bounded> inside;
        for (int64_t i = 0; i < inner; ++i) {
          const GluLayout layout = layer.options.glu_layout;
          int64_t gate_row = i, up_row = i;
          if (!layer.separate) {
            gate_row = layout == GluLayout::interleaved ? 2 * i
                       : layout == GluLayout::up_gate   ? inner + i
                                                        : i;
            up_row = layout == GluLayout::interleaved ? 2 * i + 1
                     : layout == GluLayout::up_gate   ? i
                                                      : inner + i;
          }
          Bounded g = dot(gates.matrix(e), gate_row, row, rounding(layer.gate)),
                  u = dot(ups.matrix(e), up_row, row,
                          rounding(layer.separate ? layer.up : layer.gate));
          const auto add_bias = [&](Bounded& b, int tensor, int64_t position) {
            if (tensor < 0) return;
            b.value += at(tensor, position);
            b.off += 2 * kUnit * std::fabs(b.value);
          };
          const int64_t rows = layer.separate ? inner : 2 * inner;
          add_bias(g, layer.gate_bias, e * rows + gate_row);
          add_bias(u, layer.separate ? layer.up_bias : layer.gate_bias, e * rows + up_row);
          Bounded a =
              activate(layer.options.activation, layer.options.alpha, layer.options.limit, g, u);
          a.off += unit * (std::fabs(a.value) + a.off) + least;  // rounded once to x's dtype
          inside.push_back(a);
        }
        for (int64_t h = 0; h < hidden; ++h) {
          Bounded y = dot(downs.matrix(e), h, inside, rounding(layer.down));
          if (layer.down_bias >= 0) y.value += at(layer.down_bias, e * hidden + h);
          y.off += 2 * kUnit * std::fabs(y.value);
          all.push_back(y);
        }
      }
      for (int64_t j = 0; j < k; ++j) {
        const int64_t e = expert(t * k + j);
        if (e < 0) continue;
        const double w = at(weights, t * k + j);
        for (int64_t h = 0; h < hidden; ++h) {
          const Bounded& y = of_expert[e][static_cast<size_t>(h)];
          Bounded& s = sum[static_cast<size_t>(h)];
          s.value += w * y.value;
          s.off += std::fabs(w) * y.off;
          size[static_cast<size_t>(h)] += std::fabs(w) * (std::fabs(y.value) + y.off);
        }
      }
      for (int64_t h = 0; h < hidden; ++h) {
        Bounded& s = sum[static_cast<size_t>(h)];
        s.off += gamma(k + 2) * size[static_cast<size_t>(h)];
        s.off += unit * (std::fabs(s.value) + s.off) + least;
        out.push_back(s);
      }
    }
    return out;
  }
};

}  // namespace

namespace {

// long_rows: of activations, of few of which shared memory holds one whole, and so many rows of
// gates that each thread block has several tiles. deep: see deep_ffn_job. held: of 4-bit experts
// that a row or some more meet, as qmm_sm90 makes gates and ups of them with rows of x in
// registers, and of what these have left the sums: of few values of K, which tiles take, of rows of
// w that a tile has four groups of, and of long ones in one part or two.
enum class Kind { any, long_rows, deep, held };

Job make_ffn_job(uint64_t seed, Kind kind) {
  const bool long_rows = kind == Kind::long_rows, deep = kind == Kind::deep;
  const bool held = kind == Kind::held;
  Maker m("moe_ffn", seed);
  // Every fourth for the rows of many tokens: in turn each of their formats, in both products and
  // then in one, at each of their widths of tiles.
  const bool tiles = seed % 4 == 3 && kind == Kind::any;
  const uint64_t turn = seed / 4;
  const QuantSpec of_tiles[] = {
      {Mode::affine, 4, 64}, {Mode::affine, 8, 64}, {Mode::mxfp4}, {Mode::mxfp8}, {Mode::nvfp4}};
  // Every fourth of one token, in turn each of its kernels.
  const bool one = seed % 4 == 1 && kind == Kind::any;
  const DType dtype = tiles || long_rows || held ? DType::bf16
                      : one || deep              ? std::array{DType::f16, DType::bf16}[turn % 2]
                                    : std::array{DType::f32, DType::f16, DType::bf16}[seed % 3];
  const DType of_scales =
      tiles || held ? dtype
                    : std::array{DType::f32, DType::f16, DType::bf16}[(deep ? seed : turn / 5) % 3];
  const auto format = [&] {
    return m.random.one_in(6) ? QuantSpec{Mode::dense, 0, 0} : draw_format(m.random, false);
  };
  Layer layer;
  QuantSpec first = format(), second = format();
  // Every other layer as models have them: codes in whole 16 bytes, more of everything.
  const bool modelled = tiles || one || long_rows || deep || held || m.random.one_in(2);
  if (held) {
    first = seed % 2 == 0 ? QuantSpec{Mode::affine, 4, 64} : QuantSpec{Mode::mxfp4};
    second = seed / 2 % 2 == 0 ? QuantSpec{Mode::affine, 4, 64} : QuantSpec{Mode::mxfp4};
  } else if (tiles) {
    first = of_tiles[turn % 5], second = of_tiles[(turn + turn / 35) % 5];
  } else if (one || long_rows) {
    first = second = of_tiles[(long_rows ? seed : turn) % 5];
  } else if (deep) {
    const uint64_t kernel = seed % 9;
    first = second = kernel < 6 ? of_tiles[kernel / 3] : of_tiles[kernel - 4];
  } else if (modelled) {
    first = second =
        m.random.pick({QuantSpec{Mode::affine, 4, 64}, QuantSpec{Mode::affine, 4, 32},
                       QuantSpec{Mode::affine, 8, 64}, QuantSpec{Mode::affine, 8, 32},
                       QuantSpec{Mode::mxfp4}, QuantSpec{Mode::mxfp8}, QuantSpec{Mode::nvfp4}});
  }
  const auto unit = [&](const QuantSpec& s) -> int64_t {
    if (s.mode == Mode::dense) return 8;
    const QuantSpec full = s.resolved();
    return modelled ? std::max<int64_t>(full.group_size, 128 / full.bits) : test::packed_unit(full);
  };
  // 1.2 MB of an expert's codes.
  const int64_t half_of_8_bits = deep && first.resolved().bits == 8 ? 2 : 1;
  const uint64_t left = held ? seed / 4 % 3 : 0;
  const int64_t hidden =
      long_rows   ? 256
      : deep      ? 832
      : left == 2 ? (seed / 2 % 2 == 0 ? 2560 : 1536)
      : held ? (seed / 2 % 2 == 0 ? m.random.pick({2560, 3584, 4096}) : m.random.pick({1536, 2048}))
             : unit(first) *
                   (modelled ? m.random.pick({1, 3, 5, 8, 13}) : m.random.pick({1, 1, 2, 3}));
  const int64_t inner =
      long_rows   ? 6144
      : deep      ? 1024 / half_of_8_bits
      : left == 1 ? (seed % 2 == 0 ? 768 : 1024)
      : left == 2 ? (hidden == 2560 ? 2560 : m.random.pick({2560, 4608}))
      : held      ? m.random.pick({128, 256})
             : unit(second) * (modelled ? m.random.pick({1, 2, 3, 6}) : m.random.pick({1, 1, 2}));
  const int64_t experts = tiles || deep ? 2
                          : long_rows   ? 6
                          : left != 0   ? 3 - static_cast<int64_t>(left)
                          : held        ? m.random.pick({2, 3, 5})
                                        : m.random.between(1, modelled ? 12 : 6);
  const int64_t k = deep                         ? (seed / 9 % 2 == 0 ? 21 : 32)
                    : tiles || long_rows || held ? 2
                    : one                        ? m.random.pick({1, 2, 5, 8})
                                                 : m.random.pick({1, 2, 3});
  // Of an expert, by format and length of rows.
  const auto rows_of_held = [&] {
    const bool affine = seed % 2 == 0;
    if (left == 1) return m.random.between(2, 4);
    if (hidden > 2048) return m.random.between(left == 2 ? 10 : 3, 16);
    return m.random.between(left == 2 ? 2 : 5, affine ? 12 : 7);
  };
  const int64_t tokens = tiles         ? std::array{24, 48, 64, 100, 128, 256, 330}[turn / 5 % 7]
                         : one || deep ? 1
                         : long_rows   ? 5
                         : held        ? (experts * rows_of_held() + 1) / 2
                         : modelled    ? m.random.pick({1, 1, 3, 8, 21, 40})
                                       : m.random.pick({1, 1, 2, 5, 9, 17});
  layer.separate = m.random.one_in(2);
  layer.options.activation = static_cast<Activation>(m.random.below(5));
  if (held) layer.options.activation = Activation::silu;
  layer.options.glu_layout = static_cast<GluLayout>(m.random.below(3));
  const double scale = 1 / std::sqrt(static_cast<double>(hidden));
  const int x = m.floats(dtype, {tokens, hidden});
  const bool mapped = m.random.one_in(3);
  const int64_t known = mapped ? 2 * experts : experts;
  // Where an expert may meet some rows more than a whole tile, few of the ids are none.
  const int ids = m.ids(m.random.pick({DType::i32, DType::i64, DType::u8}), {tokens, k}, known,
                        deep || (tiles && tokens % 64 == 0) ? 60 : 7);
  const int map = mapped ? m.ids(DType::i32, {known}, experts, 3) : -1;
  if (mapped) m.job.tensors.back().role = Role::input;
  const int weights = m.floats(DType::f32, {tokens, k}, 0.5);
  const int64_t rows = layer.separate ? inner : 2 * inner;
  const auto packed = [&](const QuantSpec& spec, const Shape& shape) {
    return m.packed(spec, shape, dtype, scale,
                    tiles || one || deep || held ? std::optional(of_scales) : std::nullopt);
  };
  layer.gate = packed(first, {experts, rows, hidden});
  if (layer.separate) layer.up = packed(first, {experts, rows, hidden});
  layer.down = packed(second, {experts, hidden, inner});
  if (!held && m.random.one_in(2)) {
    layer.gate_bias = m.floats(DType::bf16, {experts, rows});
    if (layer.separate) layer.up_bias = m.floats(DType::f32, {experts, rows});
    layer.down_bias = m.floats(DType::f32, {experts, hidden});
  }
  const int out = m.add(Role::output, dtype, {tokens, hidden});
  const auto views = m.views();

  std::set<int64_t> chosen;
  Reference r{views, layer, x, ids, weights, map, tokens, k, hidden, inner, experts, dtype};
  for (int64_t p = 0; p < tokens * k; ++p) chosen.insert(r.expert(p));
  for (int64_t e = 0; e < experts; ++e) {
    if (chosen.contains(e)) continue;
    for (const PackedAt* at : {&layer.gate, &layer.down}) m.poison(*at, e, experts);
    if (layer.separate) m.poison(layer.up, e, experts);
    for (int b : {layer.gate_bias, layer.up_bias, layer.down_bias}) m.poison(b, e, experts);
  }
  m.job.line += std::string(layer.separate ? " gate, up" : " gate_up") + " layout " +
                std::to_string(static_cast<int>(layer.options.glu_layout)) + " activation " +
                std::to_string(static_cast<int>(layer.options.activation));
  m.job.call = [=](Views v, const Options& o) {
    const auto at = [&](int i) { return i < 0 ? TensorView() : v[static_cast<size_t>(i)]; };
    FfnLayer f = layer.in(v);
    f.expert_map = at(map);
    moe_ffn(at(x), f, at(ids), at(weights), at(out), o);
  };
  m.job.judge = [=, keeps = m.job.keeps](const std::string&, std::span<const uint8_t> cuda,
                                         std::span<const uint8_t>) {
    const Reference reference{views,  layer, x,      ids,   weights, map,
                              tokens, k,     hidden, inner, experts, dtype};
    const std::vector<Bounded> expected = reference.evaluate();
    Judgement j;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double y = cpu::load_float(cuda.data(), dtype, static_cast<int64_t>(i));
      const double off = std::fabs(y - expected[i].value);
      if (!(off <= expected[i].off)) {
        char text[160];
        std::snprintf(text, sizeof text, "element %zu is %.9g, expected %.9g within %.3g", i, y,
                      expected[i].value, expected[i].off);
        j.failure = text;
        return j;
      }
      j.worst = std::max(j.worst, off / expected[i].off);
    }
    return j;
  };
  return m.job;
}

}  // namespace

Job ffn_job(uint64_t seed) { return make_ffn_job(seed, Kind::any); }
Job long_ffn_job(uint64_t seed) { return make_ffn_job(seed, Kind::long_rows); }
Job deep_ffn_job(uint64_t seed) { return make_ffn_job(seed, Kind::deep); }
Job held_ffn_job(uint64_t seed) { return make_ffn_job(seed, Kind::held); }

}  // namespace moeblas::gpu
