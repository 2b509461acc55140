#include "qmm_few_sm90_on_blocks.h"

#include "cuda/qmm_few_sm90/affine.cu"
#include "cuda/qmm_few_sm90/block.cu"
