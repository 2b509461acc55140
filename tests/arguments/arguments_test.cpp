// Every argument of every operation made wrong in every way its signature allows: the status and
// the message are right, nothing is written, and the next valid call works.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "arguments/defects.h"

namespace moeblas::test {
namespace {

const std::vector<Case>& cases() {
  static const std::vector<Case> all = valid_cases();
  return all;
}

using Memory = std::vector<std::vector<uint8_t>>;
Memory memory_of(const Case& c) {
  Memory m;
  for (const Tensor& t : c.tensors) m.push_back(*t.memory);
  return m;
}

class BadArguments : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    poison_outputs(valid());
    ASSERT_EQ(valid().call(), MOEBLAS_OK) << moeblas_last_error();
    result_ = memory_of(valid());
    poison_outputs(valid());
    before_ = memory_of(valid());
    ASSERT_NE(result_, before_) << "the valid call writes something";
  }
  const Case& valid() const { return cases()[GetParam()]; }

  void expect_message(const Defect& d, moeblas_status status) const {
    const std::string message = moeblas_last_error();
    EXPECT_EQ(status, d.expected) << message;
    const std::string prefix = std::string("[") + valid().operation->name + "] ";
    EXPECT_EQ(message.rfind(prefix, 0), 0u) << message;
    bool named = false;
    for (const std::string& name : d.names) {
      named = named || names_argument(message.substr(prefix.size()), name);
    }
    EXPECT_TRUE(named) << "'" << message << "' does not name " << testing::PrintToString(d.names);
    EXPECT_NE(message.find(d.says), std::string::npos) << message;
  }

  Memory before_;  // every tensor, outputs poisoned
  Memory result_;  // every tensor after the valid call
};

TEST_P(BadArguments, AreRefused) {
  for (const Defect& d : defects_of(valid())) {
    SCOPED_TRACE(valid().label + " with " + d.label);
    expect_message(d, d.bad.call());
    ASSERT_TRUE(memory_of(valid()) == before_) << "something was written";
    ASSERT_EQ(valid().call(), MOEBLAS_OK) << "the next valid call: " << moeblas_last_error();
    ASSERT_TRUE(memory_of(valid()) == result_) << "the next valid call has another result";
    poison_outputs(valid());
    if (HasFailure()) return;
  }
}

TEST_P(BadArguments, AreRefusedByInfer) {
  if (valid().operation->infer == nullptr) GTEST_SKIP() << "the operation has no infer function";
  moeblas_spec expected[kMaxSpecs]{}, poisoned[kMaxSpecs];
  ASSERT_EQ(valid().infer(expected), MOEBLAS_OK) << moeblas_last_error();
  std::memset(static_cast<void*>(poisoned), kPoison, sizeof poisoned);
  for (const Defect& d : defects_of(valid())) {
    if (!d.in_infer) continue;
    SCOPED_TRACE(valid().label + " (infer) with " + d.label);
    moeblas_spec out[kMaxSpecs];
    std::memcpy(static_cast<void*>(out), poisoned, sizeof out);
    expect_message(d, d.bad.infer(out));
    EXPECT_EQ(std::memcmp(out, poisoned, sizeof out), 0) << "something was written";
    moeblas_spec again[kMaxSpecs]{};
    ASSERT_EQ(valid().infer(again), MOEBLAS_OK) << "the next valid call: " << moeblas_last_error();
    EXPECT_EQ(std::memcmp(again, expected, sizeof again), 0);
    if (HasFailure()) return;
  }
  EXPECT_EQ(valid().infer(nullptr), MOEBLAS_INVALID_ARGUMENT);
  EXPECT_TRUE(names_argument(moeblas_last_error(), "out")) << moeblas_last_error();
}

// What infer says is what the outputs of the valid call have.
TEST_P(BadArguments, InferNamesTheOutputs) {
  if (valid().operation->infer == nullptr) GTEST_SKIP() << "the operation has no infer function";
  moeblas_spec specs[kMaxSpecs]{};
  ASSERT_EQ(valid().infer(specs), MOEBLAS_OK) << moeblas_last_error();
  const std::vector<const Tensor*> outputs = valid().outputs();
  size_t i = 0;
  for (const Tensor* output : outputs) {
    if (specs[i].ndim < 0) ++i;  // biases, which this format does not have
    ASSERT_LT(i, size_t{kMaxSpecs});
    // uint8 is the same codes.
    const int64_t bytes = output->dtype == DType::u8 && specs[i].dtype.bits == 32 ? 4 : 1;
    EXPECT_EQ(specs[i].dtype.bits, size_of(output->dtype) * 8 * static_cast<size_t>(bytes));
    EXPECT_EQ(specs[i].dtype.code, to_dlpack(output->dtype).code) << valid().label;
    ASSERT_EQ(specs[i].ndim, static_cast<int32_t>(output->shape.size()));
    for (size_t d = 0; d < output->shape.size(); ++d) {
      const int64_t units = d + 1 == output->shape.size() ? bytes : 1;
      EXPECT_EQ(specs[i].shape[d] * units, output->shape[d]) << valid().label;
    }
    ++i;
  }
}

