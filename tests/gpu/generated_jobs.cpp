#include "generated_jobs.h"

#include <array>

#include "support/codec.h"
#include "support/execute.h"
#include "support/generator.h"

namespace moeblas::gpu {
namespace {

using test::Case;
using test::Op;
using test::Operand;
using test::Operands;

struct Held {
  Case c;
  Operands o;
};

// The operands in the order of a job's tensors.
template <class O>
auto listed(O& o) {
  return std::array{&o.x,   &o.w,   &o.codes,  &o.scales, &o.biases, &o.tensor_scale,
                    &o.lhs, &o.rhs, &o.ranges, &o.out};
}

Role role_of(const Case& c, size_t i) {
  if (i == 9) return Role::output;
  if (i >= 6) return Role::ids;
  if (test::is_product(c.op)) return Role::input;
  const bool encodes = c.op == Op::quantize || c.op == Op::to_fp8;
  return (i == 0) != encodes && i <= 4 ? Role::output : Role::input;
}

Judgement judge_product(const Held& held, const std::string& kernel, std::span<const uint8_t> got) {
  const Case& c = held.c;
  if (kernel.empty()) return {};
  const auto expected =
      test::evaluate(test::product_of(c, held.o), test::path_of(kernel), c.x.dtype);
  std::vector<double> values(expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = test::load_value(got.data(), c.out.dtype, static_cast<int64_t>(i));
  }
  test::Agreement agreement;
  Judgement j;
  j.failure =
      test::compare(expected, values, c.out.dtype, c.values == test::Values::integers, &agreement);
  j.worst = agreement.worst;
  j.rms = agreement.rms;
  return j;
}

}  // namespace

Job job_of(const Case& c, test::Side side) {
  auto held = std::make_shared<Held>(Held{c, test::build(c, side, test::kPoison)});
  if (!test::is_product(c.op)) test::fill_conversion(c, held->o);
  Job job;
  job.op = test::name(c.op);
  job.line = test::describe(c) + " seed=" + std::to_string(c.seed);
  const auto operands = listed(held->o);
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& t = *operands[i];
    job.tensors.push_back({role_of(c, i), t.view, t.memory.data(), t.memory.size()});
  }
  job.call = [held](Views views, const Options& options) {
    Operands o;
    size_t i = 0;
    for (Operand* t : listed(o)) t->view = views[i++];
    o.host_tensor_scale = held->o.host_tensor_scale;
    o.spec = held->o.spec;
    Options all = options;
    all.precision = held->c.precision;
    all.deterministic = held->c.deterministic;
    test::call(held->c, o, all);
  };
  if (test::is_product(c.op)) {
    job.judge = [held](const std::string& kernel, std::span<const uint8_t> cuda,
                       std::span<const uint8_t>) { return judge_product(*held, kernel, cuda); };
  }
  job.keeps = held;
  return job;
}

Case product_case(Op op, const std::optional<QuantSpec>& format, DType dtype, bool transpose,
                  int64_t m, int64_t n, int64_t k, test::Ids ids, int64_t experts) {
  Case c;
  c.op = op;
  c.seed = static_cast<uint64_t>(m * 1000 + n + k);
  c.transpose = transpose;
  c.ids = ids;
  const bool matmul = op == Op::quantized_matmul;
  const bool rows_only = op == Op::gather_qmv || op == Op::grouped_mm || op == Op::grouped_qmm;
  const bool segments = op == Op::segmented_mm;
  const int64_t pairs = rows_only ? m : 2;
  c.x = test::plain(dtype, rows_only            ? Shape{m, k}
                           : matmul || segments ? Shape{m, k}
                                                : Shape{pairs, m, k});
  test::Random random(c.seed);
  Shape w = matmul || segments ? Shape{} : Shape{experts};
  w.push_back(transpose ? n : k);
  w.push_back(transpose ? k : n);
  if (format) {
    c.format = format;
    const QuantSpec spec = format->resolved();
    const int last = w.ndim() - 1;
    Shape codes = w, groups = w;
    codes[last] = w[last] * spec.bits / 32;
    groups[last] = w[last] / spec.group_size;
    const DType scale = spec.mode == Mode::affine ? dtype : DType::u8;
    c.codes = test::plain(DType::u32, codes);
    c.scales = test::plain(scale, groups);
    if (spec.mode == Mode::affine) c.biases = test::plain(scale, groups);
  } else {
    c.w = test::plain(dtype, w);
  }
  if (op == Op::gather_mm || op == Op::gather_qmm) c.rhs = test::plain(DType::i32, {pairs});
  if (op == Op::gather_qmv) c.rhs = test::plain(DType::i32, {m});
  if (op == Op::grouped_mm || op == Op::grouped_qmm) c.ranges = test::plain(DType::i32, {experts});
  if (segments) c.ranges = test::plain(DType::i32, {pairs, 2});
  c.out = test::plain(dtype, rows_only || matmul ? Shape{m, n} : Shape{pairs, m, n});
  return c;
}

