// The bench: what it reads, counts and draws, that it runs every operation, and that it does not
// time a wrong answer. No time is asserted.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "bench/clock.h"
#include "bench/cpu_device.h"
#include "bench/data.h"
#include "bench/devices.h"
#include "bench/expand.h"
#include "bench/operations.h"
#include "bench/product.h"
#include "bench/report.h"
#include "bench/run.h"
#include "cli/commands.h"

namespace moeblas::bench {
namespace {

ShapeEntry shape(const std::string& name) {
  return find_shapes(parse_shapes(builtin_shapes()), name).at(0);
}

// ---- shapes ----

TEST(BenchShapes, FileParsesCompletely) {
  std::ifstream file(MOEBLAS_SHAPES_FILE);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(text, builtin_shapes()) << "the binary's copy is not the file";
  const auto entries = parse_shapes(text);
  // Every line that is not empty or a comment is an entry.
  std::istringstream lines(text);
  size_t expected = 0;
  for (std::string line; std::getline(lines, line);) expected += !line.empty() && line[0] != '#';
  EXPECT_EQ(entries.size(), expected);
  std::set<Kind> kinds;
  for (const ShapeEntry& e : entries) kinds.insert(e.kind);
  EXPECT_EQ(kinds.size(), 5u);
}

TEST(BenchShapes, KnownModels) {
  const ShapeEntry qwen = shape("qwen3-30b");
  EXPECT_EQ(qwen.experts, 128);
  EXPECT_EQ(qwen.top_k, 8);
  const ProductShape gate_up = product_shape(qwen, "gate_up"), down = product_shape(qwen, "down");
  EXPECT_EQ(gate_up.n, 1536);
  EXPECT_EQ(gate_up.k, 2048);
  EXPECT_EQ(down.n, 2048);
  EXPECT_EQ(down.k, 768);
  EXPECT_EQ(shape("gpt-oss-20b").glu, "interleaved");
  EXPECT_EQ(shape("gpt-oss-20b").format.mode, Mode::mxfp4);
  EXPECT_EQ(shape("seg-1024x1024x8192x64").segments, 64);
  EXPECT_EQ(shape("qqmm-16384").m, 16384);
  EXPECT_THROW(product_shape(qwen, "sideways"), std::invalid_argument);
}

TEST(BenchShapes, MistakesAreNamed) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_shapes(text);
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message("\ndense a n=4"), "shapes, line 2: a lacks k");
  EXPECT_EQ(message("dense a n=4 k=x"),
            "shapes, line 1: k is 'x', expected a number of at least 1");
  EXPECT_EQ(message("dense a n=0 k=1"),
            "shapes, line 1: n is '0', expected a number of at least 1");
  EXPECT_EQ(message("dense a n=4 k=4 n=5"), "shapes, line 1: n is given twice");
  EXPECT_EQ(message("dense a n=4 k=4 top_k=5"), "shapes, line 1: dense has no key top_k");
  EXPECT_EQ(message("moe a experts=2 top_k=1 hidden=4 intermediate=4 activation=softmax"),
            "shapes, line 1: activation is 'softmax', expected silu or swiglu_clamped");
  EXPECT_EQ(message("dense a n=4 k=4\ndense a n=4 k=4"), "shapes, line 2: the name a is taken");
  EXPECT_NE(message("dens a n=4 k=4"), "");
  EXPECT_NE(message("experts a experts=2 top_k=3 n=4 k=4"), "");
  EXPECT_THROW(find_shapes(parse_shapes(builtin_shapes()), "gpt-oss"), std::invalid_argument);
  EXPECT_THROW(parse_format("affine7"), std::invalid_argument);
  EXPECT_EQ(format_name(parse_format("affine8g32")), "affine8g32");
  EXPECT_EQ(format_name(parse_format("affine8-g32")), "affine8g32");
  EXPECT_THROW(parse_format("affine8-32"), std::invalid_argument);
}

