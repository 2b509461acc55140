// What is launched in front of qmm_sm90's products of experts, against a plain stable sort: by what
// the lists and the staged rows must be, however many launches make them.
#include <gtest/gtest.h>
#include <vector_types.h>

#include <map>
#include <vector>

#include "block/launches.h"
#include "cuda/qmm_sm90/kernels.h"
#include "cuda/qmm_sm90/order.h"
#include "cuda/qmm_sm90/parts.h"
#include "cuda/qmm_sm90/plan.h"
#include "nowhere.h"
#include "simt/emulator_queue.h"
#include "support/random.h"

namespace moeblas::test {
namespace {

struct ExpertLayer {
  int64_t tokens, top_k, rows, experts, n, k;  // rows of x for each token
  QuantSpec spec;
  int64_t products = 1;
  bool some_without = true;  // pairs without a matrix
  int64_t gap = 0;           // elements between rows of x
};

// Position `at` of a staged row.
uint32_t natural_k(const QuantSpec& spec, uint32_t at) {
  if (spec.mode == Mode::dense) return at;
  const uint32_t block = at / cuda::kBlockK * cuda::kBlockK, within = at % cuda::kBlockK;
  return block + (spec.bits == 4   ? cuda::NibbleOrder::natural_k(within)
                  : spec.bits == 8 ? cuda::ByteOrder::natural_k(within)
                                   : cuda::NeighbourOrder::natural_k(within));
}

// Dense weights in rows of K.
TensorView dense_rows_nowhere(const Shape& shape) {
  TensorView w = nowhere(DType::bf16, shape, 2 * 1024);
  w.strides = {shape[1] * shape[2], 1, shape[1]};
  return w;
}

class Rows {
 public:
  Rows(const ExpertLayer& of, uint64_t seed) : l(of), random(seed) {
    ids.resize(static_cast<size_t>(l.tokens * l.top_k));
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random.below(l.experts));
      if (l.some_without && random.one_in(9)) id = random.one_in(2) ? -1 : 1 << 20;
    }
    x.resize(static_cast<size_t>(l.tokens * l.rows * (l.k + l.gap)));
    for (uint16_t& v : x) v = static_cast<uint16_t>(random.next());
    if (l.some_without) out.assign(ids.size() * static_cast<size_t>(l.rows * l.n), 0x0707);
  }

  void check() {
    const Device device{MOEBLAS_CUDA, 0};
    const auto view = [&](void* data, DType dtype, const Shape& shape) {
      return TensorView{data, dtype, shape, device};
    };
    const Shape of_out = {l.tokens, l.top_k, l.rows, l.n};
    TensorView of_x = view(x.data(), DType::bf16, {l.tokens, 1, l.rows, l.k});
    const int64_t pitch = l.k + l.gap;
    of_x.strides = {l.rows * pitch, l.rows * pitch, pitch, 1};
    const TensorView of_ids = view(ids.data(), DType::i32, {l.tokens, l.top_k});
    const TensorView to = l.some_without ? view(out.data(), DType::bf16, of_out)
                                         : output_nowhere(DType::bf16, of_out);
    const dispatch::MatmulProblem p =
        l.spec.mode == Mode::dense
            ? ops::gather_mm(of_x, dense_rows_nowhere({l.experts, l.k, l.n}), {}, of_ids, false, to,
                             {})
            : ops::gather_qmm(of_x, weights_nowhere(l.spec, {l.experts, l.n}, l.k, DType::bf16), {},
                              of_ids, true, false, to, {});
    const cuda::QmmGrouping room(p, l.top_k, l.products);
    EmulatorQueue portable;
    portable.input(ids.data(), ids.size() * sizeof(int32_t));
    const dispatch::Workspace workspace = portable.workspace(room.bytes);
    LaunchesOnBlocks on_blocks(random.next(), 1, portable);
    cuda::Queue queue(p.op, 0, nullptr);
    rows = cuda::group_rows(p, l.top_k, l.products, static_cast<uint8_t*>(workspace.data), queue);
    sort();
    check_runs();
    front = static_cast<size_t>(cuda::qmm_sm90_front(p, l.top_k, l.products));
    front > 0 ? check_ahead(p) : check_in_order();
    check_zeros();
  }
  bool are_from_x() const { return rows.ahead.from == reinterpret_cast<const uint8_t*>(x.data()); }
  size_t front = 0;  // rows that are there before those that products write

