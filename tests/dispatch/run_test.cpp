// dispatch::run over a hand-made backend: forcing by options and by environment, the query, the
// workspace, devices.
#include <gtest/gtest.h>

#include "dispatch/fake_backend.h"

namespace moeblas::test {
namespace {

const QuantSpec kAffine4{Mode::affine, 4, 64}, kMxfp4{Mode::mxfp4, 4, 32};

class Run : public testing::Test {
 protected:
  void SetUp() override {
    launched.clear();
    allocations = 0;
    unsetenv("MOEBLAS_KERNEL");
  }
  void TearDown() override {
    unsetenv("MOEBLAS_KERNEL");
    EXPECT_EQ(allocations, 0) << "a workspace was not released";
  }
  static void run(const MatmulProblem& p) { dispatch::run(kBackends, p); }
};

MatmulProblem gathered_mxfp4() {
  return matmul(kMxfp4, DType::bf16, 4, 128, Grouping::gather);  // row_c: needs a workspace
}

QuantizeProblem quantize_problem() {
  QuantizeProblem p;
  p.op = "some_quantize";
  p.spec = kAffine4;
  p.values.lead = {2};
  p.values.cols = 64;
  return p;
}

TEST_F(Run, LaunchesTheWinner) {
  run(matmul(kAffine4));
  EXPECT_EQ(launched, std::vector<std::string>{"row_b"});
}

TEST_F(Run, ForcedByOptions) {
  MatmulProblem p = matmul(kAffine4);
  p.options.kernel = "row_d";
  run(p);
  EXPECT_EQ(launched, std::vector<std::string>{"row_d"});
  p.options.kernel = "row_c";
  EXPECT_EQ(thrown([&] { run(p); }).status, MOEBLAS_UNSUPPORTED);
  EXPECT_EQ(launched.size(), 1u) << "nothing runs after an error";
}

// A name that is no row is the caller's fault, whatever the problem; one of another table too.
TEST_F(Run, ForcedNameThatTheTableDoesNotHold) {
  for (const char* kernel : {"row_z", "quantize_a", ""}) {
    for (bool asked : {false, true}) {
      for (bool empty : {false, true}) {
        moeblas_query query{sizeof query, "before", 1, nullptr, 0};
        MatmulProblem p = matmul(kAffine4);
        p.options.kernel = kernel;
        if (asked) p.options.query = &query;
        if (empty) p.m = 0;
        const auto [status, message] = thrown([&] { run(p); });
        EXPECT_EQ(status, MOEBLAS_INVALID_ARGUMENT);
        EXPECT_EQ(message, "[some_op] kernel is '" + std::string(kernel) +
                               "', expected one of fake's table for this operation: row_a, row_b, "
                               "row_c, row_d");
        EXPECT_STREQ(query.kernel, "before");
      }
    }
  }
  EXPECT_TRUE(launched.empty());
}

TEST_F(Run, ForcedByEnvironment) {
  setenv("MOEBLAS_KERNEL", "row_d", 1);
  run(matmul(kAffine4));
  EXPECT_EQ(launched, std::vector<std::string>{"row_d"});
  setenv("MOEBLAS_KERNEL", "row_c", 1);
  const auto [status, message] = thrown([] { run(matmul(kAffine4)); });
  EXPECT_EQ(status, MOEBLAS_UNSUPPORTED);
  EXPECT_NE(message.find("row_c: affine4 weights are not among"), std::string::npos) << message;
  setenv("MOEBLAS_KERNEL", "", 1);
  run(matmul(kAffine4));
  EXPECT_EQ(launched.back(), "row_b") << "empty: nothing is forced";
}

TEST_F(Run, OptionsGoBeforeTheEnvironment) {
  setenv("MOEBLAS_KERNEL", "row_c", 1);
  MatmulProblem p = matmul(kAffine4);
  p.options.kernel = "row_d";
  run(p);
  EXPECT_EQ(launched, std::vector<std::string>{"row_d"});
}

TEST_F(Run, NameOfAnotherTableLeavesThisOneAlone) {
  setenv("MOEBLAS_KERNEL", "quantize_a", 1);
  run(matmul(kAffine4));
  EXPECT_EQ(launched, std::vector<std::string>{"row_b"});
  setenv("MOEBLAS_KERNEL", "row_d", 1);
  dispatch::run(kBackends, quantize_problem());
  EXPECT_EQ(launched.back(), "quantize_a");
}

TEST_F(Run, NameThatNoTableHolds) {
  setenv("MOEBLAS_KERNEL", "row_zz", 1);
  for (const Thrown& t : {thrown([] { run(matmul(kAffine4)); }),
                          thrown([] { dispatch::run(kBackends, quantize_problem()); })}) {
    EXPECT_EQ(t.status, MOEBLAS_INVALID_ARGUMENT);
    EXPECT_NE(t.message.find("MOEBLAS_KERNEL=row_zz"), std::string::npos) << t.message;
    EXPECT_EQ(t.message.rfind("[some_", 0), 0u) << t.message;
  }
  MatmulProblem nothing = matmul(kAffine4);
  nothing.n = 0;
  EXPECT_EQ(thrown([&] { run(nothing); }).status, MOEBLAS_INVALID_ARGUMENT);
  EXPECT_TRUE(launched.empty());
}

TEST_F(Run, QueryAnswersAndRunsNothing) {
  char text[512] = "x";
  moeblas_query query{sizeof query, "before", 1, text, sizeof text};
  MatmulProblem p = gathered_mxfp4();
  p.options.query = &query;
  run(p);
  EXPECT_STREQ(query.kernel, "row_c");
  EXPECT_EQ(query.workspace_bytes, 1000u);
  EXPECT_STREQ(text,
               "row_a: needs a device of 90\nrow_b: mxfp4 weights are not among: dense, affine4\n"
               "row_c: takes it\n");
  EXPECT_TRUE(launched.empty());
  p.n = 0;
  run(p);
  EXPECT_EQ(query.kernel, nullptr);
  EXPECT_EQ(query.workspace_bytes, 0u);
}

TEST_F(Run, QueryTextIsCutToItsRoom) {
  char text[16];
  std::fill(std::begin(text), std::end(text), '#');
  moeblas_query query{sizeof query, nullptr, 0, text, 8};
  MatmulProblem p = matmul(kAffine4);
  p.options.query = &query;
  run(p);
  EXPECT_STREQ(text, "row_a: ");
  EXPECT_EQ(text[8], '#') << "nothing behind the room that was given";
  query.text_bytes = 0;
  text[0] = '#';
  run(p);
  EXPECT_EQ(text[0], '#');
  query.text = nullptr;
  query.text_bytes = 100;
  run(p);
  EXPECT_STREQ(query.kernel, "row_b");
}

TEST_F(Run, WorkspaceIsAllocatedOrTheCallers) {
  run(gathered_mxfp4());
  EXPECT_EQ(launched, std::vector<std::string>{"row_c"});
  EXPECT_GE(launched_with.bytes, 1000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(launched_with.data) % 64, 0u);

  alignas(64) char memory[1088];
  MatmulProblem p = gathered_mxfp4();
  p.options.workspace = memory;
  p.options.workspace_bytes = 1000;
  run(p);
  EXPECT_EQ(launched_with.data, memory);
  EXPECT_EQ(launched_with.bytes, 1000u);
}

TEST_F(Run, WorkspaceComesFromTheCallersAllocator) {
  struct Asked {
    alignas(64) char memory[1088];
    std::vector<size_t> sizes;
    size_t shift = 0;
    bool none = false;
  } asked;
  const auto allocate = [](void* context, size_t bytes) -> void* {
    auto& a = *static_cast<Asked*>(context);
    a.sizes.push_back(bytes);
    return a.none ? nullptr : a.memory + a.shift;
  };
  MatmulProblem p = gathered_mxfp4();
  p.options.allocate = allocate;
  p.options.allocate_context = &asked;
  run(p);
  EXPECT_EQ(asked.sizes, std::vector<size_t>{1000});
  EXPECT_EQ(launched_with.data, asked.memory);
  EXPECT_EQ(launched_with.bytes, 1000u);

  launched.clear();
  asked.none = true;
  Thrown t = thrown([&] { run(p); });
  EXPECT_EQ(t.status, MOEBLAS_OUT_OF_MEMORY);
  EXPECT_NE(t.message.find("options.allocate"), std::string::npos) << t.message;
  EXPECT_NE(t.message.find("1000"), std::string::npos) << t.message;
  asked.none = false;
  asked.shift = 32;
  t = thrown([&] { run(p); });
  EXPECT_EQ(t.status, MOEBLAS_INVALID_ARGUMENT);
  EXPECT_NE(t.message.find("aligned to 64"), std::string::npos) << t.message;
  EXPECT_TRUE(launched.empty());

  // Nobody is asked for nothing, nor where there is memory.
  asked.sizes.clear();
  asked.shift = 0;
  p.options.workspace = asked.memory;
  p.options.workspace_bytes = 1000;
  run(p);
  MatmulProblem plain = matmul(kAffine4);
  plain.options.allocate = allocate;
  plain.options.allocate_context = &asked;
  run(plain);
  moeblas_query query{sizeof query, nullptr, 0, nullptr, 0};
  p.options.workspace = nullptr;
  p.options.query = &query;
  run(p);
  EXPECT_EQ(query.workspace_bytes, 1000u);
  EXPECT_TRUE(asked.sizes.empty());
}

TEST_F(Run, WorkspaceThatIsTooSmallOrMisaligned) {
  alignas(64) char memory[1088];
  MatmulProblem p = gathered_mxfp4();
  p.options.workspace = memory;
  p.options.workspace_bytes = 999;
  Thrown t = thrown([&] { run(p); });
  EXPECT_EQ(t.status, MOEBLAS_INVALID_ARGUMENT);
  EXPECT_NE(t.message.find("options.workspace"), std::string::npos) << t.message;
  EXPECT_NE(t.message.find("1000"), std::string::npos) << t.message;
  p.options.workspace = memory + 32;
  p.options.workspace_bytes = 1024;
  t = thrown([&] { run(p); });
  EXPECT_EQ(t.status, MOEBLAS_INVALID_ARGUMENT);
  EXPECT_NE(t.message.find("aligned to 64"), std::string::npos) << t.message;
  EXPECT_TRUE(launched.empty());
}

TEST_F(Run, EmptyProblemLaunchesNothing) {
  for (auto empty : {+[](MatmulProblem& p) { p.m = 0; }, +[](MatmulProblem& p) { p.n = 0; },
                     +[](MatmulProblem& p) { p.batch = {3, 0}; }}) {
    MatmulProblem p = matmul(kAffine4);
    empty(p);
    run(p);
  }
  EXPECT_TRUE(launched.empty());
  MatmulProblem forced = matmul(kAffine4);
  forced.m = 0;
  forced.options.kernel = "row_c";
  run(forced);
  EXPECT_TRUE(launched.empty()) << "a row that would refuse the problem has nothing to refuse";
  MatmulProblem p = matmul(kAffine4, DType::f32, 4, 0);
  run(p);
  EXPECT_EQ(launched.size(), 1u) << "K = 0 writes zeros";
}

TEST_F(Run, Devices) {
  MatmulProblem p = matmul(kAffine4);
  p.device = Device{MOEBLAS_CUDA, 1};
  Thrown t = thrown([&] { run(p); });
  EXPECT_EQ(t.status, MOEBLAS_UNSUPPORTED);
  EXPECT_NE(t.message.find("cuda:1"), std::string::npos) << t.message;
  EXPECT_NE(t.message.find("fake"), std::string::npos)
      << "names what this build has: " << t.message;
  p.device = Device{MOEBLAS_CPU, 7};
  t = thrown([&] { run(p); });
  EXPECT_EQ(t.status, MOEBLAS_UNSUPPORTED);
  EXPECT_NE(t.message.find("it is on fire"), std::string::npos) << t.message;
  p.device = Device{77, 3};
  EXPECT_EQ(thrown([&] { run(p); }).status, MOEBLAS_UNSUPPORTED);
  EXPECT_TRUE(launched.empty());
}

// What one row keeps for its launch is of this problem and of this kind of plan, or nothing.
TEST(Kept, IsOfOneObjectAndOnePlan) {
  struct Plan {
    int64_t n = 0;
  };
  struct Other {
    int64_t n = 0;
  };
  MatmulProblem p = matmul(kAffine4);
  const auto keep = [&](int64_t n, Reason reason) {
    return p.kept.keep<Plan>([&](Plan& plan) {
      plan.n = n;
      return reason;
    });
  };
  EXPECT_EQ(p.kept.get<Plan>(), nullptr);
  EXPECT_FALSE(keep(3, {}));
  ASSERT_NE(p.kept.get<Plan>(), nullptr);
  EXPECT_EQ(p.kept.get<Plan>()->n, 3);
  EXPECT_EQ(p.kept.get<Other>(), nullptr);

  const MatmulProblem copy = p;
  EXPECT_EQ(copy.kept.get<Plan>(), nullptr);
  EXPECT_EQ(p.kept.get<Plan>()->n, 3);

  EXPECT_TRUE(keep(4, Reason::of("no")));
  EXPECT_EQ(p.kept.get<Plan>(), nullptr);
  EXPECT_FALSE(keep(5, {}));
  p = copy;
  EXPECT_EQ(p.kept.get<Plan>(), nullptr);
}

}  // namespace
}  // namespace moeblas::test
