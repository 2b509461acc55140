#include "qmm_sm90_on_blocks.h"

#include "cuda/qmm_sm90/block_natural.cu"
