// Lists of pairs that one launch makes in front of products of qmm_sm90: the kernel's own text on
// thread blocks of the host, against a stable sort.
#include "cuda/device/ptx.cuh"
#include "cuda/qmm_sm90/list_params.h"

namespace moeblas::cuda {
namespace {
using device::__ballot_sync, device::__ffs, device::__ldg, device::__match_any_sync, device::__popc,
    device::__shfl_sync, device::__shfl_up_sync, device::atomicAdd, device::min;
void __syncthreads() { device::named_barrier(0, kListThreads); }
}  // namespace
}  // namespace moeblas::cuda
#include "cuda/qmm_sm90/list_pairs.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "support/random.h"

namespace moeblas::test {
namespace {

constexpr uint32_t kUnwritten = 0x07070707, kColumns = 3;

enum class Routing { uniform, one, sorted, few };

struct Layer {
  uint32_t tokens, top_k, matrices;
  uint32_t rows;      // of a pair
  uint32_t id_bytes;  // 0: 16 bits, by key_of
  Routing routing;
  bool hostile;  // some ids are of no matrix
  bool zeros;    // whose rows are to be zeros
  uint32_t block_pairs;
};

template <class Id>
std::vector<Id> ids_of(const Layer& of, Random& random) {
  std::vector<Id> ids(size_t{of.tokens} * of.top_k);
  for (Id& id : ids) {
    id = static_cast<Id>(of.routing == Routing::one   ? of.matrices / 2
                         : of.routing == Routing::few ? random.below(2) * (of.matrices - 1)
                                                      : random.below(of.matrices));
  }
  if (of.routing == Routing::sorted) std::sort(ids.begin(), ids.end());
  if (!of.hostile) return ids;
  const auto matrices = static_cast<Id>(of.matrices);
  const Id wrong[] = {matrices, Id{-1}, std::numeric_limits<Id>::min(),
                      std::numeric_limits<Id>::max(),
                      // Of 64 bits, one whose lower half is a matrix.
                      sizeof(Id) == 8 ? static_cast<Id>(int64_t{1} << 32) : Id{-2}};
  for (Id& id : ids) {
    if (random.one_in(7)) id = wrong[random.below(std::ssize(wrong))];
  }
  return ids;
}

template <class Id>
void expect_lists(const Layer& of, uint64_t seed) {
  SCOPED_TRACE(testing::Message() << of.tokens << " tokens of " << of.top_k << " pairs of "
                                  << of.rows << " rows, " << of.matrices << " matrices, ids of "
                                  << of.id_bytes << " bytes, routing " << int(of.routing)
                                  << (of.hostile ? ", hostile" : "") << ", " << of.block_pairs
                                  << " pairs a block, seed " << seed);
  Random random(seed);
  const std::vector<Id> ids = ids_of<Id>(of, random);
  const auto pairs = static_cast<uint32_t>(ids.size());
  const auto key_of = [&](uint32_t pair) {
    const Id id = ids[pair];
    return id < 0 || id >= static_cast<int64_t>(of.matrices) ? of.matrices
                                                             : static_cast<uint32_t>(id);
  };
  // Rows of `out` with one in between.
  const int64_t row_stride = 2 * kColumns;
  std::vector<uint16_t> out(size_t{pairs} * of.rows * row_stride, 0x0707);
  std::vector<uint32_t> runs(of.matrices + 3, kUnwritten), sources(pairs * of.rows, kUnwritten);
  std::vector<int32_t> matrices(of.matrices + 1, int32_t{kUnwritten});
  std::vector<int64_t> out_rows(sources.size(), kUnwritten);
  uint32_t chosen = kUnwritten;

  cuda::ListPairsParams p{};
  p.pairs.pairs = pairs;
  p.pairs.w_count = of.matrices;
  p.w_index = reinterpret_cast<const uint8_t*>(ids.data());
  p.runs = runs.data();
  p.matrices = matrices.data();
  p.out_rows = out_rows.data();
  p.sources = sources.data();
  p.out = of.zeros ? reinterpret_cast<uint8_t*>(out.data()) : nullptr;
  p.out_row_stride = row_stride;
  p.rows_per_pair = of.rows;
  p.top_k = of.top_k;
  p.n = kColumns;
  p.block_pairs = of.block_pairs;
  p.blocks = (pairs + of.block_pairs - 1) / of.block_pairs;
  p.counters = p.blocks + 1;
  p.out_steps[1] = of.rows * row_stride;
  p.out_steps[0] = of.top_k * p.out_steps[1];
  p.id_bytes = of.id_bytes;
  p.wider = {&chosen, 32, 16, 16, 16, random.pick({0u, 60u, 150u, 300u})};

  static_assert(alignof(cuda::ListShared) <= 16);
  run_grid({p.counters, cuda::kListThreads, sizeof(cuda::ListShared), seed, 0xff}, [&] {
    auto& shared = *reinterpret_cast<cuda::ListShared*>(dynamic_memory());
    cuda::list_block(p, block_index(), shared, key_of);
  });

  std::vector<uint32_t> order(pairs);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key_of(a) < key_of(b); });
  std::vector<uint32_t> wanted_runs = {0};
  std::vector<int32_t> wanted_matrices;
  cuda::TileTimes times{};
  for (uint32_t i = 0, next; i < pairs; i = next) {
    const uint32_t key = key_of(order[i]);
    for (next = i; next < pairs && key_of(order[next]) == key;) ++next;
    wanted_runs.push_back(i);
    wanted_matrices.push_back(key == of.matrices ? -1 : static_cast<int32_t>(key));
    if (key == of.matrices) break;
    const cuda::TileTimes of_key = cuda::tile_times(p.wider, (next - i) * of.rows);
    times.others += of_key.others;
    times.saved += of_key.saved;
  }
  wanted_runs[0] = static_cast<uint32_t>(wanted_matrices.size());
  wanted_runs.push_back(pairs);
  wanted_runs.resize(runs.size(), kUnwritten);
  wanted_matrices.resize(matrices.size(), int32_t{kUnwritten});
  EXPECT_EQ(runs, wanted_runs);
  EXPECT_EQ(matrices, wanted_matrices);
  EXPECT_EQ(chosen, cuda::wider_pays(p.wider, times) ? 1u : 0u);
  for (uint32_t i = 0; i < pairs; ++i) {
    for (uint32_t row = 0; row < of.rows; ++row) {
      const uint32_t pair = order[i], at = i * of.rows + row;
      const int64_t to = (int64_t{pair} * of.rows + row) * row_stride;
      ASSERT_EQ(sources[at], pair / of.top_k * of.rows + row) << "place " << i;
      ASSERT_EQ(out_rows[at], to) << "place " << i;
      const bool cleared = of.zeros && key_of(pair) == of.matrices;
      for (int64_t n = 0; n < row_stride; ++n) {
        ASSERT_EQ(out[static_cast<size_t>(to + n)], cleared && n < kColumns ? 0 : 0x0707)
            << "pair " << pair;
      }
    }
  }
}

