#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "support/execute.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

// A number from the environment.
bool environment(const char* variable, uint64_t& value) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return false;
  value = std::strtoull(text, nullptr, 0);
  return true;
}

std::string program() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "<this test>";
}

}  // namespace

std::string replay_line(uint64_t seed) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return "MOEBLAS_TEST_SEED=" + std::to_string(seed) + " " + program() +
         " --gtest_filter=" + test->test_suite_name() + "." + test->name();
}

void run_generated(Op op, int64_t cases, const char* kernel) {
  uint64_t first = 0, count = static_cast<uint64_t>(cases);
  environment("MOEBLAS_TEST_FIRST", first);
  environment("MOEBLAS_TEST_CASES", count);
  if (environment("MOEBLAS_TEST_SEED", first)) count = 1;
  Agreement worst;
  int failures = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = make_case(op, seed);
    const std::string line = describe(c) + "\n  rerun: " + replay_line(seed);
    const CrashLine crash(line);
    const Outcome outcome = run_case(c, kernel);
    if (!outcome.ok()) {
      ADD_FAILURE() << outcome.failure << "\n  case: " << line;
      if (++failures == 10) {
        ADD_FAILURE() << "stopped after ten failures";
        break;
      }
    }
    worst.worst = std::max(worst.worst, outcome.agreement.worst);
    worst.rms = std::max(worst.rms, outcome.agreement.rms);
  }
  ::testing::Test::RecordProperty("cases", static_cast<int>(count));
  ::testing::Test::RecordProperty("worst_error_over_bound", std::to_string(worst.worst));
  ::testing::Test::RecordProperty("worst_rms_over_float32_sum", std::to_string(worst.rms));
}

}  // namespace moeblas::test
