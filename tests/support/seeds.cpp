#include "support/seeds.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "moeblas/kernels.h"
#include "support/codec.h"
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

// The line that runs this case of the test that is running again.
std::string replay_line(uint64_t seed) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return "MOEBLAS_TEST_SEED=" + std::to_string(seed) + " " + program() +
         " --gtest_filter=" + test->test_suite_name() + "." + test->name();
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

Outcome run_twice(const Prepare& prepare, int threads, const Options& options, Result& result) {
  Outcome outcome;
  try {
    const Call call = prepare(Side::left, kPoison);
    try {
      outcome.kernel = plan(call.run, options).kernel;
    } catch (const Error& e) {
      if (options.kernel == nullptr || e.status() != MOEBLAS_UNSUPPORTED) throw;
      outcome.refusal = e.what();
      return outcome;
    }
    outcome.failure = run_once(call, Side::left, kPoison, 1, options, result);
    if (!outcome.ok()) return outcome;
    Result second;
    outcome.failure = run_once(prepare(Side::right, kOtherPoison), Side::right, kOtherPoison,
                               threads, options, second);
    if (outcome.ok() && second.outputs != result.outputs) {
      outcome.failure = "two runs differ: memory, poison or threads show through";
    }
  } catch (const std::exception& e) {
    outcome.failure = std::string("unexpected error: ") + e.what();
  }
  return outcome;
}

Options forcing(const char* kernel) {
  Options options;
  options.kernel = kernel;
  return options;
}

int64_t cases_wanted(int64_t cases) {
  auto count = static_cast<uint64_t>(cases);
  environment("MOEBLAS_TEST_CASES", count);
  return static_cast<int64_t>(count);
}

void run_seeds(int64_t cases, const std::function<SeededCase(uint64_t)>& make) {
  uint64_t first = 0, count = static_cast<uint64_t>(cases_wanted(cases));
  environment("MOEBLAS_TEST_FIRST", first);
  if (environment("MOEBLAS_TEST_SEED", first)) count = 1;
  Agreement worst;
  int failures = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const SeededCase c = make(seed);
    const std::string line = c.description + "\n  rerun: " + replay_line(seed);
    const CrashLine crash(line);
    const Outcome outcome = c.run(nullptr);
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

SeededCase seeded(const Case& c) {
  const auto prepare = [c](Side side, uint8_t poison) {
    auto o = std::make_shared<Operands>(build(c, side, poison));
    if (!is_product(c.op)) fill_conversion(c, *o);
    const bool writes_x = c.op == Op::dequantize || c.op == Op::from_fp8;
    Call result;
    result.outputs = is_product(c.op) ? std::vector<const Operand*>{&o->out}
                     : writes_x       ? std::vector<const Operand*>{&o->x}
                     : c.op == Op::quantize
                         ? std::vector<const Operand*>{&o->codes, &o->scales, &o->biases}
                         : std::vector<const Operand*>{&o->w};
    for (const Operand* t : {&o->x, &o->w, &o->codes, &o->scales, &o->biases, &o->tensor_scale,
                             &o->lhs, &o->rhs, &o->ranges}) {
      if (std::find(result.outputs.begin(), result.outputs.end(), t) == result.outputs.end()) {
        result.inputs.push_back(t);
      }
    }
    result.run = [c, p = o.get()](const Options& options) { call(c, *p, options); };
    result.memory = o;
    return result;
  };
  return {describe(c), prepare, [c](const char* kernel) { return run_case(c, kernel); }};
}

void run_generated(Op op, int64_t cases) {
  run_seeds(cases, [op](uint64_t seed) { return seeded(make_case(op, seed)); });
}

}  // namespace moeblas::test
