// What the bench counts: bytes and operations of a call, its floor, the points of a sweep.
#include <gtest/gtest.h>

#include "bench/cpu_device.h"
#include "bench/expand.h"
#include "bench/operations.h"
#include "bench/report.h"
#include "bench/run.h"
#include "support/bench_case.h"

namespace moeblas::bench {
namespace {

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
  g.after.int8 = 3600e9;
  EXPECT_STREQ(floor_of(r, g).bound, "int8");
  r.precision = Precision::native;
  EXPECT_STREQ(floor_of(r, g).bound, "bf16");
}

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

}  // namespace
}  // namespace moeblas::bench
