// Selection as users see it: the list of kernels, plan(), forcing, and structs of other sizes.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "moeblas/kernels.h"
#include "support/array.h"

namespace moeblas::test {
namespace {

TEST(Kernels, EveryRowIsDescribedAndNamedOnce) {
  const int32_t count = moeblas_kernel_count();
  ASSERT_GT(count, 0);
  std::set<std::string> names;
  for (int32_t i = 0; i < count; ++i) {
    moeblas_kernel k{};
    ASSERT_EQ(moeblas_kernel_at(i, &k), MOEBLAS_OK) << moeblas_last_error();
    for (const char* text : {k.name, k.backend, k.problem, k.arch, k.formats, k.dtypes, k.grouping,
                             k.rows, k.summary}) {
      ASSERT_NE(text, nullptr) << "row " << i;
      EXPECT_STRNE(text, "") << k.name;
    }
    EXPECT_TRUE(names.insert(k.name).second) << k.name << " twice";
    moeblas_kernel again{};
    ASSERT_EQ(moeblas_kernel_at(i, &again), MOEBLAS_OK);
    EXPECT_EQ(again.name, k.name) << "strings live as long as the library";
    EXPECT_EQ(again.formats, k.formats);
  }
  EXPECT_EQ(kernels().size(), static_cast<size_t>(count));
}

TEST(Kernels, BadPositionsAndPointers) {
  moeblas_kernel k{};
  for (int32_t i : {-1, moeblas_kernel_count(), INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(moeblas_kernel_at(i, &k), MOEBLAS_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(moeblas_last_error()).rfind("[kernel_at] ", 0), 0u);
    EXPECT_EQ(k.name, nullptr) << "untouched";
  }
  EXPECT_EQ(moeblas_kernel_at(0, nullptr), MOEBLAS_INVALID_ARGUMENT);
}

TEST(Kernels, InfoHasALineForEveryBackend) {
  const std::string info = moeblas_info();
  EXPECT_NE(info.find(MOEBLAS_VERSION_STRING), std::string::npos) << info;
  for (const moeblas_kernel& k : kernels()) {
    EXPECT_NE(info.find(std::string(k.backend) + ": "), std::string::npos) << info;
  }
}

// A product of affine weights, and what it writes.
struct Product {
  Array x{DType::f32, {3, 64}}, codes{DType::u32, {5, 8}}, scales{DType::f32, {5, 1}},
      biases{DType::f32, {5, 1}}, out{DType::f32, {3, 5}, 0xcd};

  Product() {
    for (int i = 0; i < 3 * 64; ++i) x.set(i, static_cast<float>(i % 7));
    for (int i = 0; i < 5; ++i) scales.set(i, 1.0f);
    for (auto& b : codes.bytes()) b = 0x21;
  }
  Quantized w() const { return {{Mode::affine, 4, 64}, codes, scales, biases, {}, {}}; }
  bool untouched() const { return out.bytes() == Array(DType::f32, {3, 5}, 0xcd).bytes(); }
  Plan plan(Options o = {}) const {
    return moeblas::plan([&](const Options& q) { quantized_matmul(x, w(), true, out, q); }, o);
  }
};

class Environment : public testing::Test {
 protected:
  void SetUp() override { unsetenv("MOEBLAS_KERNEL"); }
  void TearDown() override { unsetenv("MOEBLAS_KERNEL"); }
};
using PlanTest = Environment;

bool is_kernel(const std::string& name, const std::string& problem) {
  for (const moeblas_kernel& k : kernels()) {
    if (k.name == name) return k.problem == problem;
  }
  return false;
}

TEST_F(PlanTest, NamesKernelWorkspaceAndReasons) {
  Product p;
  const Plan plan = p.plan();
  EXPECT_TRUE(is_kernel(plan.kernel, "matmul")) << plan.kernel;
  EXPECT_NE(plan.explanation.find(plan.kernel + ": takes it\n"), std::string::npos)
      << plan.explanation;
  EXPECT_TRUE(p.untouched()) << "a query runs nothing";
}

TEST_F(PlanTest, TheWorkspaceItNamesIsEnough) {
  Product p;
  const Plan plan = p.plan();
  std::vector<char> memory(plan.workspace_bytes + 64 + 64, '#');
  const size_t shift = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
  Options o;
  o.workspace = memory.data() + shift;
  o.workspace_bytes = plan.workspace_bytes;
  quantized_matmul(p.x, p.w(), true, p.out, o);
  for (size_t i = 0; i < memory.size(); ++i) {
    if (i < shift || i >= shift + plan.workspace_bytes) {
      ASSERT_EQ(memory[i], '#') << "outside at " << i;
    }
  }
  Product q;
  quantized_matmul(q.x, q.w(), true, q.out);
  EXPECT_EQ(p.out.bytes(), q.out.bytes());
  EXPECT_FALSE(p.untouched());
}

TEST_F(PlanTest, DataMayBeMissing) {
  const TensorView x(nullptr, DType::f16, {3, 64}), codes(nullptr, DType::u32, {5, 8}),
      scales(nullptr, DType::f16, {5, 1}), out(nullptr, DType::f16, {3, 5});
  const Quantized w{{Mode::affine, 4, 64}, codes, scales, scales, {}, {}};
  const Plan plan = moeblas::plan([&](const Options& o) { quantized_matmul(x, w, true, out, o); });
  EXPECT_TRUE(is_kernel(plan.kernel, "matmul")) << plan.kernel;
}

TEST_F(PlanTest, EmptyOutputNeedsNoKernel) {
  const TensorView x(nullptr, DType::f32, {0, 64}), out(nullptr, DType::f32, {0, 5});
  Product p;
  const Plan plan =
      moeblas::plan([&](const Options& o) { quantized_matmul(x, p.w(), true, out, o); });
  EXPECT_EQ(plan.kernel, "");
  EXPECT_EQ(plan.workspace_bytes, 0u);
}

TEST_F(PlanTest, ChecksItsArguments) {
  Product p;
  const TensorView wrong(nullptr, DType::f32, {4, 5});
  EXPECT_THROW(
      moeblas::plan([&](const Options& o) { quantized_matmul(p.x, p.w(), true, wrong, o); }),
      Error);
}

using Forced = Environment;

moeblas_status status_of(const Product& p, const Options& o) {
  try {
    quantized_matmul(p.x, p.w(), true, p.out, o);
  } catch (const Error& e) {
    return e.status();
  }
  return MOEBLAS_OK;
}

TEST_F(Forced, EveryRowOfTheTableRunsOrSaysWhyNot) {
  for (const moeblas_kernel& k : kernels()) {
    Product p;
    Options o;
    o.kernel = k.name;
    const moeblas_status status = status_of(p, o);
    // Of another table, or of another device's.
    if (std::string(k.problem) != "matmul" || std::string(k.backend) != "cpu") {
      EXPECT_EQ(status, MOEBLAS_INVALID_ARGUMENT) << k.name;
    } else if (status == MOEBLAS_UNSUPPORTED) {
      EXPECT_NE(std::string(moeblas_last_error()).find(std::string(k.name) + ": "),
                std::string::npos)
          << moeblas_last_error();
    } else {
      EXPECT_EQ(status, MOEBLAS_OK) << moeblas_last_error();
      EXPECT_EQ(p.plan(o).kernel, k.name);
    }
    EXPECT_EQ(p.untouched(), status != MOEBLAS_OK) << k.name;
  }
}

TEST_F(Forced, UnknownNames) {
  Product p;
  Options o;
  o.kernel = "no_such_kernel";
  EXPECT_EQ(status_of(p, o), MOEBLAS_INVALID_ARGUMENT);
  // Arguments are checked where there is nothing to compute, too.
  const TensorView x(nullptr, DType::f32, {0, 64}), out(nullptr, DType::f32, {0, 5});
  EXPECT_THROW(quantized_matmul(x, p.w(), true, out, o), Error);
  EXPECT_THROW(
      moeblas::plan([&](const Options& q) { quantized_matmul(x, p.w(), true, out, q); }, o), Error);
  setenv("MOEBLAS_KERNEL", "no_such_kernel", 1);
  EXPECT_THROW(quantized_matmul(x, p.w(), true, out), Error);
  EXPECT_EQ(status_of(p, {}), MOEBLAS_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(moeblas_last_error()).rfind("[quantized_matmul] ", 0), 0u);
  EXPECT_TRUE(p.untouched());
}

TEST_F(Forced, EnvironmentOfAnotherTableLeavesThisOneAlone) {
  for (const moeblas_kernel& k : kernels()) {
    if (std::string(k.problem) == "matmul") continue;
    setenv("MOEBLAS_KERNEL", k.name, 1);
    Product p;
    EXPECT_EQ(status_of(p, {}), MOEBLAS_OK) << k.name << ": " << moeblas_last_error();
    EXPECT_FALSE(p.untouched());
  }
}

// Structs that carry their size: of an older caller, of a newer one that uses no new field, of a
// newer one that does.
template <class Struct>
struct Longer {
  Struct known;
  char unknown[24] = {};
};

template <class Struct>
std::vector<std::pair<Longer<Struct>, moeblas_status>> sizes_of(const Struct& good) {
  std::vector<std::pair<Longer<Struct>, moeblas_status>> cases;
  const auto add = [&](size_t size, int nonzero, moeblas_status expected) {
    Longer<Struct> s{good};
    s.known.struct_size = size;
    if (nonzero >= 0) s.unknown[nonzero] = 1;
    cases.push_back({s, expected});
  };
  add(sizeof(Struct), -1, MOEBLAS_OK);
  add(sizeof(Struct), 0, MOEBLAS_OK);  // behind the struct's end: not ours
  for (size_t less : {size_t{0}, size_t{4}, size_t{8}, sizeof(Struct) - 8, sizeof(Struct) - 1}) {
    add(less, -1, MOEBLAS_INVALID_ARGUMENT);
  }
  add(sizeof(Struct) + 8, -1, MOEBLAS_OK);
  add(sizeof(Struct) + 24, -1, MOEBLAS_OK);
  add(sizeof(Struct) + 8, 8, MOEBLAS_OK);
  for (int i : {0, 7, 23}) add(sizeof(Struct) + 24, i, MOEBLAS_INVALID_ARGUMENT);
  return cases;
}

struct CProduct : Product {
  moeblas_tensor x_t = x.view().c_view(), codes_t = codes.view().c_view(),
                 scales_t = scales.view().c_view(), biases_t = biases.view().c_view(),
                 out_t = out.view().c_view();
  int64_t x_s[2] = {3, 64}, codes_s[2] = {5, 8}, scales_s[2] = {5, 1}, out_s[2] = {3, 5};
  moeblas_quantized w_q = MOEBLAS_QUANTIZED_INIT;

  CProduct() {
    const auto shape = [](moeblas_tensor& t, const int64_t* s) {
      t.shape = s;
      t.strides = nullptr;
    };
    shape(x_t, x_s);
    shape(codes_t, codes_s);
    shape(scales_t, scales_s);
    shape(biases_t, scales_s);
    shape(out_t, out_s);
    w_q.bits = 4;
    w_q.group_size = 64;
    w_q.codes = &codes_t;
    w_q.scales = &scales_t;
    w_q.biases = &biases_t;
  }
  moeblas_status call(const moeblas_quantized* w, const moeblas_options* o) const {
    return moeblas_quantized_matmul(&x_t, w, 1, &out_t, o);
  }
};

TEST(StructSize, Options) {
  const moeblas_options good = MOEBLAS_OPTIONS_INIT;
  for (const auto& [options, expected] : sizes_of(good)) {
    CProduct p;
    EXPECT_EQ(p.call(&p.w_q, &options.known), expected) << options.known.struct_size;
    EXPECT_EQ(p.untouched(), expected != MOEBLAS_OK);
    if (expected != MOEBLAS_OK) {
      EXPECT_EQ(std::string(moeblas_last_error()).rfind("[quantized_matmul] options", 0), 0u)
          << moeblas_last_error();
    }
  }
}

TEST(StructSize, Quantized) {
  CProduct p;
  for (const auto& [w, expected] : sizes_of(p.w_q)) {
    std::fill(p.out.bytes().begin(), p.out.bytes().end(), uint8_t{0xcd});
    EXPECT_EQ(p.call(&w.known, nullptr), expected) << w.known.struct_size;
    EXPECT_EQ(p.untouched(), expected != MOEBLAS_OK);
    if (expected != MOEBLAS_OK) {
      EXPECT_EQ(std::string(moeblas_last_error()).rfind("[quantized_matmul] w", 0), 0u)
          << moeblas_last_error();
    }
  }
}

TEST(StructSize, Query) {
  CProduct p;
  for (auto& [query, expected] : sizes_of(moeblas_query{0, "before", 3, nullptr, 0})) {
    Longer<moeblas_query> q = query;
    moeblas_options options = MOEBLAS_OPTIONS_INIT;
    options.query = &q.known;
    EXPECT_EQ(p.call(&p.w_q, &options), expected) << q.known.struct_size;
    EXPECT_EQ(std::memcmp(q.unknown, query.unknown, sizeof q.unknown), 0) << "not ours to write";
    if (expected != MOEBLAS_OK) {
      EXPECT_EQ(std::string(moeblas_last_error()).rfind("[quantized_matmul] options.query", 0), 0u)
          << moeblas_last_error();
      EXPECT_STREQ(q.known.kernel, "before");
      EXPECT_EQ(q.known.workspace_bytes, 3u);
    } else {
      EXPECT_STRNE(q.known.kernel, "before");
    }
  }
  EXPECT_TRUE(p.untouched());
}

}  // namespace
}  // namespace moeblas::test