 private:
  // Pairs by matrix, in their order, those without one last.
  void sort() {
    for (uint32_t i = 0; i < ids.size(); ++i) {
      const bool has = ids[i] >= 0 && ids[i] < l.experts;
      runs[has ? ids[i] : INT32_MAX].push_back(i);
    }
  }
  void check_runs() const {
    ASSERT_EQ(rows.runs.runs[0], runs.size());
    uint32_t r = 0, begin = 0;
    for (const auto& [matrix, pairs] : runs) {
      EXPECT_EQ(rows.runs.runs[1 + r], begin);
      EXPECT_EQ(rows.runs.matrices[r], matrix == INT32_MAX ? -1 : matrix);
      begin += static_cast<uint32_t>(pairs.size());
      ++r;
    }
    EXPECT_EQ(rows.runs.runs[1 + r], begin);
  }
  // Row `row` of pair `pair`, staged at `at`.
  bool is_staged(const uint8_t* staged, size_t at, uint32_t pair, int64_t row) const {
    return is_staged(staged, at, rows.stride, pair, row);
  }
  bool is_staged(const uint8_t* staged, size_t at, int64_t pitch, uint32_t pair,
                 int64_t row) const {
    const auto length = static_cast<uint32_t>(rows.k);
    const auto* has = reinterpret_cast<const uint16_t*>(staged) + at * static_cast<size_t>(pitch);
    const uint16_t* from = &x[static_cast<size_t>((pair / l.top_k * l.rows + row) * (l.k + l.gap))];
    for (uint32_t i = 0; i < length; ++i) {
      const uint32_t k = natural_k(l.spec, i);
      if (has[i] != (k < l.k ? from[k] : 0)) return false;
    }
    return true;
  }
  int64_t out_row(uint32_t pair, int64_t row) const { return (pair * l.rows + row) * l.n; }

