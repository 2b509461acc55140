"""The operations on torch tensors, as torch operators (namespace moeblas).

Names, argument order and defaults are those of `moeblas` and of mlx.core. Each function here calls the
operator torch.ops.moeblas.<name>, of which torch knows shapes (Meta), gradients, CPU and CUDA kernels:
it works under torch.compile, torch.export and CUDA graphs, on the current stream of its tensors' device.

Codes are uint32 tensors or the same bytes as uint8. With mode "dense" w is floating and has no scales.
Sums are float32, rounded once to x's dtype. A bad argument is a ValueError with the library's text, a
problem that no kernel takes a RuntimeError. tensor_scale and global_scale (nvfp4; 2688 times as large)
are numbers or float32 tensors, shape () or (E,); at most one of the two.
"""

import contextlib

import torch
from torch.compiler import is_compiling as _is_compiling

from .. import Quantized, _core
from . import _autograd, _register

_library, registration = _register.register()
_ops = torch.ops.moeblas
_autograd.register(_register.names, _library)

__all__ = [
    "Quantized", "dequantize", "from_fp8", "gather_mm", "gather_qmm", "gather_qmv", "gather_qqmm",
    "grouped_mm", "grouped_qmm", "grouped_qqmm", "moe_ffn", "moe_permute", "moe_route",
    "moe_unpermute", "qqmm", "quantize", "quantize_dual", "quantized_matmul", "registration",
    "segmented_mm", "to_fp8",
]  # fmt: skip


def _tensor_scale(op, like, global_scale, tensor_scale, suffix=""):
    if global_scale is None and tensor_scale is None:
        return None
    if global_scale is not None and tensor_scale is not None:
        raise ValueError(
            f"[{op}] global_scale{suffix} and tensor_scale{suffix} are both given, expected one"
        )
    if tensor_scale is None:
        # In float32, as the multiplier is: a Python number is rounded before it is divided.
        if isinstance(global_scale, torch.Tensor):
            return global_scale.to(torch.float32) / 2688
        return torch.full((), global_scale, dtype=torch.float32, device=like.device) / 2688
    if isinstance(tensor_scale, torch.Tensor):
        return tensor_scale
    return torch.full((), tensor_scale, dtype=torch.float32, device=like.device)


def _options(precision, sorted_indices=None):
    """Keywords of a product that are not its defaults: torch takes time over each that it reads."""
    if precision == "native" and not sorted_indices:
        return {}
    more = {} if sorted_indices is None else {"sorted_indices": sorted_indices}
    return {"precision": precision, **more}


# A call that nobody records, differentiates, transforms or traces need not go through torch's
# dispatcher, which takes longer than the library over small products: the extension reads the same
# tensors and makes the same call. Each of these is false then. A torch that lacks one of them, or
# DLPack's C functions, has every call go through the operators.
with contextlib.suppress(AttributeError):
    _core.set_between(
        (
            torch.is_grad_enabled,
            torch._C._len_torch_dispatch_stack,
            torch._C._is_torch_function_mode_enabled,
            torch._C._are_functorch_transforms_active,
            torch._C._get_tracing_state,
            torch._C._autograd._profiler_enabled,
        )
    )


class _Direct(dict):
    """By precision, the options of a call in an operator's place. The extension returns None where the
    operator is to be called: one of the above is true, or a tensor is not a plain one."""

    def __missing__(self, precision):
        return {"direct": True, "precision": precision}


