// The bench's inputs: the file of shapes, and which experts tokens choose.
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <set>

#include "bench/routing.h"
#include "support/bench_case.h"

namespace moeblas::bench {
namespace {

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

}  // namespace
}  // namespace moeblas::bench