  void check_in_order() const {
    size_t at = 0;
    for (const auto& [matrix, pairs] : runs) {
      for (const uint32_t pair : pairs) {
        for (int64_t row = 0; row < l.rows; ++row, ++at) {
          EXPECT_EQ(rows.out_rows[at], out_row(pair, row)) << at;
          if (matrix == INT32_MAX) continue;
          const size_t source = rows.sources != nullptr ? rows.sources[at] : at;
          EXPECT_TRUE(is_staged(rows.staged, source, pair, row)) << at;
        }
      }
    }
  }
  // Of each run the rows of whole tiles, and those of the last one, lie where `placed` says.
  void check_ahead(const dispatch::MatmulProblem& p) const {
    const bool wider = rows.runs.wider != nullptr && *rows.runs.wider != 0;
    const cuda::QmmSm90Kernel& kernel =
        wider ? cuda::qmm_sm90_either(p, true)->wider : *cuda::qmm_sm90_ahead(p, l.products);
    cuda::WiderTiles tiles{};
    tiles.base = kernel.tokens - kernel.extra;
    tiles.least = kernel.least_tokens;
    tiles.extra = kernel.extra;
    tiles.step = kernel.extra_step;
    std::vector<int> met(ids.size());
    uint32_t r = 0;
    size_t in_order = 0;
    for (const auto& [matrix, pairs] : runs) {
      const uint32_t whole = cuda::cut_of(tiles, static_cast<uint32_t>(pairs.size())).whole;
      for (uint32_t j = 0; j < pairs.size(); ++j, ++in_order) {
        const uint32_t pair = pairs[j], at = rows.ahead.placed[2 * r + (j < whole ? 0 : 1)] + j;
        ASSERT_LT(at, ids.size());
        EXPECT_EQ(++met[at], 1) << at;
        EXPECT_EQ(rows.ahead.sources[at], pair / l.top_k) << at;
        EXPECT_EQ(rows.out_rows[l.products == 1 ? at : in_order], out_row(pair, 0)) << at;
        const auto pitch = static_cast<int64_t>(rows.ahead.from_pitch / sizeof(uint16_t));
        EXPECT_TRUE(is_staged(rows.ahead.from, rows.ahead.sources[at], pitch, pair, 0)) << at;
        EXPECT_TRUE(at >= front || is_staged(rows.ahead.to, at, pair, 0)) << at;
      }
      ++r;
    }
    EXPECT_EQ(rows.ahead.row_bytes, rows.stride * 2);
    EXPECT_EQ(rows.ahead.first, front);
    EXPECT_EQ(*rows.ahead.claimed, 0u);
    for (size_t i = 0; i * cuda::kReadyRows < ids.size(); ++i) EXPECT_EQ(rows.ahead.ready[i], 0u);
  }
  // Rows of out without a matrix, and no others.
  void check_zeros() const {
    for (size_t i = 0; i < out.size(); ++i) {
      const int32_t id = ids[i / static_cast<size_t>(l.rows * l.n)];
      ASSERT_EQ(out[i], id < 0 || id >= l.experts ? 0 : 0x0707) << i;
    }
  }

  ExpertLayer l;
  Random random;
  std::vector<int32_t> ids;
  std::vector<uint16_t> x, out;
  std::map<int32_t, std::vector<uint32_t>> runs;
  cuda::QmmRows rows;
};

TEST(QmmSm90Rows, AreThoseOfAStableSort) {
  const QuantSpec kFormats[] = {
      {Mode::affine, 4, 64}, {Mode::affine, 8, 64}, {Mode::affine, 6, 64}, {Mode::mxfp4, 4, 32}};
  for (uint64_t seed = 0; seed < 60 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    ExpertLayer l{};
    l.spec = kFormats[seed % std::size(kFormats)].resolved();
    l.top_k = random.pick({1, 2, 3, 8, 40});
    l.rows = random.one_in(4) ? 3 : 1;
    l.tokens = random.pick({1, 5, 33, 100, 300}) / (l.top_k > 8 ? 4 : 1) + 1;
    // Few rows of each: gathered; many: written as often as they are met.
    l.experts = random.pick({1, 3, 60, 300});
    l.n = 24;
    l.k = 64 * random.pick({1, 2, 3, 5});
    if (seed % 20 == 19) {
      l.tokens = 2600, l.top_k = 8, l.rows = 1, l.k = 64;
      l.some_without = false;
    }
    Rows(l, seed).check();
  }
}

// Whose products write the rest of the rows themselves.
TEST(QmmSm90Rows, LieAsTilesWantThem) {
  size_t with_front = 0;
  for (const int64_t products : {1, 2}) {
    for (uint64_t seed = 0; seed < 3 && !testing::Test::HasFailure(); ++seed) {
      SCOPED_TRACE(testing::Message() << products << " products, seed " << seed);
      ExpertLayer l{};
      l.spec = QuantSpec{Mode::affine, 4, 64}.resolved();
      l.top_k = 8;
      l.rows = 1;
      l.tokens = 300 + static_cast<int64_t>(seed) * 30;
      l.experts = 8;
      l.n = 16384;
      l.k = 128;
      l.products = products;
      l.some_without = false;
      Rows rows(l, seed);
      rows.check();
      with_front += rows.front > 0;
    }
  }
  EXPECT_EQ(with_front, 6u);
}

