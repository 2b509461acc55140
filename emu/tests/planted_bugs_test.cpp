// Every planted fault is found, under every schedule, and named.
#include "emu/runtime/fiber.h"  // which sanitizer this build has
#include "harness.h"

namespace moeblas::emu {
namespace {

class PlantedBugs : public UnderSchedule {
 protected:
  // 64 threads, `x` at buffer 0 where the kernel reads it, `y` after it.
  std::string run(ErrorKind kind, const char* kernel) {
    const bool reads = std::string(kernel).find("barrier") != std::string::npos &&
                       std::string(kernel) != "split_barrier" &&
                       std::string(kernel) != "two_barriers";
    const std::vector<float> x = random_values(192, 1);
    std::vector<float> y(64);
    Command command(kernel);
    if (reads) command.bind(0, x.data(), bytes_of(x));
    command.bind(reads ? 1 : 0, y.data(), bytes_of(y));
    const std::string message =
        error_of(kind, [&] { command.dispatch({1, 1, 1}, {64, 1, 1}, options()); });
    EXPECT_MENTIONS(message, std::string("kernel ") + kernel);
    return message;
  }
};

TEST_P(PlantedBugs, MissingBarrierBeforeRead) {
  const std::string message = run(ErrorKind::race, "read_before_barrier");
  EXPECT_MENTIONS(message, "race on threadgroup memory");
  EXPECT_MENTIONS(message, "at stage + ");
}

TEST_P(PlantedBugs, MissingBarrierBeforeWrite) {
  const std::string message = run(ErrorKind::race, "write_before_barrier");
  EXPECT_MENTIONS(message, "race on threadgroup memory");
  EXPECT_MENTIONS(message, "planted_bugs.metal:");
}

TEST_P(PlantedBugs, BarrierOfOtherMemory) {
  EXPECT_MENTIONS(run(ErrorKind::race, "barrier_of_other_memory"), "race on threadgroup memory");
}

TEST_P(PlantedBugs, LanesWithoutBarrier) {
  EXPECT_MENTIONS(run(ErrorKind::race, "lanes_without_barrier"), "no barrier stands between");
}

TEST_P(PlantedBugs, AtomicAndPlain) { run(ErrorKind::race, "atomic_and_plain"); }

TEST_P(PlantedBugs, NeverWritten) {
  EXPECT_MENTIONS(run(ErrorKind::bounds, "never_written"), "read of what none wrote");
}

TEST_P(PlantedBugs, SplitCollective) {
  const std::string message = run(ErrorKind::collective, "split_collective");
  EXPECT_MENTIONS(message, "collective not uniform");
  EXPECT_MENTIONS(message, "simd_sum");
  EXPECT_MENTIONS(message, "simd_max");
}

TEST_P(PlantedBugs, EarlyReturn) {
  EXPECT_MENTIONS(run(ErrorKind::collective, "early_return"), "collective not uniform");
}

TEST_P(PlantedBugs, RaggedLoop) {
  EXPECT_MENTIONS(run(ErrorKind::collective, "ragged_loop"), "returned");
}

TEST_P(PlantedBugs, LaneDependentDelta) {
  EXPECT_MENTIONS(run(ErrorKind::collective, "lane_dependent_delta"), "simd_shuffle_down");
}

TEST_P(PlantedBugs, SplitBarrier) {
  EXPECT_MENTIONS(run(ErrorKind::collective, "split_barrier"), "barrier not uniform");
}

TEST_P(PlantedBugs, TwoBarriers) {
  EXPECT_MENTIONS(run(ErrorKind::collective, "two_barriers"), "barrier not uniform");
}

TEST_P(PlantedBugs, StorePastBuffer) {
  const std::string message = run(ErrorKind::bounds, "store_past_buffer");
  EXPECT_MENTIONS(message, "store of 4 bytes at buffer 0 + 256, which has 256 bytes");
  EXPECT_MENTIONS(message, "thread 63");
}

TEST_P(PlantedBugs, LoadBeforeBuffer) {
  std::vector<float> memory(128), y(64);
  Command command("load_before_buffer");
  command.bind(0, y.data(), bytes_of(y));
  command.bind(1, static_cast<const void*>(memory.data() + 64), 256);
  const std::string message =
      error_of(ErrorKind::bounds, [&] { command.dispatch({1, 1, 1}, {64, 1, 1}, options()); });
  EXPECT_MENTIONS(message, "load of 4 bytes at buffer 1 - 4");
}

TEST_P(PlantedBugs, StorePastThreadgroupArray) {
  EXPECT_MENTIONS(run(ErrorKind::bounds, "store_past_stage"),
                  "threadgroup memory stage + 256, which has 256 bytes");
}

TEST_P(PlantedBugs, StoreToReadOnlyBuffer) {
  const std::vector<float> y(64);
  Command command("store_past_buffer");
  command.bind(0, y.data(), bytes_of(y));
  EXPECT_MENTIONS(
      error_of(ErrorKind::bounds, [&] { command.dispatch({1, 1, 1}, {1, 1, 1}, options()); }),
      "reading only");
}

// What the greedy schedule is for: with the shadow off, a missing write-after-read barrier spoils
// the answer there, and not where all simdgroups keep pace.
TEST(Schedules, GreedyShowsAMissingBarrier) {
  const std::vector<float> x = random_values(192, 1);
  std::vector<float> right(64);
  for (unsigned step = 0; step < 3; ++step) {
    float sum = 0;
    for (unsigned i = 0; i < 64; ++i) sum += x[step * 64 + i];
    for (float& r : right) r += sum;
  }
  for (const Schedule schedule : {Schedule::forward, Schedule::greedy}) {
    std::vector<float> y(64);
    DispatchOptions options;
    options.schedule = schedule;
    Command command("partials_without_barrier");
    command.bind(0, x.data(), bytes_of(x)).bind(1, y.data(), bytes_of(y));
    error_of(ErrorKind::race, [&] { command.dispatch({1, 1, 1}, {64, 1, 1}, options); });
    options.check_races = false;
    command.dispatch({1, 1, 1}, {64, 1, 1}, options);
    EXPECT_EQ(y == right, schedule != Schedule::greedy) << name_of(schedule);
  }
}

#if defined(MOEBLAS_EMU_ASAN)
TEST_P(PlantedBugs, StorePastThreadArray) {
  std::vector<float> y(64);
  const std::uint32_t n = 5;
  Command command("store_past_thread_array");
  command.bind(0, y.data(), bytes_of(y)).set(1, n);
  EXPECT_MENTIONS(
      error_of(ErrorKind::bounds, [&] { command.dispatch({1, 1, 1}, {64, 1, 1}, options()); }),
      "past an array in thread memory");
}
#endif

#if !defined(MOEBLAS_EMU_SANITIZED)  // whose library would end the program
TEST_P(PlantedBugs, StorePastRow) {
  const std::string message = run(ErrorKind::undefined, "store_past_row");
  EXPECT_MENTIONS(message, "an index past the end of an array");
  EXPECT_MENTIONS(message, "planted_bugs.metal:");
}

TEST_P(PlantedBugs, MisalignedVector) {
  EXPECT_MENTIONS(run(ErrorKind::undefined, "misaligned_vector"), "misaligned");
}
#endif

TEST_P(PlantedBugs, TooMuchThreadgroupMemory) {
  EXPECT_MENTIONS(run(ErrorKind::limit, "too_much_threadgroup_memory"), "second brings it to");
}

INSTANTIATE_TEST_SUITE_P(Schedules, PlantedBugs, all_schedules(), schedule_name);

}  // namespace
}  // namespace moeblas::emu
