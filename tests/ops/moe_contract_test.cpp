// Which ids contribute, which are errors, and what sizes of 0 give.
#include <gtest/gtest.h>

#include <cmath>

#include "moeblas/ops.h"
#include "support/cases.h"
#include "support/codec.h"
#include "support/ffn_case.h"

namespace moeblas::test {
namespace {

Operand tensor(DType dtype, const Shape& shape) {
  return Operand(plain(dtype, shape), Side::right, kPoison);
}
Operand integers(const Shape& shape, std::initializer_list<int64_t> values) {
  Operand t = tensor(DType::i32, shape);
  int64_t i = 0;
  for (int64_t v : values) store_index(t.view.data, DType::i32, i++, v);
  return t;
}
Options checking() {
  Options options;
  options.check_ids = true;
  return options;
}

template <class F>
void expect_refused(F&& call, std::initializer_list<const char*> words) {
  try {
    call();
    ADD_FAILURE() << "an id out of range was taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), MOEBLAS_INVALID_ARGUMENT);
    for (const char* word : words) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos)
          << "no '" << word << "' in: " << e.what();
    }
  }
}
void expect_untouched(const Operand& t) {
  for (uint8_t byte : t.memory.bytes()) ASSERT_EQ(byte, kPoison) << "an output was touched";
}

void run(const FfnCase& c, const FfnOperands& o, const TensorView& ids, const TensorView& map,
         const Options& options = {}) {
  FfnLayer layer = o.layer(c);
  layer.expert_map = map;
  moe_ffn(o.x.view, layer, ids, o.weights.view, o.out.view, options);
}

// Two experts of two; every number of the layer is known, so a pair that must not count shows.
TEST(MoeFfnIds, PairsWithoutAnExpertAddExactlyNothing) {
  for (bool separate : {false, true}) {
    FfnCase c = ffn_case(DType::f32, std::nullopt, 2, 2, 3, 8, 4, separate);
    FfnOperands o = build(c, Side::right, kPoison);
    const Operand one = integers({2, 2}, {1, -1, -1, 1});
    // What is not expert 1 is NaN, the weights of pairs without an expert too.
    for (const auto& [product, layout] : {std::pair{&o.gate_up, &c.gate_up},
                                          std::pair{&o.up, &c.up}, std::pair{&o.down, &c.down}}) {
      for (int64_t i = 0; product->weights.w.view && i < product->weights.w.numel(); ++i) {
        const bool used = i / (layout->n * layout->k) == 1;
        product->weights.w.set(i, used ? 0.25 * static_cast<double>(i % 5 - 2) : NAN);
      }
    }
    for (int64_t i = 0; i < o.x.numel(); ++i) o.x.set(i, static_cast<double>(i % 3));
    for (int64_t p : {0, 3}) o.weights.set(p, 0.5);
    for (int64_t p : {1, 2}) o.weights.set(p, NAN);
    run(c, o, one.view, {});
    const std::vector<uint8_t> expected = element_bytes(o.out);
    for (int64_t i = 0; i < o.out.numel(); ++i) EXPECT_TRUE(std::isfinite(o.out.get(i)));

    for (int64_t bad : {-1, -2, 3, 4, 1 << 30}) {
      const Operand ids = integers({2, 2}, {1, bad, bad, 1});
      run(c, o, ids.view, {});
      EXPECT_EQ(element_bytes(o.out), expected) << "id " << bad;
    }
    // Global expert 5 is expert 1 here; the others are elsewhere, in one way or another.
    const Operand map = integers({7}, {-1, 3, -9, 1 << 20, -1, 1, -1});
    for (int64_t elsewhere : {0, 1, 2, 3, 4, 6, 7, -1, 1 << 30}) {
      const Operand ids = integers({2, 2}, {5, elsewhere, elsewhere, 5});
      run(c, o, ids.view, map.view);
      EXPECT_EQ(element_bytes(o.out), expected) << "global id " << elsewhere;
    }
    // No pair at all, and no map at all: zeros, with NaN in every weight.
    const Operand none = integers({2, 2}, {-1, 3, 99, -7});
    run(c, o, none.view, {});
    for (int64_t i = 0; i < o.out.numel(); ++i) EXPECT_EQ(o.out.get(i), 0);
    const Operand nobody = tensor(DType::i32, {0});
    run(c, o, one.view, nobody.view);
    for (int64_t i = 0; i < o.out.numel(); ++i) EXPECT_EQ(o.out.get(i), 0);
  }
}

