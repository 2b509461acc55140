// The portable products in the emulator against the CPU backend.
#include <vector>

#include "simt/product_case.h"

namespace moeblas::test {
namespace {

// Every format, both transposes, a dtype of x each; N and K ragged for the tile.
std::vector<ProductCase> formats() {
  std::vector<ProductCase> cases;
  const DType types[] = {DType::f32, DType::f16, DType::bf16};
  size_t i = 0;
  std::vector<QuantSpec> specs = {kMxfp4, kMxfp8, kNvfp4};
  for (int bits : {2, 3, 4, 5, 6, 8}) specs.push_back(affine(bits, 32));
  for (const QuantSpec& spec : specs) {
    for (bool transpose : {true, false}) {
      ProductCase c;
      c.spec = spec;
      c.transpose = transpose;
      c.x_type = types[i % 3];
      c.scale_type = types[(i + 1) % 3];
      c.m = 1 + static_cast<int64_t>(i % 2);
      c.n = transpose ? 67 : 96;
      c.k = transpose ? 96 : 37;
      if (spec.mode == Mode::affine && (spec.bits % 2 != 0 || spec.bits == 6))
        c.n = transpose ? 6 : 64;
      c.strided = i % 4 == 3;
      c.ids = i % 5 == 2 ? Ids::bad : Ids::random;
      cases.push_back(c);
      c.exact = false;
      c.x_type = types[(i + 1) % 3];
      c.scale_type = types[(i + 2) % 3];
      c.strided = !c.strided;
      cases.push_back(c);
      ++i;
    }
  }
  for (int group : {16, 64, 128}) {
    for (int bits : {4, 8, 2}) {
      ProductCase c;
      c.spec = affine(bits, group);
      c.x_type = types[i++ % 3];
      c.scale_type = types[i % 3];
      c.k = group == 16 ? 48 : 2 * group;
      c.n = 7;
      c.transpose = bits != 8;
      if (!c.transpose) std::swap(c.n, c.k), c.n = group == 16 ? 48 : 128;
      cases.push_back(c);
    }
  }
  return cases;
}

// Layers that a checkpoint leaves unquantized, between activations of another dtype.
std::vector<ProductCase> dense_weights() {
  std::vector<ProductCase> cases;
  const DType types[] = {DType::f32, DType::f16, DType::bf16};
  const Op ops[] = {Op::quantized_matmul, Op::gather, Op::grouped};
  for (size_t i = 0; i < 18; ++i) {
    ProductCase c;
    c.spec = kDense;
    c.x_type = types[i % 3];
    c.w_type = types[i / 3 % 3];
    c.transpose = i < 9;
    c.op = ops[(i + i / 9) % 3];
    c.t = 5;
    c.m = c.op == Op::grouped ? 1 : 3;
    c.n = 37;
    c.k = 45;
    c.strided = i % 2 == 1;
    c.exact = i % 4 != 3;
    cases.push_back(c);
  }
  return cases;
}

std::vector<ProductCase> shapes() {
  std::vector<ProductCase> cases;
  const auto add = [&](ProductCase c) { cases.push_back(c); };
  // Rows around the tile; one and several tiles of columns.
  for (int64_t m : {1, 7, 8, 9, 63, 64, 65, 130}) {
    add({.op = Op::quantized_matmul,
         .spec = affine(4, 32),
         .m = m,
         .n = m == 65 ? 129 : 5,
         .k = 32});
    add({.op = Op::quantized_matmul,
         .spec = kDense,
         .x_type = DType::bf16,
         .m = m,
         .n = 6,
         .k = 33});
  }
  for (int64_t k : {0, 1, 31, 32, 33, 95, 544})
    add({.op = Op::quantized_matmul,
         .x_type = DType::f16,
         .transpose = false,
         .m = 3,
         .n = 65,
         .k = k});
  add({.op = Op::gather, .spec = affine(4, 64), .x_type = DType::bf16, .t = 2, .n = 67, .k = 576});
  add({.op = Op::gather, .spec = affine(4, 32), .n = 5, .k = 544, .exact = false});
  // Dense rows along K and along N that may be read by 16 bytes, with tails.
  for (DType type : {DType::f32, DType::f16, DType::bf16}) {
    add({.op = Op::gather, .spec = kDense, .x_type = type, .n = 130, .k = 72});
    add({.op = Op::gather, .spec = kDense, .x_type = type, .transpose = false, .n = 136, .k = 37});
    add({.op = Op::segmented, .x_type = type, .transpose = false, .t = 3, .m = 5, .n = 8, .k = 99});
  }
  // Batches that broadcast, pair by pair and grouped.
  for (const QuantSpec& spec : {kDense, affine(3, 32), kNvfp4}) {
    add({.op = Op::batched, .spec = spec, .e = 3, .m = 5, .n = 32, .k = 32});
    add({.op = Op::broadcast, .spec = spec, .e = 3, .m = 2, .n = 33, .k = 64, .strided = true});
  }
  return cases;
}

std::vector<ProductCase> routing() {
  std::vector<ProductCase> cases;
  const auto add = [&](ProductCase c) { cases.push_back(c); };
  for (Ids ids : {Ids::random, Ids::bad, Ids::one, Ids::broadcast, Ids::both}) {
    add({.op = Op::gather, .spec = affine(4, 32), .t = 9, .n = 33, .k = 32, .ids = ids});
    add({.op = Op::gather,
         .spec = kDense,
         .x_type = DType::bf16,
         .transpose = false,
         .t = 40,
         .m = 3,
         .n = 5,
         .k = 34,
         .ids = ids});
    add({.op = Op::gather,
         .spec = kMxfp4,
         .x_type = DType::f16,
         .e = 300,
         .t = 5,
         .n = 7,
         .k = 32,
         .ids = ids,
         .id_type = DType::i64});
  }
  for (DType type :
       {DType::i8, DType::u8, DType::i16, DType::u16, DType::u32, DType::i64, DType::u64}) {
    add({.op = Op::gather,
         .spec = kDense,
         .e = 5,
         .t = 6,
         .n = 3,
         .k = 8,
         .ids = Ids::bad,
         .id_type = type});
  }
  // No tokens, one expert.
  add({.op = Op::gather, .spec = affine(4, 32), .t = 0, .n = 33, .k = 32});
  add({.op = Op::gather, .spec = affine(4, 32), .e = 1, .t = 35, .n = 8, .k = 32});
  // More pairs than the one-launch sort takes; experts beyond one digit.
  add({.op = Op::gather, .spec = kDense, .e = 7, .t = 400, .n = 3, .k = 5, .ids = Ids::bad});
  add({.op = Op::gather,
       .spec = kDense,
       .e = 300,
       .t = 300,
       .n = 2,
       .k = 3,
       .ids = Ids::bad,
       .id_type = DType::i64});
  for (Ids ids : {Ids::random, Ids::bad}) {
    for (DType type : {DType::i32, DType::i64}) {
      add({.op = Op::grouped,
           .spec = affine(8, 32),
           .e = 5,
           .t = 70,
           .n = 9,
           .k = 32,
           .ids = ids,
           .id_type = type});
      add({.op = Op::grouped,
           .spec = kDense,
           .transpose = false,
           .e = 4,
           .t = 11,
           .n = 67,
           .k = 9,
           .ids = ids,
           .id_type = type});
    }
  }
  add({.op = Op::grouped, .spec = kDense, .e = 3, .t = 1030, .n = 2, .k = 4});
  for (DType x : {DType::f32, DType::f16, DType::bf16}) {
    add({.op = Op::segmented, .x_type = x, .transpose = false, .t = 6, .m = 5, .n = 67, .k = 100});
    add({.op = Op::segmented,
         .x_type = x,
         .transpose = true,
         .t = 8,
         .m = 66,
         .n = 6,
         .k = 70,
         .id_type = DType::i64,
         .strided = true,
         .exact = false});
  }
  return cases;
}

std::vector<ProductCase> block_products() {
  std::vector<ProductCase> cases;
  const DType types[] = {DType::f32, DType::f16, DType::bf16};
  size_t i = 0;
  for (const QuantSpec& spec : {kMxfp4, kMxfp8, kNvfp4}) {
    for (bool x_packed : {false, true}) {
      for (bool w_packed : {false, true}) {
        ProductCase c{.op = i % 2 == 0 ? Op::gather : Op::quantized_matmul, .spec = spec};
        c.block = true;
        c.x_type = types[i++ % 3];
        c.x_packed = x_packed;
        c.w_packed = w_packed;
        c.m = 3;
        c.n = 67;
        c.k = 96;
        c.epilogue = i % 3 == 0;
        c.ids = Ids::bad;
        cases.push_back(c);
        c.op = Op::grouped;
        c.t = 12, c.m = 1, c.n = 5, c.k = 32;
        c.x_type = types[i % 3];
        c.exact = false;
        c.strided = true;
        c.epilogue = i % 3 == 1;
        cases.push_back(c);
      }
    }
    ProductCase c{.op = Op::quantized_matmul, .spec = spec, .m = 130, .n = 5, .k = 96};
    c.block = c.x_packed = c.swizzled = true;
    c.out_type = DType::bf16;
    cases.push_back(c);
    c.op = Op::gather, c.m = 2, c.n = 67, c.x_packed = false, c.epilogue = true;
    c.out_type = {};
    cases.push_back(c);
    // Several tiles of columns: x is packed before.
    c.n = 133, c.x_type = types[i % 3];
    cases.push_back(c);
    c.op = Op::quantized_matmul, c.m = 67, c.swizzled = false, c.x_type = types[(i + 1) % 3];
    cases.push_back(c);
  }
  ProductCase wide{.op = Op::gather, .spec = affine(4, 32), .x_type = DType::bf16, .n = 9, .k = 64};
  wide.out_type = DType::f32;
  cases.push_back(wide);
  wide.spec = kDense;
  wide.x_type = DType::f16;
  cases.push_back(wide);
  return cases;
}

std::vector<ProductCase> schedules() {
  std::vector<ProductCase> cases;
  for (emu::Schedule schedule :
       {emu::Schedule::reverse, emu::Schedule::random, emu::Schedule::greedy}) {
    ProductCase c{.op = Op::gather,
                  .spec = affine(4, 32),
                  .x_type = DType::bf16,
                  .t = 35,
                  .n = 67,
                  .k = 96,
                  .ids = Ids::bad};
    c.schedule = schedule;
    cases.push_back(c);
    ProductCase d{.op = Op::gather,
                  .spec = kDense,
                  .e = 300,
                  .t = 300,
                  .n = 2,
                  .k = 3,
                  .ids = Ids::bad,
                  .id_type = DType::i64};
    d.schedule = schedule;
    cases.push_back(d);
    ProductCase g{.op = Op::grouped, .spec = kDense, .e = 3, .t = 600, .n = 2, .k = 4};
    g.schedule = schedule;
    cases.push_back(g);
    ProductCase q{.op = Op::quantized_matmul, .spec = kNvfp4, .m = 65, .n = 67, .k = 64};
    q.block = true;
    q.schedule = schedule;
    cases.push_back(q);
  }
  return cases;
}

std::vector<ProductCase> decode() {
  std::vector<ProductCase> cases;
  const DType types[] = {DType::f32, DType::f16, DType::bf16};
  size_t i = 0;
  std::vector<QuantSpec> specs = {kMxfp4, kMxfp8, kNvfp4, affine(4, 16), affine(8, 128)};
  for (int bits : {2, 3, 4, 5, 6, 8}) specs.push_back(affine(bits, bits % 2 == 0 ? 64 : 32));
  const auto add = [&](ProductCase c) {
    c.kernel = Kernel::qmv;
    cases.push_back(c);
  };
  for (const QuantSpec& spec : specs) {
    const int64_t ns[] = {5, 6, 7, 17, 67};
    // Aligned rows; rows at odd addresses; several stretches of K with a tail.
    for (int variant = 0; variant < 3; ++variant, ++i) {
      ProductCase c{.spec = spec, .x_type = types[i % 3], .scale_type = types[i / 2 % 3]};
      c.n = ns[i % 5];
      c.k = variant == 2 ? 1152 : variant == 0 ? 128 : spec.group_size == 16 ? 48 : 384;
      if (variant == 2) c.n = 6;
      c.t = variant == 1 ? 9 : 3;
      c.strided = variant == 1;
      c.exact = variant != 2;
      c.ids = variant == 0 ? Ids::random : Ids::bad;
      add(c);
    }
  }
  // ExecuTorch's shapes of gather_qmv (fast_decode has the rest); K of whole and of broken
  // stretches.
  add({.spec = affine(4, 32), .x_type = DType::bf16, .n = 32, .k = 64});
  for (int64_t n : {5, 6, 7})
    add({.spec = affine(4, 32), .e = 2, .t = 2, .n = n, .k = 544, .exact = false});
  add({.spec = affine(4, 32), .n = 9, .k = 0});
  for (int64_t m : {1, 3, 4, 5, 8})
    add({.op = Op::quantized_matmul, .spec = affine(4, 64), .m = m, .n = 19, .k = 192});
  for (Ids ids : {Ids::one, Ids::broadcast, Ids::both})
    add({.spec = kMxfp4, .t = 4, .m = 2, .n = 17, .k = 96, .ids = ids});
  add({.op = Op::batched, .spec = kNvfp4, .e = 3, .m = 2, .n = 5, .k = 80});
  add({.op = Op::broadcast, .spec = affine(6, 16), .e = 3, .m = 3, .n = 5, .k = 80});
  add({.op = Op::grouped, .spec = affine(5, 32), .e = 5, .t = 16, .n = 9, .k = 64});
  add({.op = Op::gather,
       .spec = kMxfp8,
       .e = 300,
       .t = 260,
       .n = 2,
       .k = 32,
       .ids = Ids::bad,
       .id_type = DType::i64});
  ProductCase wide{.spec = affine(4, 32), .x_type = DType::bf16, .n = 9, .k = 64};
  wide.out_type = DType::f32;
  add(wide);
  // So many columns that threadgroups make several tiles of them: x staged once, and again for
  // each.
  for (int64_t m : {1, 2})
    add({.op = Op::quantized_matmul, .spec = kMxfp4, .m = m, .n = 16 * 768 + 3, .k = 1056});
  for (emu::Schedule schedule :
       {emu::Schedule::reverse, emu::Schedule::random, emu::Schedule::greedy}) {
    ProductCase many{
        .op = Op::quantized_matmul, .spec = affine(2, 16), .m = 2, .n = 16 * 768, .k = 1072};
    many.schedule = schedule;
    add(many);
    for (const QuantSpec& spec : {kNvfp4, affine(4, 64)}) {
      ProductCase c{
          .spec = spec, .x_type = DType::f16, .t = 6, .n = 18, .k = 1152, .ids = Ids::bad};
      c.schedule = schedule;
      add(c);
    }
  }
  return cases;
}

// What gather_qmv_fast takes: ExecuTorch's larger shapes, several stretches of K, several tiles,
// rows that share a matrix and rows that have none.
std::vector<ProductCase> fast_decode() {
  std::vector<ProductCase> cases;
  const DType types[] = {DType::f32, DType::f16, DType::bf16};
  const auto add = [&](ProductCase c) {
    c.op = Op::gather;
    c.kernel = Kernel::gather_qmv_fast;
    cases.push_back(c);
  };
  size_t i = 0;
  for (int group : {16, 32, 64, 128}) {
    for (DType x : types) {
      ProductCase c{.spec = affine(4, group), .x_type = x, .scale_type = types[i % 3]};
      c.n = i % 2 == 0 ? 8 : 24;
      c.k = i % 3 == 0 ? 512 : 1536;
      c.t = i % 4 == 0 ? 1 : 5;
      c.exact = i % 2 != 0;
      c.ids = i % 3 == 1 ? Ids::bad : Ids::random;
      add(c);
      ++i;
    }
  }
  add({.spec = affine(4, 32), .x_type = DType::bf16, .e = 8, .t = 1, .n = 1024, .k = 2048});
  add({.spec = affine(4, 32), .e = 2, .t = 1, .n = 8, .k = 512});
  add({.spec = affine(4, 64), .n = 8, .k = 0});
  add({.spec = affine(4, 64), .e = 2, .t = 1, .n = 8, .k = 4096, .positive = true});
  for (Ids ids : {Ids::one, Ids::broadcast, Ids::both})
    add({.spec = affine(4, 64), .t = 9, .n = 8, .k = 512, .ids = ids, .id_type = DType::i64});
  ProductCase wide{.spec = affine(4, 32), .x_type = DType::bf16, .n = 16, .k = 512};
  wide.out_type = DType::f32;
  add(wide);
  for (emu::Schedule schedule :
       {emu::Schedule::reverse, emu::Schedule::random, emu::Schedule::greedy}) {
    ProductCase c{.spec = affine(4, 32), .x_type = DType::f16, .t = 6, .n = 16, .k = 1024};
    c.ids = Ids::bad;
    c.schedule = schedule;
    add(c);
  }
  return cases;
}

class SimtProduct : public testing::TestWithParam<ProductCase> {};

TEST_P(SimtProduct, EqualsTheCpu) { Product(GetParam()).check(); }

std::string name_of(const testing::TestParamInfo<ProductCase>& info) {
  std::string name;
  for (char ch : info.param.name()) name += std::isalnum(static_cast<unsigned char>(ch)) ? ch : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Formats, SimtProduct, testing::ValuesIn(formats()), name_of);
INSTANTIATE_TEST_SUITE_P(DenseWeights, SimtProduct, testing::ValuesIn(dense_weights()), name_of);
INSTANTIATE_TEST_SUITE_P(Shapes, SimtProduct, testing::ValuesIn(shapes()), name_of);
INSTANTIATE_TEST_SUITE_P(Routing, SimtProduct, testing::ValuesIn(routing()), name_of);
INSTANTIATE_TEST_SUITE_P(Decode, SimtProduct, testing::ValuesIn(decode()), name_of);
INSTANTIATE_TEST_SUITE_P(FastDecode, SimtProduct, testing::ValuesIn(fast_decode()), name_of);
INSTANTIATE_TEST_SUITE_P(Block, SimtProduct, testing::ValuesIn(block_products()), name_of);
INSTANTIATE_TEST_SUITE_P(Schedules, SimtProduct, testing::ValuesIn(schedules()), name_of);

}  // namespace
}  // namespace moeblas::test
