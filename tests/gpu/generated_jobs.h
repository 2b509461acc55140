// Jobs from the seeded case generator of the tests, which knows no device: products and conversions
// at the edges of tiles, groups and words, in every layout, with hostile ids.
#pragma once

#include "job.h"
#include "support/case.h"

namespace moeblas::gpu {

Job generated_job(test::Op op, uint64_t seed);
Job job_of(const test::Case& c);

}  // namespace moeblas::gpu
