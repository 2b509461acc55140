#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "support/execute.h"
#include "support/generator.h"
#include "support/seeds.h"

namespace moeblas::test {
namespace {

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
  run_seeds(cases, [=](uint64_t seed) {
    const Case c = make_case(op, seed);
    return SeededCase{describe(c), [=](Agreement& agreement) {
                        const Outcome outcome = run_case(c, kernel);
                        agreement = outcome.agreement;
                        return outcome.failure;
                      }};
  });
}

}  // namespace moeblas::test
