"""The matrix products of mixture-of-experts models, on checkpoints as they are stored.

Names, order of arguments and defaults are those of ``mlx.core``.

Arrays
    numpy's, those of ml_dtypes' bfloat16 and float8 included, and those of every library that
    speaks DLPack (torch, jax, cupy, mlx), strided as they are and without a copy. All arrays of a
    call are on one device. A result is a new array of the library of the first array argument, on
    its device; on a GPU it is ordered on that library's current stream. ``out=`` writes an array of
    the caller's instead, which overlaps no other argument, and returns it.

Options of every operation
    precision: "native" (activations as given, sums of float32 class), "exact" (float32-faithful:
        no rounded weights), "fast" (reduced precision where a kernel offers it).
    deterministic: a row's result does not depend, to the bit, on how many other rows there are or
        on what they are.
    check_ids: make indices out of range an error that names the first.
    kernel: the name of the kernel to run; an error where it cannot.
    stream: the CUDA stream to run on, an address or a stream object; the current one if absent.

Errors
    ValueError and TypeError for bad arguments, RuntimeError where no kernel takes a call or a device
    fails, MemoryError where there is no memory for a result or a workspace; the message names
    operation, argument, what was expected and what came. Nothing was written then, unless a device
    failed: what ``out=`` holds is undefined then.

Threads
    Every function may be called from every thread; the interpreter's lock is released while it runs.
"""

from ._core import version as _version
from ._kernels import Kernel, Plan, explain, get_num_threads, info, kernels, set_num_threads
from ._layers import Quantized, moe_ffn, moe_permute, moe_route, moe_unpermute
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

__version__: str = _version()

__all__ = [
    "Kernel",
    "Plan",
    "Quantized",
    "dequantize",
    "explain",
    "from_fp8",
    "gather_mm",
    "gather_qmm",
    "gather_qmv",
    "gather_qqmm",
    "get_num_threads",
    "grouped_mm",
    "grouped_qmm",
    "grouped_qqmm",
    "info",
    "kernels",
    "moe_ffn",
    "moe_permute",
    "moe_route",
    "moe_unpermute",
    "qqmm",
    "quantize",
    "quantize_dual",
    "quantized_matmul",
    "segmented_mm",
    "set_num_threads",
    "to_fp8",
]
