/* The quantization modes, in text that C, C++, CUDA and the Metal Shading Language share. */
#ifndef MOEBLAS_MODE_H
#define MOEBLAS_MODE_H

enum moeblas_mode {
  MOEBLAS_AFFINE = 0, /* value = code * scale + bias; 2, 3, 4, 5, 6, 8 bits; groups 16..128 */
  MOEBLAS_MXFP4 = 1,  /* E2M1 codes, E8M0 scale per 32 */
  MOEBLAS_MXFP8 = 2,  /* E4M3FN codes, E8M0 scale per 32 */
  MOEBLAS_NVFP4 = 3,  /* E2M1 codes, E4M3FN scale per 16, float32 multiplier per tensor */
  MOEBLAS_DENSE = 4   /* no quantization: a float tensor, where an operation takes one as w */
};

#endif
