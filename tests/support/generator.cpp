#include "support/generator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace moeblas::test {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr DType kIntegers[] = {DType::i8, DType::i16, DType::i32, DType::i64,
                               DType::u8, DType::u16, DType::u32, DType::u64};

// Products of one case, at most: the float64 reference has to do them all.
constexpr int64_t kMostProducts = 200'000;

// A size that no format ties down: one, a few, either side of a tile, ragged.
int64_t draw_size(Random& random) {
  if (random.one_in(50)) return 0;
  switch (random.below(5)) {
    case 0:
      return random.between(1, 8);
    case 1:
      return random.pick({8, 16, 32, 64}) + random.between(-2, 2);
    case 2:
      return random.pick({5, 6, 7, 67, 45, 96, 90});
    case 3:
      return random.between(1, 20);
    default:
      return random.pick({16, 32, 48, 64, 128});
  }
}

int64_t draw_packed(Random& random, const QuantSpec& spec) {
  if (random.one_in(50)) return 0;
  const int64_t unit = packed_unit(spec);
  const int64_t most = 576 / unit;
  const int64_t units = random.pick({1, 2, 3, 4, 5, 7, 9, 17, 34});
  return std::min(units, most) * unit;
}

int64_t draw_rows(Random& random) {
  if (random.one_in(50)) return 0;
  return random.pick<int64_t>({1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 33});
}

int64_t draw_count(Random& random) {
  return random.one_in(40) ? 0 : random.pick<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 13});
}

Shape joined(Shape shape, std::initializer_list<int64_t> more) {
  for (int64_t size : more) shape.push_back(size);
  return shape;
}

struct Sizes {
  int64_t m, n, k;
};

// M, N and K for a number of pairs, cut until the work fits.
Sizes draw_sizes(Random& random, const Case& c, int64_t pairs, bool one_row = false) {
  Sizes s{one_row ? 1 : draw_rows(random), 0, 0};
  const bool quantized = c.format.has_value();
  int64_t packed = quantized ? draw_packed(random, *c.format) : draw_size(random);
  int64_t open = draw_size(random);
  const int64_t unit = quantized ? packed_unit(*c.format) : 1;
  while (pairs * s.m * packed * open > kMostProducts) {
    if (s.m > 4) {
      s.m /= 2;
    } else if (packed > 4 * unit) {
      packed -= unit;
    } else {
      open = (open + 1) / 2;
    }
    if (open == 1 && s.m <= 4 && packed <= 4 * unit) break;
  }
  s.n = c.transpose ? open : packed;
  s.k = c.transpose ? packed : open;
  return s;
}

// Weights of `batch` matrices.
void draw_weights(Random& random, Case& c, const Shape& batch, const Sizes& s) {
  const Shape shape = joined(batch, {c.transpose ? s.n : s.k, c.transpose ? s.k : s.n});
  if (c.format) {
    add_weights(random, c, shape, draw_float(random));
  } else {
    c.w = drawn(random, c.w.dtype, shape, false, true);
  }
}

void draw_quantized_matmul(Random& random, Case& c) {
  Shape batch, w_batch;
  const bool vector = random.one_in(10);
  if (!vector && !random.one_in(3)) {
    batch = random.one_in(2) ? Shape{draw_count(random)}
                             : Shape{random.between(1, 3), random.between(1, 4)};
    // Shared weights, weights for each batch, or either of them broadcast; the batch of w may have
    // more dimensions than that of x.
    if (random.one_in(2)) w_batch = draw_broadcast(random, batch);
    if (random.one_in(8)) w_batch = Shape{1};
    if (random.one_in(8)) w_batch = Shape{1, 1};
  }
  Shape x_batch = w_batch.ndim() > 0 && random.one_in(3) ? draw_broadcast(random, batch) : batch;
  if (w_batch.ndim() > 0 && x_batch.ndim() == 0) x_batch = {1};
  Shape result = x_batch.ndim() >= w_batch.ndim() ? x_batch : w_batch;
  const Shape& shorter = x_batch.ndim() >= w_batch.ndim() ? w_batch : x_batch;
  const int skip = result.ndim() - shorter.ndim();
  for (int i = 0; i < shorter.ndim(); ++i) {
    if (result[skip + i] == 1) result[skip + i] = shorter[i];
  }
  const Sizes s = draw_sizes(random, c, result.numel(), vector);
  const Shape x = vector ? Shape{s.k} : joined(x_batch, {s.m, s.k});
  const Shape out = vector ? Shape{s.n} : joined(result, {s.m, s.n});
  c.x = drawn(random, c.x.dtype, x, false, true);
  draw_weights(random, c, w_batch, s);
  c.out = drawn(random, c.x.dtype, out, true, false);
}

