#include "support/ffn_case.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "moeblas/ops.h"
#include "support/codec.h"
#include "support/ffn_reference.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr int64_t kMostProducts = 150'000;
// Powers of two that keep the layer's numbers within float16: those of dense weights, of scales
// (codes may be as large as 448, or 255 of one sign) and of x.
constexpr int kWeightExponent = -2;
int scale_exponent(const QuantSpec& spec, Values values) {
  if (spec.mode == Mode::mxfp8) return kWeightExponent - 7;
  return spec.mode == Mode::affine && values == Values::positive ? -spec.bits : kWeightExponent;
}
int x_exponent(DType dtype) { return dtype == DType::f16 ? -5 : 0; }

int64_t unit_of(const std::optional<QuantSpec>& format) {
  return format ? packed_unit(format->resolved()) : 1;
}

std::optional<QuantSpec> draw_format(Random& random) {
  if (random.one_in(3)) return std::nullopt;
  return all_formats()[static_cast<size_t>(
      random.below(static_cast<int64_t>(all_formats().size())))];
}

ExpertsLayout draw_experts(Random& random, const std::optional<QuantSpec>& format, Values values,
                           int64_t experts, int64_t n, int64_t k) {
  ExpertsLayout e;
  e.n = n;
  e.k = k;
  e.weights.values = values == Values::specials ? Values::normal : values;
  e.weights.format = format;
  if (format) e.weights.scale_exponent = scale_exponent(format->resolved(), e.weights.values);
  if (format) {
    add_weights(random, e.weights, {experts, n, k}, draw_float(random));
  } else {
    e.weights.w = drawn(random, draw_float(random), {experts, n, k}, false, true);
  }
  if (random.one_in(2)) e.bias = drawn(random, draw_float(random), {experts, n}, false, true);
  return e;
}

ExpertsLayout plain_experts(const std::optional<QuantSpec>& format, DType dtype, int64_t experts,
                            int64_t n, int64_t k) {
  ExpertsLayout e;
  e.n = n;
  e.k = k;
  e.weights.format = format;
  if (format) e.weights.scale_exponent = scale_exponent(format->resolved(), e.weights.values);
  if (!format) {
    e.weights.w = plain(dtype, {experts, n, k});
    return e;
  }
  const QuantSpec spec = format->resolved();
  const bool affine = spec.mode == Mode::affine;
  e.weights.codes = plain(DType::u32, {experts, n, k * spec.bits / 32});
  e.weights.scales = plain(affine ? DType::f32 : DType::u8, {experts, n, k / spec.group_size});
  if (affine) e.weights.biases = e.weights.scales;
  return e;
}

ExpertsOperands build_experts(const ExpertsLayout& e, Side side) {
  ExpertsOperands o;
  if (e.weights.format) o.weights.spec = e.weights.format->resolved();
  o.weights.w = {e.weights.w, side, kPoison};
  o.weights.codes = {e.weights.codes, side, kPoison};
  o.weights.scales = {e.weights.scales, side, kPoison};
  o.weights.biases = {e.weights.biases, side, kPoison};
  o.weights.tensor_scale = {e.weights.tensor_scale, side, kPoison};
  o.weights.host_tensor_scale = e.weights.host_tensor_scale;
  o.bias = {e.bias, side, kPoison};
  return o;
}

void fill_expert(Random& random, const ExpertsLayout& e, ExpertsOperands& o, int64_t expert) {
  const int64_t size = e.n * e.k;
  if (e.weights.format) {
    fill_quantized(random, e.weights, o.weights, expert * e.n, e.n, expert);
  } else if (e.weights.w.present) {
    fill_floats(random, e.weights, o.weights.w, expert * size, size, kWeightExponent);
  }
  for (int64_t i = 0; i < e.n && e.bias.present; ++i) o.bias.set(expert * e.n + i, random.normal());
}

// Global experts to their places here: most of them here, the others nowhere or out of range.
void fill_map(Random& random, Operand& map, int64_t experts) {
  for (int64_t g = 0; g < map.numel(); ++g) {
    const int64_t local = random.one_in(3) || experts == 0
                              ? random.pick<int64_t>({-1, -1, experts, experts + 5, -7})
                              : random.below(experts);
    store_index(map.view.data, map.view.dtype, map.offset(g), local);
  }
}

}  // namespace

