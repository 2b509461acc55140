"""The operations on torch tensors, as torch operators (namespace moeblas).

Names, argument order and defaults are those of `moeblas` and of mlx.core. Each function here calls the
operator torch.ops.moeblas.<name>, of which torch knows shapes (Meta), gradients, CPU and CUDA kernels:
it works under torch.compile, torch.export and CUDA graphs, on the current stream of its tensors' device.

Codes are uint32 tensors or the same bytes as uint8. With mode "dense" w is floating and has no scales.
Sums are float32, rounded once to x's dtype. A bad argument is a ValueError with the library's text, a
problem that no kernel takes a RuntimeError. tensor_scale and global_scale (nvfp4; 2688 times as large)
are numbers or float32 tensors, shape () or (E,); at most one of the two.
"""

from .. import Quantized
from ._calls import registration
from ._layers import moe_ffn, moe_permute, moe_route, moe_unpermute
from ._products import (
    gather_mm,
    gather_qmm,
    gather_qmv,
    gather_qqmm,
    grouped_mm,
    grouped_qmm,
    grouped_qqmm,
    qqmm,
    quantized_matmul,
    segmented_mm,
)
from ._quantization import dequantize, from_fp8, quantize, quantize_dual, to_fp8

__all__ = [
    "Quantized", "dequantize", "from_fp8", "gather_mm", "gather_qmm", "gather_qmv", "gather_qqmm",
    "grouped_mm", "grouped_qmm", "grouped_qqmm", "moe_ffn", "moe_permute", "moe_route",
    "moe_unpermute", "qqmm", "quantize", "quantize_dual", "quantized_matmul", "registration",
    "segmented_mm", "to_fp8",
]  # fmt: skip