void expect_lists_of(const Layer& of, uint64_t seed) {
  switch (of.id_bytes) {
    case 4:
      return expect_lists<int32_t>(of, seed);
    case 8:
      return expect_lists<int64_t>(of, seed);
    default:
      return expect_lists<int16_t>(of, seed);
  }
}

TEST(ListPairs, AreSortedByTheirMatrices) {
  for (uint64_t seed = 0; seed < 60 && !testing::Test::HasFailure(); ++seed) {
    Random random(seed);
    Layer of{};
    of.top_k = random.pick({1u, 2u, 3u, 8u});
    of.tokens = random.pick({1u, 5u, 31u, 64u, 127u, 300u});
    of.matrices = random.pick({1u, 3u, 8u, 128u, 511u, 512u, 1024u});
    of.rows = random.pick({1u, 1u, 3u});
    of.id_bytes = random.pick({0u, 4u, 8u});
    of.routing = random.pick({Routing::uniform, Routing::one, Routing::sorted, Routing::few});
    of.hostile = random.one_in(2);
    of.zeros = random.one_in(2);
    of.block_pairs = random.pick({32u, 64u, 160u, cuda::kListedByBlock});
    expect_lists_of(of, seed);
  }
}

// All loads of ids of a thread under way, and once more for those of 64 bits.
TEST(ListPairs, AsManyAsOneLaunchLists) {
  for (const uint32_t id_bytes : {0u, 4u, 8u}) {
    expect_lists_of({cuda::kListedPairs / 8, 8, 128, 1, id_bytes, Routing::uniform, true, true,
                     cuda::kListedByBlock},
                    id_bytes);
  }
}

}  // namespace
}  // namespace moeblas::test
