// moeblas explain, through the subcommand's own text.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "arguments/operations.h"
#include "cli/commands.h"
#include "moeblas/error.h"

namespace moeblas::test {
namespace {

// What `moeblas explain ARGUMENTS` writes.
std::string explain(std::vector<std::string> arguments) {
  CLI::App app;
  cli::add_explain(app);
  arguments.insert(arguments.begin(), "explain");
  std::reverse(arguments.begin(), arguments.end());
  testing::internal::CaptureStdout();
  try {
    app.parse(arguments);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return testing::internal::GetCapturedStdout();
}

// The kernel's name; "none" where nothing has to run.
std::string kernel(const std::string& text) {
  const std::string before = "\nkernel: ";
  const size_t at = ("\n" + text).find(before);
  if (at == std::string::npos) return "";
  const std::string rest = ("\n" + text).substr(at + before.size());
  return rest.substr(0, rest.find('\n'));
}

TEST(ExplainCommand, KnowsEveryOperation) {
  for (const std::string& op : operation_names()) {
    const std::string text = explain({op, "--mode", "mxfp4"});
    EXPECT_NE(kernel(text), "") << op << ": " << text;
    EXPECT_NE(kernel(text), "none") << op;
    EXPECT_NE(text.find(kernel(text) + ": takes it"), std::string::npos) << op << ": " << text;
    EXPECT_NE(text.find("workspace: "), std::string::npos) << op << ": " << text;
  }
}

TEST(ExplainCommand, NamesTheKernelOfThePortableOperations) {
  EXPECT_EQ(kernel(explain({"moe_route"})), "route_portable");
  EXPECT_EQ(kernel(explain({"moe_permute"})), "permute_portable");
  EXPECT_EQ(kernel(explain({"moe_unpermute"})), "permute_portable");
  EXPECT_EQ(kernel(explain({"to_fp8"})), "fp8_portable");
  EXPECT_EQ(kernel(explain({"from_fp8"})), "fp8_portable");
  EXPECT_EQ(kernel(explain({"moe_ffn"})), "ffn_parts");
  EXPECT_EQ(kernel(explain({"moe_ffn", "--tokens", "0"})), "none");
}

TEST(ExplainCommand, TakesDenseWeights) {
  for (const char* op : {"quantized_matmul", "gather_qmm", "grouped_qmm", "moe_ffn"}) {
    EXPECT_NE(kernel(explain({op, "--mode", "dense"})), "") << op;
  }
}

TEST(ExplainCommand, RefusesWhatTheOperationRefuses) {
  try {
    explain({"grouped_qqmm", "--mode", "affine"});
    FAIL() << "affine was taken";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).rfind("[grouped_qqmm] ", 0), 0u) << e.what();
  }
  EXPECT_THROW(explain({"no_operation"}), CLI::ValidationError);
}

}  // namespace
}  // namespace moeblas::test