TEST(BenchShapes, SizesByThemselves) {
  const ShapeEntry dense = shape("3x16x64"), segmented = shape("5x6x40x4");
  EXPECT_EQ(dense.kind, Kind::dense);
  EXPECT_EQ(dense.m, 3);
  EXPECT_EQ(dense.n, 16);
  EXPECT_EQ(dense.k, 64);
  EXPECT_EQ(segmented.kind, Kind::segmented);
  EXPECT_EQ(segmented.segments, 4);
  EXPECT_EQ(find_shapes(parse_shapes(builtin_shapes()), "seg-*").size(), 6u);
  EXPECT_THROW(shape("no-such-*"), std::invalid_argument);
  for (const char* not_sizes : {"3x16", "3x16x64x4x5", "3x16x", "x3x16x64", "3x0x64", "3x-1x64"}) {
    EXPECT_THROW(shape(not_sizes), std::invalid_argument) << not_sizes;
  }
}

// ---- routing ----

TEST(BenchRouting, EveryTokenChoosesDifferentExperts) {
  for (Routing rule : {Routing::uniform, Routing::zipf, Routing::skewed, Routing::even}) {
    for (int64_t tokens : {0, 1, 8, 16, 64, 512}) {
      const auto ids = route(rule, 64, 8, tokens, 7);
      ASSERT_EQ(ids.size(), static_cast<size_t>(tokens * 8));
      EXPECT_EQ(ids, route(rule, 64, 8, tokens, 7));
      for (int64_t t = 0; t < tokens; ++t) {
        const std::set<int32_t> chosen(ids.begin() + t * 8, ids.begin() + t * 8 + 8);
        EXPECT_EQ(chosen.size(), 8u);
        EXPECT_GE(*chosen.begin(), 0);
        EXPECT_LT(*chosen.rbegin(), 64);
      }
      const auto counts = expert_counts(ids, 64);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), tokens * 8);
    }
  }
  // Even: the same number of rows for all, give or take one, whether or not top_k divides the
  // experts.
  for (int64_t top_k : {1, 3, 8}) {
    for (int64_t tokens : {1, 7, 64, 100}) {
      const auto ids = route(Routing::even, 64, top_k, tokens, 7);
      const auto counts = expert_counts(ids, 64);
      const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
      EXPECT_LE(*most - *least, 1);
    }
  }
  // All of the experts, in some order.
  const auto everyone = route(Routing::zipf, 5, 5, 3, 1);
  EXPECT_EQ(expert_counts(everyone, 5), std::vector<int64_t>(5, 3));
}

TEST(BenchRouting, SkewGrowsFromUniformToZipf) {
  const auto busiest = [](Routing rule) {
    double share = 0;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const auto counts = expert_counts(route(rule, 64, 8, 2048, seed), 64);
      share += static_cast<double>(*std::max_element(counts.begin(), counts.end())) / 256.0 / 8;
    }
    return share;  // in units of the mean
  };
  const double uniform = busiest(Routing::uniform), skewed = busiest(Routing::skewed),
               zipf = busiest(Routing::zipf);
  EXPECT_LT(uniform, 1.5);
  EXPECT_GT(skewed, 2.0);
  EXPECT_LT(skewed, zipf);
}

// ---- counting ----

CaseSpec spec(const std::string& op, const ShapeEntry& entry, int64_t tokens, QuantSpec format,
              DType dtype) {
  CaseSpec s;
  s.op = op, s.shape = entry, s.tokens = tokens, s.format = format.resolved(), s.dtype = dtype;
  return s;
}

