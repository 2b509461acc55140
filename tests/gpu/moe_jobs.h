// Jobs of the operations that the case generator of the products does not draw: routing,
// permutation, the fused expert layer, and the block-quantized products.
#pragma once

#include "job.h"

namespace moeblas::gpu {

Job route_job(uint64_t seed);
Job permute_job(uint64_t seed);
Job unpermute_job(uint64_t seed);
Job ffn_job(uint64_t seed);
Job long_ffn_job(uint64_t seed);  // of long rows of activations
// One token with codes enough for each thread block of ffn_one_sm90 to come back to its places, of
// two experts that it names again and again: in turn each of its kernels, in every other nine those
// for many codes.
Job deep_ffn_job(uint64_t seed);
// Experts of 4-bit codes that some ten rows meet, without biases.
Job held_ffn_job(uint64_t seed);
Job qqmm_job(uint64_t seed);      // qqmm, gather_qqmm and grouped_qqmm in turn
Job dual_job(uint64_t seed);      // quantize_dual, swizzled scales among them
Job swizzled_job(uint64_t seed);  // quantize with swizzled scales

}  // namespace moeblas::gpu