FfnCase make_ffn_case(uint64_t seed) {
  FfnCase c;
  c.seed = seed;
  c.dtype = kFloats[seed % 3];
  c.activation = static_cast<Activation>(seed / 3 % 5);
  c.separate = seed / 15 % 4 == 3;
  if (!c.separate) c.glu_layout = static_cast<GluLayout>(seed / 15 % 4);
  Random random(seed * 7 + 5);
  c.values = random.pick({Values::normal, Values::normal, Values::positive, Values::specials});
  c.id_kind = random.pick({Ids::uniform, Ids::uniform, Ids::one, Ids::mixed, Ids::none});
  if (c.id_kind == Ids::none && !random.one_in(3)) c.id_kind = Ids::mixed;
  c.alpha = random.pick({1.702f, 1.0f});
  c.limit = random.pick({7.0f, 0.75f});
  c.tokens = random.one_in(30) ? 0 : random.pick<int64_t>({1, 1, 2, 3, 5, 9});
  c.top_k = random.one_in(30) ? 0 : random.pick<int64_t>({1, 2, 2, 4});
  c.experts = random.one_in(40) ? 0 : random.pick<int64_t>({1, 3, 4, 6});
  const auto gate = draw_format(random), up = draw_format(random), down = draw_format(random);
  const int64_t h_unit = c.separate ? std::lcm(unit_of(gate), unit_of(up)) : unit_of(gate);
  const auto size = [&](int64_t unit) {
    if (random.one_in(40)) return int64_t{0};
    return unit == 1 ? random.pick<int64_t>({1, 3, 17, 32, 45, 260})
                     : unit * random.pick({1, 1, 2, 3});
  };
  c.hidden = size(h_unit);
  c.intermediate = size(unit_of(down));
  if (c.hidden > 3 * 128 || c.hidden * c.intermediate > 16'384) c.intermediate = unit_of(down);
  while (c.tokens > 1 && c.tokens * c.top_k * 3 * c.hidden * c.intermediate > kMostProducts) {
    c.tokens = (c.tokens + 1) / 2;
  }
  const int64_t i = c.intermediate;
  c.gate_up = draw_experts(random, gate, c.values, c.experts, c.separate ? i : 2 * i, c.hidden);
  if (c.separate) c.up = draw_experts(random, up, c.values, c.experts, i, c.hidden);
  c.down = draw_experts(random, down, c.values, c.experts, c.hidden, i);
  c.x = drawn(random, c.dtype, {c.tokens, c.hidden}, false, true);
  c.ids = drawn(random, draw_integer(random), {c.tokens, c.top_k}, false, true);
  c.weights = drawn(random, DType::f32, {c.tokens, c.top_k}, false, true);
  if (random.one_in(3)) {
    c.expert_map = drawn(random, draw_integer(random), {random.between(0, 9)}, false, true);
  }
  c.out = drawn(random, c.dtype, {c.tokens, c.hidden}, true, false);
  if (random.one_in(5)) c.threads = random.pick({2, 3, 8});
  return c;
}

FfnCase ffn_case(DType dtype, std::optional<QuantSpec> format, int64_t tokens, int64_t top_k,
                 int64_t experts, int64_t hidden, int64_t intermediate, bool separate) {
  FfnCase c;
  c.dtype = dtype;
  c.tokens = tokens;
  c.top_k = top_k;
  c.experts = experts;
  c.hidden = hidden;
  c.intermediate = intermediate;
  c.separate = separate;
  c.gate_up =
      plain_experts(format, dtype, experts, separate ? intermediate : 2 * intermediate, hidden);
  if (separate) c.up = plain_experts(format, dtype, experts, intermediate, hidden);
  c.down = plain_experts(format, dtype, experts, hidden, intermediate);
  c.x = c.out = plain(dtype, {tokens, hidden});
  c.ids = plain(DType::i32, {tokens, top_k});
  c.weights = plain(DType::f32, {tokens, top_k});
  return c;
}

Quantized ExpertsOperands::view() const {
  if (!weights.w.view) return weights.quantized();
  Quantized dense;
  dense.spec = {Mode::dense};
  dense.codes = weights.w.view;
  return dense;
}

FfnLayer FfnOperands::layer(const FfnCase& c) const {
  FfnLayer l;
  if (c.separate) {
    l.gate = gate_up.view();
    l.up = up.view();
    l.gate_bias = gate_up.bias.view;
    l.up_bias = up.bias.view;
  } else {
    l.gate_up = gate_up.view();
    l.gate_up_bias = gate_up.bias.view;
  }
  l.down = down.view();
  l.down_bias = down.bias.view;
  l.expert_map = expert_map.view;
  l.activation = c.activation;
  l.glu_layout = c.glu_layout;
  l.alpha = c.alpha;
  l.limit = c.limit;
  return l;
}

std::vector<int64_t> FfnOperands::experts(const FfnCase& c) const {
  std::vector<int64_t> list = indices_of(ids.view);
  const auto map = c.expert_map.present ? indices_of(expert_map.view) : std::vector<int64_t>();
  for (int64_t& e : list) {
    if (c.expert_map.present) {
      e = e >= 0 && e < static_cast<int64_t>(map.size()) ? map[static_cast<size_t>(e)] : -1;
    }
    if (e < 0 || e >= c.experts) e = -1;
  }
  return list;
}

FfnOperands build(const FfnCase& c, Side side, uint8_t poison) {
  FfnOperands o;
  o.gate_up = build_experts(c.gate_up, side);
  if (c.separate) o.up = build_experts(c.up, side);
  o.down = build_experts(c.down, side);
  o.x = {c.x, side, kPoison};
  o.ids = {c.ids, side, kPoison};
  o.weights = {c.weights, side, kPoison};
  o.expert_map = {c.expert_map, side, kPoison};
  o.out = {c.out, side, poison};
  Random random(c.seed ^ 0x5deece66d1234567u);
  if (c.expert_map.present) fill_map(random, o.expert_map, c.experts);
  fill_ids(random, c.id_kind, o.ids, c.expert_map.present ? o.expert_map.numel() : c.experts);
  const std::vector<int64_t> experts = o.experts(c);
  std::set<int64_t> used, tokens;
  Case x_numbers;
  x_numbers.values = c.values;
  for (int64_t pair = 0; pair < static_cast<int64_t>(experts.size()); ++pair) {
    if (experts[static_cast<size_t>(pair)] < 0) continue;
    used.insert(experts[static_cast<size_t>(pair)]);
    tokens.insert(pair / c.top_k);
    o.weights.set(pair, random.one_in(20) ? 0 : random.uniform() * random.pick({1.0, -2.5}));
  }
  for (int64_t t : tokens)
    fill_floats(random, x_numbers, o.x, t * c.hidden, c.hidden, x_exponent(c.dtype));
  for (int64_t e : used) {
    fill_expert(random, c.gate_up, o.gate_up, e);
    if (c.separate) fill_expert(random, c.up, o.up, e);
    fill_expert(random, c.down, o.down, e);
  }
  return o;
}

std::string describe(const FfnCase& c) {
  constexpr const char* kActivations[] = {"silu", "gelu_erf", "gelu_tanh", "relu", "clamped"};
  constexpr const char* kLayouts[] = {"gate_up", "up_gate", "interleaved"};
  std::ostringstream s;
  s << "moe_ffn " << kActivations[static_cast<int>(c.activation)] << " "
    << (c.separate ? "separate" : kLayouts[static_cast<int>(c.glu_layout)]) << " E=" << c.experts
    << " I=" << c.intermediate << " values=" << kValuesNames[static_cast<int>(c.values)]
    << " ids=" << kIdsNames[static_cast<int>(c.id_kind)] << " alpha=" << c.alpha
    << " limit=" << c.limit << text("x", c.x) << text("ids", c.ids) << text("weights", c.weights)
    << text("expert_map", c.expert_map) << text("out", c.out);
  const auto product = [&](const char* label, const ExpertsLayout& e) {
    s << " " << label << ":";
    if (e.weights.format) {
      const QuantSpec spec = e.weights.format->resolved();
      s << " " << name(spec.mode) << " b" << spec.bits << " g" << spec.group_size;
    }
    s << text("w", e.weights.w) << text("codes", e.weights.codes)
      << text("scales", e.weights.scales) << text("biases", e.weights.biases)
      << text("tensor_scale", e.weights.tensor_scale) << text("bias", e.bias);
    if (e.weights.host_tensor_scale) s << " host_tensor_scale=" << *e.weights.host_tensor_scale;
  };
  product(c.separate ? "gate" : "gate_up", c.gate_up);
  if (c.separate) product("up", c.up);
  product("down", c.down);
  s << " threads=" << c.threads;
  return s.str();
}

SeededCase seeded(const FfnCase& c) {
  const auto prepare = [c](Side side, uint8_t poison) {
    auto o = std::make_shared<FfnOperands>(build(c, side, poison));
    Call call;
    for (const ExpertsOperands* e : {&o->gate_up, &o->up, &o->down}) {
      const Operands& w = e->weights;
      for (const Operand* t : {&w.w, &w.codes, &w.scales, &w.biases, &w.tensor_scale, &e->bias}) {
        call.inputs.push_back(t);
      }
    }
    for (const Operand* t : {&o->x, &o->ids, &o->weights, &o->expert_map}) {
      call.inputs.push_back(t);
    }
    call.outputs = {&o->out};
    call.run = [c, p = o.get()](const Options& options) {
      moe_ffn(p->x.view, p->layer(c), p->ids.view, p->weights.view, p->out.view, options);
    };
    call.memory = o;
    return call;
  };
  return {describe(c), prepare, [c, prepare](const char* kernel) {
            Result result;
            Outcome outcome = run_twice(prepare, c.threads, forcing(kernel), result);
            if (!outcome.ran()) return outcome;
            const FfnOperands o = build(c, Side::left, kPoison);
            const Spec spec = infer_moe_ffn(o.x.view, o.layer(c), o.ids.view, o.weights.view);
            if (spec.dtype != c.dtype || !(spec.shape == c.out.shape)) {
              outcome.failure = "infer gives another shape or dtype";
              return outcome;
            }
            outcome.failure = compare(evaluate(c, o), result.floats(0, c.dtype), c.dtype, false,
                                      &outcome.agreement);
            return outcome;
          }};
}

}  // namespace moeblas::test
