// The bench as a command: that it runs every operation, and does not time a wrong answer.
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/data.h"
#include "bench/devices.h"
#include "bench/operations.h"
#include "bench/report.h"
#include "bench/run.h"
#include "cli/commands.h"

namespace moeblas::bench {
namespace {

const char* const kTiny[] = {
    "moe tiny experts=6 top_k=2 hidden=64 intermediate=64 biases=yes",
    "dense tiny n=64 k=128",
    "segmented tiny m=5 n=7 k=40 segments=3",
};

struct Outcome {
  int status;
  nlohmann::json json;
};

Outcome run_command(std::vector<std::string> arguments) {
  const std::string file = testing::TempDir() + "moeblas_bench_" +
                           testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
                           std::to_string(getpid()) + ".json";
  CLI::App app;
  app.require_subcommand(1);
  cli::add_bench(app);
  arguments.insert(arguments.begin(), "bench");
  for (const char* argument : {"--device", "cpu", "--json", file.c_str(), "--repeats", "3",
                               "--seconds", "0", "--rotate", "1", "--threads", "1"}) {
    arguments.emplace_back(argument);
  }
  std::reverse(arguments.begin(), arguments.end());
  std::remove(file.c_str());
  Outcome outcome{0, {}};
  try {
    app.parse(arguments);
  } catch (const CLI::Error& e) {
    outcome.status = app.exit(e);
  }
  std::ifstream json(file);
  if (json) outcome.json = nlohmann::json::parse(json);
  std::remove(file.c_str());
  return outcome;
}

TEST(BenchCommand, RunsEveryOperation) {
  std::string ops, shapes;
  for (const Operation& op : operations()) ops += (ops.empty() ? "" : ",") + std::string(op.name);
  for (const char* line : kTiny) shapes += (shapes.empty() ? "" : ",") + std::string(line);
  const Outcome o = run_command({"--op", ops, "--shape", shapes, "--tokens", "1,5", "--mode",
                                 "affine3g32,mxfp8", "--routing", "uniform,skewed"});
  EXPECT_EQ(o.status, 0);
  ASSERT_TRUE(o.json.is_object());
  EXPECT_EQ(o.json["schema"], 2);
  EXPECT_EQ(o.json["device"]["kind"], "cpu");
  EXPECT_EQ(o.json["library"]["version"], moeblas_version());
  EXPECT_TRUE(o.json["library"]["dirty"].is_boolean());
  EXPECT_TRUE(o.json["wrong"].empty());
  std::set<std::string> seen, in_turn;
  for (const auto& r : o.json["results"]) {
    seen.insert(r["op"]);
    EXPECT_EQ(r["seconds"]["samples"].size(), 3u) << r["name"];
    EXPECT_LE(r["seconds"]["min"], r["seconds"]["median"]) << r["name"];
    EXPECT_LE(r["seconds"]["median"], r["seconds"]["max"]) << r["name"];
    EXPECT_GT(r["seconds"]["min"], 0.0) << r["name"];
    EXPECT_LE(r["check"]["worst_error_over_limit"], 1.0) << r["name"];
    EXPECT_GT(r["check"]["samples"], 0) << r["name"];
    EXPECT_TRUE(r["rotated_bytes"] >= 1 << 20 || r["buffer_sets"] == kMostSets) << r["name"];
    const auto& group = o.json["groups"].at(r["group"].get<size_t>());
    for (const char* when : {"ceilings_before", "ceilings_after"}) {
      EXPECT_GT(group[when]["read_bytes_per_s"], 0.0);
      EXPECT_GT(group[when]["f32_flop_per_s"], 0.0);
    }
    EXPECT_GT(r["floor"]["share"], 0.0);
    if (r.contains("in_turn")) {
      in_turn.insert(r["op"]);
      EXPECT_GT(r["in_turn"]["share"], 0.0) << r["name"];
      EXPECT_EQ(r["in_turn"]["bytes_per_s"].size(), 3u) << r["name"];
    }
    EXPECT_EQ(r["routing"].is_null(), !find_operation(r["op"].get<std::string>()).takes_routing);
  }
  EXPECT_EQ(seen.size(), operations().size());
  // What memory bounds however slow the arithmetic is, as it is under the sanitizers.
  EXPECT_EQ(in_turn.count("quantize"), 1u);
  EXPECT_EQ(in_turn.count("moe_unpermute"), 1u);
}

TEST(BenchCommand, EveryFormatAndDtype) {
  const Outcome o =
      run_command({"--op", "gather_qmm,quantize,dequantize", "--shape",
                   std::string(kTiny[0]) + ",dense flat n=8 k=128", "--tokens", "3", "--mode",
                   "affine,affine2g16,affine5g128,affine6g32,affine8,mxfp4,"
                   "mxfp8,nvfp4",
                   "--dtype", "float32,float16,bfloat16", "--kernel", "all"});
  EXPECT_EQ(o.status, 0);
  EXPECT_TRUE(o.json["wrong"].empty());
  // Groups of 128 do not fit into K = 64 of the experts: three dtypes are skipped, with the reason.
  EXPECT_EQ(o.json["skipped"].size(), 3u);
  EXPECT_GE(o.json["results"].size(), 3u * 8 * 3 - 3);
}

TEST(BenchCommand, LayoutsOfScales) {
  const Outcome o =
      run_command({"--op", "quantize,dequantize", "--shape", "dense flat n=136 k=96", "--mode",
                   "affine4g32,mxfp4,nvfp4", "--scale-layout", "rows,swizzled"});
  EXPECT_EQ(o.status, 0);
  std::vector<std::string> layouts;
  for (const auto& r : o.json["results"]) {
    if (r["op"] == "quantize") layouts.push_back(r["scale_layout"]);
  }
  // Affine scales have no other layout, and dequantize is not timed in another.
  EXPECT_EQ(layouts, (std::vector<std::string>{"rows", "rows", "swizzled", "rows", "swizzled"}));
  EXPECT_EQ(o.json["results"].size(), 8u);
}

TEST(BenchCommand, TimesOperationsBesideEachOther) {
  const Outcome o =
      run_command({"--op", "gather_qmm", "--beside", "expert_loop", "--shape", kTiny[0], "--tokens",
                   "1,9", "--routing", "even", "--commit", "0123abc"});
  EXPECT_EQ(o.status, 0);
  ASSERT_EQ(o.json["results"].size(), 4u);
  ASSERT_EQ(o.json["groups"].size(), 2u);
  for (const auto& r : o.json["results"]) EXPECT_TRUE(r["chosen"].get<bool>());
  EXPECT_EQ(o.json["results"][0]["group"], o.json["results"][1]["group"]);
  EXPECT_EQ(o.json["results"][1]["op"], "expert_loop");
  EXPECT_EQ(o.json["library"]["commit"], "0123abc");
  EXPECT_FALSE(o.json["library"]["dirty"].get<bool>());
}

TEST(BenchCommand, SweepsTokens) {
  const Outcome o = run_command(
      {"--op", "quantized_matmul", "--shape", "dense tiny n=24 k=128", "--sweep-tokens", "8"});
  EXPECT_EQ(o.status, 0);
  std::vector<int64_t> tokens;
  // Each number with every row that takes it.
  for (const auto& r : o.json["results"]) {
    if (tokens.empty() || tokens.back() != r["tokens"]) tokens.push_back(r["tokens"]);
  }
  EXPECT_EQ(tokens, (std::vector<int64_t>{1, 2, 3, 4, 6, 8}));
}

TEST(BenchCommand, RowsOfAShapeThatNamesThem) {
  const Outcome o = run_command({"--op", "quantized_matmul,segmented_mm", "--shape",
                                 "3x16x64,5x6x40x4", "--dtype", "float32"});
  EXPECT_EQ(o.status, 0);
  ASSERT_EQ(o.json["results"].size(), 2u);
  EXPECT_EQ(o.json["results"][0]["sizes"]["M"], 3);
  EXPECT_EQ(o.json["results"][1]["sizes"]["segments"], 4);
}

TEST(BenchCommand, NamesThatMeanNothingFail) {
  EXPECT_NE(run_command({"--op", "no_such_operation"}).status, 0);
  EXPECT_NE(run_command({"--shape", "no_such_shape"}).status, 0);
  EXPECT_NE(run_command({"--shape", kTiny[0], "--dtype", "float64"}).status, 0);
  EXPECT_NE(run_command({"--shape", kTiny[0], "--routing", "psychic"}).status, 0);
  EXPECT_NE(run_command({"--shape", kTiny[0], "--kernel", "no_such_kernel"}).status, 0);
  EXPECT_NE(run_command({"--shape", kTiny[0], "--beside", "no_such_operation"}).status, 0);
  EXPECT_THROW(devices("abacus", {1}), std::invalid_argument);
  EXPECT_THROW(devices("cuda:x", {1}), std::invalid_argument);
}

// What a kernel's mistakes look like from outside: none may get a time.
TEST(BenchCommand, WrongAnswersAreNotTimed) {
  const std::pair<const char*, Tamper> mistakes[] = {
      {"off by a little everywhere",
       [](std::span<uint8_t> out) {
         for (size_t i = 0; i < out.size() / 4; ++i) {
           const auto at = static_cast<int64_t>(i);
           store_float(out.data(), DType::f32, at,
                       load_float(out.data(), DType::f32, at) * 1.0001f + 1e-4f);
         }
       }},
      {"the last row is zero",
       [](std::span<uint8_t> out) { std::fill(out.end() - 64, out.end(), uint8_t{0}); }},
      {"one output was not written",
       [](std::span<uint8_t> out) { std::fill_n(out.begin() + 40, 4, uint8_t{0xff}); }},
  };
  for (const auto& [what, mistake] : mistakes) {
    for (const Operation& op : operations()) {
      // Codes that were not written are any codes: the first mistake covers quantize.
      const bool codes = std::string(op.name).starts_with("quantize") && !op.takes_tokens;
      if (codes && mistake != nullptr && what != mistakes[0].first) continue;
      Settings s;
      s.ops = {op.name};
      s.shapes.assign(std::begin(kTiny), std::end(kTiny));
      s.tokens = {8};
      s.dtypes = {"float32"};
      s.device = "cpu";
      s.threads = {1};
      s.rotate_bytes = 0;
      s.budget = {3, 0, {}};
      s.tamper = codes ? Tamper([](std::span<uint8_t> out) { out[5] ^= 1; }) : mistake;
      const bench::Run wrong = bench::run(s);
      EXPECT_TRUE(wrong.records.empty()) << op.name << ": " << what;
      ASSERT_EQ(wrong.wrong.size(), op.beside[0] == nullptr ? 1u : 3u) << op.name << ": " << what;
      EXPECT_NE(wrong.wrong[0].verdict.message, "");
      EXPECT_FALSE(run_and_report(s)) << op.name << ": " << what;
    }
  }
}

}  // namespace
}  // namespace moeblas::bench
