"""The products: gathered, grouped, segmented, quantized on one side or on both."""

from __future__ import annotations

from torch.compiler import is_compiling

from .. import _core
from ._calls import DIRECT, ops, options_of, tensor_scale_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import torch

    from ._typing import BlockMode, Precision, Scale, ScaleLayout, Tensor, WeightMode


def quantized_matmul(
    x: Tensor,
    w: Tensor,
    scales: Tensor | None = None,
    biases: Tensor | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: WeightMode = "affine",
    global_scale: Scale | None = None,
    *,
    tensor_scale: Scale | None = None,
    precision: Precision = "native",
) -> Tensor:
    """x @ w^T (transpose) or x @ w: x (..., M, K) or (K,), w (N, K) or batched.

    Differentiable in x, in scales and biases (affine), and in a floating w."""
    if tensor_scale is not None or global_scale is not None:
        tensor_scale = tensor_scale_of("quantized_matmul", x, global_scale, tensor_scale)
    form = (transpose, group_size, bits, mode, tensor_scale)
    if not is_compiling():
        y = _core.quantized_matmul(x, w, scales, biases, *form, None, DIRECT[precision])
        if y is not None:
            return y
    return ops.quantized_matmul(x, w, scales, biases, *form, **options_of(precision))


def gather_mm(
    a: Tensor,
    b: Tensor,
    lhs_indices: Tensor | None = None,
    rhs_indices: Tensor | None = None,
    *,
    sorted_indices: bool = False,
    precision: Precision = "native",
) -> Tensor:
    """out[p] = a[lhs[p]] @ b[rhs[p]]: a (..., M, K), b (..., K, N), dense.

    A missing index counts 0, 1, ... over its operand's batch shape; an id outside the range selects
    nothing and gives 0. Differentiable in a and b."""
    if not is_compiling():
        direct = DIRECT[precision]
        y = _core.gather_mm(a, b, lhs_indices, rhs_indices, sorted_indices, None, direct)
        if y is not None:
            return y
    return ops.gather_mm(a, b, lhs_indices, rhs_indices, **options_of(precision, sorted_indices))


def gather_qmm(
    x: Tensor,
    w: Tensor,
    scales: Tensor | None = None,
    biases: Tensor | None = None,
    lhs_indices: Tensor | None = None,
    rhs_indices: Tensor | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: WeightMode = "affine",
    global_scale: Scale | None = None,
    *,
    tensor_scale: Scale | None = None,
    sorted_indices: bool = False,
    precision: Precision = "native",
) -> Tensor:
    """out[p] = x[lhs[p]] @ w[rhs[p]]^T (or w[rhs[p]]): the product of expert layers.

    x (..., M, K), w (..., N, K), indices as for gather_mm; out broadcast(lhs, rhs) + (M, N).
    Differentiable in x, in scales and biases (affine), and in a floating w."""
    if tensor_scale is not None or global_scale is not None:
        tensor_scale = tensor_scale_of("gather_qmm", x, global_scale, tensor_scale)
    form = (transpose, group_size, bits, mode, tensor_scale)
    if not is_compiling():
        y = _core.gather_qmm(
            x, w, scales, biases, lhs_indices, rhs_indices, *form, sorted_indices, None,
            DIRECT[precision],
        )  # fmt: skip
        if y is not None:
            return y
    return ops.gather_qmm(
        x, w, scales, biases, lhs_indices, rhs_indices, *form,
        **options_of(precision, sorted_indices),
    )  # fmt: skip


def gather_qmv(
    x: Tensor,
    w: Tensor,
    scales: Tensor | None,
    biases: Tensor | None,
    expert_indices: Tensor,
    group_size: int | None = None,
    bits: int | None = None,
    mode: WeightMode = "affine",
    *,
    tensor_scale: Scale | None = None,
    precision: Precision = "native",
) -> Tensor:
    """out[p] = w[expert_indices[p]] @ x[p]: x (P, K), w (E, N, K), out (P, N)."""
    if tensor_scale is not None:
        tensor_scale = tensor_scale_of("gather_qmv", x, None, tensor_scale)
    form = (group_size, bits, mode, tensor_scale)
    if not is_compiling():
        y = _core.gather_qmv(
            x, w, scales, biases, expert_indices, *form, None, DIRECT[precision]
        )  # fmt: skip
        if y is not None:
            return y
    return ops.gather_qmv(x, w, scales, biases, expert_indices, *form, **options_of(precision))


def segmented_mm(
    a: Tensor, b: Tensor, segments: Tensor, *, precision: Precision = "native"
) -> Tensor:
    """out[i] = a[:, s:e] @ b[s:e, :], (s, e) = segments[i]. Differentiable in a and b; the backward
    runs segment by segment over all of K."""
    if not is_compiling():
        y = _core.segmented_mm(a, b, segments, None, DIRECT[precision])
        if y is not None:
            return y
    return ops.segmented_mm(a, b, segments, **options_of(precision))


def grouped_mm(x: Tensor, w: Tensor, offsets: Tensor, *, precision: Precision = "native") -> Tensor:
    """Rows offsets[e-1] .. offsets[e] of x (R, K) times w[e] (K, N); rows past the last end: 0."""
    if not is_compiling():
        y = _core.grouped_mm(x, w, offsets, None, DIRECT[precision])
        if y is not None:
            return y
    return ops.grouped_mm(x, w, offsets, **options_of(precision))