Case quantize_case(const QuantSpec& format, DType dtype, int64_t rows, int64_t k) {
  const QuantSpec spec = format.resolved();
  Case c;
  c.op = Op::quantize;
  c.seed = static_cast<uint64_t>(rows * 1000 + k);
  c.format = format;
  c.x = test::plain(dtype, {rows, k});
  const DType scale = spec.mode == Mode::affine ? dtype : DType::u8;
  c.codes = test::plain(DType::u32, {rows, k * spec.bits / 32});
  c.scales = test::plain(scale, {rows, k / spec.group_size});
  if (spec.mode == Mode::affine) c.biases = c.scales;
  return c;
}

void as_expert_layer(Case& c, int64_t tokens, int64_t top_k) {
  const int64_t n = c.out.shape.back(), k = c.x.shape.back();
  c.x = test::plain(c.x.dtype, {tokens, 1, 1, k});
  c.rhs = test::plain(DType::i32, {tokens, top_k});
  c.out = test::plain(c.x.dtype, {tokens, top_k, 1, n});
}

void along_k(test::Layout& w) {
  const int last = w.shape.ndim() - 1;
  w.strides[last] = w.shape[last - 1];
  w.strides[last - 1] = 1;
}

Case many_pairs_case(uint64_t seed) {
  constexpr Op kOps[] = {Op::gather_qmv, Op::grouped_qmm};
  test::Random random(seed);
  Case c = product_case(kOps[seed % 2], QuantSpec{Mode::affine, 4, 32}, DType::f16, true,
                        random.pick({513, 700, 1500}), 17, 32,
                        seed % 4 < 2 ? test::Ids::mixed : test::Ids::uniform,
                        random.pick({5, 255, 256, 300}));
  c.seed = seed;
  return c;
}