// gather_mm and gather_qmm: with each index array or without it.
void draw_gather(Random& random, Case& c) {
  const Shape result = random.one_in(2) ? Shape{draw_count(random)}
                                        : Shape{random.between(1, 5), random.between(1, 4)};
  const bool has_lhs = random.one_in(2), has_rhs = !random.one_in(5);
  // With an index array the batch is anything; without one it is what the result broadcasts from.
  const auto batch_of = [&](bool indexed) {
    if (!indexed) return draw_broadcast(random, result);
    return random.one_in(4) ? Shape{random.between(1, 3), random.between(1, 4)}
                            : Shape{random.one_in(30) ? 0 : random.between(1, 9)};
  };
  const Shape x_batch = batch_of(has_lhs), w_batch = batch_of(has_rhs);
  const Shape lhs = has_lhs ? draw_broadcast(random, result) : x_batch;
  Shape rhs = has_rhs ? draw_broadcast(random, result) : w_batch;
  Shape batch = lhs.ndim() >= rhs.ndim() ? lhs : rhs;
  const Shape& shorter = lhs.ndim() >= rhs.ndim() ? rhs : lhs;
  const int skip = batch.ndim() - shorter.ndim();
  for (int i = 0; i < shorter.ndim(); ++i) {
    if (batch[skip + i] == 1) batch[skip + i] = shorter[i];
  }
  // Vectors only where the operation takes them and no batch is in the way.
  const bool dense = c.op == Op::gather_mm;
  const bool a_vector = dense && x_batch.ndim() == 0 && random.one_in(2);
  const bool b_vector = dense && w_batch.ndim() == 0 && random.one_in(2);
  Sizes s = draw_sizes(random, c, batch.numel(), a_vector);
  if (b_vector) s.n = 1;
  c.x = drawn(random, c.x.dtype, a_vector ? Shape{s.k} : joined(x_batch, {s.m, s.k}), false, true);
  if (b_vector) {
    c.w = drawn(random, c.x.dtype, {s.k}, false, true);
  } else {
    draw_weights(random, c, w_batch, s);
  }
  if (has_lhs) c.lhs = drawn(random, draw_integer(random), lhs, false, true);
  if (has_rhs) c.rhs = drawn(random, draw_integer(random), rhs, false, true);
  Shape out = batch;
  if (!a_vector) out.push_back(s.m);
  if (!b_vector) out.push_back(s.n);
  c.out = drawn(random, c.x.dtype, out, true, false);
  c.sorted = random.one_in(2);
}

void draw_gather_qmv(Random& random, Case& c) {
  const int64_t pairs = random.one_in(40) ? 0 : random.between(1, 24);
  const Sizes s = draw_sizes(random, c, pairs, true);
  c.x = drawn(random, c.x.dtype, {pairs, s.k}, false, true);
  draw_weights(random, c, {random.between(1, 8)}, s);
  c.rhs = drawn(random, draw_integer(random), {pairs}, false, true);
  c.out = drawn(random, c.x.dtype, {pairs, s.n}, true, false);
}

