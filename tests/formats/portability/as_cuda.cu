// The format headers as CUDA: called on the host and in a kernel.
#include "every_format.h"

__global__ void use_in_kernel(const float* in, float* out) {
  out[threadIdx.x] = moeblas::formats::use_every_format(in[0], in[threadIdx.x]);
}

float use_on_host(float a, float b) { return moeblas::formats::use_every_format(a, b); }