TEST(MoeCheckIds, OfTheLayer) {
  const FfnCase c = ffn_case(DType::f32, kMxfp4, 2, 2, 3, 32, 32);
  const FfnOperands o = build(c, Side::right, kPoison);
  for (int64_t bad : {3, -2, 1 << 30}) {
    const Operand ids = integers({2, 2}, {0, 2, bad, 1});
    expect_refused([&] { run(c, o, ids.view, {}, checking()); },
                   {"[moe_ffn]", "ids", "position 2", std::to_string(bad).c_str()});
    expect_untouched(o.out);
  }
  // -1 is how an engine leaves a pair to somebody else; with a map, so is what the map says.
  const Operand left = integers({2, 2}, {0, -1, -1, 1});
  EXPECT_NO_THROW(run(c, o, left.view, {}, checking()));
  const Operand map = integers({5}, {-1, 0, 9, -4, 2}), global = integers({2, 2}, {4, 2, 3, -1});
  EXPECT_NO_THROW(run(c, o, global.view, map.view, checking()));
  const Operand beyond = integers({2, 2}, {4, 2, 3, 5});
  expect_refused([&] { run(c, o, beyond.view, map.view, checking()); }, {"position 3", " 5"});
}

TEST(MoeCheckIds, OfPermute) {
  const Operand x = tensor(DType::bf16, {2, 8}), rows = tensor(DType::bf16, {4, 8});
  const Operand offsets = tensor(DType::i32, {3}), inverse = tensor(DType::i32, {2, 2});
  const auto permute = [&](const Operand& ids, const TensorView& map) {
    moe_permute(x.view, ids.view, map, 3, rows.view, offsets.view, inverse.view, checking());
  };
  const Operand bad = integers({2, 2}, {0, 3, 1, 1});
  expect_refused([&] { permute(bad, {}); }, {"[moe_permute]", "ids", "position 1", " 3"});
  for (const Operand* t : {&rows, &offsets, &inverse}) expect_untouched(*t);
  const Operand map = integers({4}, {-1, 0, 9, 2});
  EXPECT_NO_THROW(permute(bad, map.view));
  EXPECT_EQ(indices_of(inverse.view), (std::vector<int64_t>{-1, 2, 0, 1}));
  EXPECT_EQ(indices_of(offsets.view), (std::vector<int64_t>{2, 2, 3}));
  const Operand none = integers({2, 2}, {-1, -1, -1, -1});
  EXPECT_NO_THROW(permute(none, {}));
  EXPECT_EQ(indices_of(offsets.view), (std::vector<int64_t>{0, 0, 0}));
}

TEST(MoeCheckIds, OfTheBlockProducts) {
  const Operand x = tensor(DType::f32, {2, 1, 32}), w = tensor(DType::f32, {3, 4, 32});
  const Operand out = tensor(DType::f32, {2, 1, 4});
  for (int64_t bad : {-1, 3}) {
    const Operand ids = integers({2}, {0, bad});
    expect_refused(
        [&] {
          gather_qqmm({kMxfp4, x.view}, {kMxfp4, w.view}, {}, ids.view, false, out.view, {},
                      checking());
        },
        {"[gather_qqmm]", "rhs_indices", "position 1", std::to_string(bad).c_str()});
    expect_untouched(out);
  }
}

// ---- Sizes of 0 ---------------------------------------------------------------------------------

TEST(MoeEmpty, NoTokensNoChoicesNoExpertsNoHidden) {
  struct Sizes {
    int64_t tokens, top_k, experts, hidden, intermediate;
  };
  for (const Sizes& s : {Sizes{0, 2, 3, 8, 4}, Sizes{2, 0, 3, 8, 4}, Sizes{2, 2, 0, 8, 4},
                         Sizes{2, 2, 3, 0, 4}, Sizes{2, 2, 3, 8, 0}}) {
    for (bool separate : {false, true}) {
      const FfnCase c = ffn_case(DType::f32, std::nullopt, s.tokens, s.top_k, s.experts, s.hidden,
                                 s.intermediate, separate);
      const FfnOperands o = build(c, Side::right, kPoison);
      run(c, o, o.ids.view, {});
      for (int64_t i = 0; i < o.out.numel(); ++i) EXPECT_EQ(o.out.get(i), 0);
    }
  }
}

// Without an intermediate dimension an expert is its bias.
TEST(MoeEmpty, WithoutIntermediateTheBiasRemains) {
  FfnCase c = ffn_case(DType::f32, std::nullopt, 1, 2, 2, 3, 0);
  c.down.bias = plain(DType::f32, {2, 3});
  FfnOperands o = build(c, Side::right, kPoison);
  for (int64_t i = 0; i < 6; ++i) o.down.bias.set(i, static_cast<double>(i + 1));
  o.weights.set(0, 2);
  o.weights.set(1, 10);
  const Operand ids = integers({1, 2}, {0, 1});
  run(c, o, ids.view, {});
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(o.out.get(i), 2 * static_cast<double>(i + 1) + 10 * static_cast<double>(i + 4));
  }
}

}  // namespace
}  // namespace moeblas::test