TEST(BenchWork, BytesAndFlop) {
  const auto device = make_cpu_device(1);
  const auto work = [&](const CaseSpec& s) {
    return find_operation(s.op).make(*device, s)->work();
  };

  // One token takes 8 different experts; codes, and one scale and one bias of 2 bytes per 64.
  const int64_t expert = 1536 * 2048 / 2 + 1536 * 32 * 4;
  Work w = work(spec("gather_qmm", shape("qwen3"), 1, {Mode::affine, 4, 64}, DType::bf16));
  EXPECT_EQ(w.read_bytes, 2048 * 2 + 8 * expert);
  EXPECT_EQ(w.write_bytes, 8 * 1536 * 2);
  EXPECT_EQ(w.flop, int64_t{2} * 8 * 1536 * 2048);

  // The same rows one by one: x is counted per choice.
  w = work(spec("gather_qmv", shape("qwen3"), 1, {Mode::affine, 4, 64}, DType::bf16));
  EXPECT_EQ(w.read_bytes, 8 * 2048 * 2 + 8 * expert);

  // 2048 tokens reach all 8 experts of Mixtral; each is counted once. mxfp4: a byte per 32 codes.
  w = work(spec("grouped_qmm", shape("mixtral"), 2048, {Mode::mxfp4}, DType::f32));
  EXPECT_EQ(w.read_bytes, int64_t{4096} * 4096 * 4 + int64_t{8} * 28672 * 4096 / 32 * 17);
  EXPECT_EQ(w.write_bytes, int64_t{4096} * 28672 * 4);
  EXPECT_EQ(w.flop, int64_t{2} * 4096 * 28672 * 4096);

  w = work(spec("gather_mm", shape("olmoe"), 1, {}, DType::f16));
  EXPECT_EQ(w.read_bytes, 2048 * 2 + 8 * 2048 * 2048 * 2);

  w = work(spec("quantized_matmul", shape("dense-4096"), 3, {Mode::affine, 3, 32}, DType::f32));
  EXPECT_EQ(w.read_bytes, 3 * 4096 * 4 + 4096 * 4096 / 8 * 3 + 4096 * 128 * 4);
  EXPECT_EQ(w.write_bytes, 3 * 4096 * 4);

  // x in floats, quantized by the product, or in codes: a byte per 16 of them and half a byte each.
  w = work(spec("qqmm", shape("dense-4096"), 3, {Mode::nvfp4}, DType::bf16));
  const int64_t matrix = 4096 * 4096 / 2 + 4096 * 256;
  EXPECT_EQ(w.read_bytes, 3 * 4096 * 2 + matrix);
  w = work(spec("qqmm_packed", shape("dense-4096"), 3, {Mode::nvfp4}, DType::bf16));
  EXPECT_EQ(w.read_bytes, 3 * (4096 / 2 + 256) + matrix);
  EXPECT_EQ(w.write_bytes, 3 * 4096 * 2);

  // A layer: both products' weights and biases, but nothing of what lies between them.
  w = work(spec("moe_ffn", shape("gpt-oss-120b"), 1, {Mode::mxfp4}, DType::bf16));
  EXPECT_EQ(w.read_bytes, 2880 * 2 + int64_t{4} * 3 * (2880 * 2880 / 32 * 17 + 2880 * 2));
  EXPECT_EQ(w.write_bytes, 2880 * 2);
  EXPECT_EQ(w.flop, int64_t{4} * 3 * 2 * 2880 * 2880);
  w = work(spec("moe_ffn", shape("qwen3"), 1, {Mode::affine, 4, 64}, DType::bf16));
  EXPECT_EQ(w.read_bytes, 2048 * 2 + 8 * (expert + 2048 * 768 / 2 + 2048 * 12 * 4));

  // The loop over experts reads a row of x per choice.
  w = work(spec("expert_loop", shape("qwen3"), 1, {Mode::affine, 4, 64}, DType::bf16));
  EXPECT_EQ(w.read_bytes, 8 * 2048 * 2 + 8 * expert);

  w = work(spec("moe_permute", shape("qwen3"), 3, {}, DType::bf16));
  EXPECT_EQ(w.read_bytes, 3 * 2048 * 2);
  EXPECT_EQ(w.write_bytes, 3 * 8 * 2048 * 2);
  w = work(spec("moe_route", shape("qwen3"), 3, {}, DType::bf16));
  EXPECT_EQ(w.read_bytes, 3 * 128 * 2);
  EXPECT_EQ(w.write_bytes, 3 * 8 * 8);

  w = work(spec("segmented_mm", shape("seg-128x128x1024x16"), 1, {}, DType::f32));
  EXPECT_EQ(w.read_bytes, 256 * 1024 * 4);
  EXPECT_EQ(w.write_bytes, 16 * 128 * 128 * 4);
  EXPECT_EQ(w.flop, 2 * 128 * 128 * 1024);

  w = work(spec("quantize", shape("dense-4096"), 1, {Mode::nvfp4}, DType::bf16));
  EXPECT_EQ(w.read_bytes, 4096 * 4096 * 2);
  EXPECT_EQ(w.write_bytes, 4096 * 4096 / 2 + 4096 * 256);
  const Work back = work(spec("dequantize", shape("dense-4096"), 1, {Mode::nvfp4}, DType::bf16));
  EXPECT_EQ(back.read_bytes, w.write_bytes);
  EXPECT_EQ(back.write_bytes, w.read_bytes);
}

