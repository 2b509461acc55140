// The words of moeblas.h, sentence by sentence, on examples small enough to work out by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "support/cases.h"
#include "support/codec.h"

namespace moeblas::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Operand floats(DType dtype, const Shape& shape, std::initializer_list<double> values) {
  Operand t(plain(dtype, shape), Side::right, kPoison);
  int64_t i = 0;
  for (double v : values) t.set(i++, v);
  return t;
}
Operand integers(DType dtype, const Shape& shape, std::initializer_list<int64_t> values) {
  Operand t(plain(dtype, shape), Side::right, kPoison);
  int64_t i = 0;
  for (int64_t v : values) store_index(t.view.data, dtype, i++, v);
  return t;
}
std::vector<double> all(const Operand& t) {
  std::vector<double> list;
  for (int64_t i = 0; i < t.numel(); ++i) list.push_back(t.get(i));
  return list;
}
using List = std::vector<double>;

// ---- "Where an operation takes a quantized w it also takes mode MOEBLAS_DENSE" ------------------

TEST(DenseWeights, CountAsTheyAreWhateverTheirDtype) {
  const Operand x = floats(DType::f32, {1, 3}, {1, 10, 100});
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Operand w = floats(dtype, {2, 3}, {1, 2, 3, -0.5, 0.25, 0});
    const Quantized dense{.spec = {Mode::dense}, .codes = w.view};
    const Operand out(plain(DType::f32, {1, 2}), Side::left, kPoison);
    quantized_matmul(x.view, dense, true, out.view);
    EXPECT_EQ(all(out), (List{321, 2})) << name(dtype);
    // The same matrix, stored the other way round.
    Quantized turned = dense;
    std::swap(turned.codes.shape[0], turned.codes.shape[1]);
    std::swap(turned.codes.strides[0], turned.codes.strides[1]);
    quantized_matmul(x.view, turned, false, out.view);
    EXPECT_EQ(all(out), (List{321, 2})) << name(dtype);
  }
}

TEST(DenseWeights, HaveNothingButTheirFloats) {
  const Operand x = floats(DType::f32, {1, 2}, {1, 1});
  const Operand w = floats(DType::f32, {2, 2}, {1, 1, 1, 1});
  const Operand codes = integers(DType::u32, {2, 2}, {0, 0, 0, 0});
  const Operand out(plain(DType::f32, {1, 2}), Side::left, kPoison);
  const auto message = [&](const Quantized& q) -> std::string {
    try {
      quantized_matmul(x.view, q, true, out.view);
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), MOEBLAS_INVALID_ARGUMENT);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message({.spec = {Mode::dense}, .codes = codes.view}),
            "[quantized_matmul] w has dtype uint32, expected float32, float16 or bfloat16 for mode "
            "dense");
  const Quantized dense{.spec = {Mode::dense}, .codes = w.view};
  Quantized q = dense;
  q.scales = w.view;
  EXPECT_EQ(message(q), "[quantized_matmul] scales is given, expected none for mode dense");
  q = dense;
  q.host_tensor_scale = 1.0f;
  EXPECT_EQ(message(q), "[quantized_matmul] tensor_scale is given, expected none for mode dense");
  q = dense;
  q.spec.bits = 16;
  EXPECT_EQ(message(q), "[quantized_matmul] bits is set, expected 0 for mode dense");
  q = dense;
  q.scale_layout = ScaleLayout::swizzled_128x4;
  EXPECT_EQ(message(q), "[quantized_matmul] scale_layout is set, expected 0 for mode dense");
  // Quantization itself knows no such mode.
  EXPECT_THROW(dequantize({.spec = {Mode::dense}, .codes = w.view}, out.view), Error);
}

// ---- offsets: "row r times the matrix of the first expert e with offsets[e] > r" ----------------

