// The device's work list by itself: grouping, runs, tiles, and the search for ids out of range.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "moeblas/error.h"
#include "simt/emulator_queue.h"
#include "simt/pairs_plan.h"
#include "simt/products.h"
#include "support/array.h"

namespace moeblas::test {
namespace {

constexpr uint32_t kTileRows = 64;

// A gathered product of so many pairs, of which only the ids matter.
struct Gathered {
  Array ids;
  dispatch::MatmulProblem p;

  Gathered(std::vector<int64_t> values, int64_t matrices, DType type = DType::i64, int64_t m = 1)
      : ids(type, {static_cast<int64_t>(values.size())}) {
    for (size_t i = 0; i < values.size(); ++i) ids.set_integer(static_cast<int64_t>(i), values[i]);
    const auto pairs = static_cast<int64_t>(values.size());
    p.op = "gather_mm";
    p.m = m, p.n = 1, p.k = 1;
    p.batch = {pairs};
    p.grouping = dispatch::Grouping::gather;
    p.x.values.batch = {pairs};
    p.x.values.batch_stride = {3};
    p.w.values.batch = {matrices};
    p.w.values.batch_stride = {1};
    p.out.batch = {pairs};
    p.out.batch_stride = {2};
    p.x_position.stride = {1};
    p.w_position.index = ids.bytes().data();
    p.w_position.dtype = type;
    p.w_position.stride = {1};
    p.w_position.name = "rhs_indices";
  }
};

struct Lists {
  std::vector<int64_t> memory;
  simt::PairLists at;
};

Lists lists_of(const dispatch::MatmulProblem& p, EmulatorQueue& queue) {
  const simt::PairPlan plan(p, kTileRows);
  EXPECT_FALSE(plan.why_not());
  Lists lists{std::vector<int64_t>(plan.workspace() / 8 + 8, 0x5555555555555555), {}};
  auto* base =
      reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(lists.memory.data()) + 63) / 64 * 64);
  queue.output(base, plan.workspace());
  lists.at = plan.run(base, queue);
  return lists;
}

// The lists against a stable sort on the host.
void expect_grouped(const Gathered& g, int64_t matrices, emu::Schedule schedule) {
  EmulatorQueue queue(schedule);
  queue.input(g.ids.bytes().data(), g.ids.bytes().size());
  const Lists lists = lists_of(g.p, queue);
  const auto pairs = static_cast<uint32_t>(g.ids.numel());
  const auto key = [&](uint32_t i) {
    const int64_t id = g.ids.get_integer(i);
    return id < 0 || id >= matrices ? matrices : id;
  };
  std::vector<uint32_t> order(pairs);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  ASSERT_TRUE(std::equal(order.begin(), order.end(), lists.at.order));
  uint32_t runs = 0, tiles = 0;
  for (uint32_t i = 0; i < pairs;) {
    uint32_t end = i;
    while (end < pairs && key(order[end]) == key(order[i])) ++end;
    ASSERT_EQ(lists.at.runs[1 + runs], i);
    ASSERT_EQ(lists.at.tiles[runs], tiles);
    tiles += static_cast<uint32_t>(((end - i) * g.p.m + kTileRows - 1) / kTileRows);
    ++runs;
    i = end;
  }
  EXPECT_EQ(lists.at.runs[0], runs);
  EXPECT_EQ(lists.at.runs[1 + runs], pairs);
  EXPECT_EQ(lists.at.tiles[runs], tiles);
  EXPECT_LE(tiles, simt::PairPlan(g.p, kTileRows).tiles());
  for (uint32_t i = 0; i < pairs; ++i) {
    const simt::Pair& pair = lists.at.pairs[i];
    ASSERT_EQ(pair.w, key(i) == matrices ? -1 : key(i));
    ASSERT_EQ(pair.x, key(i) == matrices ? 0 : int64_t{i} * 3);
    ASSERT_EQ(pair.out, int64_t{i} * 2);
  }
}

std::vector<int64_t> random_ids(size_t count, int64_t matrices, bool some_bad) {
  std::mt19937_64 random(count);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) {
    id = static_cast<int64_t>(random() % static_cast<uint64_t>(matrices));
    if (some_bad && random() % 5 == 0) id = random() % 2 == 0 ? -1 : matrices;
  }
  return ids;
}

struct Grouping {
  size_t pairs;
  int64_t matrices;
  emu::Schedule schedule = emu::Schedule::forward;
};

void PrintTo(const Grouping& g, std::ostream* out) {
  *out << g.pairs << " pairs, " << g.matrices << " matrices";
}

class PairGrouping : public testing::TestWithParam<Grouping> {};

