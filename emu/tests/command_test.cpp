// The caller's side: names, bindings, limits.
#include "harness.h"

namespace moeblas::emu {
namespace {

struct Fixture {
  std::vector<float> a = std::vector<float>(64), y = std::vector<float>(64);
  Command command{"vector_add_f32"};
  Fixture() {
    command.bind(0, a.data(), 256).bind(1, a.data(), 256).bind(2, y.data(), 256);
    command.set(3, VectorParams{64, 1.0f});
  }
};

TEST(CommandTest, KnowsKernelsByName) {
  EXPECT_TRUE(has_kernel("vector_add_f32"));
  EXPECT_FALSE(has_kernel("vector_add"));
  EXPECT_MENTIONS(file_of_kernel("vector_add_f32"), "kernels.metal");
  EXPECT_EQ(file_of_kernel("vector_add"), "");
  EXPECT_GE(kernel_names().size(), 10u);
  EXPECT_MENTIONS(error_of(ErrorKind::usage, [] { Command("no_such"); }), "no kernel no_such");
}

TEST(CommandTest, EnforcesLimits) {
  Fixture f;
  const std::vector<char> much(4097);
  error_of(ErrorKind::limit, [&] { f.command.bind(31, f.a.data(), 4); });
  f.command.bind(30, f.a.data(), 4);
  error_of(ErrorKind::limit, [&] { f.command.set_bytes(4, much.data(), 4097); });
  f.command.set_bytes(4, much.data(), 4096);
  error_of(ErrorKind::limit, [&] { f.command.dispatch({1, 1, 1}, {1025, 1, 1}); });
  error_of(ErrorKind::limit, [&] { f.command.dispatch({1, 1, 1}, {32, 33, 1}); });
  error_of(ErrorKind::limit, [&] { f.command.dispatch({0, 1, 1}, {32, 1, 1}); });
  error_of(ErrorKind::limit, [&] { f.command.set_threadgroup_memory(0, 32784); });
  error_of(ErrorKind::limit, [&] { f.command.set_threadgroup_memory(0, 20); });
}

TEST(CommandTest, NamesWhatIsNotBound) {
  std::vector<float> y(64);
  Command command("vector_add_f32");
  command.bind(2, y.data(), 256);
  EXPECT_MENTIONS(error_of(ErrorKind::usage, [&] { command.dispatch({1, 1, 1}, {64, 1, 1}); }),
                  "nothing is bound at buffer");
}

TEST(CommandTest, RefusesShortParams) {
  Fixture f;
  f.command.set(3, std::uint32_t(64));
  EXPECT_MENTIONS(error_of(ErrorKind::bounds, [&] { f.command.dispatch({1, 1, 1}, {64, 1, 1}); }),
                  "buffer 3");
}

TEST(CommandTest, RefusesMisalignedBuffer) {
  Fixture f;
  f.command.bind(0, reinterpret_cast<char*>(f.a.data()) + 1, 200);
  error_of(ErrorKind::bounds, [&] { f.command.dispatch({1, 1, 1}, {1, 1, 1}); });
}

TEST(CommandTest, AnOffsetMovesTheArgumentWithinItsMemory) {
  Fixture f;
  std::vector<float> a(128);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i);
  f.command.bind(0, a.data(), 512, 256);
  f.command.dispatch({1, 1, 1}, {64, 1, 1});
  EXPECT_EQ(f.y[1], a[65]);
  f.command.bind(0, a.data(), 512, 260);
  EXPECT_MENTIONS(error_of(ErrorKind::bounds, [&] { f.command.dispatch({1, 1, 1}, {64, 1, 1}); }),
                  "buffer 0 + 512, which has 512 bytes");
  error_of(ErrorKind::limit, [&] { f.command.bind(0, a.data(), 512, 516); });
}

TEST(CommandTest, NullBufferIsAnErrorWhenTouched) {
  Fixture f;
  f.command.bind(0, static_cast<void*>(nullptr), 0);
  f.command.set(3, VectorParams{0, 1.0f});
  f.command.dispatch({1, 1, 1}, {64, 1, 1});
  f.command.set(3, VectorParams{1, 1.0f});
  EXPECT_MENTIONS(error_of(ErrorKind::bounds, [&] { f.command.dispatch({1, 1, 1}, {64, 1, 1}); }),
                  "null");
}

TEST(CommandTest, SurvivesAnError) {
  std::vector<float> y(64);
  Command bad("split_collective");
  bad.bind(0, y.data(), 256);
  for (int i = 0; i < 3; ++i) {
    error_of(ErrorKind::collective, [&] { bad.dispatch({1, 1, 1}, {64, 1, 1}); });
    Fixture f;
    f.a[5] = 2.0f;
    f.command.dispatch({1, 1, 1}, {64, 1, 1});
    EXPECT_EQ(f.y[5], 4.0f);
  }
}

TEST(CommandTest, ErrorsLeaveOtherOsThreads) {
  std::vector<float> y(64);
  Command bad("split_collective");
  bad.bind(0, y.data(), 256);
  DispatchOptions options;
  options.os_threads = 3;
  error_of(ErrorKind::collective, [&] { bad.dispatch({50, 1, 1}, {64, 1, 1}, options); });
}

TEST(CommandTest, SimdgroupsAreWhole) {
  std::vector<float> x(80), y(2);
  Command command("row_sum_f32");
  command.bind(0, x.data(), bytes_of(x)).bind(1, y.data(), 8).set(2, VectorParams{40, 1.0f});
  EXPECT_MENTIONS(error_of(ErrorKind::collective, [&] { command.dispatch({1, 1, 1}, {40, 1, 1}); }),
                  "needs all 32");
}

}  // namespace
}  // namespace moeblas::emu