_DIRECT = _Direct(native={"direct": True})


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
    tensor_scale = _tensor_scale("quantize", w, global_scale, tensor_scale)
    out = _ops.quantize(
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
    tensor_scale = _tensor_scale("quantize_dual", w, global_scale, tensor_scale)
    out = _ops.quantize_dual(
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
    tensor_scale = _tensor_scale("dequantize", w, global_scale, tensor_scale)
    return _ops.dequantize(
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
    return _ops.to_fp8(x)


def from_fp8(x, dtype=torch.bfloat16):
    """The values of E4M3FN codes x (uint8)."""
    return _ops.from_fp8(x, dtype)


def quantized_matmul(
    x,
    w,
    scales=None,
    biases=None,
    transpose=True,
    group_size=None,
    bits=None,
    mode="affine",
    global_scale=None,
    *,
    tensor_scale=None,
    precision="native",
):
    """x @ w^T (transpose) or x @ w: x (..., M, K) or (K,), w (N, K) or batched.

    Differentiable in x, in scales and biases (affine), and in a floating w."""
    if tensor_scale is not None or global_scale is not None:
        tensor_scale = _tensor_scale("quantized_matmul", x, global_scale, tensor_scale)
    form = (transpose, group_size, bits, mode, tensor_scale)
    if not _is_compiling():
        y = _core.quantized_matmul(x, w, scales, biases, *form, None, _DIRECT[precision])
        if y is not None:
            return y
    return _ops.quantized_matmul(x, w, scales, biases, *form, **_options(precision))


def gather_mm(
    a, b, lhs_indices=None, rhs_indices=None, *, sorted_indices=False, precision="native"
):
    """out[p] = a[lhs[p]] @ b[rhs[p]]: a (..., M, K), b (..., K, N), dense.

    A missing index counts 0, 1, ... over its operand's batch shape; an id outside the range selects
    nothing and gives 0. Differentiable in a and b."""
    if not _is_compiling():
        direct = _DIRECT[precision]
        y = _core.gather_mm(a, b, lhs_indices, rhs_indices, sorted_indices, None, direct)
        if y is not None:
            return y
    return _ops.gather_mm(a, b, lhs_indices, rhs_indices, **_options(precision, sorted_indices))


def gather_qmm(
    x,
    w,
    scales=None,
    biases=None,
    lhs_indices=None,
    rhs_indices=None,
    transpose=True,
    group_size=None,
    bits=None,
    mode="affine",
    global_scale=None,
    *,
    tensor_scale=None,
    sorted_indices=False,
    precision="native",
):
    """out[p] = x[lhs[p]] @ w[rhs[p]]^T (or w[rhs[p]]): the product of expert layers.

    x (..., M, K), w (..., N, K), indices as for gather_mm; out broadcast(lhs, rhs) + (M, N).
    Differentiable in x, in scales and biases (affine), and in a floating w."""
    if tensor_scale is not None or global_scale is not None:
        tensor_scale = _tensor_scale("gather_qmm", x, global_scale, tensor_scale)
    form = (transpose, group_size, bits, mode, tensor_scale)
    if not _is_compiling():
        y = _core.gather_qmm(
            x, w, scales, biases, lhs_indices, rhs_indices, *form, sorted_indices, None,
            _DIRECT[precision],
        )  # fmt: skip
        if y is not None:
            return y
    return _ops.gather_qmm(
        x, w, scales, biases, lhs_indices, rhs_indices, *form,
        **_options(precision, sorted_indices),
    )  # fmt: skip


def gather_qmv(
    x,
    w,
    scales,
    biases,
    expert_indices,
    group_size=None,
    bits=None,
    mode="affine",
    *,
    tensor_scale=None,
    precision="native",
):
    """out[p] = w[expert_indices[p]] @ x[p]: x (P, K), w (E, N, K), out (P, N)."""
    if tensor_scale is not None:
        tensor_scale = _tensor_scale("gather_qmv", x, None, tensor_scale)
    form = (group_size, bits, mode, tensor_scale)
    if not _is_compiling():
        y = _core.gather_qmv(
            x, w, scales, biases, expert_indices, *form, None, _DIRECT[precision]
        )  # fmt: skip
        if y is not None:
            return y
    return _ops.gather_qmv(x, w, scales, biases, expert_indices, *form, **_options(precision))


def segmented_mm(a, b, segments, *, precision="native"):
    """out[i] = a[:, s:e] @ b[s:e, :], (s, e) = segments[i]. Differentiable in a and b; the backward
    runs segment by segment over all of K."""
    if not _is_compiling():
        y = _core.segmented_mm(a, b, segments, None, _DIRECT[precision])
        if y is not None:
            return y
    return _ops.segmented_mm(a, b, segments, **_options(precision))


def grouped_mm(x, w, offsets, *, precision="native"):
    """Rows offsets[e-1] .. offsets[e] of x (R, K) times w[e] (K, N); rows past the last end: 0."""
    if not _is_compiling():
        y = _core.grouped_mm(x, w, offsets, None, _DIRECT[precision])
        if y is not None:
            return y
    return _ops.grouped_mm(x, w, offsets, **_options(precision))


def grouped_qmm(
    x,
    w,
    scales,
    biases,
    offsets,
    transpose=True,
    group_size=None,
    bits=None,
    mode="affine",
    global_scale=None,
    *,
    tensor_scale=None,
    precision="native",
):
    """grouped_mm with a quantized w, (E, N, K) with transpose, (E, K, N) without."""
    if tensor_scale is not None or global_scale is not None:
        tensor_scale = _tensor_scale("grouped_qmm", x, global_scale, tensor_scale)
    form = (transpose, group_size, bits, mode, tensor_scale)
    if not _is_compiling():
        y = _core.grouped_qmm(x, w, scales, biases, offsets, *form, None, _DIRECT[precision])
        if y is not None:
            return y
    return _ops.grouped_qmm(x, w, scales, biases, offsets, *form, **_options(precision))


def qqmm(
    x,
    w,
    scales=None,
    group_size=None,
    bits=None,
    mode="nvfp4",
    global_scale_x=None,
    global_scale_w=None,
    *,
    tensor_scale_x=None,
    tensor_scale_w=None,
    x_scales=None,
    scale_layout="rows",
    x_scale_layout="rows",
    bias=None,
    alpha=1.0,
    beta=0.0,
    c=None,
    dtype=None,
    precision="native",
):
    """(alpha * fq(x) @ fq(w)^T + beta * c) + bias, fq = quantize, then dequantize.

    x and w are floats, quantized on the fly along K, or codes with scales. nvfp4, mxfp4 or mxfp8.
    Differentiable (straight-through) in floating x and w, and in bias and c."""
    scale_x = _tensor_scale("qqmm", x, global_scale_x, tensor_scale_x, "_x")
    scale_w = _tensor_scale("qqmm", x, global_scale_w, tensor_scale_w, "_w")
    return _ops.qqmm(
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
    x,
    w,
    scales=None,
    lhs_indices=None,
    rhs_indices=None,
    group_size=None,
    bits=None,
    mode="nvfp4",
    global_scale_x=None,
    global_scale_w=None,
    *,
    sorted_indices=False,
    tensor_scale_x=None,
    tensor_scale_w=None,
    x_scales=None,
    scale_layout="rows",
    x_scale_layout="rows",
    bias=None,
    alpha=1.0,
    beta=0.0,
    c=None,
    dtype=None,
    precision="native",
):
    """The gathered form of qqmm: out[p] = fq(x[lhs[p]]) @ fq(w[rhs[p]])^T."""
    scale_x = _tensor_scale("gather_qqmm", x, global_scale_x, tensor_scale_x, "_x")
    scale_w = _tensor_scale("gather_qqmm", x, global_scale_w, tensor_scale_w, "_w")
    return _ops.gather_qqmm(
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
    x,
    w,
    scales,
    offsets,
    group_size=None,
    bits=None,
    mode="nvfp4",
    global_scale_x=None,
    global_scale_w=None,
    *,
    tensor_scale_x=None,
    tensor_scale_w=None,
    x_scales=None,
    scale_layout="rows",
    x_scale_layout="rows",
    bias=None,
    alpha=1.0,
    beta=0.0,
    c=None,
    dtype=None,
    precision="native",
):
    """The offsets form of qqmm: x (R, K), w (E, N, K)."""
    scale_x = _tensor_scale("grouped_qqmm", x, global_scale_x, tensor_scale_x, "_x")
    scale_w = _tensor_scale("grouped_qqmm", x, global_scale_w, tensor_scale_w, "_w")
    return _ops.grouped_qqmm(
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


def moe_route(
    logits,
    k,
    *,
    score="softmax",
    normalize=False,
    bias=None,
    n_group=1,
    topk_group=1,
    scaling_factor=1.0,
):
    """logits (T, E) -> ids (T, k) int32 and weights (T, k) float32, largest first.

    score: "softmax" over all experts or "sigmoid". bias (E,) float32 counts for the choice only.
    With n_group > 1 only the topk_group groups of the best two sums are considered."""
    if not _is_compiling():
        groups = (n_group, topk_group, scaling_factor)
        out = _core.moe_route(logits, k, score, normalize, bias, *groups, None, _DIRECT["native"])
        if out is not None:
            return out
    return _ops.moe_route(
        logits,
        k,
        bias,
        score=score,
        normalize=normalize,
        n_group=n_group,
        topk_group=topk_group,
        scaling_factor=scaling_factor,
    )


def moe_permute(x, ids, experts, expert_map=None):
    """Rows of x (T, H) in the order of their experts, ids (T, k) -> rows (T * k, H), offsets
    (experts,) and inverse (T, k), int32, as the grouped products and moe_unpermute take them."""
    if not _is_compiling():
        out = _core.moe_permute(x, ids, experts, expert_map, None, _DIRECT["native"])
        if out is not None:
            return out
    return _ops.moe_permute(x, ids, experts, expert_map)


def moe_unpermute(y, inverse, weights=None):
    """out[t] = sum over j of weights[t, j] * y[inverse[t, j]], in float32, in the order of j."""
    if not _is_compiling():
        out = _core.moe_unpermute(y, inverse, weights, None, _DIRECT["native"])
        if out is not None:
            return out
    return _ops.moe_unpermute(y, inverse, weights)


def _weight(w, bias):
    """The eight arguments of one matrix, a Quantized or a floating tensor."""
    if isinstance(w, torch.Tensor):
        return w, None, None, None, None, None, "dense", bias
    if w is None:
        return None, None, None, None, None, None, "dense", bias
    tensor_scale = _tensor_scale("moe_ffn", w.w_q, None, w.tensor_scale)
    return w.w_q, w.scales, w.biases, tensor_scale, w.group_size, w.bits, w.mode, bias


def moe_ffn(
    x,
    gate_up,
    down,
    ids,
    weights,
    activation="silu",
    glu_layout="gate_up",
    expert_map=None,
    *,
    gate_up_bias=None,
    down_bias=None,
    alpha=1.702,
    limit=7.0,
    precision="native",
):
    """The experts of a layer: out[t] = sum over j of weights[t, j] * (down[e] @ a(gate[e] @ x[t],
    up[e] @ x[t]) + bias), e = ids[t, j].

    gate_up (E, 2I, H), or the pair (gate, up) of (E, I, H), and down (E, H, I): each a Quantized
    or a floating tensor; biases (E, 2I), or a pair of (E, I), and
    (E, H). activation: silu, gelu_erf, gelu_tanh, relu, clamped_swiglu (gpt-oss; alpha, limit).
    glu_layout of gate_up: gate_up, up_gate, interleaved. Gate and up stay float32 through the
    activation; the sum over j is float32, rounded once."""
    if isinstance(gate_up, tuple):
        gate_bias, up_bias = gate_up_bias or (None, None)
        first = (None, None), *zip(gate_up, (gate_bias, up_bias))
    else:
        first = (gate_up, gate_up_bias), (None, None), (None, None)
    (gate_up, gate_up_bias), (gate, gate_bias), (up, up_bias) = first
    if not _is_compiling():
        out = _core.moe_ffn(
            x, gate_up, gate, up, down, ids, weights, activation, glu_layout, expert_map,
            gate_up_bias, gate_bias, up_bias, down_bias, alpha, limit, None, _DIRECT[precision],
        )  # fmt: skip
        if out is not None:
            return out
    matrices = [v for w, bias in (*first, (down, down_bias)) for v in _weight(w, bias)]
    return _ops.moe_ffn(
        x, ids, weights, *matrices, expert_map, activation, glu_layout, alpha, limit, precision
    )
