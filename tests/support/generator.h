// The seeded case generator. Seeds 0, 1, 2, ... walk through every format, activation dtype and
// orientation of an operation in turn; everything else is drawn from the seed. Shapes stand at the
// edges of tiles, groups and words; layouts are sliced, padded, transposed, reversed and broadcast.
#pragma once

#include <span>

#include "support/case.h"
#include "support/random.h"

namespace moeblas::test {

// Every legal format.
std::span<const QuantSpec> all_formats();

// How many consecutive seeds cover every combination of format, dtype and orientation.
uint64_t combinations(Op op);

Case make_case(Op op, uint64_t seed);
// The case of decoding that this seed stands for: few rows, every format, weights in the layouts of
// checkpoints with rows of whole 16-byte words.
Case decode_case(uint64_t seed);
// Few rows each of so many matrices that `blocks` thread blocks have several tiles of them, as fast
// kernels want 4-bit weights, x and outputs.
Case few_rows_case(uint64_t seed, int64_t blocks);
// One row of x and one matrix of affine codes that bulk copies can bring, in every width and group.
Case one_row_case(uint64_t seed);

// ---- For those who make cases by hand --------------------------------------------------------

// The least number of values that fill whole groups and whole words.
int64_t packed_unit(const QuantSpec& spec);

DType draw_integer(Random& random);
DType draw_float(Random& random);
// A shape that broadcasts to `result`: some dimensions 1, some leading ones missing.
Shape draw_broadcast(Random& random, const Shape& result);

// Row-major, without gaps.
Layout plain(DType dtype, const Shape& shape);
// Drawn. unit_last: the last dimension has unit stride. input: strides of 0 are allowed.
Layout drawn(Random& random, DType dtype, const Shape& shape, bool unit_last, bool input);

// The strides by which a view of this layout is read as one of the larger `shape`.
Shape broadcast_strides(const Layout& t, const Shape& shape);

// Codes, scales, biases and a tensor_scale for weights of this logical shape.
void add_weights(Random& random, Case& c, const Shape& logical, DType scale_dtype);

}  // namespace moeblas::test