List experts_of_rows(DType dtype, std::initializer_list<int64_t> ends) {
  // w[e] = e + 1, x = 1: the result names the expert, 0 names none.
  const auto experts = static_cast<int64_t>(ends.size());
  Operand w(plain(DType::f32, {experts, 1, 1}), Side::left, kPoison);
  for (int64_t e = 0; e < experts; ++e) w.set(e, static_cast<double>(e + 1));
  const Operand x = floats(DType::f32, {6, 1}, {1, 1, 1, 1, 1, 1});
  const Operand offsets = integers(dtype, {experts}, ends);
  const Operand out(plain(DType::f32, {6, 1}), Side::left, kPoison);
  grouped_mm(x.view, w.view, offsets.view, out.view);
  return all(out);
}

TEST(Offsets, AreTheEndsOfEachExpertsRows) {
  for (DType dtype : {DType::i32, DType::i64}) {
    EXPECT_EQ(experts_of_rows(dtype, {2, 3, 6}), (List{1, 1, 2, 3, 3, 3}));
    EXPECT_EQ(experts_of_rows(dtype, {6}), (List{1, 1, 1, 1, 1, 1}));
  }
}
TEST(Offsets, AnEndNotAboveItsPredecessorsIsAnEmptyExpert) {
  EXPECT_EQ(experts_of_rows(DType::i32, {2, 2, 2, 6}), (List{1, 1, 4, 4, 4, 4}));
  EXPECT_EQ(experts_of_rows(DType::i32, {4, 1, 3, 5, 6}), (List{1, 1, 1, 1, 4, 5}));
}
TEST(Offsets, AreClampedToTheRows) {
  EXPECT_EQ(experts_of_rows(DType::i32, {-5, 3, 9, 4}), (List{2, 2, 2, 3, 3, 3}));
  EXPECT_EQ(experts_of_rows(DType::i64, {int64_t{1} << 40, 3}), (List{1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(experts_of_rows(DType::i64, {std::numeric_limits<int64_t>::min(), 6}),
            (List{2, 2, 2, 2, 2, 2}));
}
TEST(Offsets, RowsPastTheLastEndAreZero) {
  EXPECT_EQ(experts_of_rows(DType::i32, {1, 3}), (List{1, 2, 2, 0, 0, 0}));
  EXPECT_EQ(experts_of_rows(DType::i32, {0, 0}), (List{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(experts_of_rows(DType::i32, {}), (List{0, 0, 0, 0, 0, 0}));
}

// ---- segments -----------------------------------------------------------------------------------

List segment_sums(std::initializer_list<int64_t> ends, DType dtype = DType::i32) {
  // a = powers of two, b = 1: the result is a bit mask of the elements that entered it.
  const Operand a = floats(DType::f32, {1, 6}, {1, 2, 4, 8, 16, 32});
  const Operand b = floats(DType::f32, {6, 1}, {1, 1, 1, 1, 1, 1});
  const auto count = static_cast<int64_t>(ends.size() / 2);
  const Operand segments = integers(dtype, {count, 2}, ends);
  const Operand out(plain(DType::f32, {count, 1, 1}), Side::left, kPoison);
  segmented_mm(a.view, b.view, segments.view, out.view);
  return all(out);
}

TEST(Segments, MayOverlapSkipAndStartAnywhere) {
  EXPECT_EQ(segment_sums({0, 6, 1, 4, 3, 4, 4, 6}), (List{63, 14, 8, 48}));
  EXPECT_EQ(segment_sums({5, 6, 0, 1}), (List{32, 1}));
}
TEST(Segments, AreClamped) {
  EXPECT_EQ(segment_sums({-3, 2, 4, 99, -9, 99, 7, 9, -4, -1}), (List{3, 48, 63, 0, 0}));
  EXPECT_EQ(
      segment_sums({std::numeric_limits<int64_t>::min(), 2, 4, std::numeric_limits<int64_t>::max()},
                   DType::i64),
      (List{3, 48}));
  // 2^64 - 1 is an end beyond K, not -1.
  EXPECT_EQ(segment_sums({2, -1, -1, 4}, DType::u64), (List{60, 0}));
}
TEST(Segments, AnEndNotAboveItsStartGivesZero) {
  EXPECT_EQ(segment_sums({2, 2, 4, 1, 6, 6, 0, 0}), (List{0, 0, 0, 0}));
}
TEST(Segments, NaNOutsideNeverEnters) {
  const Operand a = floats(DType::f32, {2, 5}, {kNaN, 1, 2, kNaN, 3, kNaN, 1, 2, 3, kNaN});
  const Operand b = floats(DType::f32, {5, 1}, {kNaN, 1, 1, kNaN, 1});
  const Operand segments = integers(DType::i16, {4, 2}, {1, 3, 0, 3, 4, 5, 3, 3});
  const Operand out(plain(DType::f32, {4, 2, 1}), Side::left, kPoison);
  segmented_mm(a.view, b.view, segments.view, out.view);
  EXPECT_EQ(out.get(0), 3);
  EXPECT_EQ(out.get(1), 3);
  EXPECT_TRUE(std::isnan(out.get(2)) && std::isnan(out.get(3)));
  EXPECT_EQ(out.get(4), 3);
  EXPECT_TRUE(std::isnan(out.get(5)));
  EXPECT_EQ(out.get(6), 0);
  EXPECT_EQ(out.get(7), 0);
}

// ---- ids out of range ---------------------------------------------------------------------------

// The call must fail, say all of `words`, and leave the output alone.
void expect_refused(const Case& c, const Operands& o, std::initializer_list<const char*> words,
                    Options options) {
  try {
    call(c, o, options);
    ADD_FAILURE() << name(c.op) << " took an index out of range";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), MOEBLAS_INVALID_ARGUMENT);
    for (const char* word : words) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos)
          << "no '" << word << "' in: " << e.what();
    }
  }
  for (uint8_t byte : o.out.memory.pages()) ASSERT_EQ(byte, kPoison) << "the output was touched";
}

Options checking() {
  Options options;
  options.check_ids = true;
  return options;
}

TEST(CheckIds, NamesArrayPositionAndValue) {
  Case c = expert_case(kAffine4, DType::f32, 3, 2, 4, 20, 64);
  Operands o = build(c, Side::left, kPoison);
  EXPECT_NO_THROW(call(c, o, checking()));
  for (int64_t bad : {-1, 4, 1'000'000'000}) {
    o = build(c, Side::left, kPoison);
    store_index(o.rhs.view.data, DType::i32, 5, bad);
    expect_refused(c, o, {"[gather_qmm]", "rhs_indices", "position 5", std::to_string(bad).c_str()},
                   checking());
  }
}

TEST(CheckIds, OfGatherMmOnEitherSide) {
  Case c = dense_case(Op::gather_mm, DType::f32, 4, {2, 5, 7}, 3);
  c.lhs = plain(DType::i64, {4});
  Operands o = build(c, Side::left, kPoison);
  store_index(o.lhs.view.data, DType::i64, 2, 4);
  expect_refused(c, o, {"[gather_mm]", "lhs_indices", "position 2", " 4"}, checking());
  o = build(c, Side::left, kPoison);
  store_index(o.rhs.view.data, DType::i64, 3, -7);
  expect_refused(c, o, {"[gather_mm]", "rhs_indices", "position 3", "-7"}, checking());
}

TEST(CheckIds, OfGatherQmvNamesItsOwnArgument) {
  Case c;
  c.op = Op::gather_qmv;
  c.x = plain(DType::f32, {3, 64});
  set_weights(c, kAffine4, {4, 20, 64});
  c.rhs = plain(DType::u8, {3});
  c.out = plain(DType::f32, {3, 20});
  const Operands o = build(c, Side::left, kPoison);
  store_index(o.rhs.view.data, DType::u8, 1, 200);
  expect_refused(c, o, {"[gather_qmv]", "expert_indices", "position 1", "200"}, checking());
}

TEST(CheckIds, OfSegments) {
  Case c = dense_case(Op::segmented_mm, DType::f32, 3, {2, 5, 7}, 0);
  Operands o = build(c, Side::left, kPoison);
  EXPECT_NO_THROW(call(c, o, checking()));
  o = build(c, Side::left, kPoison);
  store_index(o.ranges.view.data, DType::i32, 3, 8);
  expect_refused(c, o, {"[segmented_mm]", "segments", "position 1", " 8"}, checking());
  o = build(c, Side::left, kPoison);
  store_index(o.ranges.view.data, DType::i32, 4, -2);
  expect_refused(c, o, {"[segmented_mm]", "segments", "position 2", "-2"}, checking());
}

TEST(CheckIds, ByTheEnvironment) {
  Case c = expert_case(kAffine4, DType::f32, 3, 2, 4, 20, 64);
  const Operands o = build(c, Side::left, kPoison);
  store_index(o.rhs.view.data, DType::i32, 0, 4);
  setenv("MOEBLAS_CHECK_IDS", "1", 1);
  expect_refused(c, o, {"position 0", " 4"}, {});
  setenv("MOEBLAS_CHECK_IDS", "0", 1);
  EXPECT_NO_THROW(call(c, o, {}));
  unsetenv("MOEBLAS_CHECK_IDS");
}

// ---- workspace ----------------------------------------------------------------------------------

// Views that repeat memory may have any size, and a result reads them as often as it likes: no size
// of a workspace may wrap around to one that exists.
TEST(Workspace, SizesThatAreNoNumbersAreRefused) {
  const auto refused = [](auto&& call, std::initializer_list<const char*> words) {
    for (const bool query : {false, true}) {
      try {
        if (query) {
          plan(call);
        } else {
          call(Options{});
        }
        ADD_FAILURE() << "taken" << (query ? " by the query" : "");
      } catch (const Error& e) {
        EXPECT_EQ(e.status(), MOEBLAS_INVALID_ARGUMENT) << e.what();
        for (const char* word : words) {
          EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
        }
      }
    }
  };
  constexpr int64_t kRows = 1 << 20;
  const uint16_t one = 0;
  const std::vector<int32_t> ids(kRows);
  std::vector<uint16_t> out(kRows, 0x5a5a);
  const TensorView index(ids.data(), DType::i32, {kRows});
  for (int64_t k : {int64_t{1} << 25, int64_t{1} << 44, int64_t{1} << 58}) {
    const TensorView row(&one, DType::bf16, {1, 1, k}, {0, 0, 0});
    const TensorView column(&one, DType::bf16, {1, k, 1}, {0, 0, 0});
    refused(
        [&](const Options& o) {
          gather_mm(row, column, index, index, false, {out.data(), DType::bf16, {kRows, 1, 1}}, o);
        },
        {"[gather_mm] a has (1048576, 1) rows of ", std::to_string(k).c_str(), "17592186044416"});
  }
  // Matrices that meet by broadcasting, as many as wrap around to none.
  constexpr int64_t kMany = int64_t{1} << 32;
  const TensorView rows(&one, DType::bf16, {kMany, 1, 1, 1}, {0, 0, 0, 0});
  const TensorView matrices(&one, DType::bf16, {1, kMany, 1, 1}, {0, 0, 0, 0});
  refused(
      [&](const Options&) {
        infer_quantized_matmul(rows, {.spec = {Mode::dense}, .codes = matrices});
      },
      {"[quantized_matmul] x has (4294967296, 4294967296, 1) rows of 1 values"});
  // Gates and ups of a layer are in no tensor.
  constexpr int64_t kTokens = 64, kInner = int64_t{1} << 38;
  const TensorView x(&one, DType::bf16, {kTokens, 1}, Shape{0, 0});
  const Quantized gate_up{.spec = {Mode::dense},
                          .codes = {&one, DType::bf16, {1, 2 * kInner, 1}, Shape{0, 0, 0}}};
  const Quantized down{.spec = {Mode::dense},
                       .codes = {&one, DType::bf16, {1, 1, kInner}, Shape{0, 0, 0}}};
  FfnLayer layer;
  layer.gate_up = gate_up;
  layer.down = down;
  const float weight = 1;
  refused(
      [&](const Options& o) {
        moe_ffn(x, layer, {ids.data(), DType::i32, {kTokens, 1}},
                {&weight, DType::f32, {kTokens, 1}, Shape{0, 0}},
                {out.data(), DType::bf16, {kTokens, 1}}, o);
      },
      {"[moe_ffn] ids has (64, 1) rows of 549755813888 values, expected at most 17592186044416"});
  for (uint16_t value : out) ASSERT_EQ(value, 0x5a5a) << "the output was touched";
}

TEST(Workspace, ExactlyTheBytesOfTheQuerySufficeAndOneFewerIsAnError) {
  bool any = false;
  for (int i = 0; i < kOps; ++i) {
    for (uint64_t seed : {11, 12, 13, 14}) {
      const Case c = make_case(static_cast<Op>(i), seed);
      const Operands o = build(c, Side::left, kPoison);
      const Plan asked = plan([&](const Options& q) { call(c, o, q); });
      GuardedMemory workspace(asked.workspace_bytes, Side::right, kPoison, 64);
      Options options;
      options.workspace = workspace.data();
      options.workspace_bytes = asked.workspace_bytes;
      EXPECT_NO_THROW(call(c, o, options)) << describe(c);
      if (asked.workspace_bytes == 0 || !is_product(c.op)) continue;
      any = true;
      const Operands untouched = build(c, Side::left, kPoison);
      options.workspace_bytes -= 1;
      expect_refused(c, untouched, {"workspace", std::to_string(asked.workspace_bytes).c_str()},
                     options);
      options.workspace_bytes += 1;
      options.workspace = workspace.data() + 1;
      expect_refused(c, untouched, {"workspace", "aligned"}, options);
    }
  }
  EXPECT_TRUE(any) << "no kernel asked for a workspace";
}

TEST(Workspace, OfTheLibraryGivesTheSameResult) {
  const Case c = expert_case(kNvfp4, DType::bf16, 9, 2, 4, 50, 96);
  const Operands one = build(c, Side::left, kPoison), other = build(c, Side::left, 0);
  const Plan asked = plan([&](const Options& q) { call(c, one, q); });
  GuardedMemory workspace(asked.workspace_bytes, Side::right, kPoison, 64);
  Options options;
  options.workspace = workspace.data();
  options.workspace_bytes = asked.workspace_bytes;
  call(c, one, options);
  call(c, other, {});
  EXPECT_EQ(element_bytes(one.out), element_bytes(other.out));
}

TEST(Query, ReadsNoDataAndRunsNothing) {
  const Case c = expert_case(kAffine4, DType::f32, 3, 2, 4, 20, 64);
  Operands o = build(c, Side::left, kPoison);
  for (Operand* t : {&o.x, &o.codes, &o.scales, &o.biases, &o.rhs, &o.out}) t->view.data = nullptr;
  const Plan asked = plan([&](const Options& q) { call(c, o, q); });
  EXPECT_FALSE(asked.kernel.empty());
  EXPECT_NE(asked.explanation.find(asked.kernel), std::string::npos);
}

// ---- Devices ------------------------------------------------------------------------------------

TEST(Devices, AreNamedWhereTheyDiffer) {
  const float x[2] = {1, 2};
  uint8_t codes[2] = {};
  const TensorView there(x, DType::f32, {2}, Device{MOEBLAS_CUDA, 1});
  try {
    to_fp8(there, {codes, DType::u8, {2}});
    FAIL() << "two devices were taken";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[to_fp8] x is on cuda:1, expected cpu as out");
  }
}

// ---- tensor_scale -------------------------------------------------------------------------------

TEST(TensorScale, AsANumberAScalarOrPerExpert) {
  Case c = expert_case(kNvfp4, DType::f32, 5, 2, 3, 20, 64);
  const auto run = [&](auto&& set) {
    Operands o = build(c, Side::left, kPoison);
    set(o);
    call(c, o, {});
    return all(o.out);
  };
  const List plain_result = run([](Operands&) {});
  const List number = run([](Operands& o) { o.host_tensor_scale = 0.3f; });
  EXPECT_NE(number, plain_result);
  EXPECT_EQ(run([](Operands& o) {
              o.tensor_scale = Operand(plain(DType::f32, {}), Side::right, kPoison);
              o.tensor_scale.set(0, 0.3f);
            }),
            number);
  EXPECT_EQ(run([](Operands& o) {
              o.tensor_scale = Operand(plain(DType::f32, {3}), Side::right, kPoison);
              for (int64_t e = 0; e < 3; ++e) o.tensor_scale.set(e, 0.3f);
            }),
            number);
  // A scale per expert scales that expert's rows alone; powers of two do so exactly.
  const Operands o = build(c, Side::left, kPoison);
  const std::vector<int64_t> ids = indices_of(o.rhs.view);
  const List scaled = run([](Operands& t) {
    t.tensor_scale = Operand(plain(DType::f32, {3}), Side::right, kPoison);
    for (int64_t e = 0; e < 3; ++e) t.tensor_scale.set(e, e == 1 ? 4 : 1);
  });
  for (size_t i = 0; i < scaled.size(); ++i) {
    EXPECT_EQ(scaled[i], plain_result[i] * (ids[i / 20] == 1 ? 4 : 1));
  }
}

TEST(TensorScale, IsFiniteAndToQuantizeByNotZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values(16, 0);
  std::vector<uint32_t> codes(2);
  std::vector<uint8_t> scales(1);
  std::vector<float> back(16, 1);
  const TensorView w(values.data(), DType::f32, {1, 16});
  Quantized q{.spec = {Mode::nvfp4, 4, 16},
              .codes = {codes.data(), DType::u32, {1, 2}},
              .scales = {scales.data(), DType::u8, {1, 1}}};
  const TensorView out(back.data(), DType::f32, {1, 16});
  const auto message = [&](float t, auto&& call) {
    q.host_tensor_scale = t;
    try {
      call();
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto encode = [&] { quantize(w, q); };
  const auto decode = [&] { dequantize(q, out); };
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, -1.0f}) {
    for (const std::string& m : {message(bad, encode), message(bad, decode)}) {
      EXPECT_NE(m.find("tensor_scale is "), std::string::npos) << bad << ": " << m;
      EXPECT_NE(m.find("expected a finite number, 0 or above"), std::string::npos) << m;
    }
  }
  for (float bad : {0.0f, 1e-39f}) {
    EXPECT_NE(message(bad, encode).find("expected at least 2^-126"), std::string::npos) << bad;
    EXPECT_EQ(message(bad, decode), "") << bad;
  }
  for (float good : {std::numeric_limits<float>::min(), 1.0f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(message(good, encode), "");
    EXPECT_EQ(message(good, decode), "");
    EXPECT_EQ(back, values);
  }
}

TEST(TensorScale, BelongsToNvfp4Alone) {
  for (const QuantSpec& format : {kAffine4, kMxfp4, kMxfp8}) {
    Case c = matmul_case(format, DType::f32, {2, 20, 64});
    Operands o = build(c, Side::left, kPoison);
    o.host_tensor_scale = 1.0f;
    expect_refused(c, o, {"tensor_scale", name(format.mode)}, {});
  }
}

}  // namespace
}  // namespace moeblas::test
