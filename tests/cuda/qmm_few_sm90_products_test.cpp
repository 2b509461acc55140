// qmm_few_sm90 on clusters of thread blocks of the host, by its own plans: every kernel, few and
// many tiles to a cluster, threads and copies in random order.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "block/launches.h"
#include "cases_on_blocks.h"
#include "cuda/qmm_few_sm90/plan.h"
#include "support/generator.h"

namespace moeblas::test {
namespace {

struct NoPortableKernels final : simt::Queue {
  void run(const simt::Step& step) override { throw NoKernelOnBlocks(step.kernel); }
};

RowOnBlocks row(uint32_t clusters) {
  return {"qmm_few_sm90",
          [=](const dispatch::MatmulProblem& p, const Operands&, uint64_t seed,
              std::string& kernel) -> std::string {
            if (const dispatch::Reason why_not = cuda::qmm_few_sm90_reject(p)) {
              return why_not.text();
            }
            NoPortableKernels none;
            LaunchesOnBlocks on_blocks(seed, clusters, none);
            on_blocks.on_launch = [&](const std::string& name) { kernel = name; };
            cuda::qmm_few_sm90(p, {});
            return "";
          }};
}

// Long rows of one matrix, as few as there are.
Case few_long_rows_case(uint64_t seed) {
  const QuantSpec kFormats[] = {{Mode::affine, 4, 64},
                                {Mode::mxfp4, 4, 32},
                                {Mode::affine, 4, 32},
                                {Mode::nvfp4, 4, 16},
                                {Mode::affine, 4, 128}};
  constexpr int64_t kSlice = 256, kMostProducts = 2'000'000;
  Random random(seed + (uint64_t{1} << 45));
  Case c;
  c.seed = seed;
  c.op = Op::quantized_matmul;
  c.format = kFormats[seed % std::size(kFormats)];
  const bool affine = c.format->mode == Mode::affine;
  c.x.dtype = DType::bf16;
  c.values = random.pick({Values::normal, Values::normal, Values::integers, Values::specials});
  c.scale_exponent = random.pick({0, -6});
  // Scales of 2^-127 too.
  if (c.format->mode == Mode::mxfp4 && random.one_in(4)) c.scale_exponent = -124;
  // Of eight slices or more to a block, of sixteen and more, and in passes.
  const uint64_t kind = seed / std::size(kFormats) % 3;
  const int64_t slices = kind == 0   ? random.pick({9, 12, 16})
                         : kind == 1 ? random.pick({17, 24, 32})
                                     : random.pick({33, 40, 70});
  const int64_t k = slices * kSlice, m = random.between(1, 8);
  int64_t n = random.pick({8, 40, 64, 97, 130, 200, 400, 800});
  while (m * n * k > kMostProducts && n > 8) n = std::max<int64_t>(8, n * 3 / 4);
  c.codes = plain(DType::u32, {n, k / 8});
  c.scales = plain(affine ? DType::bf16 : DType::u8, {n, k / c.format->group_size});
  if (affine) c.biases = c.scales;
  if (c.format->mode == Mode::nvfp4 && random.one_in(2)) c.host_tensor_scale = 0.5f;
  c.x = plain(DType::bf16, {m, k});
  c.out = random.one_in(3) ? drawn(random, DType::bf16, {m, n}, true, false)
                           : plain(DType::bf16, {m, n});
  return c;
}

TEST(QmmFewSm90Products, GeneratedCases) {
  Counts counts;
  run_cases(
      60, few_long_rows_case,
      [](uint64_t seed) { return row(static_cast<uint32_t>(seed % 4 + 1)); }, counts);
  counts.expect_all(KernelOnBlocks::names("qmm_few_sm90_"));
}

TEST(QmmFewSm90Products, ScalesAtTheEnds) {
  Counts counts;
  run_seeds(
      12,
      [&](uint64_t seed, uint64_t order, uint8_t poison) -> std::optional<RunOnBlocks> {
        // Those of mxfp4, every fifth; some with no scale but 2^-127 and 2^-126.
        Case c = few_long_rows_case(5 * seed + 1);
        const bool small = seed / 3 % 2 == 1;
        c.values = Values::normal;
        c.scale_exponent = 0;
        c.x_exponent = small ? 0 : -20;
        Operands o = operands_of(c, poison);
        if (small) {
          for (int64_t i = 0; i < o.scales.view.numel(); ++i) {
            *o.scales.byte(i) = static_cast<uint8_t>(i % 5 == 0);
          }
        } else {
          set_scales_at_the_ends(c, o);
        }
        return run_case(row(static_cast<uint32_t>(seed % 4 + 1)), c, o, order, poison);
      },
      counts);
  counts.expect_all({"qmm_few_sm90_mxfp4_bf16_8", "qmm_few_sm90_mxfp4_bf16_16",
                     "qmm_few_sm90_mxfp4_bf16_late_16_passes"});
}

}  // namespace
}  // namespace moeblas::test
