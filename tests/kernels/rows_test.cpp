// Every row of every table, forced: it must be right on whatever it takes, take something of every
// operation that its table serves, and refuse the rest aloud.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/cases.h"

namespace moeblas::test {
namespace {

constexpr uint64_t kSeeds = 600;  // looked at per operation
constexpr int kEnough = 60;       // cases run per row and operation

bool serves(const moeblas_kernel& row, Op op) {
  return std::string(row.problem) == (is_product(op) ? "matmul" : "quantize");
}

// Problems whose operations have no generated cases yet; their tests are elsewhere.
bool generated(const moeblas_kernel& row) {
  const std::string problem = row.problem;
  return problem != "route" && problem != "permute" && problem != "ffn";
}

// Rows of other devices are forced where their devices are; a row that needs more than this
// machine has refuses everything by naming it.
bool elsewhere(const moeblas_kernel& row) { return std::string(row.backend) != "cpu"; }

TEST(Rows, EveryRowIsRightOnWhatItTakes) {
  for (const moeblas_kernel& row : kernels()) {
    if (elsewhere(row) || !generated(row)) continue;
    int taken_in_all = 0;
    bool missing = false;
    for (int i = 0; i < kOps; ++i) {
      const Op op = static_cast<Op>(i);
      if (!serves(row, op)) continue;
      int taken = 0;
      for (uint64_t seed = 0; seed < kSeeds && taken < kEnough; ++seed) {
        const Case c = make_case(op, 2'000'000'000 + seed * 7);
        const std::string line = std::string(row.name) + ": " + describe(c);
        const CrashLine crash(line);
        const Outcome outcome = run_case(c, row.name);
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
    }
    EXPECT_TRUE(taken_in_all > 0 || missing) << "no generated case reaches " << row.name;
    RecordProperty(row.name, taken_in_all);
  }
}

TEST(Rows, WhatARowRefusesItRefusesAloud) {
  int refused = 0;
  for (const moeblas_kernel& row : kernels()) {
    if (elsewhere(row)) continue;
    Options forced;
    forced.kernel = row.name;
    for (int i = 0; i < kOps; ++i) {
      for (uint64_t seed = 0; seed < 12; ++seed) {
        const Case c = make_case(static_cast<Op>(i), seed * 5);
        const Operands o = build(c, Side::left, kPoison);
        const Operand& written = is_product(c.op) || c.op == Op::from_fp8 || c.op == Op::dequantize
                                     ? (is_product(c.op) ? o.out : o.x)
                                 : c.op == Op::quantize ? o.codes
                                                        : o.w;
        if (written.numel() == 0) continue;
        moeblas_status query = MOEBLAS_OK, run = MOEBLAS_OK;
        std::string message;
        try {
          plan([&](const Options& q) { call(c, o, q); }, forced);
        } catch (const Error& e) {
          query = e.status();
        }
        if (query == MOEBLAS_OK) continue;  // it takes the case
        try {
          call(c, o, forced);
        } catch (const Error& e) {
          run = e.status();
          message = e.what();
        }
        ++refused;
        EXPECT_EQ(run, query);
        EXPECT_EQ(run, serves(row, c.op) ? MOEBLAS_UNSUPPORTED : MOEBLAS_INVALID_ARGUMENT);
        EXPECT_NE(message.find(row.name), std::string::npos) << message;
        EXPECT_NE(message.find(std::string("[") + name(c.op) + "]"), std::string::npos) << message;
        for (uint8_t byte : written.memory.pages()) ASSERT_EQ(byte, kPoison) << message;
      }
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(Rows, ANameThatNoTableHoldsIsAnError) {
  const Case c = expert_case(kAffine4, DType::f32, 2, 2, 4, 20, 64);
  const Operands o = build(c, Side::left, kPoison);
  Options options;
  options.kernel = "matmul_of_another_library";
  try {
    call(c, o, options);
    ADD_FAILURE() << "an unknown kernel was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), MOEBLAS_INVALID_ARGUMENT);
    EXPECT_NE(std::string(e.what()).find(options.kernel), std::string::npos) << e.what();
  }
}

TEST(Rows, NamesAreDistinct) {
  std::map<std::string, int> seen;
  for (const moeblas_kernel& row : kernels()) EXPECT_EQ(++seen[row.name], 1) << row.name;
  EXPECT_FALSE(seen.empty());
}

}  // namespace
}  // namespace moeblas::test