void draw_segmented(Random& random, Case& c) {
  Shape batch;
  if (!random.one_in(6)) batch = {draw_count(random)};
  if (random.one_in(4)) batch = {random.between(1, 3), random.between(1, 4)};
  const Sizes s = draw_sizes(random, c, batch.numel());
  c.x = drawn(random, c.x.dtype, {s.m, s.k}, false, true);
  c.w = drawn(random, c.x.dtype, {s.k, s.n}, false, true);
  c.ranges = drawn(random, draw_integer(random), joined(batch, {2}), false, true);
  c.out = drawn(random, c.x.dtype, joined(batch, {s.m, s.n}), true, false);
}

void draw_grouped(Random& random, Case& c) {
  const int64_t rows = random.one_in(40) ? 0 : random.between(1, 40);
  const int64_t experts = random.one_in(40) ? 0 : random.between(1, 8);
  const Sizes s = draw_sizes(random, c, rows, true);
  c.x = drawn(random, c.x.dtype, {rows, s.k}, false, true);
  draw_weights(random, c, {experts}, s);
  c.ranges = drawn(random, random.pick({DType::i32, DType::i64}), {experts}, false, true);
  c.out = drawn(random, c.x.dtype, {rows, s.n}, true, false);
}

void draw_conversion(Random& random, Case& c) {
  Shape lead;
  for (int64_t i = random.between(0, 3); i > 0; --i) lead.push_back(random.between(1, 4));
  if (random.one_in(40)) lead = {0};
  const bool fp8 = c.op == Op::to_fp8 || c.op == Op::from_fp8;
  const bool float_out = c.op == Op::dequantize || c.op == Op::from_fp8;
  Shape shape = lead;
  if (!fp8) {
    shape.push_back(draw_packed(random, *c.format));
  } else if (!random.one_in(10)) {
    shape.push_back(draw_size(random));
  }
  c.x = drawn(random, c.x.dtype, shape, float_out, !float_out);
  if (fp8) {
    c.w = drawn(random, DType::u8, shape, !float_out, float_out);
  } else {
    add_weights(random, c, shape, draw_float(random));
  }
}

void draw_values(Random& random, Case& c) {
  c.values = random.pick({Values::normal, Values::normal, Values::normal, Values::positive,
                          Values::integers, Values::ends, Values::specials});
  c.ids = random.pick(
      {Ids::uniform, Ids::uniform, Ids::sorted, Ids::one, Ids::mixed, Ids::mixed, Ids::none});
  if (c.ids == Ids::none && !random.one_in(4)) c.ids = Ids::uniform;
  if (c.values != Values::ends) return;
  // The other way round in x, so that results stay within its dtype.
  const int exponent =
      c.x.dtype == DType::f16 ? random.pick({-24, -14, 15, 12}) : random.pick({-100, -60, 60, 90});
  c.scale_exponent = exponent;
  c.x_exponent = c.x.dtype == DType::f16 ? (exponent > 0 ? -14 : 12) : -exponent;
}

// The formats of an operation's weights. Products that take quantized ones take floats too, of any
// dtype.
uint64_t formats_of(Op op) {
  return is_quantized(op) ? all_formats().size() + (is_product(op) ? std::size(kFloats) : 0) : 1;
}

// What the scales' own dtype, or that of dense weights, cannot reach.
void limit_exponents(Case& c) {
  if (c.values != Values::ends) return;
  const bool affine = c.format && c.format->mode == Mode::affine;
  const bool block16 = c.format && c.format->mode == Mode::nvfp4;
  int most = 127;
  if ((affine ? c.scales.dtype : c.format ? DType::f32 : c.w.dtype) == DType::f16) most = 12;
  if (block16 && !c.tensor_scale.present && !c.host_tensor_scale) most = 6;
  if (std::abs(c.scale_exponent) <= most) return;
  c.scale_exponent = std::clamp(c.scale_exponent, -most, most);
  c.x_exponent = -c.scale_exponent;
}

