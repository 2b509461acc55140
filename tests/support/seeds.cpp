#include "support/seeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "moeblas/kernels.h"
#include "support/codec.h"
#include "support/execute.h"

namespace moeblas::test {
namespace {

// A number from the environment.
bool environment(const char* variable, uint64_t& value) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return false;
  value = std::strtoull(text, nullptr, 0);
  return true;
}

uint64_t hash(const std::vector<const Operand*>& operands) {
  uint64_t h = 0;
  for (const Operand* t : operands) h = h * 31 + t->memory.hash();
  return h;
}

std::string run_once(const Call& call, Side side, uint8_t poison, int threads, Options options,
                     Result& result) {
  const uint64_t before = hash(call.inputs);
  std::string failure;
  with_threads(threads, [&] {
    const Plan query = plan(call.run, options);
    result.kernel = query.kernel;
    const GuardedMemory workspace(query.workspace_bytes, side, poison, 64);
    options.workspace = workspace.data();
    options.workspace_bytes = query.workspace_bytes;
    call.run(options);
    const std::span<uint8_t> pages = workspace.pages();
    const auto end = static_cast<size_t>(workspace.data() - pages.data()) + workspace.size();
    for (uint8_t byte : pages.subspan(end)) {
      if (byte != poison) failure = "bytes after the workspace were written";
    }
  });
  result.outputs.clear();
  for (const Operand* out : call.outputs) {
    if (failure.empty()) failure = stray_write(*out, poison);
    result.outputs.push_back(element_bytes(*out));
  }
  if (failure.empty() && hash(call.inputs) != before) failure = "an input was written";
  return failure;
}

}  // namespace

std::vector<double> Result::floats(size_t output, DType dtype) const {
  const std::vector<uint8_t>& bytes = outputs[output];
  std::vector<double> list(bytes.size() / size_of(dtype));
  for (size_t i = 0; i < list.size(); ++i) {
    list[i] = load_value(bytes.data(), dtype, static_cast<int64_t>(i));
  }
  return list;
}

std::vector<int64_t> Result::integers(size_t output, DType dtype) const {
  const std::vector<uint8_t>& bytes = outputs[output];
  std::vector<int64_t> list(bytes.size() / size_of(dtype));
  for (size_t i = 0; i < list.size(); ++i) {
    list[i] = load_index(bytes.data(), dtype, static_cast<int64_t>(i));
  }
  return list;
}

std::string run_twice(const Prepare& prepare, int threads, const Options& options, Result& result) {
  try {
    std::string failure =
        run_once(prepare(Side::left, kPoison), Side::left, kPoison, 1, options, result);
    if (!failure.empty()) return failure;
    Result second;
    failure = run_once(prepare(Side::right, kOtherPoison), Side::right, kOtherPoison, threads,
                       options, second);
    if (!failure.empty()) return failure;
    if (second.outputs != result.outputs) {
      return "two runs differ: memory, poison or threads show through";
    }
  } catch (const std::exception& e) {
    return std::string("unexpected error: ") + e.what();
  }
  return "";
}

void run_seeds(int64_t cases, const std::function<SeededCase(uint64_t)>& make) {
  uint64_t first = 0, count = static_cast<uint64_t>(cases);
  environment("MOEBLAS_TEST_FIRST", first);
  environment("MOEBLAS_TEST_CASES", count);
  if (environment("MOEBLAS_TEST_SEED", first)) count = 1;
  Agreement worst;
  int failures = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const SeededCase c = make(seed);
    const std::string line = c.description + "\n  rerun: " + replay_line(seed);
    const CrashLine crash(line);
    Agreement agreement;
    const std::string failure = c.run(agreement);
    if (!failure.empty()) {
      ADD_FAILURE() << failure << "\n  case: " << line;
      if (++failures == 10) {
        ADD_FAILURE() << "stopped after ten failures";
        break;
      }
    }
    worst.worst = std::max(worst.worst, agreement.worst);
    worst.rms = std::max(worst.rms, agreement.rms);
  }
  ::testing::Test::RecordProperty("cases", static_cast<int>(count));
  ::testing::Test::RecordProperty("worst_error_over_bound", std::to_string(worst.worst));
  ::testing::Test::RecordProperty("worst_rms_over_float32_sum", std::to_string(worst.rms));
}

}  // namespace moeblas::test