TEST_P(PairGrouping, IsAStableSort) {
  const Grouping& g = GetParam();
  for (bool some_bad : {false, true}) {
    expect_grouped({random_ids(g.pairs, g.matrices, some_bad), g.matrices}, g.matrices, g.schedule);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PairGrouping,
                         testing::Values(Grouping{2, 1}, Grouping{31, 4}, Grouping{256, 8},
                                         Grouping{257, 300}, Grouping{512, 64}, Grouping{513, 8},
                                         Grouping{1000, 255}, Grouping{1000, 256},
                                         Grouping{3000, 70000}, Grouping{700, 17000000},
                                         Grouping{700, 2147483647}, Grouping{40000, 128}));
INSTANTIATE_TEST_SUITE_P(Schedules, PairGrouping,
                         testing::Values(Grouping{512, 60, emu::Schedule::reverse},
                                         Grouping{512, 60, emu::Schedule::random},
                                         Grouping{512, 60, emu::Schedule::greedy},
                                         Grouping{900, 300, emu::Schedule::reverse},
                                         Grouping{900, 300, emu::Schedule::random},
                                         Grouping{900, 300, emu::Schedule::greedy}));

TEST(Pairs, OneExpertOrNone) {
  expect_grouped({std::vector<int64_t>(700, 3), 9}, 9, emu::Schedule::forward);
  expect_grouped({std::vector<int64_t>(700, -1), 9}, 9, emu::Schedule::forward);
  expect_grouped({std::vector<int64_t>(70, 0), 0}, 0, emu::Schedule::forward);
}

TEST(Pairs, RowsMakeTiles) {
  expect_grouped({random_ids(300, 5, true), 5, DType::i64, 130}, 5, emu::Schedule::forward);
  expect_grouped({random_ids(600, 5, true), 5, DType::i16, 30}, 5, emu::Schedule::forward);
}

// The workspace is known from sizes alone, and from nothing else.
TEST(Pairs, WorkspaceDoesNotReadIds) {
  Gathered g({0, 1, 2}, 4);
  g.p.w_position.index = reinterpret_cast<const void*>(uintptr_t{64});
  EXPECT_GT(simt::PairPlan(g.p, kTileRows).workspace(), 0u);
  g.p.batch = {1000000};
  const size_t million = simt::PairPlan(g.p, kTileRows).workspace();
  EXPECT_LT(million, size_t{80} << 20);
  g.p.batch = {0};
  EXPECT_EQ(simt::PairPlan(g.p, kTileRows).tiles(), 0);
}

TEST(Pairs, SaysWhatItCannotHold) {
  Gathered g({0, 1, 2}, 4);
  g.p.batch = {int64_t{1} << 31};
  EXPECT_STREQ(simt::PairPlan(g.p, kTileRows).why_not().text(),
               "2147483648 result matrices, more than 2^31 - 1");
  g.p.batch = {4};
  g.p.m = int64_t{1} << 40;
  EXPECT_TRUE(bool(simt::PairPlan(g.p, kTileRows).why_not()));
}

simt::BadId bad_id_of(const dispatch::MatmulProblem& p, EmulatorQueue& queue) {
  simt::BadId bad{-7, -7, -7, -7};
  const std::optional<simt::Step> step = simt::bad_id_step(p, &bad);
  EXPECT_TRUE(step.has_value());
  queue.output(&bad, sizeof bad);
  queue.run(*step);
  return bad;
}

TEST(Pairs, TheFirstBadIdIsFound) {
  std::vector<int64_t> ids = random_ids(1500, 8, false);
  for (emu::Schedule schedule : {emu::Schedule::forward, emu::Schedule::greedy}) {
    Gathered good(ids, 8);
    EmulatorQueue queue(schedule);
    queue.input(good.ids.bytes().data(), good.ids.bytes().size());
    EXPECT_EQ(bad_id_of(good.p, queue).position, -1);
  }
  ids[1400] = -1;
  ids[901] = 8;
  ids[902] = 77;
  Gathered bad(ids, 8);
  EmulatorQueue queue;
  queue.input(bad.ids.bytes().data(), bad.ids.bytes().size());
  const simt::BadId found = bad_id_of(bad.p, queue);
  EXPECT_EQ(found.position, 901);
  EXPECT_EQ(found.value, 8);
  EXPECT_EQ(found.limit, 7);
  try {
    simt::require_good_ids(bad.p, found);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[gather_mm] rhs_indices holds 8 at position 901, expected 0 to 7");
  }
}

TEST(Pairs, BadSegmentsAreFound) {
  Array segments(DType::i32, {3, 2});
  const int64_t values[] = {0, 5, 2, 11, -1, 4};
  for (int64_t i = 0; i < 6; ++i) segments.set_integer(i, values[i]);
  dispatch::MatmulProblem p;
  p.op = "segmented_mm";
  p.m = p.n = 1, p.k = 10;
  p.batch = {3};
  p.grouping = dispatch::Grouping::segments;
  p.segments = segments.view();
  p.x_position.stride = p.w_position.stride = {0};
  p.out.batch = {3};
  p.out.batch_stride = {1};
  EmulatorQueue queue;
  queue.input(segments.bytes().data(), segments.bytes().size());
  const simt::BadId found = bad_id_of(p, queue);
  EXPECT_EQ(found.position, 1);
  EXPECT_EQ(found.value, 11);
  EXPECT_EQ(found.limit, 10);
  EXPECT_EQ(found.array, 3);
}

}  // namespace
}  // namespace moeblas::test