def grouped_qmm(
    x: Tensor,
    w: Tensor,
    scales: Tensor | None,
    biases: Tensor | None,
    offsets: Tensor,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: WeightMode = "affine",
    global_scale: Scale | None = None,
    *,
    tensor_scale: Scale | None = None,
    precision: Precision = "native",
) -> Tensor:
    """grouped_mm with a quantized w, (E, N, K) with transpose, (E, K, N) without."""
    if tensor_scale is not None or global_scale is not None:
        tensor_scale = tensor_scale_of("grouped_qmm", x, global_scale, tensor_scale)
    form = (transpose, group_size, bits, mode, tensor_scale)
    if not is_compiling():
        y = _core.grouped_qmm(x, w, scales, biases, offsets, *form, None, DIRECT[precision])
        if y is not None:
            return y
    return ops.grouped_qmm(x, w, scales, biases, offsets, *form, **options_of(precision))


def qqmm(
    x: Tensor,
    w: Tensor,
    scales: Tensor | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: BlockMode = "nvfp4",
    global_scale_x: Scale | None = None,
    global_scale_w: Scale | None = None,
    *,
    tensor_scale_x: Scale | None = None,
    tensor_scale_w: Scale | None = None,
    x_scales: Tensor | None = None,
    scale_layout: ScaleLayout = "rows",
    x_scale_layout: ScaleLayout = "rows",
    bias: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    dtype: torch.dtype | None = None,
    precision: Precision = "native",
) -> Tensor:
    """(alpha * fq(x) @ fq(w)^T + beta * c) + bias, fq = quantize, then dequantize.

    x and w are floats, quantized on the fly along K, or codes with scales. nvfp4, mxfp4 or mxfp8.
    Differentiable (straight-through) in floating x and w, and in bias and c."""
    scale_x = tensor_scale_of("qqmm", x, global_scale_x, tensor_scale_x, "_x", x)
    scale_w = tensor_scale_of("qqmm", x, global_scale_w, tensor_scale_w, "_w", w)
    return ops.qqmm(
        x,
        w,
        scales,
        group_size,
        bits,
        mode,
        scale_x,
        scale_w,
        bias,
        c,
        x_scales,
        scale_layout=scale_layout,
        x_scale_layout=x_scale_layout,
        alpha=alpha,
        beta=beta,
        dtype=dtype,
        precision=precision,
    )


def gather_qqmm(
    x: Tensor,
    w: Tensor,
    scales: Tensor | None = None,
    lhs_indices: Tensor | None = None,
    rhs_indices: Tensor | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: BlockMode = "nvfp4",
    global_scale_x: Scale | None = None,
    global_scale_w: Scale | None = None,
    *,
    sorted_indices: bool = False,
    tensor_scale_x: Scale | None = None,
    tensor_scale_w: Scale | None = None,
    x_scales: Tensor | None = None,
    scale_layout: ScaleLayout = "rows",
    x_scale_layout: ScaleLayout = "rows",
    bias: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    dtype: torch.dtype | None = None,
    precision: Precision = "native",
) -> Tensor:
    """The gathered form of qqmm: out[p] = fq(x[lhs[p]]) @ fq(w[rhs[p]])^T."""
    scale_x = tensor_scale_of("gather_qqmm", x, global_scale_x, tensor_scale_x, "_x", x)
    scale_w = tensor_scale_of("gather_qqmm", x, global_scale_w, tensor_scale_w, "_w", w)
    return ops.gather_qqmm(
        x,
        w,
        scales,
        lhs_indices,
        rhs_indices,
        group_size,
        bits,
        mode,
        scale_x,
        scale_w,
        bias,
        c,
        x_scales,
        sorted_indices=sorted_indices,
        scale_layout=scale_layout,
        x_scale_layout=x_scale_layout,
        alpha=alpha,
        beta=beta,
        dtype=dtype,
        precision=precision,
    )


def grouped_qqmm(
    x: Tensor,
    w: Tensor,
    scales: Tensor | None,
    offsets: Tensor,
    group_size: int | None = None,
    bits: int | None = None,
    mode: BlockMode = "nvfp4",
    global_scale_x: Scale | None = None,
    global_scale_w: Scale | None = None,
    *,
    tensor_scale_x: Scale | None = None,
    tensor_scale_w: Scale | None = None,
    x_scales: Tensor | None = None,
    scale_layout: ScaleLayout = "rows",
    x_scale_layout: ScaleLayout = "rows",
    bias: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Tensor | None = None,
    dtype: torch.dtype | None = None,
    precision: Precision = "native",
) -> Tensor:
    """The offsets form of qqmm: x (R, K), w (E, N, K)."""
    scale_x = tensor_scale_of("grouped_qqmm", x, global_scale_x, tensor_scale_x, "_x", x)
    scale_w = tensor_scale_of("grouped_qqmm", x, global_scale_w, tensor_scale_w, "_w", w)
    return ops.grouped_qqmm(
        x,
        w,
        scales,
        offsets,
        group_size,
        bits,
        mode,
        scale_x,
        scale_w,
        bias,
        c,
        x_scales,
        scale_layout=scale_layout,
        x_scale_layout=x_scale_layout,
        alpha=alpha,
        beta=beta,
        dtype=dtype,
        precision=precision,
    )
