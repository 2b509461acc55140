// Cases for kernels of many rows: tiles of every width, runs of rows that are even, uneven and
// empty, every format that there are kernels of, dense weights either way.
#pragma once

#include "support/case.h"

namespace moeblas::test {

Case many_rows_case(uint64_t seed);
// Many of one matrix or of segments, of which there are kernels that multiply them as they lie.
Case natural_rows_case(uint64_t seed);
// Few rows, of which K has more blocks than rings have places.
Case long_rows_case(uint64_t seed);
// Where there are two widths of tiles to choose from: of experts, or segments, that meet about as
// many rows as whole tiles have.
Case unlike_rows_case(uint64_t seed);

}  // namespace moeblas::test