Case many_tiles_case(uint64_t seed) {
  // The reference does them all in float64.
  constexpr int64_t kMostProducts = 16'000'000;
  constexpr Op kOps[] = {Op::gather_qmm, Op::gather_qmv, Op::quantized_matmul, Op::grouped_qmm};
  constexpr int kAffine = 3;  // of the formats
  const QuantSpec kFormats[] = {
      {Mode::affine, 4, 64},  {Mode::affine, 4, 32}, {Mode::affine, 4, 128}, {Mode::mxfp4},
      {Mode::mxfp8},          {Mode::nvfp4},         {Mode::affine, 8, 64},  {Mode::affine, 8, 32},
      {Mode::affine, 8, 128}, {Mode::affine, 4, 16}, {Mode::affine, 8, 16}};
  test::Random random(seed * 0x9e3779b97f4a7c15u + 7);
  const Op op = kOps[seed % std::size(kOps)];
  const uint64_t turn = seed / std::size(kOps);
  const QuantSpec format = turn % 3 == 0 ? kFormats[turn / 3 % kAffine]
                           : turn % 3 == 1
                               ? kFormats[kAffine]
                               : kFormats[random.between(kAffine + 1, std::ssize(kFormats) - 1)];
  const DType dtype = random.one_in(5) ? DType::f16 : DType::bf16;
  const int64_t unit = test::packed_unit(format.resolved());
  const bool one_matrix = op == Op::quantized_matmul;
  int64_t experts = one_matrix ? 1 : random.pick<int64_t>({1, 2, 3, 5, 9});
  int64_t rows = random.pick({31, 33, 64, 65, 100, 129, 200, 256, 257, 300, 520});
  if (op == Op::gather_qmv || op == Op::grouped_qmm) rows *= random.pick<int64_t>({1, experts});
  int64_t n = random.pick({5, 64, 65, 128, 200, 256, 264, 330, 520, 777});
  int64_t k =
      std::max<int64_t>(1, random.pick({128, 96, 160, 256, 288, 512, 544, 640, 1152}) / unit) *
      unit;
  while (rows * n * k > kMostProducts && k > unit) k -= unit;
  while (rows * n * k > kMostProducts) rows = (rows + 1) / 2;
  const test::Ids ids =
      random.pick({test::Ids::uniform, test::Ids::mixed, test::Ids::one, test::Ids::sorted});
  const bool dense = (op == Op::gather_qmm || op == Op::grouped_qmm) && random.one_in(4);
  Case c = dense ? product_case(op == Op::gather_qmm ? Op::gather_mm : Op::grouped_mm, std::nullopt,
                                dtype, false, rows, n, k, ids, experts)
                 : product_case(op, format, dtype, true, rows, n, k, ids, experts);
  if (dense && random.one_in(2)) along_k(c.w);
  // More matrices than tiles are made at once.
  if ((op == Op::gather_qmm || op == Op::grouped_qmm) && random.one_in(4)) {
    experts = random.pick({200, 300});
    const int64_t few = random.pick({3, 4, 7});
    c = dense ? product_case(c.op, std::nullopt, dtype, false, experts * few, 48, 128, ids, experts)
              : product_case(op, format, dtype, true, experts * few, 48, 128, ids, experts);
    if (op == Op::gather_qmm) as_expert_layer(c, experts / 2, 2 * few);
  } else if (op == Op::gather_qmm && !random.one_in(3)) {
    const auto top_k = random.pick<int64_t>({1, 2, 3, 8});
    as_expert_layer(c, (2 * rows + top_k - 1) / top_k, top_k);
  }
  if (c.biases.present && random.one_in(4)) {
    c.scales.dtype = c.biases.dtype = random.pick({DType::f32, DType::f16, DType::bf16});
  }
  c.values = random.pick({test::Values::normal, test::Values::normal, test::Values::positive,
                          test::Values::integers, test::Values::ends, test::Values::specials});
  const auto is = [&](Mode mode) { return !dense && format.mode == mode; };
  if (!dense && format.bits == 8 && c.values == test::Values::integers)
    c.values = test::Values::normal;
  if (c.values == test::Values::ends) {
    const bool half = dtype == DType::f16 || (c.biases.present && c.scales.dtype == DType::f16);
    c.scale_exponent = half ? random.pick({-6, 6}) : random.pick({-110, -30, 30, 110});
    if (is(Mode::nvfp4)) c.scale_exponent = random.pick({-6, 6});
    c.x_exponent = -c.scale_exponent;
  }
  if (is(Mode::nvfp4) && random.one_in(2)) {
    if (random.one_in(2)) {
      c.tensor_scale =
          test::plain(DType::f32, random.one_in(2) || one_matrix ? Shape{} : Shape{experts});
    } else {
      c.host_tensor_scale = c.values == test::Values::integers ? 0.5f : 0.037f;
    }
  }
  c.seed = seed;
  return c;
}

namespace {

constexpr int kFewFormats = 5;
QuantSpec few_format(uint64_t seed) {
  const QuantSpec formats[kFewFormats] = {{Mode::affine, 4, 64},
                                          {Mode::mxfp4},
                                          {Mode::nvfp4},
                                          {Mode::affine, 4, 32},
                                          {Mode::affine, 4, 128}};
  return formats[seed % kFewFormats];
}
// Few rows of one matrix, with gaps between rows and values of all kinds.
Case few_case(const QuantSpec& format, int64_t m, int64_t n, int64_t k, test::Random& random) {
  Case c =
      product_case(Op::quantized_matmul, format, DType::bf16, true, m, n, k, test::Ids::uniform);
  if (random.one_in(3)) c.x.strides = Shape{k + 8 * random.between(1, 40), 1};
  if (random.one_in(3)) c.out.strides = Shape{n + random.between(1, 9), 1};
  c.values = random.pick({test::Values::normal, test::Values::normal, test::Values::positive,
                          test::Values::integers, test::Values::ends, test::Values::specials});
  if (c.values == test::Values::ends) {
    c.scale_exponent =
        format.mode == Mode::nvfp4 ? random.pick({-6, 6}) : random.pick({-110, -30, 30, 110});
    c.x_exponent = -c.scale_exponent;
  }
  if (format.mode == Mode::nvfp4 && random.one_in(2)) {
    if (random.one_in(2)) {
      c.tensor_scale = test::plain(DType::f32, Shape{});
    } else {
      c.host_tensor_scale = c.values == test::Values::integers ? 0.5f : 0.037f;
    }
  }
  return c;
}

}  // namespace