// The same where w is not packed: from x itself, wherever its rows lie as bulk copies want them.
TEST(QmmSm90Rows, AreWrittenFromX) {
  struct From {
    int64_t k, gap;
    bool x;
  };
  for (const From& from : {From{128, 0, true}, {72, 0, true}, {136, 24, true}, {128, 4, false}}) {
    SCOPED_TRACE(testing::Message() << from.k << " values, " << from.gap << " between rows");
    ExpertLayer l{};
    l.spec.mode = Mode::dense;
    l.top_k = 8, l.rows = 1, l.tokens = 330, l.experts = 8;
    l.n = 16384, l.k = from.k, l.gap = from.gap;
    l.some_without = false;
    Rows rows(l, static_cast<uint64_t>(from.k + from.gap));
    rows.check();
    EXPECT_GT(rows.front, 0u);
    EXPECT_EQ(rows.are_from_x(), from.x);
  }
}

// Rows are written beside products from as many on as an expert meets; where there are no wider
// tiles for those who write them, wider tiles of staged rows come first.
TEST(QmmSm90Rows, AreWrittenBesideWiderTilesOrFromMoreRowsOn) {
  struct Who {
    QuantSpec spec;
    int64_t least;
  };
  for (const Who& who : {Who{{Mode::affine, 4, 64}, 232}, Who{{Mode::mxfp4}, 232},
                         Who{{Mode::nvfp4}, 320}, Who{{Mode::dense}, 320}}) {
    SCOPED_TRACE(name(who.spec.mode));
    constexpr int64_t kExperts = 16, kTopK = 8, kN = 8192, kK = 256;
    const auto problem = [&](int64_t rows) {
      const int64_t tokens = rows * kExperts / kTopK;
      const TensorView x = nowhere(DType::bf16, {tokens, 1, 1, kK});
      const TensorView ids = nowhere(DType::i32, {tokens, kTopK}, 8 * 1024);
      const TensorView out = output_nowhere(DType::bf16, {tokens, kTopK, 1, kN});
      if (who.spec.mode == Mode::dense) {
        return ops::gather_mm(x, dense_rows_nowhere({kExperts, kK, kN}), {}, ids, false, out, {});
      }
      return ops::gather_qmm(x, weights_nowhere(who.spec, {kExperts, kN}, kK, DType::bf16), {}, ids,
                             true, false, out, {});
    };
    EXPECT_EQ(cuda::qmm_sm90_front(problem(who.least - 1), kTopK, 1), 0);
    EXPECT_GT(cuda::qmm_sm90_front(problem(who.least), kTopK, 1), 0);
    const dispatch::MatmulProblem p = problem(250);
    EXPECT_NE(cuda::qmm_sm90_either(p, cuda::qmm_sm90_ahead(p, 1) != nullptr), nullptr);
  }
}

// Lists are left to a product where their ids are words side by side, and made by a launch else.
TEST(QmmSm90Rows, AreLeftToProductsThatReadTheirIds) {
  constexpr int64_t kTokens = 4, kTopK = 2, kExperts = 3, kN = 24, kK = 64;
  const std::vector<uint16_t> x(kTokens * kK);
  const std::vector<int64_t> ids(kTokens * kTopK);  // of any type, and with gaps
  struct Of {
    DType type;
    int64_t step;
    bool left;
  };
  for (const Of& of : {Of{DType::i32, 1, true},
                       {DType::i64, 1, true},
                       {DType::i16, 1, false},
                       {DType::i16, 2, false}}) {
    SCOPED_TRACE(testing::Message() << name(of.type) << ", " << of.step << " apart");
    const Device device{MOEBLAS_CUDA, 0};
    const TensorView of_x{
        const_cast<uint16_t*>(x.data()), DType::bf16, {kTokens, 1, 1, kK}, device};
    TensorView of_ids{const_cast<int64_t*>(ids.data()), of.type, {kTokens, kTopK}, device};
    of_ids.strides = {kTopK * of.step, of.step};
    const QuantSpec spec{Mode::affine, 4, 64};
    const dispatch::MatmulProblem p =
        ops::gather_qmm(of_x, weights_nowhere(spec, {kExperts, kN}, kK, DType::bf16), {}, of_ids,
                        true, false, output_nowhere(DType::bf16, {kTokens, kTopK, 1, kN}), {});
    EmulatorQueue portable;
    portable.input(ids.data(), ids.size() * sizeof(int64_t));
    const dispatch::Workspace workspace = portable.workspace(cuda::QmmGrouping(p, kTopK, 1).bytes);
    LaunchesOnBlocks on_blocks(1, 1, portable);
    size_t launches = 0;
    on_blocks.on_launch = [&](const std::string&) { ++launches; };
    cuda::Queue queue(p.op, 0, nullptr);
    const cuda::QmmRows rows = cuda::group_rows(p, kTopK, 1, static_cast<uint8_t*>(workspace.data),
                                                queue, {}, cuda::QmmLists::left);
    EXPECT_EQ(rows.left.has_value(), of.left);
    EXPECT_EQ(launches, of.left ? 0u : 1u);
  }
}