// Weights as a fast kernel wants them: rows of whole 16-byte words, dense, or half of a fused
// tensor.
void draw_aligned_weights(Random& random, Case& c, const Shape& stack, int64_t n, int64_t k) {
  const QuantSpec spec = c.format->resolved();
  const DType scale = spec.mode == Mode::affine ? draw_float(random) : DType::u8;
  const auto with = [&](int64_t cols) { return joined(joined(stack, {n}), {cols}); };
  c.codes = plain(DType::u32, with(k * spec.bits / 32));
  c.scales = plain(scale, with(k / spec.group_size));
  if (spec.mode == Mode::affine) c.biases = c.scales;
  if (stack.ndim() > 0 && random.one_in(3)) {
    for (Layout* t : {&c.codes, &c.scales, &c.biases}) {
      if (t->present) t->strides[0] *= 2;
    }
  }
  // Rows of w that lie apart: a slice of its columns.
  if (random.one_in(4)) {
    for (Layout* t : {&c.codes, &c.scales, &c.biases}) {
      if (!t->present) continue;
      for (int d = 0; d + 1 < t->shape.ndim(); ++d) t->strides[d] *= 2;
    }
  }
  if (spec.mode != Mode::nvfp4 || random.one_in(2)) return;
  if (!random.one_in(3)) {
    c.tensor_scale = plain(DType::f32, random.one_in(4) ? Shape{} : Shape{stack.numel()});
  } else {
    c.host_tensor_scale = c.values == Values::ends       ? std::ldexp(1.0f, c.scale_exponent)
                          : c.values == Values::integers ? 0.5f
                                                         : 0.037f;
  }
}

}  // namespace

DType draw_integer(Random& random) { return kIntegers[random.below(std::size(kIntegers))]; }
DType draw_float(Random& random) { return kFloats[random.below(std::size(kFloats))]; }

Shape draw_broadcast(Random& random, const Shape& result) {
  const int drop = random.one_in(3) ? static_cast<int>(random.between(0, result.ndim())) : 0;
  Shape shape;
  for (int i = drop; i < result.ndim(); ++i) {
    shape.push_back(random.one_in(4) ? 1 : result[i]);
  }
  return shape;
}

std::span<const QuantSpec> all_formats() {
  static const std::vector<QuantSpec> formats = [] {
    std::vector<QuantSpec> list;
    for (int bits : {2, 3, 4, 5, 6, 8}) {
      for (int group : {16, 32, 64, 128}) list.push_back({Mode::affine, bits, group});
    }
    // As often as a width of affine.
    for (int i = 0; i < 4; ++i) {
      list.push_back({Mode::mxfp4, 4, 32});
      list.push_back({Mode::mxfp8, 8, 32});
      list.push_back({Mode::nvfp4, 4, 16});
    }
    return list;
  }();
  return formats;
}

uint64_t combinations(Op op) {
  const uint64_t formats = formats_of(op);
  const bool either_way =
      op == Op::quantized_matmul || op == Op::gather_qmm || op == Op::grouped_qmm;
  return formats * std::size(kFloats) * (either_way ? 2 : 1);
}

Case make_case(Op op, uint64_t seed) {
  Case c;
  c.op = op;
  c.seed = seed;
  uint64_t combination = seed % combinations(op);
  c.x.dtype = kFloats[combination % std::size(kFloats)];
  combination /= std::size(kFloats);
  const uint64_t format = combination % formats_of(op);
  combination /= formats_of(op);
  c.w.dtype = c.x.dtype;
  if (is_quantized(op)) {
    const uint64_t packed = all_formats().size();
    if (format < packed) {
      c.format = all_formats()[format];
    } else {
      c.w.dtype = kFloats[format - packed];
    }
  }
  // gather_qmv has no flag; dense weights are (K, N).
  c.transpose = is_quantized(op) && combination == 0;
  Random random(seed * static_cast<uint64_t>(kOps) + static_cast<uint64_t>(op));
  draw_values(random, c);
  switch (op) {
    case Op::quantized_matmul:
      draw_quantized_matmul(random, c);
      break;
    case Op::gather_mm:
    case Op::gather_qmm:
      draw_gather(random, c);
      break;
    case Op::gather_qmv:
      draw_gather_qmv(random, c);
      break;
    case Op::segmented_mm:
      draw_segmented(random, c);
      break;
    case Op::grouped_mm:
    case Op::grouped_qmm:
      draw_grouped(random, c);
      break;
    default:
      draw_conversion(random, c);
      break;
  }
  limit_exponents(c);
  c.deterministic = random.one_in(4);
  c.precision =
      random.pick({Precision::exact, Precision::native, Precision::native, Precision::fast});
  if (random.one_in(8)) c.threads = random.pick({2, 3, 8});
  return c;
}

