// The kernels of qmm_sm90 that hold rows of x in registers on clusters of thread blocks of the
// host, by their own plans: one matrix, rows of one share of K, of two, and in passes; and runs of
// rows by a matrix each, also as gates and ups, whose activations are held to the reference.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "block/launches.h"
#include "cases_on_blocks.h"
#include "cuda/qmm_sm90/order.h"
#include "cuda/qmm_sm90/parts.h"
#include "cuda/qmm_sm90_held/plan.h"
#include "support/execute.h"
#include "support/generator.h"
#include "support/guard.h"
#include "support/reference.h"

namespace moeblas::test {
namespace {

struct NoPortableKernels final : simt::Queue {
  void run(const simt::Step& step) override { throw NoKernelOnBlocks(step.kernel); }
};

RowOnBlocks row(uint32_t clusters) {
  return {"qmm_sm90",
          [=](const dispatch::MatmulProblem& p, const Operands&, uint64_t seed,
              std::string& kernel) -> std::string {
            if (!cuda::qmm_sm90_is_held(p)) return "not one that is held";
            NoPortableKernels none;
            LaunchesOnBlocks on_blocks(seed, clusters, none);
            on_blocks.on_launch = [&](const std::string& name) { kernel = name; };
            cuda::Queue queue(p.op, p.device.id, p.options.stream);
            cuda::qmm_sm90_run_held(p, queue);
            return "";
          }};
}

constexpr int64_t kSlice = 512;  // of K, of a warp
constexpr QuantSpec kAffine4{Mode::affine, 4, 64}, kMxfp4{Mode::mxfp4};

Case case_of(const QuantSpec& spec, uint64_t seed) {
  constexpr int64_t kMostProducts = 6'000'000;
  Random random(seed + (uint64_t{1} << 46));
  Case c;
  c.seed = seed;
  c.op = Op::quantized_matmul;
  c.format = spec.resolved();
  c.x.dtype = DType::bf16;
  c.values = random.pick({Values::normal, Values::normal, Values::integers, Values::specials});
  c.scale_exponent = random.pick({0, -6});
  // Scales of 2^-127 too.
  if (spec.mode == Mode::mxfp4 && random.one_in(4)) c.scale_exponent = -124;
  // Of one share of K, of two, and of two parts of two, the last of which may lack slices.
  const int64_t slices = seed % 3 == 0   ? random.pick({5, 7, 8})
                         : seed % 3 == 1 ? random.pick({9, 13, 16})
                                         : random.pick({17, 18, 25, 32});
  const int64_t k = slices * kSlice, m = random.between(9, 16);
  int64_t n = random.pick({8, 40, 64, 97, 130, 200});
  while (16 * n * k > kMostProducts && n > 8) n = std::max<int64_t>(8, n * 3 / 4);
  c.codes = plain(DType::u32, {n, k / 8});
  const bool affine = spec.mode == Mode::affine;
  c.scales = plain(affine ? DType::bf16 : DType::u8, {n, k / c.format->group_size});
  if (affine) c.biases = c.scales;
  c.x = plain(DType::bf16, {m, k});
  c.out = random.one_in(3) ? drawn(random, DType::bf16, {m, n}, true, false)
                           : plain(DType::bf16, {m, n});
  return c;
}

// In every slice of K a value of x that is large beside all others, and meets zeros of w alone.
void set_large_x_by_zeros(const Case& c, Operands& o) {
  const int64_t m = c.x.shape[0], k = c.x.shape[1], n = c.scales.shape[0];
  Random random(c.seed + (uint64_t{1} << 49));
  for (int64_t i = 0; i < k; i += kSlice) {
    const int64_t large = i + random.below(kSlice);
    for (int64_t token = 0; token < m; ++token) o.x.set(token * k + large, 1.0);
    for (int64_t row = 0; row < n; ++row) {
      o.codes.byte((row * k + large) / 8)[large / 2 % 4] &= large % 2 == 0 ? 0xf0 : 0x0f;
    }
  }
}

// Cases of mxfp4 whose operands are changed before they run.
void run_changed_mxfp4(const std::function<int(uint64_t)>& x_exponent,
                       const std::function<void(const Case&, Operands&)>& change) {
  Counts counts;
  run_seeds(
      12,
      [&](uint64_t seed, uint64_t order, uint8_t poison) -> std::optional<RunOnBlocks> {
        Case c = case_of(kMxfp4, seed);
        c.values = Values::normal;
        c.scale_exponent = 0;
        c.x_exponent = x_exponent(seed);
        Operands o = operands_of(c, poison);
        change(c, o);
        return run_case(row(static_cast<uint32_t>(seed / 3 % 2 + 1)), c, o, order, poison);
      },
      counts);
  counts.expect_all({"qmm_sm90_held_mxfp4_bf16_1", "qmm_sm90_held_mxfp4_bf16_2"});
}

Case held_case(uint64_t seed) { return case_of(seed / 6 % 2 == 0 ? kAffine4 : kMxfp4, seed); }

// Lists that are left to products, and what they come to.
struct ListsLeft {
  std::vector<uint8_t> workspace;
  cuda::QmmRows rows;