TEST(BenchWork, FloorTakesTheSlowerSide) {
  Group g;
  g.before = {.read = 10e9, .copy = 20e9, .f32 = 100e9, .bf16 = 200e9, .isa = ""};
  g.after = {.read = 20e9, .copy = 20e9, .f32 = 100e9, .bf16 = 200e9, .isa = ""};
  Record r;
  r.work = {20'000'000'000, 0, 50'000'000'000};
  r.spec.dtype = DType::f32;
  EXPECT_DOUBLE_EQ(floor_of(r, g).seconds, 1.0);
  EXPECT_STREQ(floor_of(r, g).bound, "read");
  r.work.flop *= 4;
  EXPECT_DOUBLE_EQ(floor_of(r, g).seconds, 2.0);
  EXPECT_STREQ(floor_of(r, g).bound, "f32");
  r.spec.dtype = DType::bf16;
  r.work.flop *= 2;
  EXPECT_DOUBLE_EQ(floor_of(r, g).seconds, 2.0);
  EXPECT_STREQ(floor_of(r, g).bound, "bf16");
}

TEST(BenchWork, FloorOfFloat32IsThePiecesWhereTheyAreFaster) {
  Group g;
  g.before =
      g.after = {.read = 1e9, .copy = 1e9, .f32 = 100e9, .bf16 = 900e9, .fp8 = 1800e9, .isa = ""};
  Record r;
  r.work = {0, 0, 900'000'000'000};
  r.spec.dtype = DType::f32;
  EXPECT_STREQ(floor_of(r, g).bound, "bf16 pieces");
  EXPECT_DOUBLE_EQ(floor_of(r, g).seconds, 3.0);
  r.pieces = 6;
  EXPECT_DOUBLE_EQ(floor_of(r, g).seconds, 6.0);
  r.precision = Precision::exact;
  EXPECT_STREQ(floor_of(r, g).bound, "f32");
  EXPECT_DOUBLE_EQ(floor_of(r, g).seconds, 9.0);
  r.precision = Precision::fast;
  EXPECT_STREQ(floor_of(r, g).bound, "tf32");
  r.spec.dtype = DType::bf16;
  EXPECT_STREQ(floor_of(r, g).bound, "fp8");
  r.precision = Precision::native;
  EXPECT_STREQ(floor_of(r, g).bound, "bf16");
}

// ---- sweeps ----

TEST(BenchSweep, PointsAreTheGridAndTheBorders) {
  const std::vector<int64_t> grid{1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
  EXPECT_EQ(sweep_points(32, [](int64_t) { return "one"; }), grid);
  EXPECT_EQ(sweep_points(1, [](int64_t) { return "one"; }), std::vector<int64_t>{1});

  // Rows for 1 .. 5, 6 .. 9 and the rest: the last number of each, the first of the next, and the
  // one after it.
  const auto small = [](int64_t t) { return std::string(t <= 5 ? "a" : t <= 9 ? "b" : "c"); };
  EXPECT_EQ(sweep_points(16, small),
            (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16}));

  // Far out, where not every number is asked for.
  int asked = 0;
  const auto large = [&](int64_t t) {
    ++asked;
    return std::string(t < 9001 ? "a" : "b");
  };
  const auto points = sweep_points(16384, large);
  EXPECT_EQ(std::count(points.begin(), points.end(), 9000), 1);
  EXPECT_EQ(std::count(points.begin(), points.end(), 9001), 1);
  EXPECT_EQ(std::count(points.begin(), points.end(), 9002), 1);
  EXPECT_EQ(points.back(), 16384);
  EXPECT_EQ(points.size(), 15u + 13u + 3u);  // powers of two, three times them, the border
  EXPECT_LT(asked, 1100);
}

TEST(BenchSweep, ChoiceIsComparedWithTheBest) {
  bench::Run run;
  const auto record = [&](int64_t tokens, const char* kernel, bool chosen, double seconds) {
    Record r;
    r.spec = spec("quantized_matmul", shape("dense-4096"), tokens, {}, DType::bf16);
    r.kernel = kernel, r.chosen = chosen, r.samples.seconds = {seconds};
    run.records.push_back(r);
  };
  record(1, "few", true, 1.0);
  record(1, "many", false, 4.0);
  record(64, "many", false, 2.0);
  record(64, "few", true, 3.0);
  record(128, "many", true, 3.0);  // nothing to compare with
  const auto all = choices(run);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_DOUBLE_EQ(all[0].ratio(), 1.0);
  EXPECT_DOUBLE_EQ(all[1].ratio(), 1.5);
  EXPECT_EQ(all[1].best->kernel, "many");
}

// ---- buffer sets ----

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

// ---- samples ----

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

// ---- the check ----

// Sums of random products as a kernel might form them, judged by the limit for float32 sums.
TEST(BenchCheck, LimitAdmitsFloat32AndNothingLess) {
  constexpr int64_t kK = 4096;
  for (const bool affine : {false, true}) {
    Precise precise{kK, affine ? DType::bf16 : DType::f32, {}, Precision::native};
    if (affine) precise.spec = QuantSpec{Mode::affine, 4, 64};
    int float32 = 0, half = 0, short_k = 0;
    constexpr int kTrials = 200;
    for (int trial = 0; trial < kTrials; ++trial) {
      const Random x = Random(1).stream(trial), w = Random(2).stream(trial);
      Sum sum;
      float sequential = 0;
      float rounded = 0;
      double without_tail = 0;
      for (int64_t i = 0; i < kK; ++i) {
        const float a = x.bell(i), b = w.bell(i);
        sum.add(a, b, 3 * std::abs(b));
        sequential += a * b;
        uint16_t h = 0;
        store_float(&h, DType::f16, 0, rounded + a * b);
        rounded = load_float(&h, DType::f16, 0);
        if (i < kK - 64) without_tail += static_cast<double>(a) * b;
      }
      const double limit = error_limit(sum, precise);
      float32 += std::abs(sequential - sum.y) <= limit;
      half += std::abs(rounded - sum.y) <= limit;
      short_k += std::abs(without_tail - sum.y) <= limit;
    }
    EXPECT_EQ(float32, kTrials);
    EXPECT_LT(short_k, kTrials / 2) << "a dropped tail of 64 passes, affine " << affine;
    // Beside bfloat16 weights and outputs a float16 sum is no longer coarse.
    if (!affine) {
      EXPECT_LT(half, kTrials / 10);
    }
  }
}

TEST(BenchCheck, UnwrittenOutputsAreFound) {
  std::vector<float> out(8, 1.0f);
  const auto verdict = [&] {
    Verdict v;
    require_finite({reinterpret_cast<const uint8_t*>(out.data()), out.size() * 4}, DType::f32, v);
    return v;
  };
  EXPECT_TRUE(verdict().right);
  out[7] = std::nanf("");
  EXPECT_FALSE(verdict().right);
}

// ---- the command ----

const char* const kTiny[] = {
    "moe tiny experts=6 top_k=2 hidden=64 intermediate=64 biases=yes",
    "dense tiny n=64 k=128",
    "segmented tiny m=5 n=7 k=40 segments=3",
};

struct Outcome {
  int status;
  nlohmann::json json;
};

Outcome run_command(std::vector<std::string> arguments) {
  const std::string file = testing::TempDir() + "moeblas_bench_" +
                           testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
  CLI::App app;
  app.require_subcommand(1);
  cli::add_bench(app);
  arguments.insert(arguments.begin(), "bench");
  for (const char* argument : {"--device", "cpu", "--json", file.c_str(), "--repeats", "3",
                               "--seconds", "0", "--rotate", "1", "--threads", "1"}) {
    arguments.emplace_back(argument);
  }
  std::reverse(arguments.begin(), arguments.end());
  std::remove(file.c_str());
  Outcome outcome{0, {}};
  try {
    app.parse(arguments);
  } catch (const CLI::Error& e) {
    outcome.status = app.exit(e);
  }
  std::ifstream json(file);
  if (json) outcome.json = nlohmann::json::parse(json);
  std::remove(file.c_str());
  return outcome;
}

TEST(BenchCommand, RunsEveryOperation) {
  std::string ops, shapes;
  for (const Operation& op : operations()) ops += (ops.empty() ? "" : ",") + std::string(op.name);
  for (const char* line : kTiny) shapes += (shapes.empty() ? "" : ",") + std::string(line);
  const Outcome o = run_command({"--op", ops, "--shape", shapes, "--tokens", "1,5", "--mode",
                                 "affine3g32,mxfp8", "--routing", "uniform,skewed"});
  EXPECT_EQ(o.status, 0);
  ASSERT_TRUE(o.json.is_object());
  EXPECT_EQ(o.json["schema"], 2);
  EXPECT_EQ(o.json["device"]["kind"], "cpu");
  EXPECT_EQ(o.json["library"]["version"], moeblas_version());
  EXPECT_TRUE(o.json["library"]["dirty"].is_boolean());
  EXPECT_TRUE(o.json["wrong"].empty());
  std::set<std::string> seen;
  for (const auto& r : o.json["results"]) {
    seen.insert(r["op"]);
    EXPECT_EQ(r["seconds"]["samples"].size(), 3u) << r["name"];
    EXPECT_LE(r["seconds"]["min"], r["seconds"]["median"]) << r["name"];
    EXPECT_LE(r["seconds"]["median"], r["seconds"]["max"]) << r["name"];
    EXPECT_GT(r["seconds"]["min"], 0.0) << r["name"];
    EXPECT_LE(r["check"]["worst_error_over_limit"], 1.0) << r["name"];
    EXPECT_GT(r["check"]["samples"], 0) << r["name"];
    EXPECT_TRUE(r["rotated_bytes"] >= 1 << 20 || r["buffer_sets"] == kMostSets) << r["name"];
    const auto& group = o.json["groups"].at(r["group"].get<size_t>());
    for (const char* when : {"ceilings_before", "ceilings_after"}) {
      EXPECT_GT(group[when]["read_bytes_per_s"], 0.0);
      EXPECT_GT(group[when]["f32_flop_per_s"], 0.0);
    }
    EXPECT_GT(r["floor"]["share"], 0.0);
    EXPECT_EQ(r["routing"].is_null(), !find_operation(r["op"].get<std::string>()).takes_routing);
  }
  EXPECT_EQ(seen.size(), operations().size());
}

TEST(BenchCommand, EveryFormatAndDtype) {
  const Outcome o =
      run_command({"--op", "gather_qmm,quantize,dequantize", "--shape",
                   std::string(kTiny[0]) + ",dense flat n=8 k=128", "--tokens", "3", "--mode",
                   "affine,affine2g16,affine5g128,affine6g32,affine8,mxfp4,"
                   "mxfp8,nvfp4",
                   "--dtype", "float32,float16,bfloat16", "--kernel", "all"});
  EXPECT_EQ(o.status, 0);
  EXPECT_TRUE(o.json["wrong"].empty());
  // Groups of 128 do not fit into K = 64 of the experts: three dtypes are skipped, with the reason.
  EXPECT_EQ(o.json["skipped"].size(), 3u);
  EXPECT_GE(o.json["results"].size(), 3u * 8 * 3 - 3);
}

TEST(BenchCommand, TimesOperationsBesideEachOther) {
  const Outcome o =
      run_command({"--op", "gather_qmm", "--beside", "expert_loop", "--shape", kTiny[0], "--tokens",
                   "1,9", "--routing", "even", "--commit", "0123abc"});
  EXPECT_EQ(o.status, 0);
  ASSERT_EQ(o.json["results"].size(), 4u);
  ASSERT_EQ(o.json["groups"].size(), 2u);
  for (const auto& r : o.json["results"]) EXPECT_TRUE(r["chosen"].get<bool>());
  EXPECT_EQ(o.json["results"][0]["group"], o.json["results"][1]["group"]);
  EXPECT_EQ(o.json["results"][1]["op"], "expert_loop");
  EXPECT_EQ(o.json["library"]["commit"], "0123abc");
  EXPECT_FALSE(o.json["library"]["dirty"].get<bool>());
}

TEST(BenchCommand, SweepsTokens) {
  const Outcome o = run_command(
      {"--op", "quantized_matmul", "--shape", "dense tiny n=24 k=128", "--sweep-tokens", "8"});
  EXPECT_EQ(o.status, 0);
  std::vector<int64_t> tokens;
  // Each number with every row that takes it.
  for (const auto& r : o.json["results"]) {
    if (tokens.empty() || tokens.back() != r["tokens"]) tokens.push_back(r["tokens"]);
  }
  EXPECT_EQ(tokens, (std::vector<int64_t>{1, 2, 3, 4, 6, 8}));
}

TEST(BenchCommand, RowsOfAShapeThatNamesThem) {
  const Outcome o = run_command({"--op", "quantized_matmul,segmented_mm", "--shape",
                                 "3x16x64,5x6x40x4", "--dtype", "float32"});
  EXPECT_EQ(o.status, 0);
  ASSERT_EQ(o.json["results"].size(), 2u);
  EXPECT_EQ(o.json["results"][0]["sizes"]["M"], 3);
  EXPECT_EQ(o.json["results"][1]["sizes"]["segments"], 4);
}

TEST(BenchCommand, NamesThatMeanNothingFail) {
  EXPECT_NE(run_command({"--op", "no_such_operation"}).status, 0);
  EXPECT_NE(run_command({"--shape", "no_such_shape"}).status, 0);
  EXPECT_NE(run_command({"--shape", kTiny[0], "--dtype", "float64"}).status, 0);
  EXPECT_NE(run_command({"--shape", kTiny[0], "--routing", "psychic"}).status, 0);
  EXPECT_NE(run_command({"--shape", kTiny[0], "--kernel", "no_such_kernel"}).status, 0);
  EXPECT_NE(run_command({"--shape", kTiny[0], "--beside", "no_such_operation"}).status, 0);
  EXPECT_THROW(devices("abacus", {1}), std::invalid_argument);
  EXPECT_THROW(devices("cuda:x", {1}), std::invalid_argument);
}

// What a kernel's mistakes look like from outside: none may get a time.
TEST(BenchCommand, WrongAnswersAreNotTimed) {
  const std::pair<const char*, Tamper> mistakes[] = {
      {"off by a little everywhere",
       [](std::span<uint8_t> out) {
         for (size_t i = 0; i < out.size() / 4; ++i) {
           const auto at = static_cast<int64_t>(i);
           store_float(out.data(), DType::f32, at,
                       load_float(out.data(), DType::f32, at) * 1.0001f + 1e-4f);
         }
       }},
      {"the last row is zero",
       [](std::span<uint8_t> out) { std::fill(out.end() - 64, out.end(), uint8_t{0}); }},
      {"one output was not written",
       [](std::span<uint8_t> out) { std::fill_n(out.begin() + 40, 4, uint8_t{0xff}); }},
  };
  for (const auto& [what, mistake] : mistakes) {
    for (const Operation& op : operations()) {
      // Codes that were not written are any codes: the first mistake covers quantize.
      const bool codes = std::string(op.name).starts_with("quantize") && !op.takes_tokens;
      if (codes && mistake != nullptr && what != mistakes[0].first) continue;
      Settings s;
      s.ops = {op.name};
      s.shapes.assign(std::begin(kTiny), std::end(kTiny));
      s.tokens = {8};
      s.dtypes = {"float32"};
      s.device = "cpu";
      s.threads = {1};
      s.rotate_bytes = 0;
      s.budget = {3, 0, {}};
      s.tamper = codes ? Tamper([](std::span<uint8_t> out) { out[5] ^= 1; }) : mistake;
      const bench::Run wrong = bench::run(s);
      EXPECT_TRUE(wrong.records.empty()) << op.name << ": " << what;
      ASSERT_EQ(wrong.wrong.size(), op.beside[0] == nullptr ? 1u : 3u) << op.name << ": " << what;
      EXPECT_NE(wrong.wrong[0].verdict.message, "");
      EXPECT_FALSE(run_and_report(s)) << op.name << ": " << what;
    }
  }
}

}  // namespace
}  // namespace moeblas::bench
