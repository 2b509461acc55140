// How the bench samples: sets of buffers that share nothing, and timers in turn. No time is
// asserted.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "bench/clock.h"
#include "bench/cpu_device.h"
#include "bench/cpu_streams.h"
#include "bench/product.h"
#include "support/bench_case.h"

namespace moeblas::bench {
namespace {

// Logs the experts that each call reads, by the address of their codes.
class Reads final : public ProductCase {
 public:
  Reads(Device& device, const CaseSpec& s)
      : ProductCase(device, s, product_shape(s.shape, s.projection), true, Rows::grouped) {}
  std::vector<int64_t> experts;  // addresses
  std::vector<int32_t> ids;

 protected:
  Shape x_shape() const override { return {rows(), shape().k}; }
  Shape index_shape() const override { return {rows()}; }
  Shape out_shape() const override { return {rows(), shape().n}; }
  void run(const Operands& o, const Options&) override {
    const int64_t expert_bytes = o.w.codes.shape[1] * o.w.codes.shape[2] * 4;
    experts.clear(), ids.clear();
    for (int64_t i = 0; i < rows(); ++i) {
      ids.push_back(static_cast<const int32_t*>(o.index.data)[i]);
      experts.push_back(reinterpret_cast<int64_t>(o.w.codes.data) + ids.back() * expert_bytes);
    }
  }
};

TEST(BenchSets, ShareNoExpert) {
  const auto device = make_cpu_device(1);
  const auto entry = parse_shapes("experts e experts=16 top_k=2 n=8 k=64").at(0);
  for (int64_t tokens : {1, 2, 6, 40}) {
    CaseSpec s = spec("gather_qmm", entry, tokens, {Mode::affine, 4, 64}, DType::f32);
    s.routing = Routing::skewed;
    Reads reads(*device, s);
    constexpr int64_t kSets = 11;
    reads.prepare(kSets);
    std::set<int64_t> seen;
    std::vector<int64_t> counts;
    for (int64_t set = 0; set < kSets; ++set) {
      reads.call(set, {});
      EXPECT_TRUE(std::is_sorted(reads.ids.begin(), reads.ids.end()));
      std::map<int64_t, int64_t> of_expert;
      for (int64_t expert : reads.experts) ++of_expert[expert];
      std::vector<int64_t> sorted;
      for (const auto& [expert, count] : of_expert) {
        EXPECT_TRUE(seen.insert(expert).second) << "set " << set << " reads an expert again";
        sorted.push_back(count);
      }
      if (set == 0) counts = sorted;
      EXPECT_EQ(sorted, counts) << "set " << set << " does other work";
    }
  }
}

TEST(BenchClock, QuantilesAndInterleaving) {
  Samples s;
  s.seconds = {5, 1, 4, 2, 3};
  EXPECT_DOUBLE_EQ(s.median(), 3);
  EXPECT_DOUBLE_EQ(s.quantile(0), 1);
  EXPECT_DOUBLE_EQ(s.quantile(1), 5);
  EXPECT_DOUBLE_EQ(s.quantile(0.25), 2);

  // A timer that logs who was sampled, with how many calls.
  struct Fake final : Timer {
    Fake(int who, double seconds, std::vector<std::pair<int, int64_t>>& log)
        : who_(who), seconds_(seconds), log_(log) {}
    double sample(int64_t calls) override {
      log_.emplace_back(who_, calls);
      return seconds_ * static_cast<double>(calls);
    }
    int who_;
    double seconds_;
    std::vector<std::pair<int, int64_t>>& log_;
  };
  std::vector<std::pair<int, int64_t>> log;
  std::vector<std::unique_ptr<Timer>> timers;
  timers.push_back(std::make_unique<Fake>(0, 0.001, log));
  timers.push_back(std::make_unique<Fake>(1, 5.0, log));
  const auto samples = time_interleaved(timers, {6, 2.0, {}}, 0.004);
  EXPECT_EQ(samples[0].calls, 4);
  EXPECT_EQ(samples[0].seconds, std::vector<double>(6, 0.001));
  EXPECT_EQ(samples[1].calls, 1);
  EXPECT_EQ(samples[1].seconds.size(), 3u);  // over its budget after three
  const std::vector<std::pair<int, int64_t>> rounds(log.end() - 9, log.end());
  EXPECT_EQ(rounds, (std::vector<std::pair<int, int64_t>>{
                        {0, 4}, {1, 1}, {0, 4}, {1, 1}, {0, 4}, {1, 1}, {0, 4}, {0, 4}, {0, 4}}));
}

// Each sample of a timer that memory bounds stands between two passes of memory's own.
TEST(BenchClock, BandwidthInTurn) {
  struct Fake final : Timer {
    explicit Fake(int64_t& now) : now_(now) {}
    double sample(int64_t calls) override {
      ++now_;
      return 0.002 * static_cast<double>(calls);
    }
    int64_t& now_;
  };
  int64_t now = 0, passes = 0;
  std::vector<std::unique_ptr<Timer>> timers;
  for (int i = 0; i < 2; ++i) timers.push_back(std::make_unique<Fake>(now));
  const auto samples =
      time_interleaved(timers, {4, 2.0, {}}, 0.004, [&](size_t timer, int64_t calls) -> double {
        if (timer == 0) return 0;  // arithmetic is its bound
        EXPECT_EQ(calls, 2);
        const bool before = passes++ % 2 == 0;
        // Two estimates and a sample of each; then in turn, two of the second timer for one.
        EXPECT_EQ(now, 6 + 3 * ((passes - 1) / 2) + (before ? 1 : 3));
        return before ? 300 : 600;
      });
  EXPECT_EQ(passes, 8);
  EXPECT_TRUE(samples[0].bandwidth.empty());
  EXPECT_EQ(samples[0].share_of_bandwidth(1), 0);
  ASSERT_EQ(samples[1].bandwidth.size(), 4u);
  for (double bytes_per_s : samples[1].bandwidth) EXPECT_DOUBLE_EQ(bytes_per_s, 400);

  Samples s;
  s.seconds = {1, 2, 1};
  s.bandwidth = {100, 100, 40};
  EXPECT_DOUBLE_EQ(s.share_of_bandwidth(20), 0.2);  // of 0.2, 0.1 and 0.5
}

TEST(BenchStreams, EveryPassMovesWhatItIsToldTo) {
  for (const int threads : {1, 2, 3}) {
    CpuStreams streams(threads, 8 << 20);
    EXPECT_GE(streams.bytes(), 8 << 20);
    for (const int64_t bytes : {int64_t{1}, int64_t{5} << 20, streams.bytes(), int64_t{1} << 40}) {
      for (const bool copies : {false, true, true, false}) {
        EXPECT_GT(streams.bytes_per_s(copies, bytes), 0);
      }
    }
  }
}

// A device that replays graphs of all of its buffer sets, 3 here: no sample may hold another number
// of calls than a multiple of them.
struct Replays final : Timer {
  Replays(std::vector<int64_t>& log) : log_(log) {}
  double sample(int64_t calls) override {
    log_.push_back(calls);
    return 0.001 * static_cast<double>(calls);
  }
  int64_t whole(int64_t calls) const override { return (calls + 2) / 3 * 3; }
  std::vector<int64_t>& log_;
};

TEST(BenchClock, SamplesWalkThroughAllSets) {
  std::vector<int64_t> log;
  std::vector<std::unique_ptr<Timer>> timers;
  timers.push_back(std::make_unique<Replays>(log));
  const auto samples = time_interleaved(timers, {5, 2.0, {}}, 0.004);
  EXPECT_EQ(samples[0].calls, 6);
  for (double seconds : samples[0].seconds) EXPECT_DOUBLE_EQ(seconds, 0.001);
  for (int64_t calls : log) EXPECT_EQ(calls % 3, 0) << calls;
}

TEST(BenchClock, HeatsBeforeTheSamples) {
  std::vector<int64_t> cold, hot;
  for (const double heat : {0.0, 0.1}) {
    std::vector<std::unique_ptr<Timer>> timers;
    timers.push_back(std::make_unique<Replays>(heat > 0 ? hot : cold));
    const auto samples = time_interleaved(timers, {5, 2.0, {0, heat}}, 0.004);
    EXPECT_EQ(samples[0].seconds.size(), 5u);
  }
  // 6 ms a sample.
  EXPECT_EQ(hot.size(), cold.size() + 17);
}

}  // namespace
}  // namespace moeblas::bench
