"""Values to codes and back."""

import torch

from ._calls import ops, tensor_scale_of


def quantize(
    w,
    group_size=None,
    bits=None,
    mode="affine",
    global_scale=None,
    *,
    tensor_scale=None,
    scale_dtype=None,
    scale_layout="rows",
):
    """w (..., K) -> (codes, scales, biases) for affine, (codes, scales) for the other modes.

    codes uint32 (..., K * bits / 32); scales and biases (..., K / group_size), of w's dtype or
    scale_dtype for affine, uint8 otherwise. scale_layout: scales in the 128 x 4 layout that
    dequantize and the qqmm products read."""
    tensor_scale = tensor_scale_of("quantize", w, global_scale, tensor_scale)
    out = ops.quantize(
        w, group_size, bits, mode, tensor_scale, scale_dtype=scale_dtype, scale_layout=scale_layout
    )
    return out if mode == "affine" else out[:2]


def quantize_dual(
    w,
    group_size=None,
    bits=None,
    mode="affine",
    global_scale=None,
    *,
    tensor_scale=None,
    scale_dtype=None,
    scale_layout="rows",
):
    """quantize of w (..., R, K) and of its transpose, from one read: two tuples like quantize's."""
    tensor_scale = tensor_scale_of("quantize_dual", w, global_scale, tensor_scale)
    out = ops.quantize_dual(
        w, group_size, bits, mode, tensor_scale, scale_dtype=scale_dtype, scale_layout=scale_layout
    )
    count = 3 if mode == "affine" else 2
    return out[:count], out[3 : 3 + count]


def dequantize(
    w,
    scales,
    biases=None,
    group_size=None,
    bits=None,
    mode="affine",
    global_scale=None,
    dtype=None,
    *,
    tensor_scale=None,
    scale_layout="rows",
):
    """The values of w (..., K) in dtype: by default the scales' for affine, bfloat16 otherwise."""
    tensor_scale = tensor_scale_of("dequantize", w, global_scale, tensor_scale)
    return ops.dequantize(
        w,
        scales,
        biases,
        group_size,
        bits,
        mode,
        tensor_scale,
        dtype=dtype,
        scale_layout=scale_layout,
    )


def to_fp8(x):
    """E4M3FN codes (uint8) of x: nearest even, saturating at 448, NaN -> 0x7F."""
    return ops.to_fp8(x)


def from_fp8(x, dtype=torch.bfloat16):
    """The values of E4M3FN codes x (uint8)."""
    return ops.from_fp8(x, dtype)