Case decode_case(uint64_t seed) {
  constexpr Op kDecodeOps[] = {Op::quantized_matmul, Op::gather_qmm, Op::gather_qmv};
  Random random(seed + (uint64_t{1} << 40));
  Case c;
  c.seed = seed;
  c.op = kDecodeOps[seed % std::size(kDecodeOps)];
  c.format = all_formats()[seed / std::size(kDecodeOps) % all_formats().size()];
  const QuantSpec spec = c.format->resolved();
  draw_values(random, c);
  c.x.dtype = draw_float(random);
  // Rows of scales are whole 16-byte words as well, or only all of them together are.
  const int64_t word = spec.mode == Mode::affine ? 8 : 16;
  int64_t k = packed_unit(spec) * (random.one_in(2) ? word * random.pick({1, 1, 2, 3, 4, 5})
                                                    : random.pick({1, 2, 3, 7, 12, 24, 45, 90}));
  int64_t n = random.pick({1, 5, 16, 31, 32, 33, 64, 67, 100, 130, 260});
  int64_t tokens = random.pick({1, 1, 1, 2, 3, 4, 8, 9, 16, 17});
  const int64_t top_k = c.op == Op::gather_qmm ? random.pick({1, 2, 4, 8}) : 1;
  if (c.op == Op::gather_qmv) tokens = random.pick({1, 2, 4, 7, 16, 33, 40});
  while (tokens * top_k * n * k > 4 * kMostProducts && n > 1) n = (n + 1) / 2;
  const int64_t experts = random.pick({1, 2, 4, 8, 16, 33});
  switch (c.op) {
    case Op::quantized_matmul:
      // More of x than a thread block's memory holds beside its share of w.
      if (seed / (std::size(kDecodeOps) * all_formats().size()) % 3 == 1) {
        tokens = random.pick({13, 16, 17, 29});
        n = std::min<int64_t>(n, 67);
        k *= (4096 + k - 1) / k;
      }
      draw_aligned_weights(random, c, {}, n, k);
      c.x = drawn(random, c.x.dtype, {tokens, k}, false, true);
      c.out = drawn(random, c.x.dtype, {tokens, n}, true, false);
      break;
    case Op::gather_qmm:
      draw_aligned_weights(random, c, {experts}, n, k);
      c.x = drawn(random, c.x.dtype, {tokens, 1, 1, k}, false, true);
      c.rhs = drawn(random, draw_integer(random), {tokens, top_k}, false, true);
      c.out = drawn(random, c.x.dtype, {tokens, top_k, 1, n}, true, false);
      break;
    default:
      draw_aligned_weights(random, c, {experts}, n, k);
      c.x = drawn(random, c.x.dtype, {tokens, k}, false, true);
      c.rhs = drawn(random, draw_integer(random), {tokens}, false, true);
      c.out = drawn(random, c.x.dtype, {tokens, n}, true, false);
      break;
  }
  limit_exponents(c);
  c.deterministic = random.one_in(4);
  return c;
}