Case few_of_one_case(uint64_t seed) {
  const QuantSpec format = few_format(seed);
  test::Random random(seed * 0x9e3779b97f4a7c15u + 13);
  // Blocks of 64 rows of w for up to 16 and up to 32 rows of x, of 128 and of 256, whose products
  // take the reference long; rows of x in registers, K in one to four shares, the last not whole.
  const uint64_t kind = seed / kFewFormats % 5;
  const int64_t m = kind == 0   ? random.pick({1, 5, 8, 9, 12, 16})
                    : kind == 1 ? random.pick({25, 27, 30, 32})
                    : kind == 4 ? random.pick({9, 11, 16})
                                : 1;
  const int64_t n = kind == 2   ? random.pick({4225, 4230})
                    : kind == 3 ? random.pick({8449, 8452})
                    : kind == 4 ? random.pick({1, 15, 40, 131, 136, 201})
                                : random.pick({1, 7, 64, 65, 131, 136});
  // Chunks of scales are 32 bytes of a row at the least. Of these formats 9 rows and more are held
  // in registers where they are longer than 2048.
  const bool held = m >= 9 && (format.mode == Mode::mxfp4 || format.group_size == 64);
  const int64_t k = kind == 0 && !held ? 4096 * random.pick({1, 2})
                    : kind == 1        ? 4096
                    : kind == 4        ? random.pick({2560, 3584, 4096, 5632, 7168, 13824, 16384})
                    : format.group_size == 128 ? 4096
                                               : 2048;
  Case c = few_case(format, m, n, k, random);
  c.seed = seed;
  return c;
}

Case few_of_experts_case(uint64_t seed) {
  test::Random random(seed * 0x9e3779b97f4a7c15u + 19);
  const int64_t experts = random.pick({1, 2, 3, 5, 8}), top_k = random.pick({1, 2, 3});
  const int64_t n = random.pick({1, 15, 40, 131, 136, 201});
  const bool affine = seed % 2 == 0;
  Case c =
      product_case(Op::gather_qmm, affine ? QuantSpec{Mode::affine, 4, 64} : QuantSpec{Mode::mxfp4},
                   DType::bf16, true, 1, n, random.pick({1536, 2048, 2560, 3584, 4096}),
                   random.pick({test::Ids::uniform, test::Ids::mixed}), experts);
  c.seed = seed;
  // One octet of tokens for an expert, two, three where K is long, and some passes of them.
  const int64_t least = (experts + top_k - 1) / top_k;
  const int64_t most = (affine ? 11 : 8) + (c.x.shape.back() > 2048 ? 4 : 0);
  as_expert_layer(c, std::max(least, experts * random.between(1, most) / top_k), top_k);
  if (random.one_in(3)) {
    const int64_t k = c.x.shape.back() + 8 * random.between(1, 40);
    c.x.strides = Shape{k, k, k, 1};
  }
  if (random.one_in(3)) {
    const int64_t row = n + random.between(1, 9);
    c.out.strides = Shape{top_k * row, row, row, 1};
  }
  c.values = random.pick({test::Values::normal, test::Values::normal, test::Values::positive,
                          test::Values::integers, test::Values::ends, test::Values::specials});
  if (c.values == test::Values::ends) {
    c.scale_exponent = random.pick({-110, -30, 30, 110});
    c.x_exponent = -c.scale_exponent;
  }
  return c;
}