// A query checks the same, except for memory, which it never looks at.
TEST_P(BadArguments, AreRefusedByAQuery) {
  for (const Defect& d : defects_of(valid())) {
    if (!d.in_query) continue;
    SCOPED_TRACE(valid().label + " (query) with " + d.label);
    Case bad = d.bad;
    moeblas_query query{sizeof query, "before", 3, nullptr, 0};
    bad.options.query = &query;
    expect_message(d, bad.call());
    EXPECT_STREQ(query.kernel, "before");
    if (HasFailure()) return;
  }
  ASSERT_TRUE(memory_of(valid()) == before_);
}

INSTANTIATE_TEST_SUITE_P(Operations, BadArguments, testing::Range<size_t>(0, cases().size()),
                         [](const auto& i) { return cases()[i.param].label; });

// Parameters of infer that are not tensors.
TEST(BadInferArguments, DTypes) {
  for (const Case& valid : cases()) {
    const std::string op = valid.operation->name;
    const bool quantizes = op == "quantize" || op == "quantize_dual";
    const bool takes_dtype = quantizes || op == "dequantize" || op == "from_fp8" || op == "qqmm" ||
                             op == "gather_qqmm" || op == "grouped_qqmm";
    if (!takes_dtype) continue;
    const bool block = quantizes && valid.quantized.front().fields.mode != MOEBLAS_AFFINE;
    const std::string name = quantizes ? "scale_dtype" : "dtype";
    for (int i = 0; i <= static_cast<int>(DType::other) + 1; ++i) {
      const auto dtype = static_cast<DType>(std::min(i, static_cast<int>(DType::other)));
      if (block ? dtype == DType::u8 : is_float(dtype)) continue;
      Case bad = valid;
      bad.dtype = i > static_cast<int>(DType::other) ? moeblas_dtype{MOEBLAS_FLOAT, 32, 4}
                                                     : to_dlpack(dtype);
      moeblas_spec out[kMaxSpecs];
      EXPECT_EQ(bad.infer(out), MOEBLAS_INVALID_ARGUMENT) << valid.label << " " << i;
      EXPECT_TRUE(names_argument(moeblas_last_error(), name)) << moeblas_last_error();
    }
  }
}

// All tensors on a device that this build does not have: valid, and unsupported.
TEST(OtherDevices, AreUnsupported) {
  for (const Case& valid : cases()) {
    Case other = valid;
    for (Tensor& t : other.tensors) t.device = {77, 0};
    EXPECT_EQ(other.call(), MOEBLAS_UNSUPPORTED) << valid.label;
    EXPECT_EQ(std::string(moeblas_last_error()).rfind("[", 0), 0u) << moeblas_last_error();
  }
}

TEST(BadArgumentsCount, MoreThanTenThousandDistinctCalls) {
  std::set<std::string> calls, infers;
  std::set<std::string> operations;
  for (const Case& valid : cases()) {
    operations.insert(valid.operation->name);
    for (const Defect& d : defects_of(valid)) {
      EXPECT_TRUE(calls.insert(valid.label + " / " + d.label).second)
          << valid.label << " / " << d.label << " twice";
      if (d.in_infer) infers.insert(valid.label + " / " + d.label);
    }
  }
  RecordProperty("calls", static_cast<int>(calls.size()));
  RecordProperty("infers", static_cast<int>(infers.size()));
  std::printf("%zu bad calls and %zu bad infer calls of %zu operations\n", calls.size(),
              infers.size(), operations.size());
  EXPECT_GE(calls.size(), 10000u);
  EXPECT_GE(infers.size(), 10000u);
  const std::vector<std::string> all = operation_names();
  EXPECT_EQ(operations, std::set<std::string>(all.begin(), all.end()));
}

}  // namespace
}  // namespace moeblas::test
