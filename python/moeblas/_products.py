"""The products. M tokens, N outputs, K inputs, E experts, P pairs of matrices, R rows."""

from __future__ import annotations

from . import _core
from ._scales import multiplier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._typing import (
        A,
        Array,
        BlockMode,
        DType,
        Options,
        ScaleLayout,
        TensorScale,
        Unpack,
        WeightMode,
    )


def quantized_matmul(
    x: A,
    w: Array,
    /,
    scales: Array | None = None,
    biases: Array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: WeightMode = "affine",
    global_scale: TensorScale | None = None,
    *,
    tensor_scale: TensorScale | None = None,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """``x @ w.T``, or ``x @ w`` without transpose, w quantized.

    Args:
        x: (..., M, K) or (K,), float32, float16 or bfloat16.
        w, scales, biases: as ``quantize`` returns them for a matrix (..., N, K), or (..., K, N)
            without transpose; groups run along its last axis. With two dimensions w is shared by
            all matrices of x; with more, its batch dimensions and x's broadcast.
        group_size, bits, mode: w's format, as for ``quantize``. With mode "dense" w is a float
            array of any strides and scales are absent.
        tensor_scale, global_scale: nvfp4's, as for ``quantize``.
        out: the array to write.
        options: see ``help(moeblas)``.

    Returns:
        (..., M, N), or (N,), of x's dtype. Sums are float32, rounded once.

    Raises:
        ValueError: shapes, dtypes or numbers that do not fit together.
        TypeError: an argument that is no array, no number or no bool.
        RuntimeError: no kernel takes the call; the message says why each does not.
    """
    t = multiplier("quantized_matmul", tensor_scale, global_scale)
    return _core.quantized_matmul(
        x, w, scales, biases, transpose, group_size, bits, mode, t, out, options
    )


def gather_mm(
    a: A,
    b: Array,
    /,
    lhs_indices: Array | None = None,
    rhs_indices: Array | None = None,
    *,
    sorted_indices: bool = False,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """``out[p] = a[lhs_indices[p]] @ b[rhs_indices[p]]``.

    Args:
        a: (..., M, K), b: (..., K, N): float32, float16 or bfloat16, both alike. A vector (K,) gets
            a dimension of one that the result drops.
        lhs_indices, rhs_indices: integers, flat row-major positions over the batch dimensions of a
            and of b (all but the last two); a missing one counts 0, 1, ... in the shape of those.
            Both broadcast. A position out of range, -1 too, selects nothing: its result is 0.
        sorted_indices: a promise that the one index array passed is sorted. Keeping it is faster;
            breaking it costs time, never a result.
        out: the array to write.
        options: see ``help(moeblas)``.

    Returns:
        broadcast(lhs_indices, rhs_indices).shape + (M, N), of a's dtype. Sums are float32, rounded
        once.

    Raises:
        ValueError, TypeError, RuntimeError: as ``quantized_matmul``.
    """
    return _core.gather_mm(a, b, lhs_indices, rhs_indices, sorted_indices, out, options)


def gather_qmm(
    x: A,
    w: Array,
    /,
    scales: Array | None = None,
    biases: Array | None = None,
    lhs_indices: Array | None = None,
    rhs_indices: Array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: WeightMode = "affine",
    global_scale: TensorScale | None = None,
    *,
    sorted_indices: bool = False,
    tensor_scale: TensorScale | None = None,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """``out[p] = x[lhs_indices[p]] @ w[rhs_indices[p]].T``, or without ``.T``, w quantized: the
    product of expert layers. Each chosen expert's weights are read once, however many rows chose it.

    With x (T, 1, 1, K) and rhs_indices (T, k) the result is (T, k, 1, N).

    Args:
        x: (..., M, K), at least two dimensions.
        w, scales, biases, group_size, bits, mode, tensor_scale, global_scale: a stack of matrices,
            as for ``quantized_matmul``.
        lhs_indices, rhs_indices, sorted_indices: as for ``gather_mm``.
        out: the array to write.
        options: see ``help(moeblas)``.

    Returns:
        broadcast(lhs_indices, rhs_indices).shape + (M, N), of x's dtype. Sums are float32, rounded
        once.

    Raises:
        ValueError, TypeError, RuntimeError: as ``quantized_matmul``.
    """
    t = multiplier("gather_qmm", tensor_scale, global_scale)
    return _core.gather_qmm(
        x,
        w,
        scales,
        biases,
        lhs_indices,
        rhs_indices,
        transpose,
        group_size,
        bits,
        mode,
        t,
        sorted_indices,
        out,
        options,
    )


def gather_qmv(
    x: A,
    w: Array,
    scales: Array | None,
    biases: Array | None,
    expert_indices: Array,
    group_size: int | None = None,
    bits: int | None = None,
    mode: WeightMode = "affine",
    global_scale: TensorScale | None = None,
    *,
    tensor_scale: TensorScale | None = None,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """``out[p] = w[expert_indices[p]] @ x[p]``: x (P, K), w (E, N, K) quantized, expert_indices (P,)
    integers, result (P, N) of x's dtype.

    ExecuTorch's operator ``gather_qmv``, arguments in its order; its uint8 codes (E, N, K / 2) are
    taken as they are. Formats, rounding and errors as for ``gather_qmm``.
    """
    t = multiplier("gather_qmv", tensor_scale, global_scale)
    return _core.gather_qmv(
        x, w, scales, biases, expert_indices, group_size, bits, mode, t, out, options
    )


def segmented_mm(
    a: A, b: Array, /, segments: Array, *, out: A | None = None, **options: Unpack[Options]
) -> A:
    """``out[i] = a[:, s:e] @ b[s:e, :]`` with ``(s, e) = segments[i]``.

    Args:
        a: (M, K), b: (K, N): float32, float16 or bfloat16, both alike, of any strides.
        segments: (..., 2) integers, clamped to [0, K]. e <= s gives 0; segments may overlap, skip
            and start anywhere.
        out: the array to write.
        options: see ``help(moeblas)``.

    Returns:
        segments.shape[:-1] + (M, N), of a's dtype. Sums are float32, rounded once.

    Raises:
        ValueError, TypeError, RuntimeError: as ``quantized_matmul``.
    """
    return _core.segmented_mm(a, b, segments, out, options)


def grouped_mm(
    x: A, w: Array, offsets: Array, *, out: A | None = None, **options: Unpack[Options]
) -> A:
    """Rows of x (R, K) sorted by expert, times their expert's matrix: ``out[r] = x[r] @ w[e]``, e the
    first expert with ``offsets[e] > r``.

    Args:
        x: (R, K), w: (E, K, N): float32, float16 or bfloat16, both alike.
        offsets: (E,) int32 or int64, where each expert's rows end, on the arrays' device; clamped
            to [0, R]. An end below its predecessor is an empty expert; rows past the last are 0.
        out: the array to write.
        options: see ``help(moeblas)``.

    Returns:
        (R, N), of x's dtype. Sums are float32, rounded once.

    Raises:
        ValueError, TypeError, RuntimeError: as ``quantized_matmul``.
    """
    return _core.grouped_mm(x, w, offsets, out, options)


def grouped_qmm(
    x: A,
    w: Array,
    scales: Array | None,
    biases: Array | None,
    offsets: Array,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: WeightMode = "affine",
    global_scale: TensorScale | None = None,
    *,
    tensor_scale: TensorScale | None = None,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """``grouped_mm`` with w quantized: (E, N, K) with transpose, (E, K, N) without. Formats, rounding
    and errors as for ``quantized_matmul``.
    """
    t = multiplier("grouped_qmm", tensor_scale, global_scale)
    return _core.grouped_qmm(
        x, w, scales, biases, offsets, transpose, group_size, bits, mode, t, out, options
    )


def qqmm(
    x: A,
    w: Array,
    scales: Array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: BlockMode = "nvfp4",
    global_scale_x: TensorScale | None = None,
    global_scale_w: TensorScale | None = None,
    *,
    tensor_scale_x: TensorScale | None = None,
    tensor_scale_w: TensorScale | None = None,
    x_scales: Array | None = None,
    scale_layout: ScaleLayout = "rows",
    x_scale_layout: ScaleLayout = "rows",
    bias: Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Array | None = None,
    dtype: DType | None = None,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """``(alpha * fq(x) @ fq(w).T + beta * c) + bias``, both operands quantized in blocks along K: fq
    is ``quantize`` and then ``dequantize``, in float32.

    Args:
        x: (..., M, K), float32, float16 or bfloat16, quantized on the fly; or codes with x_scales.
        w: (..., N, K), codes with scales; or float, and quantized on the fly. With two dimensions
            it is shared by all matrices of x; with more, batch dimensions broadcast.
        mode: nvfp4, mxfp4 or mxfp8; group_size and bits can only be its own.
        tensor_scale_x, tensor_scale_w: nvfp4's multipliers, both or neither; or global_scale_x,
            global_scale_w, MLX's form of them.
        scale_layout, x_scale_layout: of scales and x_scales, as for ``dequantize``.
        bias: (N,) or w's batch dimensions and N; c: broadcast to the result; any float dtype.
        dtype: of the result where x is codes, bfloat16 if absent. Where x is float the result has
            x's, and another is an error.
        out: the array to write.
        options: see ``help(moeblas)``.

    Returns:
        (..., M, N). Sums and what follows them are float32, rounded once.

    Raises:
        ValueError, TypeError, RuntimeError: as ``quantized_matmul``.
    """
    tx = multiplier("qqmm", tensor_scale_x, global_scale_x, "_x")
    tw = multiplier("qqmm", tensor_scale_w, global_scale_w, "_w")
    return _core.qqmm(
        x,
        w,
        scales,
        group_size,
        bits,
        mode,
        tx,
        tw,
        x_scales,
        x_scale_layout,
        scale_layout,
        bias,
        alpha,
        beta,
        c,
        dtype,
        out,
        options,
    )


def gather_qqmm(
    x: A,
    w: Array,
    scales: Array | None = None,
    lhs_indices: Array | None = None,
    rhs_indices: Array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: BlockMode = "nvfp4",
    global_scale_x: TensorScale | None = None,
    global_scale_w: TensorScale | None = None,
    *,
    sorted_indices: bool = False,
    tensor_scale_x: TensorScale | None = None,
    tensor_scale_w: TensorScale | None = None,
    x_scales: Array | None = None,
    scale_layout: ScaleLayout = "rows",
    x_scale_layout: ScaleLayout = "rows",
    bias: Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Array | None = None,
    dtype: DType | None = None,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """``out[p] = fq(x)[lhs_indices[p]] @ fq(w)[rhs_indices[p]].T``: ``qqmm`` with the indices of
    ``gather_mm``. Multipliers of x and w are one number, or one per expert. Rows whose index
    selects nothing are 0, bias or not.
    """
    tx = multiplier("gather_qqmm", tensor_scale_x, global_scale_x, "_x")
    tw = multiplier("gather_qqmm", tensor_scale_w, global_scale_w, "_w")
    return _core.gather_qqmm(
        x,
        w,
        scales,
        lhs_indices,
        rhs_indices,
        group_size,
        bits,
        mode,
        tx,
        tw,
        sorted_indices,
        x_scales,
        x_scale_layout,
        scale_layout,
        bias,
        alpha,
        beta,
        c,
        dtype,
        out,
        options,
    )


def grouped_qqmm(
    x: A,
    w: Array,
    scales: Array | None,
    offsets: Array,
    group_size: int | None = None,
    bits: int | None = None,
    mode: BlockMode = "nvfp4",
    global_scale_x: TensorScale | None = None,
    global_scale_w: TensorScale | None = None,
    *,
    tensor_scale_x: TensorScale | None = None,
    tensor_scale_w: TensorScale | None = None,
    x_scales: Array | None = None,
    scale_layout: ScaleLayout = "rows",
    x_scale_layout: ScaleLayout = "rows",
    bias: Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Array | None = None,
    dtype: DType | None = None,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """``out[r] = fq(x)[r] @ fq(w)[e].T``: ``qqmm`` with the offsets of ``grouped_mm``, x (R, K) and
    w (E, N, K).
    """
    tx = multiplier("grouped_qqmm", tensor_scale_x, global_scale_x, "_x")
    tw = multiplier("grouped_qqmm", tensor_scale_w, global_scale_w, "_w")
    return _core.grouped_qqmm(
        x,
        w,
        scales,
        offsets,
        group_size,
        bits,
        mode,
        tx,
        tw,
        x_scales,
        x_scale_layout,
        scale_layout,
        bias,
        alpha,
        beta,
        c,
        dtype,
        out,
        options,
    )
