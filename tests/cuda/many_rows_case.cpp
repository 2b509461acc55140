#include "many_rows_case.h"

#include <algorithm>

#include "support/generator.h"

namespace moeblas::test {
namespace {

// What a case may cost the reference.
constexpr int64_t kMostProducts = 1'500'000;

// What kernels are of.
struct Kind {
  QuantSpec spec;  // affine groups are drawn
  DType x, scales;
  bool transpose = true;
};
constexpr DType kBf16 = DType::bf16, kF16 = DType::f16, kBytes = DType::u8;
constexpr Kind kKinds[] = {
    {{Mode::affine, 4}, kBf16, kBf16}, {{Mode::mxfp4}, kBf16, kBytes},
    {{Mode::affine, 8}, kBf16, kBf16}, {{Mode::nvfp4}, kBf16, kBytes},
    {{Mode::mxfp8}, kBf16, kBytes},    {{Mode::affine, 4}, kF16, kF16},
    {{Mode::dense}, kBf16, kBf16},     {{Mode::affine, 8}, kF16, kF16},
    {{Mode::nvfp4}, kF16, kBytes},     {{Mode::dense}, kF16, kF16, false},
    {{Mode::affine, 6}, kBf16, kBf16}, {{Mode::affine, 3}, kBf16, kBf16},
    {{Mode::dense}, kF16, kF16},       {{Mode::affine, 4}, kBf16, DType::f32},
    {{Mode::affine, 5}, kBf16, kBf16}, {{Mode::dense}, kBf16, kBf16, false},
    {{Mode::affine, 2}, kBf16, kBf16}, {{Mode::affine, 8}, kBf16, kF16}};

// Of a matrix, on the average: what the width of tiles follows from. The first are for tiles of one
// width alone. Few, of many matrices: more tiles than rings have places.
constexpr int64_t kRows[][4] = {
    {200, 250, 256, 270}, {16, 5, 20, 24}, {100, 120, 128, 150}, {48, 40, 56, 64}, {9, 2, 3, 11}};
constexpr int64_t kFewRows = 12;

void draw_values(Random& random, Case& c, const Kind& kind) {
  // Models' scales are small.
  c.scale_exponent = random.pick({0, -6});
  c.values = random.pick({Values::normal, Values::normal, Values::normal, Values::integers,
                          Values::positive, Values::ends, Values::specials});
  c.ids =
      random.pick({Ids::uniform, Ids::uniform, Ids::uniform, Ids::sorted, Ids::one, Ids::mixed});
  // Weights beyond float16 are made again.
  if (kind.scales == kF16 && kind.spec.mode == Mode::affine && random.one_in(3)) {
    c.values = Values::ends;
  }
  if (c.values != Values::ends) return;
  const bool halves = kind.x == kF16 || kind.scales == kF16;
  const bool fp8_scales = kind.spec.mode == Mode::nvfp4;
  c.scale_exponent = fp8_scales ? random.pick({-6, 6})
                     : halves   ? random.pick({-12, 12, 16, 16})
                                : random.pick({-100, -60, 60, 90});
  c.x_exponent = -c.scale_exponent;
}

// Large scales, which are decoded the longer way, or those of models: chance left kernels that met
// one kind alone.
void set_scales(Case& c, bool large) {
  if (c.values != Values::ends) c.scale_exponent = large ? 0 : -6;
}

// Dense, or half of what they lie in, which leaves rows of whole 16-byte words, or anything.
void draw_weights(Random& random, Case& c, Shape shape, int64_t n, int64_t k, DType scale,
                  bool plainly) {
  shape.push_back(c.transpose ? n : k);
  shape.push_back(c.transpose ? k : n);
  if (!c.format) {
    c.w = plain(c.x.dtype, shape);
    const int last = shape.ndim() - 1;
    for (int d = 0; d < last && random.one_in(3); ++d) c.w.strides[d] *= 2;
    return;
  }
  if (!plainly && random.one_in(5)) return add_weights(random, c, shape, scale);
  const QuantSpec& spec = *c.format;
  const auto with = [&](int64_t columns) {
    Shape s = shape;
    s[s.ndim() - 1] = columns;
    return s;
  };
  c.codes = plain(DType::u32, with(k * spec.bits / 32));
  c.scales = plain(scale, with(k / spec.group_size));
  if (spec.mode == Mode::affine) c.biases = c.scales;
  if (!plainly && random.one_in(2)) {
    for (Layout* t : {&c.codes, &c.scales, &c.biases}) {
      for (int d = 0; t->present && d + 1 < t->shape.ndim(); ++d) t->strides[d] *= 2;
    }
  }
  if (spec.mode == Mode::nvfp4 && random.one_in(3)) {
    c.tensor_scale = plain(DType::f32, Shape{shape.ndim() == 3 ? shape[0] : 1});
  } else if (spec.mode == Mode::nvfp4 && random.one_in(2)) {
    c.host_tensor_scale = 0.5f;
  }
}

// `rows` of a matrix; `plainly`: as every kernel takes it.
Case case_of(Random& random, const Kind& kind, Op op, int64_t rows, bool plainly) {
  Case c;
  c.transpose = kind.transpose;
  c.x.dtype = kind.x;
  if (kind.spec.mode != Mode::dense) {
    QuantSpec spec = kind.spec;
    if (spec.mode == Mode::affine) spec.group_size = random.pick({32, 64, 128});
    if (kind.scales == DType::f32 && random.one_in(2)) spec.group_size = 16;
    c.format = spec.resolved();
  }
  c.op = op;
  int64_t unit = c.format ? std::max<int64_t>(packed_unit(*c.format), 32) : 8;
  // Rows of codes are whole 16-byte words.
  while (c.format && unit * c.format->bits % 128 != 0) unit += packed_unit(*c.format);
  // Rings of codes, rows and scales go round once or several times.
  int64_t k = random.one_in(2) ? 128 * random.pick({1, 2, 3, 4, 5, 8, 9, 12, 16, 17})
                               : unit * random.pick({1, 2, 3, 5, 7, 11, 20, 45});
  k = (k + unit - 1) / unit * unit;
  int64_t n = random.pick({8, 31, 64, 96, 130, 200, 256, 264, 520, 800});
  if (rows < 100 && random.one_in(2)) k += 1024;
  int64_t experts = c.op == Op::quantized_matmul ? 1
                    : rows <= kFewRows           ? random.pick({12, 17, 23, 35})
                                                 : random.pick({1, 2, 3, 5});
  // Weights that few rows meet are decoded all the same.
  while (std::max(rows, kFewRows) * experts * n * k > kMostProducts) {
    if (experts > 1 && random.one_in(3)) {
      --experts;
    } else if (k > 4 * unit && random.one_in(2)) {
      k -= k / 3 / unit * unit + unit;
    } else {
      n = std::max<int64_t>(8, n - n / 3);
    }
  }
  // Whatever begins or ends at a page does so at a multiple of 16 bytes.
  if (plainly || !random.one_in(5)) n = (n + 7) / 8 * 8;
  draw_values(random, c, kind);
  const int64_t lead = rows * experts;
  Shape out;
  switch (c.op) {
    case Op::quantized_matmul:
      draw_weights(random, c, {}, n, k, kind.scales, plainly);
      c.x = random.one_in(3) ? drawn(random, c.x.dtype, {rows, k}, false, true)
                             : plain(c.x.dtype, {rows, k});
      out = {rows, n};
      break;
    case Op::grouped_qmm:
      draw_weights(random, c, {experts}, n, k, kind.scales, plainly);
      c.x = plain(c.x.dtype, {lead, k});
      c.ranges = plain(DType::i32, {experts});
      out = {lead, n};
      break;
    default: {
      const int64_t top_k = random.pick({1, 2, 4, 6}), m = random.one_in(5) ? 3 : 1;
      const int64_t tokens = std::max<int64_t>(1, lead / top_k / m);
      draw_weights(random, c, {experts}, n, k, kind.scales, plainly);
      c.x = plain(c.x.dtype, {tokens, 1, m, k});
      c.rhs = plain(DType::i32, {tokens, top_k});
      out = {tokens, top_k, m, n};
      break;
    }
  }
  c.out = random.one_in(4) ? drawn(random, c.x.dtype, out, true, false) : plain(c.x.dtype, out);
  c.deterministic = random.one_in(4);
  return c;
}

}  // namespace

Case many_rows_case(uint64_t seed) {
  Random random(seed + (uint64_t{1} << 43));
  constexpr size_t kAll = std::size(kKinds) * std::size(kRows);
  const bool plainly = seed < kAll;
  const auto& some = kRows[seed / std::size(kKinds) % std::size(kRows)];
  const int64_t rows = some[plainly ? 0 : random.below(4)];
  // Of one matrix K may be shared out, by tiles that are never 128 wide.
  const bool one = rows > kFewRows && (rows < 100 || rows >= 200) && random.one_in(3);
  Op op = one ? Op::quantized_matmul : random.one_in(3) ? Op::grouped_qmm : Op::gather_qmm;
  // By tiles of one width, and of rows that no bulk copy takes, which are not multiplied as they
  // lie (natural_rows_case).
  const bool wide = plainly && rows >= kRows[0][0];
  if (wide && op == Op::gather_qmm) op = Op::grouped_qmm;
  Case c = case_of(random, kKinds[seed % std::size(kKinds)], op, rows, plainly);
  if (wide && c.format) c.x.strides[0] += 4;
  set_scales(c, plainly);
  c.seed = seed;
  return c;
}

Case natural_rows_case(uint64_t seed) {
  constexpr size_t kOf[] = {0, 2, 1, 3};  // kKinds
  Random random(seed + (uint64_t{1} << 47));
  const Op op = seed / std::size(kOf) % 3 == 0 ? Op::quantized_matmul : Op::grouped_qmm;
  const int64_t rows = random.pick({192, 250, 256, 300});
  Case c;
  do {
    c = case_of(random, kKinds[kOf[seed % std::size(kOf)]], op, rows, true);
    // Blocks' scales are taken at once where K has whole halves of blocks of 128.
  } while (c.x.shape[c.x.shape.ndim() - 1] % 64 != 0 && !random.one_in(4));
  // Segments of some rows more than whole tiles, for which wider ones are taken.
  if (op == Op::grouped_qmm && rows >= 250) c.ids = Ids::uniform;
  c.deterministic = false;
  c.seed = seed;
  return c;
}

Case long_rows_case(uint64_t seed) {
  constexpr size_t kOf[] = {0, 1, 2, 3, 4, 5, 7, 8, 11, 13, 14, 16, 17};  // kKinds
  constexpr int64_t kRowsOf[] = {16, 60, 200};                            // of both matrices
  Random random(seed + (uint64_t{1} << 46));
  const Kind& kind = kKinds[kOf[seed % std::size(kOf)]];
  const int64_t rows = kRowsOf[seed / std::size(kOf) % std::size(kRowsOf)];
  Case c;
  c.seed = seed;
  c.op = Op::grouped_qmm;
  c.format = kind.spec;
  if (kind.spec.mode == Mode::affine) c.format->group_size = random.pick({32, 64});
  c.format = c.format->resolved();
  c.x.dtype = kind.x;
  draw_values(random, c, kind);
  c.ids = Ids::sorted;  // as many rows of each matrix
  // Scales come by several chunks, in boxes or not, of odd numbers of blocks of K, too.
  const int64_t k =
      random.pick({2048, 2304, 2560}) - (rows == 200 ? 1024 : 0) + (random.one_in(3) ? 64 : 0);
  const int64_t n = rows == 200 ? 8 : random.pick({8, 16}), experts = 2;
  draw_weights(random, c, {experts}, n, k, kind.scales, true);
  c.x = plain(kind.x, {rows, k});
  c.ranges = plain(DType::i32, {experts});
  c.out = plain(kind.x, {rows, n});
  return c;
}

Case unlike_rows_case(uint64_t seed) {
  constexpr size_t kOf[] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 14, 16};  // kKinds
  constexpr int64_t kNearly[] = {250, 128, 58};
  Random random(seed + (uint64_t{1} << 44));
  const size_t round = seed / std::size(kOf);
  const int64_t rows = kNearly[round % std::size(kNearly)];
  const Op op = round / std::size(kNearly) % 2 == 0 ? Op::gather_qmm : Op::grouped_qmm;
  Case c = case_of(random, kKinds[kOf[seed % std::size(kOf)]], op, rows, true);
  set_scales(c, op == Op::gather_qmm);
  c.seed = seed;
  return c;
}

}  // namespace moeblas::test
