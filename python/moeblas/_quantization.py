"""Values to codes and back."""

from __future__ import annotations

from . import _core
from ._scales import multiplier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._typing import A, Array, DType, Mode, Options, ScaleLayout, TensorScale, Unpack


def quantize(
    w: A,
    /,
    group_size: int | None = None,
    bits: int | None = None,
    mode: Mode = "affine",
    *,
    global_scale: TensorScale | None = None,
    tensor_scale: TensorScale | None = None,
    scale_dtype: DType | None = None,
    scale_layout: ScaleLayout = "rows",
    out: tuple[A, ...] | None = None,
    **options: Unpack[Options],
) -> tuple[A, ...]:
    """Codes and scales of a matrix, in groups along its last axis: ``(w_q, scales[, biases])``.

    ======  ================  ==================  ==============================
    mode    bits              group_size          value of a code
    ======  ================  ==================  ==============================
    affine  2, 3, **4**,      16, 32, **64**,     code * scale + bias
            5, 6, 8           128
    mxfp4   4                 32                  e2m1(code) * 2^(scale - 127)
    mxfp8   8                 32                  e4m3(code) * 2^(scale - 127)
    nvfp4   4                 16                  e2m1(code) * (e4m3(scale) * t)
    ======  ================  ==================  ==============================

    Args:
        w: (..., K), float32, float16 or bfloat16. K is a multiple of group_size, and K * bits of 32.
        group_size, bits: None is the mode's default, bold above.
        tensor_scale: t of nvfp4, a number or an array of shape () or one per matrix; 1 if absent.
            Finite and at least 2^-126: a number is refused otherwise, an array is not looked at.
        global_scale: the same as MLX gives it, t = global_scale / 2688; not both.
        scale_dtype: of affine scales and biases; w's dtype if absent.
        scale_layout: "swizzled_128x4" writes scales in the tiles that block-scaled matrix
            instructions read: rows padded to 128, scales of a row to 4, zeros in the padding.
        out: arrays to write, as they would be returned.
        options: see ``help(moeblas)``.

    Returns:
        w_q: uint32 (..., K * bits / 32); element i of a row is bits [i*bits, (i+1)*bits) of its
            bytes, lowest first.
        scales: (..., K / group_size), uint8 for all modes but affine.
        biases: affine only, as scales.

    Rounding: affine keeps the end of larger magnitude of each group exact and rounds codes half to
    even; NaN becomes code 0. The mx modes round their scale up, so that nothing saturates, and
    codes to nearest even; a group with NaN or infinity has scale 255, NaN. nvfp4's scale is
    e4m3(amax / 6 / t); one beyond 448 saturates. Sources: OCP Microscaling Formats 1.0, OCP 8-bit
    Floating Point 1.0, MLX's CPU backend.

    Raises:
        ValueError: a shape, dtype or number that the format does not have.
        TypeError: an argument that is no array, or no number.
    """
    t = multiplier("quantize", tensor_scale, global_scale)
    return _core.quantize(w, group_size, bits, mode, t, scale_dtype, scale_layout, out, options)


def quantize_dual(
    w: A,
    /,
    group_size: int | None = None,
    bits: int | None = None,
    mode: Mode = "nvfp4",
    *,
    global_scale: TensorScale | None = None,
    tensor_scale: TensorScale | None = None,
    scale_dtype: DType | None = None,
    scale_layout: ScaleLayout = "rows",
    out: tuple[tuple[A, ...], tuple[A, ...]] | None = None,
    **options: Unpack[Options],
) -> tuple[tuple[A, ...], tuple[A, ...]]:
    """``quantize`` of w (..., R, K) and of its transpose (..., K, R), from one read:
    ``((w_q, scales[, biases]), (w_q, scales[, biases]))``.

    R and K are multiples of the group. Arguments, rounding and errors are those of ``quantize``; one
    tensor_scale serves both.
    """
    t = multiplier("quantize_dual", tensor_scale, global_scale)
    return _core.quantize_dual(
        w, group_size, bits, mode, t, scale_dtype, scale_layout, out, options
    )


def dequantize(
    w_q: A,
    /,
    scales: Array,
    biases: Array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: Mode = "affine",
    global_scale: TensorScale | None = None,
    dtype: DType | None = None,
    *,
    tensor_scale: TensorScale | None = None,
    scale_layout: ScaleLayout = "rows",
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """The values of codes, (..., K): formed in float32, one multiplication and then one addition,
    and rounded once.

    Args:
        w_q, scales, biases: as ``quantize`` returns them; w_q may also be the same bytes in uint8.
        dtype: of the result, float32, float16 or bfloat16; if absent the scales' for affine,
            bfloat16 for the others.
        tensor_scale, global_scale: nvfp4's, as for ``quantize``.
        scale_layout: "swizzled_128x4" for scales in the tiles that block-scaled matrix
            instructions read.
        out: the array to write.
        options: see ``help(moeblas)``.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
        TypeError: an argument that is no array, or no number.
    """
    t = multiplier("dequantize", tensor_scale, global_scale)
    return _core.dequantize(
        w_q, scales, biases, group_size, bits, mode, t, scale_layout, dtype, out, options
    )


def to_fp8(x: A, *, out: A | None = None, **options: Unpack[Options]) -> A:
    """E4M3FN codes (OCP 8-bit Floating Point 1.0) of x, uint8 of x's shape: to nearest even,
    saturating at 448; NaN is 0x7F.

    x: float32, float16 or bfloat16, any shape. ``out`` may also be a float8_e4m3fn array. Errors as
    for ``quantize``.
    """
    return _core.to_fp8(x, out, options)


def from_fp8(
    x: A, dtype: DType = "bfloat16", *, out: A | None = None, **options: Unpack[Options]
) -> A:
    """The values of E4M3FN codes, of x's shape; 0x7F and 0xFF are NaN.

    x: uint8 or float8_e4m3fn, any shape. dtype: float32, float16 or bfloat16. ``out`` is written
    instead of a new array. Errors as for ``quantize``.
    """
    return _core.from_fp8(x, dtype, out, options)
