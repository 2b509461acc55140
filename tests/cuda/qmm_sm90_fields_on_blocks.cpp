#include "qmm_sm90_on_blocks.h"

#include "cuda/qmm_sm90/fields.cu"
#include "cuda/qmm_sm90/fields_either.cu"
