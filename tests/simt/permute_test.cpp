// moe_permute and moe_unpermute of the portable kernels: the CPU backend's bits.
#include "simt/permute.h"

#include "ops/moe.h"
#include "simt/emulated.h"

namespace moeblas::test {
namespace {

struct Case {
  std::string name{};
  int64_t tokens = 20;
  int64_t top_k = 4;
  int64_t hidden = 16;
  int64_t experts = 8;
  DType dtype = DType::f32;
  DType id_type = DType::i32;
  int64_t map = 0;       // entries of the expert map; 0: none
  int64_t id_range = 0;  // ids are drawn from [-1, id_range]; 0: from the experts'
  Shape id_strides{};    // empty: contiguous
  Shape x_strides{};
  int64_t x_offset = 0;
  int64_t out_gap = 0;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Shape or_contiguous(const Shape& strides, const Shape& shape) {
  return strides.ndim() > 0 ? strides : contiguous_strides(shape);
}

bool is_unsigned(DType t) { return t >= DType::u8 && t <= DType::u64; }

void check_permute(const Case& c, emu::Schedule schedule) {
  std::mt19937_64 random(c.tokens * 31 + c.experts);
  std::normal_distribution<float> normal;
  const Shape pairs{c.tokens, c.top_k}, x_shape{c.tokens, c.hidden};
  Strided x(c.dtype, x_shape, or_contiguous(c.x_strides, x_shape), c.x_offset);
  x.fill([&](int64_t) { return normal(random); });
  Strided ids(c.id_type, pairs, or_contiguous(c.id_strides, pairs));
  const int64_t range = c.id_range > 0 ? c.id_range : c.map > 0 ? c.map : c.experts;
  ids.fill_integers([&](int64_t) {
    // The top of the type as -1 where it has no sign.
    const auto id = static_cast<int64_t>(random() % static_cast<uint64_t>(range + 2)) - 1;
    return id < 0 && is_unsigned(c.id_type) ? -1 : id;
  });
  Strided map;
  if (c.map > 0) {
    map = Strided(DType::i16, {c.map}, {3});
    map.fill_integers([&](int64_t i) { return i % 3 == 1 ? -1 : (i * 5) % (c.experts + 2); });
  }
  const Shape rows_shape{c.tokens * c.top_k, c.hidden};
  Strided expected_rows(c.dtype, rows_shape, {c.hidden + c.out_gap, 1}), rows = expected_rows;
  Strided expected_offsets(DType::i32, {c.experts}), offsets = expected_offsets;
  Strided expected_inverse(DType::i32, pairs, {c.top_k + c.out_gap, 1}), inverse = expected_inverse;
  moe_permute(x, ids, map.view(), c.experts, expected_rows, expected_offsets, expected_inverse);
  EmulatorQueue queue(schedule);
  queue.input(x).input(ids).input(map).output(rows).output(offsets).output(inverse);
  const auto problem = ops::moe_permute(x, ids, map.view(), c.experts, rows, offsets, inverse, {});
  ASSERT_FALSE(problem.empty());
  EXPECT_FALSE(simt::simt_permute_reject(problem));
  simt::simt_permute(problem, queue.workspace(simt::simt_permute_workspace(problem)), queue);
  expect_same_bytes(offsets, expected_offsets, "offsets");
  expect_same_bytes(inverse, expected_inverse, "inverse");
  expect_same_bytes(rows, expected_rows, "rows");
}

class Permute : public testing::TestWithParam<Case> {};

TEST_P(Permute, IsTheCpuBackends) { check_permute(GetParam(), emu::Schedule::forward); }

std::vector<Case> permute_cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, Case c) {
    c.name = std::move(name);
    all.push_back(std::move(c));
  };
  add("plain", {});
  for (DType dtype : {DType::f16, DType::bf16})
    add(std::string("of_") + name(dtype), {.hidden = 24, .dtype = dtype});
  for (DType type :
       {DType::i8, DType::i16, DType::i64, DType::u8, DType::u16, DType::u32, DType::u64})
    add(std::string("ids_") + name(type), {.id_type = type});
  for (int64_t pairs : {1, 31, 32, 33, 255, 256, 257, 513, 3000})
    add("pairs_" + std::to_string(pairs), {.tokens = pairs, .top_k = 1, .hidden = 3});
  // More blocks than lanes.
  add("many_blocks", {.tokens = 1150, .top_k = 8, .hidden = 1, .experts = 5});
  for (int64_t experts : {1, 2, 31, 33, 64, 300, 1025})
    add("experts_" + std::to_string(experts), {.tokens = 150, .hidden = 4, .experts = experts});
  add("all_on_one", {.tokens = 200, .hidden = 2, .experts = 64, .id_range = 1});
  add("out_of_range", {.tokens = 50, .experts = 4, .id_range = 1000, .id_strides = {}});
  add("map", {.tokens = 40, .experts = 5, .map = 37});
  add("map_of_u64", {.tokens = 40, .experts = 5, .id_type = DType::u64, .map = 12});
  add("ids_by_columns", {.id_strides = {1, 25}});
  add("ids_broadcast", {.id_strides = {0, 1}});
  add("x_rows_apart", {.x_strides = {20, 1}});
  add("x_misaligned", {.x_strides = {17, 1}, .x_offset = 1});
  add("x_by_columns", {.dtype = DType::bf16, .x_strides = {1, 23}});
  add("x_broadcast", {.x_strides = {0, 1}});
  add("out_gaps", {.dtype = DType::f16, .out_gap = 5});
  add("wide_gaps", {.dtype = DType::f16, .out_gap = 8});
  add("no_tokens", {.tokens = 0});
  add("no_choice", {.top_k = 0});
  add("no_columns", {.hidden = 0});
  add("no_experts", {.experts = 0, .id_range = 3});
  add("no_experts_no_tokens", {.tokens = 0, .experts = 0, .id_range = 3});
  return all;
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Simt, Permute, testing::ValuesIn(permute_cases()), case_name);

TEST(SimtPermute, AllSchedules) {
  for (emu::Schedule schedule : kSchedules) {
    SCOPED_TRACE(emu::name_of(schedule));
    check_permute({.tokens = 300, .top_k = 3, .hidden = 8, .experts = 37, .map = 60}, schedule);
    check_permute({.tokens = 65, .top_k = 1, .hidden = 3, .experts = 1}, schedule);
  }
}

TEST(SimtPermute, SaysThatItDoesNotCheckIds) {
  dispatch::PermuteProblem p;
  p.options.check_ids = true;
  EXPECT_TRUE(simt::simt_permute_reject(p));
  p.permutation = dispatch::Permutation::unpermute;
  EXPECT_FALSE(simt::simt_permute_reject(p));
}

void check_unpermute(const Case& c, bool weighted, emu::Schedule schedule) {
  std::mt19937_64 random(c.hidden);
  std::normal_distribution<float> normal;
  const int64_t rows = c.experts;  // here: the rows of y
  const Shape pairs{c.tokens, c.top_k}, y_shape{rows, c.hidden};
  Strided y(c.dtype, y_shape, or_contiguous(c.x_strides, y_shape), c.x_offset);
  y.fill([&](int64_t i) { return i / c.hidden == 0 ? NAN : normal(random); });
  Strided inverse(c.id_type, pairs, or_contiguous(c.id_strides, pairs));
  inverse.fill_integers([&](int64_t) {
    // Row 0 is NaN, and nobody's.
    const auto row = static_cast<int64_t>(random() % static_cast<uint64_t>(rows + 1));
    return row == 0 ? -1 : row;
  });
  Strided weights;
  if (weighted) {
    weights = Strided(DType::f32, pairs, {1, c.tokens + 1});
    weights.fill([&](int64_t) { return normal(random); });
  }
  const Shape out_shape{c.tokens, c.hidden};
  Strided expected(c.dtype, out_shape, {c.hidden + c.out_gap, 1}), out = expected;
  moe_unpermute(y, inverse, weights.view(), expected);
  EmulatorQueue queue(schedule);
  queue.input(y).input(inverse).input(weights).output(out);
  const auto problem = ops::moe_unpermute(y, inverse, weights.view(), out, {});
  if (!problem.empty()) {
    EXPECT_EQ(simt::simt_permute_workspace(problem), 0u);
    simt::simt_permute(problem, {}, queue);
  }
  expect_same_bytes(out, expected, "out");
}

class Unpermute : public testing::TestWithParam<Case> {};

TEST_P(Unpermute, IsTheCpuBackends) {
  for (bool weighted : {false, true}) {
    for (emu::Schedule schedule : {emu::Schedule::forward, emu::Schedule::random})
      check_unpermute(GetParam(), weighted, schedule);
  }
}

std::vector<Case> unpermute_cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, Case c) {
    c.name = std::move(name);
    all.push_back(std::move(c));
  };
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const std::string type = name(dtype);
    add(type, {.hidden = 64, .experts = 50, .dtype = dtype});
    add(type + "_tail", {.hidden = 19, .experts = 50, .dtype = dtype});
    add(type + "_columns", {.hidden = 19, .experts = 50, .dtype = dtype, .x_strides = {1, 51}});
    add(type + "_gaps", {.hidden = 16,
                         .experts = 50,
                         .dtype = dtype,
                         .x_strides = {33, 2},
                         .x_offset = 1,
                         .out_gap = 3});
  }
  for (DType type : {DType::i8, DType::i16, DType::i64, DType::u8, DType::u32, DType::u64})
    add(std::string("index_") + name(type), {.hidden = 9, .id_type = type});
  add("index_broadcast", {.id_strides = {0, 1}});
  add("one_row", {.tokens = 1, .top_k = 1, .hidden = 1, .experts = 2});
  add("no_choice", {.top_k = 0});
  add("no_tokens", {.tokens = 0});
  add("many_tokens", {.tokens = 700, .top_k = 2, .hidden = 40, .experts = 99});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Simt, Unpermute, testing::ValuesIn(unpermute_cases()), case_name);

}  // namespace
}  // namespace moeblas::test
