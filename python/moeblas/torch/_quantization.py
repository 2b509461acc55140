"""Values to codes and back."""

from __future__ import annotations

import torch

from ._calls import ops, tensor_scale_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._typing import Mode, Scale, ScaleLayout, Tensor


def quantize(
    w: Tensor,
    group_size: int | None = None,
    bits: int | None = None,
    mode: Mode = "affine",
    global_scale: Scale | None = None,
    *,
    tensor_scale: Scale | None = None,
    scale_dtype: torch.dtype | None = None,
    scale_layout: ScaleLayout = "rows",
) -> tuple[Tensor, ...]:
    """w (..., K) -> (codes, scales, biases) for affine, (codes, scales) for the other modes.

    codes uint32 (..., K * bits / 32); scales and biases (..., K / group_size), of w's dtype or
    scale_dtype for affine, uint8 otherwise. scale_layout: scales in the 128 x 4 layout that
    dequantize and the qqmm products read."""
    tensor_scale = tensor_scale_of("quantize", w, global_scale, tensor_scale, encoded=w)
    out = ops.quantize(
        w, group_size, bits, mode, tensor_scale, scale_dtype=scale_dtype, scale_layout=scale_layout
    )
    return out if mode == "affine" else out[:2]


def quantize_dual(
    w: Tensor,
    group_size: int | None = None,
    bits: int | None = None,
    mode: Mode = "affine",
    global_scale: Scale | None = None,
    *,
    tensor_scale: Scale | None = None,
    scale_dtype: torch.dtype | None = None,
    scale_layout: ScaleLayout = "rows",
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """quantize of w (..., R, K) and of its transpose, from one read: two tuples like quantize's."""
    tensor_scale = tensor_scale_of("quantize_dual", w, global_scale, tensor_scale, encoded=w)
    out = ops.quantize_dual(
        w, group_size, bits, mode, tensor_scale, scale_dtype=scale_dtype, scale_layout=scale_layout
    )
    count = 3 if mode == "affine" else 2
    return out[:count], out[3 : 3 + count]


def dequantize(
    w: Tensor,
    scales: Tensor,
    biases: Tensor | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: Mode = "affine",
    global_scale: Scale | None = None,
    dtype: torch.dtype | None = None,
    *,
    tensor_scale: Scale | None = None,
    scale_layout: ScaleLayout = "rows",
) -> Tensor:
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


def to_fp8(x: Tensor) -> Tensor:
    """E4M3FN codes (uint8) of x: nearest even, saturating at 448, NaN -> 0x7F."""
    return ops.to_fp8(x)


def from_fp8(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The values of E4M3FN codes x (uint8)."""
    return ops.from_fp8(x, dtype)
