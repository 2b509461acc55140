// Jobs from the seeded case generator of the tests, which knows no device: products and conversions
// at the edges of tiles, groups and words, in every layout, with hostile ids.
#pragma once

#include "job.h"
#include "support/case.h"
#include "support/guard.h"

namespace moeblas::gpu {

Job generated_job(test::Op op, uint64_t seed);
// `side`: of its page, where each tensor lies; on the left it begins at one, on the right anywhere.
Job job_of(const test::Case& c, test::Side side);
// On either side, by the case's seed.
Job job_of(const test::Case& c);

// Row-major operands of a product, m rows for each of its pairs.
test::Case product_case(test::Op op, const std::optional<QuantSpec>& format, DType dtype,
                        bool transpose, int64_t m, int64_t n, int64_t k, test::Ids ids,
                        int64_t experts = 3);
// Row-major rows of k values of this dtype, quantized to scales of the same.
test::Case quantize_case(const QuantSpec& format, DType dtype, int64_t rows, int64_t k);
// Makes a gather of it in the layout of expert layers, each row of x with top_k matrices.
void as_expert_layer(test::Case& c, int64_t tokens, int64_t top_k);
// Dense weights whose rows are of K, not of N.
void along_k(test::Layout& w);
// Thread blocks that a GPU runs at a time, for test::few_rows_case.
constexpr int64_t kBlocks = 132;
// More pairs than one threadgroup groups by itself, of more matrices than one digit counts.
test::Case many_pairs_case(uint64_t seed);
// Rows and columns enough for several tiles of every kernel, in whole and with a rest.
test::Case many_tiles_case(uint64_t seed);
// Few rows and one matrix of 4 bits, K in the whole steps of which qmm_sm90 makes them in one
// launch.
test::Case few_of_one_case(uint64_t seed);
// The same in slices of K, as qmm_few_sm90 takes it: each number of slices and blocks, with few
// tiles and with many.
test::Case few_by_slices_case(uint64_t seed);
// An expert layer's product by matrices that some ten rows meet each, as qmm_sm90 makes it with
// rows of x in registers.
test::Case few_of_experts_case(uint64_t seed);
// segmented_mm as kernels with bulk copies want it: a and b along K or turned, with gaps, tiles in
// whole and with a rest, from so few segments that small tiles are made to so many that large ones
// are.
test::Case segments_case(uint64_t seed);
// The same in one dtype, one layout (bit 0: a turned, bit 1: b) and for tiles of about this size,
// or so many segments that their order is changed.
enum class TileSize { small, medium, large, many };
test::Case segments_case(DType dtype, unsigned turned, TileSize size, uint64_t seed);

}  // namespace moeblas::gpu