// Of segments, by how many rows each has, as of experts.
TEST(QmmSm90Rows, SegmentsChooseTiles) {
  constexpr int64_t kExperts = 6, kMeans[] = {58, 128, 250};
  size_t chosen[2] = {};
  for (uint64_t seed = 0; seed < 24; ++seed) {
    Random random(seed);
    const int64_t mean = kMeans[seed % std::size(kMeans)], total = mean * kExperts;
    std::vector<int32_t> ends;
    int64_t end = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      const int64_t rows = random.one_in(3) ? mean / 2 : mean + random.below(mean / 2);
      ends.push_back(static_cast<int32_t>(end = std::min(total, end + rows)));
    }
    ends.back() = static_cast<int32_t>(total);  // there is no memory for zeros
    const Device device{MOEBLAS_CUDA, 0};
    const dispatch::MatmulProblem p = ops::grouped_mm(
        nowhere(DType::bf16, {total, 128}), dense_rows_nowhere({kExperts, 128, 512}),
        {ends.data(), DType::i32, {kExperts}, device}, output_nowhere(DType::bf16, {total, 512}),
        {});
    EmulatorQueue portable;
    portable.input(ends.data(), ends.size() * sizeof(int32_t));
    const dispatch::Workspace workspace = portable.workspace(cuda::QmmGrouping(p).bytes);
    LaunchesOnBlocks on_blocks(seed, 1, portable);
    cuda::Queue queue(p.op, 0, nullptr);
    const cuda::QmmRows rows = cuda::group_rows(p, static_cast<uint8_t*>(workspace.data), queue);
    const cuda::QmmSm90Either* either = cuda::qmm_sm90_either(p, false);
    ASSERT_NE(either, nullptr);
    ASSERT_NE(rows.runs.wider, nullptr);
    cuda::WiderTiles tiles{};
    tiles.base = either->wider.tokens - either->wider.extra;
    tiles.least = either->wider.least_tokens;
    tiles.extra = either->wider.extra;
    tiles.step = either->wider.extra_step;
    tiles.loss = either->loss;
    cuda::TileTimes all{};
    for (size_t e = 0; e < ends.size(); ++e) {
      const int32_t first = e == 0 ? 0 : ends[e - 1];
      const cuda::TileTimes of = cuda::tile_times(tiles, static_cast<uint32_t>(ends[e] - first));
      all.others += of.others;
      all.saved += of.saved;
    }
    const uint32_t expected = cuda::wider_pays(tiles, all) ? 1 : 0;
    EXPECT_EQ(*rows.runs.wider, expected) << "seed " << seed;
    ++chosen[expected];
  }
  EXPECT_GT(chosen[0], 2u);
  EXPECT_GT(chosen[1], 2u);
}

}  // namespace
}  // namespace moeblas::test