Case few_by_slices_case(uint64_t seed) {
  const QuantSpec format = few_format(seed);
  test::Random random(seed * 0x9e3779b97f4a7c15u + 17);
  // Kernels of 8 slices a block, of 16, and of 16 in two to four passes, with one tile a cluster;
  // and with tiles enough to come around in all that takes turns, which take the reference long.
  const uint64_t kind = seed / kFewFormats % 12;
  // Rows of scales are whole 16 bytes, for some formats of even numbers of slices alone.
  constexpr int64_t kSlices[3][6] = {
      {10, 9, 12, 14, 15, 16}, {18, 17, 20, 30, 31, 32}, {66, 34, 56, 64, 94, 128}};
  const bool many = kind >= 9;
  const int64_t slices = kSlices[kind % 3][many ? 0 : random.below(6)];
  const int64_t turns = kind % 3 == 2 ? 3 : 6, tiles = turns * kBlocks / 2;
  const int64_t rows = kind % 3 == 0 ? 32 : 16;
  const int64_t n =
      many ? tiles * rows - random.between(0, 40) : random.pick({1, 7, 16, 31, 32, 65, 131, 136});
  const int64_t m = many ? random.pick({1, 2}) : random.between(1, 8);
  Case c = few_case(format, m, n, 256 * slices, random);
  c.seed = seed;
  return c;
}

Case segments_case(DType dtype, unsigned turned, TileSize size, uint64_t seed) {
  test::Random random(seed * 0x9e3779b97f4a7c15u + 11);
  // Rows and pitches of whole 16-byte words.
  const int64_t unit = dtype == DType::f32 ? 4 : 8;
  const auto whole = [&](int64_t length) { return (length + unit - 1) / unit * unit; };
  int64_t m = 0, n = 0, k = 0, count = 0;
  switch (size) {
    case TileSize::small:
      m = random.pick({1, 40, 64, 65, 100, 130});
      n = random.pick({1, 40, 64, 65, 100, 130});
      k = random.pick({8, 64, 72, 200, 520, 1000});
      count = random.between(1, 6);
      break;
    case TileSize::medium:
      m = n = 256;
      k = random.pick({40, 72, 136});
      count = random.between(31, 33);
      break;
    case TileSize::large:
      m = random.pick({200, 250});
      n = random.pick({200, 256});
      // One turn of all blocks, or two.
      k = seed % 2 == 0 ? random.pick({72, 136}) : 40;
      count = seed % 2 == 0 ? random.between(60, 64) : random.between(128, 131);
      break;
    case TileSize::many:
      m = 200;
      n = 264;
      k = 8;
      count = 264;
      break;
  }
  const bool turned_a = (turned & 1) != 0, turned_b = (turned & 2) != 0;
  // Out need not be aligned where the inputs are.
  if (turned_a) m = whole(m);
  if (!turned_b) n = whole(n);
  if (!turned_a || turned_b) k = whole(k);
  Case c = product_case(Op::segmented_mm, std::nullopt, dtype, false, m, n, k,
                        random.pick({test::Ids::uniform, test::Ids::uniform, test::Ids::sorted,
                                     test::Ids::mixed, test::Ids::mixed}));
  const auto pitch = [&](int64_t length) {
    return whole(length) + (random.one_in(3) ? unit * random.between(1, 5) : 0);
  };
  c.x.strides = turned_a ? Shape{1, pitch(m)} : Shape{pitch(k), 1};
  c.w.strides = turned_b ? Shape{1, pitch(k)} : Shape{pitch(n), 1};
  c.ranges = test::plain(random.pick({DType::i32, DType::i64, DType::u8}), {count, 2});
  c.out = test::plain(dtype, {count, m, n});
  c.values = random.pick({test::Values::normal, test::Values::normal, test::Values::positive,
                          test::Values::integers, test::Values::specials});
  c.precision = random.pick({Precision::exact, Precision::native, Precision::fast});
  c.deterministic = random.one_in(2);
  c.seed = seed;
  return c;
}

Case segments_case(uint64_t seed) {
  constexpr DType kDTypes[] = {DType::bf16, DType::f16, DType::f32};
  // The reference does all products in float64.
  const TileSize size = seed % 64 == 60   ? TileSize::many
                        : seed % 16 >= 14 ? TileSize::large
                        : seed % 16 == 7  ? TileSize::medium
                                          : TileSize::small;
  return segments_case(kDTypes[seed / 4 % 3], static_cast<unsigned>(seed / 3 % 4), size, seed);
}

Job job_of(const Case& c) {
  const bool left = test::Random(c.seed).one_in(2);
  return job_of(c, left ? test::Side::left : test::Side::right);
}

Job generated_job(Op op, uint64_t seed) { return job_of(test::make_case(op, seed)); }

}  // namespace moeblas::gpu