  ListsLeft(const dispatch::MatmulProblem& p, int64_t products, cuda::Queue& queue) {
    const int64_t per_token = p.total_rows() / p.x.values.count();
    workspace.resize(cuda::QmmGrouping(p, per_token, products).bytes, kPoison);
    rows =
        cuda::group_rows(p, per_token, products, workspace.data(), queue, {}, cuda::QmmLists::left);
  }
};

// The pairs by matrix, each one's in their order, those of none last.
constexpr int32_t kNone = INT32_MAX;
using Sorted = std::map<int32_t, std::vector<uint32_t>>;
Sorted sorted_pairs(const dispatch::MatmulProblem& p, const Operands& o) {
  Sorted pairs;
  const bool is_wide = o.rhs.view.dtype == DType::i64;
  for (uint32_t pair = 0; pair < p.total_rows(); ++pair) {
    const uint8_t* from = o.rhs.byte(pair);
    const int64_t id =
        is_wide ? *reinterpret_cast<const int64_t*>(from) : *reinterpret_cast<const int32_t*>(from);
    pairs[id < 0 || id >= p.w.values.count() ? kNone : static_cast<int32_t>(id)].push_back(pair);
  }
  return pairs;
}

// What the products of a layer's gates and ups leave for the next ones.
void expect_lists(const cuda::QmmRows& rows, const Sorted& sorted, int64_t n) {
  ASSERT_EQ(rows.runs.runs[0], sorted.size());
  uint32_t run = 0, at = 0;
  for (const auto& [matrix, pairs] : sorted) {
    EXPECT_EQ(rows.runs.runs[1 + run], at);
    EXPECT_EQ(rows.runs.matrices[run++], matrix == kNone ? -1 : matrix);
    for (const uint32_t pair : pairs) EXPECT_EQ(rows.out_rows[at++], pair * n);
  }
  EXPECT_EQ(rows.runs.runs[1 + run], at);
}

RowOnBlocks row_of_runs(uint32_t blocks) {
  return {"qmm_sm90",
          [=](const dispatch::MatmulProblem& p, const Operands&, uint64_t seed,
              std::string& kernel) -> std::string {
            if (!cuda::qmm_sm90_holds_runs(p)) return "runs that are not held";
            NoPortableKernels none;
            LaunchesOnBlocks on_blocks(seed, blocks, none);
            on_blocks.on_launch = [&](const std::string& name) { kernel = name; };
            cuda::Queue queue(p.op, p.device.id, p.options.stream);
            const ListsLeft lists(p, 1, queue);
            if (!lists.rows.left) return "lists that are not left";
            cuda::qmm_sm90_run_held_runs(p, *lists.rows.left, queue);
            return "";
          }};
}

Case runs_case(uint64_t seed) {
  Random random(seed + (uint64_t{1} << 47));
  const bool affine = seed / 4 % 2 == 0;
  Case c = case_of(affine ? kAffine4 : kMxfp4, 3 * seed);
  c.seed = seed;
  c.op = Op::gather_qmm;
  c.ids = random.pick({Ids::uniform, Ids::sorted, Ids::one, Ids::mixed});
  // More experts than a warp has lanes, too, and more pairs than all multiplying lanes.
  const bool is_short = seed % 4 == 3;
  const int64_t k = is_short ? 2048 : c.x.shape[1];
  const int64_t experts = random.pick({1, 2, 3, 5, 40});
  const bool many = experts > 5;
  const int64_t top_k = random.pick({1, 2, 4}), n = many ? 8 : random.pick({8, 40, 64, 97});
  // One octet of tokens, two and three, and of one expert some passes of them.
  const int64_t most = many ? 7 : (affine ? 12 : 8) + (is_short ? 0 : 4);
  const int64_t rows = experts * random.between(2, most);
  const int64_t tokens = (rows + top_k - 1) / top_k;
  c.codes = plain(DType::u32, {experts, n, k / 8});
  c.scales = plain(affine ? DType::bf16 : DType::u8, {experts, n, k / c.format->group_size});
  if (affine) c.biases = c.scales;
  c.x = plain(DType::bf16, {tokens, 1, 1, k});
  c.rhs = plain(random.pick({DType::i32, DType::i64}), {tokens, top_k});
  c.out = plain(DType::bf16, {tokens, top_k, 1, n});
  return c;
}

TEST(QmmSm90HeldProducts, RunsOfRows) {
  Counts counts;
  run_cases(
      40, runs_case, [](uint64_t seed) { return row_of_runs(static_cast<uint32_t>(seed % 4 + 1)); },
      counts);
  counts.expect_all({"qmm_sm90_held_affine4_bf16_runs", "qmm_sm90_held_mxfp4_bf16_runs",
                     "qmm_sm90_held_affine4_bf16_runs_2", "qmm_sm90_held_mxfp4_bf16_runs_2"});
}

// Gates and ups of a layer as a product of twice as many rows of w, the ones behind the others.
Case gates_case(uint64_t seed) {
  constexpr int64_t kInner = 128;  // whole blocks of what is staged
  Random random(seed + (uint64_t{1} << 50));
  const bool affine = seed % 2 == 0, is_short = seed / 2 % 2 == 1;
  Case c = case_of(affine ? kAffine4 : kMxfp4, 3 * seed);
  c.seed = seed;
  c.op = Op::gather_qmm;
  c.values = random.pick({Values::normal, Values::integers});
  c.ids = random.pick({Ids::uniform, Ids::sorted, Ids::one, Ids::mixed});
  // More experts, and more pairs, than a warp has lanes, too, some of no matrix; and so many
  // experts of few pairs.
  const bool few = seed / 2 % 12 == 7, many = seed % 24 == 7 || few;
  if (many) c.ids = Ids::mixed;
  const int64_t k = many ? 1536 : is_short ? random.pick({1536, 2048}) : random.pick({2560, 4096});
  const int64_t experts = many ? 40 : random.pick({1, 2, 3}), top_k = random.pick({1, 2});
  const int64_t least = many ? 2 : is_short ? 5 : 3, most = many ? 3 : is_short ? 6 : 16;
  const int64_t rows = few ? random.between(33, 63) : experts * random.between(least, most);
  const int64_t tokens = (rows + top_k - 1) / top_k;
  c.codes = plain(DType::u32, {experts, 2 * kInner, k / 8});
  c.scales =
      plain(affine ? DType::bf16 : DType::u8, {experts, 2 * kInner, k / c.format->group_size});
  if (affine) c.biases = c.scales;
  c.x = plain(DType::bf16, {tokens, 1, 1, k});
  c.rhs = plain(random.pick({DType::i32, DType::i64}), {tokens, top_k});
  c.out = plain(DType::bf16, {tokens, top_k, 1, 2 * kInner});
  return c;
}

// From silu(gate) * up of sums that are off by their slack, rounded once.
void expect_activation(float got, const Expected& gate, const Expected& up, const std::string& of) {
  const double sigmoid = 1 / (1 + std::exp(-gate.exact)), silu = gate.exact * sigmoid;
  const double steepest = 1.1;  // of silu
  const double off = steepest * gate.slack * (std::fabs(up.exact) + up.slack) +
                     std::fabs(silu) * up.slack + std::fabs(silu * up.exact) / 200 + 1e-6;
  EXPECT_LE(std::fabs(got - silu * up.exact), off) << of;
}

void run_gates(uint64_t seed, std::map<std::string, int>& taken) {
  const Case c = gates_case(seed);
  const Operands o = operands_of(c, kPoison);
  dispatch::MatmulProblem p = problem_of(c, o);
  const int64_t pairs = p.total_rows(), both = p.n, inner = both / 2;
  p.n = inner;
  dispatch::Operand lower = p.w;
  const auto behind = [&](dispatch::Matrices& m) {
    if (m.data == nullptr) return;
    m.data =
        static_cast<char*>(m.data) + inner * m.row_stride * static_cast<int64_t>(size_of(m.dtype));
  };
  behind(lower.values);
  behind(lower.scales);
  behind(lower.biases);
  // For a product by tiles, or for one that holds rows, too.
  const bool is_staged = seed / 8 % 2 == 0;
  ASSERT_TRUE(cuda::qmm_sm90_holds_gates(p, lower, !is_staged)) << "seed " << seed;
  const bool first_is_up = seed / 4 % 2 == 1;
  const Sorted sorted = sorted_pairs(p, o);
  constexpr uint16_t kNothing = 0xffff;
  const int64_t pitch = inner + 64;
  const GuardedMemory to(static_cast<size_t>(pairs * pitch) * sizeof(uint16_t), Side::right, 0xff,
                         16);
  std::string kernel;
  {
    NoPortableKernels none;
    LaunchesOnBlocks on_blocks(seed, static_cast<uint32_t>(seed % 4 + 1), none);
    on_blocks.on_launch = [&](const std::string& name) { kernel = name; };
    cuda::Queue queue(p.op, p.device.id, p.options.stream);
    const ListsLeft lists(p, 2, queue);
    ASSERT_TRUE(lists.rows.left) << "seed " << seed;
    cuda::ListPairsParams left = *lists.rows.left;
    if (!is_staged) left.runs = nullptr, left.out_rows = nullptr;
    cuda::qmm_sm90_run_held_gates(p, lower, first_is_up, left, {to.data(), pitch, is_staged},
                                  queue);
    if (is_staged) expect_lists(lists.rows, sorted, both);
  }
  ++taken[kernel];
  const std::vector<Expected> sums = evaluate(product_of(c, o), path_of("qmm_sm90"), DType::bf16);
  const auto* row = reinterpret_cast<const uint16_t*>(to.data());
  for (const auto& [matrix, of_matrix] : sorted) {
    for (const int64_t pair : of_matrix) {
      const std::string of = "seed " + std::to_string(seed) + ", pair " + std::to_string(pair);
      for (int64_t i = 0; i < pitch; ++i) {
        if (i >= inner || matrix == kNone) {
          ASSERT_EQ(row[i], kNothing) << of << ", place " << i;
          continue;
        }
        const int64_t of_block = cuda::NibbleOrder::natural_k(static_cast<uint32_t>(i % 128));
        const int64_t n = is_staged ? i / 128 * 128 + of_block : i;
        const Expected& a = sums[static_cast<size_t>(pair * both + n)];
        const Expected& b = sums[static_cast<size_t>(pair * both + inner + n)];
        expect_activation(std::bit_cast<float>(uint32_t{row[i]} << 16), first_is_up ? b : a,
                          first_is_up ? a : b, of + ", activation " + std::to_string(n));
        if (testing::Test::HasFailure()) return;
      }
      row += pitch;
    }
  }
}

TEST(QmmSm90HeldProducts, GatesAndUps) {
  std::map<std::string, int> taken;
  for (uint64_t seed = 0; seed < 24 && !HasFailure(); ++seed) run_gates(seed, taken);
  for (const char* kernel :
       {"qmm_sm90_held_affine4_bf16_gates", "qmm_sm90_held_mxfp4_bf16_gates",
        "qmm_sm90_held_affine4_bf16_gates_2", "qmm_sm90_held_mxfp4_bf16_gates_2"}) {
    EXPECT_GT(taken[kernel], 0) << kernel;
  }
}

// What gates and ups have left, rows in the order of the runs: here a row of x of each pair.
Case sums_case(uint64_t seed) {
  Random random(seed + (uint64_t{1} << 51));
  const bool affine = seed % 2 == 0;
  Case c = case_of(affine ? kAffine4 : kMxfp4, 3 * seed);
  c.seed = seed;
  c.op = Op::gather_qmm;
  c.ids = random.pick({Ids::uniform, Ids::sorted, Ids::one, Ids::mixed});
  // Four groups of rows in a tile, short ones and not; one part of K, or several, the last of which
  // may lack slices.
  constexpr int64_t kShort = 768;
  const int64_t of_kind[] = {kShort, 2 * kSlice, random.pick({5, 7, 8}) * kSlice,
                             random.pick({9, 14, 17}) * kSlice};
  const int64_t k = of_kind[seed / 2 % std::size(of_kind)];
  // Too large for a power of two: all sums of several parts are made again.
  if (seed / 2 % 18 == 3) {
    c.values = Values::normal;
    c.scale_exponent = 0;
    c.x_exponent = 97;
  }
  // As many experts as there may be, too, and more pairs than multiplying lanes.
  const int64_t most = k == kShort ? 128 : 40;
  // Few pairs of many experts: all of one, more than a tile meets, and several of some.
  const bool skewed = seed / 2 % 9 == 4 && k <= 2 * kSlice;
  const bool spread = seed / 2 % 9 == 0 && k <= 2 * kSlice;
  if (skewed) c.ids = Ids::one;
  if (spread) c.ids = Ids::uniform;
  const int64_t experts = spread ? 40 : skewed ? most : random.pick<int64_t>({1, 2, 3, most});
  const bool is_long = k > 2 * kSlice && experts <= 3;
  // Of one expert more octets of tokens than a tile meets, too.
  if (is_long && experts > 1) c.ids = random.pick({Ids::one, Ids::uniform});
  const int64_t rows = random.between(is_long ? 6 : 2, is_long ? 16 : 4);
  // Of many experts few pairs, too.
  const bool few = skewed || spread || (experts > 3 && random.between(0, 1) == 0);
  const int64_t pairs = few              ? random.between(skewed || spread ? 40 : 20, 64)
                        : experts == 128 ? random.between(260, 400)
                                         : experts * rows;
  const int64_t n = k == kShort   ? 64 * (experts > 3 ? 1 : random.between(1, 2))
                    : experts > 3 ? 40
                                  : random.pick({8, 40, 97, 130});
  c.codes = plain(DType::u32, {experts, n, k / 8});
  c.scales = plain(affine ? DType::bf16 : DType::u8, {experts, n, k / c.format->group_size});
  if (affine) c.biases = c.scales;
  c.x = plain(DType::bf16, {pairs, 1, 1, k});
  c.rhs = plain(random.pick({DType::i32, DType::i64}), {pairs, 1});
  c.out = plain(DType::bf16, {pairs, 1, 1, n});
  return c;
}

void run_sums(uint64_t seed, std::map<std::string, int>& taken) {
  const Case c = sums_case(seed);
  const Operands o = operands_of(c, kPoison);
  const dispatch::MatmulProblem p = problem_of(c, o);
  const Sorted sorted = sorted_pairs(p, o);
  const auto pairs = static_cast<size_t>(p.total_rows()), n = static_cast<size_t>(p.n);
  const uint32_t parts = cuda::qmm_sm90_held_sum_parts(p);
  ASSERT_GT(parts, 0u) << "seed " << seed;
  // Between rows what is no number, behind them no memory.
  const auto pitch = static_cast<size_t>(p.k) + 64;
  const GuardedMemory rows((pairs * pitch - 64) * sizeof(uint16_t), Side::right, 0xff, 16);
  auto* row = reinterpret_cast<uint16_t*>(rows.data());
  for (const auto& [matrix, of_matrix] : sorted) {
    for (const int64_t pair : of_matrix) {
      if (matrix != kNone) {
        std::copy_n(reinterpret_cast<const uint16_t*>(o.x.byte(pair * p.k)), p.k, row);
      }
      row += pitch;
    }
  }
  constexpr uint32_t kNothing = 0xffffffff;
  const GuardedMemory memory(parts * pairs * n * sizeof(float), Side::right, 0xff, sizeof(float));
  auto* sums = reinterpret_cast<float*>(memory.data());
  {
    NoPortableKernels none;
    LaunchesOnBlocks on_blocks(seed, static_cast<uint32_t>(seed % 4 + 1), none);
    on_blocks.on_launch = [&](const std::string& name) { ++taken[name]; };
    cuda::Queue queue(p.op, p.device.id, p.options.stream);
    const ListsLeft lists(p, 1, queue);
    ASSERT_TRUE(lists.rows.left) << "seed " << seed;
    const cuda::HeldActivations from{rows.data(), static_cast<int64_t>(pitch), false};
    cuda::qmm_sm90_run_held_sums(p, *lists.rows.left, from, sums, queue);
  }
  std::vector<double> got(pairs * n);
  for (const auto& [matrix, of_matrix] : sorted) {
    for (const size_t pair : of_matrix) {
      for (size_t i = pair * n; i < (pair + 1) * n; ++i) {
        for (uint32_t part = 0; part < parts; ++part) {
          const float of_part = sums[part * pairs * n + i];
          if (matrix != kNone) {
            got[i] += of_part;
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(of_part), kNothing) << "seed " << seed;
          }
        }
      }
    }
  }
  const std::vector<Expected> expected =
      evaluate(product_of(c, o), path_of("qmm_sm90"), DType::bf16);
  EXPECT_EQ(compare(expected, got, DType::f32, false), "") << "seed " << seed;
}

TEST(QmmSm90HeldProducts, SumsOfActivations) {
  std::map<std::string, int> taken;
  for (uint64_t seed = 0; seed < 40 && !HasFailure(); ++seed) run_sums(seed, taken);
  for (const std::string format : {"affine4", "mxfp4"}) {
    for (const char* kind : {"sums", "sums_4", "short_sums_4"}) {
      EXPECT_GT(taken["qmm_sm90_held_" + format + "_bf16_" + kind], 0) << format << " " << kind;
    }
  }
}

// Of short rows one copy brings a tile's scales.
TEST(QmmSm90HeldProducts, SumsOfScalesThatLieApartAreRefused) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const Case c = sums_case(seed);
    const Operands o = operands_of(c, kPoison);
    const dispatch::MatmulProblem p = problem_of(c, o);
    const bool is_short = seed < 2;
    ASSERT_EQ(p.k == 768, is_short);
    ASSERT_GT(cuda::qmm_sm90_held_sum_parts(p), 0u);
    dispatch::MatmulProblem apart = p;
    apart.w.scales.row_stride += 64;
    apart.w.scales.batch_stride[0] += 64 * p.n;
    EXPECT_EQ(cuda::qmm_sm90_held_sum_parts(apart) == 0, is_short) << "seed " << seed;
    dispatch::MatmulProblem within = p;
    within.w.scales.data = static_cast<char*>(within.w.scales.data) + 8;
    EXPECT_EQ(cuda::qmm_sm90_held_sum_parts(within), 0u) << "seed " << seed;
  }
}

TEST(QmmSm90HeldProducts, GeneratedCases) {
  Counts counts;
  run_cases(
      48, held_case, [](uint64_t seed) { return row(static_cast<uint32_t>(seed / 3 % 2 + 1)); },
      counts);
  counts.expect_all({"qmm_sm90_held_affine4_bf16_1", "qmm_sm90_held_affine4_bf16_2",
                     "qmm_sm90_held_mxfp4_bf16_1", "qmm_sm90_held_mxfp4_bf16_2"});
}

TEST(QmmSm90HeldProducts, ScalesAtTheEnds) {
  run_changed_mxfp4([](uint64_t) { return -20; }, set_scales_at_the_ends);
}

// Sums are of what is small beside the largest of x, down to what float16 holds.
TEST(QmmSm90HeldProducts, LargeXByZeros) {
  run_changed_mxfp4([](uint64_t seed) { return -20 - static_cast<int>(seed % 4); },
                    set_large_x_by_zeros);
}

}  // namespace
}  // namespace moeblas::test
