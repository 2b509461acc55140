// Every row of every table, forced: it must be right on whatever it takes, take something of what
// its table serves, and refuse the rest aloud.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/cases.h"
#include "support/ffn_case.h"
#include "support/permute_case.h"
#include "support/qqmm_case.h"
#include "support/route_case.h"
#include "support/source_case.h"

namespace moeblas::test {
namespace {

// Cases run per row and kind, unless MOEBLAS_TEST_CASES says so, and how many are looked at for
// each.
constexpr int kEnough = 60;
constexpr int64_t kSeedsPerCase = 10;

// A kind of generated case: its operation and the table whose rows it is for.
struct Generator {
  const char* op;
  const char* problem;
  std::function<SeededCase(uint64_t seed)> make;
};

const std::vector<Generator>& generators() {
  static const std::vector<Generator> all = [] {
    std::vector<Generator> list;
    for (int i = 0; i < kOps; ++i) {
      const Op op = static_cast<Op>(i);
      list.push_back({name(op), is_product(op) ? "matmul" : "quantize",
                      [op](uint64_t seed) { return seeded(make_case(op, seed)); }});
    }
    constexpr const char* kQqmm[] = {"qqmm", "gather_qqmm", "grouped_qqmm"};
    for (int i = 0; i < 3; ++i) {
      const auto kind = static_cast<QqmmKind>(i);
      list.push_back({kQqmm[i], "matmul",
                      [kind](uint64_t seed) { return seeded(make_qqmm_case(kind, seed)); }});
    }
    for (bool dual : {false, true}) {
      list.push_back({dual ? "quantize_dual" : "quantize", "quantize",
                      [dual](uint64_t seed) { return seeded(make_source_case(seed, dual)); }});
    }
    list.push_back(
        {"moe_route", "route", [](uint64_t seed) { return seeded(make_route_case(seed)); }});
    list.push_back(
        {"moe_permute", "permute", [](uint64_t seed) { return seeded(make_permute_case(seed)); }});
    list.push_back({"moe_unpermute", "permute",
                    [](uint64_t seed) { return seeded(make_unpermute_case(seed)); }});
    list.push_back({"moe_ffn", "ffn", [](uint64_t seed) { return seeded(make_ffn_case(seed)); }});
    return list;
  }();
  return all;
}

bool serves(const moeblas_kernel& row, const Generator& g) {
  return std::string(row.problem) == g.problem;
}

// Rows of other devices are forced where their devices are; a row that needs more than this
// machine has refuses everything by naming it.
bool elsewhere(const moeblas_kernel& row) { return std::string(row.backend) != "cpu"; }

TEST(Rows, EveryRowIsRightOnWhatItTakes) {
  std::map<std::string, int> taken_of;  // operation
  const int64_t enough = cases_wanted(kEnough);
  for (const moeblas_kernel& row : kernels()) {
    if (elsewhere(row)) continue;
    int taken_in_all = 0;
    bool missing = false;
    for (const Generator& g : generators()) {
      if (!serves(row, g)) continue;
      int taken = 0;
      for (int64_t i = 0; i < kSeedsPerCase * enough && taken < enough; ++i) {
        const SeededCase c = g.make(2'000'000'000 + static_cast<uint64_t>(i) * 7);
        const std::string line = std::string(row.name) + ": " + c.description;
        const CrashLine crash(line);
        const Outcome outcome = c.run(row.name);
        ASSERT_TRUE(outcome.ok()) << outcome.failure << "\n  case: " << line;
        if (!outcome.refusal.empty()) {
          EXPECT_NE(outcome.refusal.find(row.name), std::string::npos) << outcome.refusal;
          missing = missing ||
                    outcome.refusal.find(std::string("needs ") + row.arch) != std::string::npos;
        } else if (!outcome.kernel.empty()) {
          EXPECT_EQ(outcome.kernel, row.name);
          ++taken;
        }
      }
      taken_in_all += taken;
      taken_of[g.op] += taken;
    }
    EXPECT_TRUE(taken_in_all > 0 || missing) << "no generated case reaches " << row.name;
    RecordProperty(row.name, taken_in_all);
  }
  for (const Generator& g : generators()) EXPECT_GT(taken_of[g.op], 0) << g.op;
}

TEST(Rows, WhatARowRefusesItRefusesAloud) {
  int refused = 0;
  for (const moeblas_kernel& row : kernels()) {
    if (elsewhere(row)) continue;
    for (const Generator& g : generators()) {
      for (uint64_t seed = 0; seed < 12; ++seed) {
        const SeededCase c = g.make(seed * 5);
        SCOPED_TRACE(std::string(row.name) + ": " + c.description);
        const Call call = c.prepare(Side::left, kPoison);
        const auto status_of = [&](auto&& f, std::string& message) {
          try {
            f();
          } catch (const Error& e) {
            message = e.what();
            return e.status();
          }
          return MOEBLAS_OK;
        };
        std::string asked, message;
        const moeblas_status query = status_of([&] { plan(call.run, forcing(row.name)); }, asked);
        if (query == MOEBLAS_OK) continue;  // it takes the case
        ++refused;
        EXPECT_EQ(status_of([&] { call.run(forcing(row.name)); }, message), query);
        EXPECT_EQ(query, serves(row, g) ? MOEBLAS_UNSUPPORTED : MOEBLAS_INVALID_ARGUMENT);
        EXPECT_EQ(message, asked);
        EXPECT_NE(message.find(row.name), std::string::npos) << message;
        EXPECT_EQ(message.rfind(std::string("[") + g.op + "]", 0), 0u) << message;
        for (const Operand* out : call.outputs) {
          for (uint8_t byte : out->memory.pages()) ASSERT_EQ(byte, kPoison) << message;
        }
      }
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(Rows, ANameThatNoTableHoldsIsAnError) {
  for (const Generator& g : generators()) {
    const SeededCase c = g.make(1);
    const Call call = c.prepare(Side::left, kPoison);
    try {
      call.run(forcing("matmul_of_another_library"));
      ADD_FAILURE() << "an unknown kernel was accepted: " << c.description;
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), MOEBLAS_INVALID_ARGUMENT);
      EXPECT_NE(std::string(e.what()).find("matmul_of_another_library"), std::string::npos)
          << e.what();
    }
  }
}

TEST(Rows, NamesAreDistinct) {
  std::map<std::string, int> seen;
  for (const moeblas_kernel& row : kernels()) EXPECT_EQ(++seen[row.name], 1) << row.name;
  EXPECT_FALSE(seen.empty());
}

}  // namespace
}  // namespace moeblas::test