Case few_rows_case(uint64_t seed, int64_t blocks) {
  const QuantSpec kFormats[] = {{Mode::mxfp4},
                                {Mode::affine, 4, 64},
                                {Mode::nvfp4},
                                {Mode::affine, 4, 32},
                                {Mode::affine, 4, 128}};
  Random random(seed + (uint64_t{1} << 42));
  Case c;
  c.seed = seed;
  c.op = Op::gather_qmm;
  c.format = kFormats[seed % std::size(kFormats)];
  const QuantSpec spec = c.format->resolved();
  draw_values(random, c);
  if (random.one_in(4)) c.values = Values::specials;
  if (c.ids == Ids::none) c.ids = Ids::uniform;
  c.x.dtype = random.pick({DType::f16, DType::bf16});
  const int64_t unit = packed_unit(spec), word = spec.mode == Mode::affine ? 8 : 16;
  int64_t k =
      unit * (random.one_in(2) ? word * random.pick({1, 2}) : random.pick({7, 10, 12, 18, 24}));
  // Rows with an infinity and nothing else that is special.
  if (c.values == Values::specials) k = std::max<int64_t>(unit, 32) * random.pick({1, 2, 3});
  const int64_t n = random.pick({388, 512, 516, 772});
  const int64_t experts = blocks + 3, top_k = random.pick({1, 2, 3, 4});
  const int64_t tokens = (experts * random.pick({1, 2, 3}) + top_k - 1) / top_k;
  draw_aligned_weights(random, c, {experts}, n, k);
  c.x = plain(c.x.dtype, {tokens, 1, 1, k});
  c.rhs = drawn(random, draw_integer(random), {tokens, top_k}, false, true);
  c.out = plain(c.x.dtype, {tokens, top_k, 1, n});
  limit_exponents(c);
  return c;
}

Case one_row_case(uint64_t seed) {
  constexpr int kBits[] = {2, 3, 4, 5, 6, 8}, kGroups[] = {64, 32, 128, 16};
  Random random(seed + (uint64_t{1} << 41));
  Case c;
  c.seed = seed;
  c.op = Op::quantized_matmul;
  constexpr Mode kModes[] = {Mode::mxfp4, Mode::nvfp4};
  constexpr size_t kFormats = std::size(kBits) + std::size(kModes);
  const size_t format = seed % kFormats;
  int group = kGroups[seed / kFormats % std::size(kGroups)];
  if (format < std::size(kBits)) {
    const int bits = kBits[format];
    if (bits % 2 != 0 && group == 16) group = 64;
    c.format = QuantSpec{Mode::affine, bits, group};
  } else {
    c.format = QuantSpec{kModes[format - std::size(kBits)]};
    group = 2 * c.format->resolved().group_size;  // whose scales are bytes
  }
  draw_values(random, c);
  c.x.dtype = draw_float(random);
  // Rows of scales begin at multiples of 16 bytes, of codes too.
  const int64_t k = int64_t{group} * 8 * random.pick({1, 1, 2, 3, 4, 5, 9, 16, 17, 33});
  const int64_t n =
      random.pick({1, 5, 16, 31, 32, 33, 64, 64, 67, 100, 128, 128, 130, 192, 256, 256, 260});
  if (random.one_in(3)) {
    // Of several matrices, by index.
    const int64_t experts = random.pick({1, 2, 4, 8, 16, 33}), top_k = random.pick({1, 2, 4, 8});
    c.op = Op::gather_qmm;
    draw_aligned_weights(random, c, {experts}, n, k);
    c.x = drawn(random, c.x.dtype, {1, 1, 1, k}, false, true);
    c.rhs = drawn(random, draw_integer(random), {1, top_k}, false, true);
    c.out = drawn(random, c.x.dtype, {1, top_k, 1, n}, true, false);
  } else {
    draw_aligned_weights(random, c, {}, n, k);
    c.x = drawn(random, c.x.dtype, {1, k}, false, true);
    c.out = drawn(random, c.x.dtype, {1, n}, true, false);
  }
  limit_exponents(c);
  return c;
}

}  // namespace moeblas::test
