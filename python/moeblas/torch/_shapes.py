"""Shapes of outputs where sizes are symbols (torch.compile with dynamic shapes), which the C interface
cannot take. With numbers the C interface's inference answers, checks included; the tests hold these
formulas to it."""

import torch

# bits, group_size
_DEFAULTS = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}


def _n(w, transpose, mode, group_size, scales):
    """The outputs of a product with w."""
    if transpose:
        return w.shape[-2]
    if mode == "dense":
        return w.shape[-1]
    return scales.shape[-1] * (group_size or _DEFAULTS[mode][1])


def _broadcast(*shapes):
    return tuple(torch.broadcast_shapes(*shapes))


def _batched(x, w, n):
    if w.dim() == 2:
        return (*x.shape[:-1], n)
    return (*_broadcast(x.shape[:-2], w.shape[:-2]), x.shape[-2], n)


def _gathered(x, w, lhs, rhs, n):
    lhs_shape = x.shape[:-2] if lhs is None else lhs.shape
    rhs_shape = w.shape[:-2] if rhs is None else rhs.shape
    return (*_broadcast(lhs_shape, rhs_shape), x.shape[-2], n)


def _quantize(w, group_size, bits, mode, scale_dtype, scale_layout):
    b, g = bits or _DEFAULTS[mode][0], group_size or _DEFAULTS[mode][1]
    batch, k = w.shape[:-1], w.shape[-1]
    groups = (*batch, k // g)
    if scale_layout == "swizzled_128x4":
        groups = (*batch[:-1], -(-batch[-1] // 128) * 128, -(-(k // g) // 4) * 4)
    affine = mode == "affine"
    scale = (scale_dtype or w.dtype) if affine else torch.uint8
    return [
        ((*batch, k * b // 32), torch.uint32),
        (groups, scale),
        (groups if affine else (0,), scale if affine else torch.float32),
    ]


def quantize(w, group_size, bits, mode, tensor_scale, scale_dtype, scale_layout):
    return _quantize(w, group_size, bits, mode, scale_dtype, scale_layout)


def quantize_dual(w, group_size, bits, mode, tensor_scale, scale_dtype, scale_layout):
    return _quantize(w, group_size, bits, mode, scale_dtype, scale_layout) + _quantize(
        w.transpose(-1, -2), group_size, bits, mode, scale_dtype, scale_layout
    )


def dequantize(w, scales, biases, group_size, bits, mode, tensor_scale, dtype, scale_layout):
    k = w.shape[-1] * 8 * w.element_size() // (bits or _DEFAULTS[mode][0])
    return [((*w.shape[:-1], k), dtype or (scales.dtype if mode == "affine" else torch.bfloat16))]


def to_fp8(x):
    return [(tuple(x.shape), torch.uint8)]


def from_fp8(x, dtype):
    return [(tuple(x.shape), dtype or torch.bfloat16)]


def quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode, *_):
    return [(_batched(x, w, _n(w, transpose, mode, group_size, scales)), x.dtype)]


def gather_mm(a, b, lhs_indices, rhs_indices, *_):
    rows = a if a.dim() > 1 else a.unsqueeze(0)
    columns = b if b.dim() > 1 else b.unsqueeze(-1)
    shape = _gathered(rows, columns, lhs_indices, rhs_indices, columns.shape[-1])
    if a.dim() == 1:
        shape = (*shape[:-2], shape[-1])
    return [(shape if b.dim() > 1 else shape[:-1], a.dtype)]


def gather_qmm(
    x, w, scales, biases, lhs_indices, rhs_indices, transpose, group_size, bits, mode, *_
):
    n = _n(w, transpose, mode, group_size, scales)
    return [(_gathered(x, w, lhs_indices, rhs_indices, n), x.dtype)]


def gather_qmv(x, w, *_):
    return [((x.shape[0], w.shape[-2]), x.dtype)]


def segmented_mm(a, b, segments, *_):
    return [((*segments.shape[:-1], a.shape[0], b.shape[1]), a.dtype)]


def grouped_mm(x, w, *_):
    return [((x.shape[0], w.shape[-1]), x.dtype)]


def grouped_qmm(x, w, scales, biases, offsets, transpose, group_size, bits, mode, *_):
    return [((x.shape[0], _n(w, transpose, mode, group_size, scales)), x.dtype)]


def _block_dtype(x, dtype):
    return x.dtype if x.is_floating_point() else dtype or torch.bfloat16


def qqmm(x, w, *rest):
    return [(_batched(x, w, w.shape[-2]), _block_dtype(x, rest[-2]))]


def gather_qqmm(x, w, scales, lhs_indices, rhs_indices, *rest):
    shape = _gathered(x, w, lhs_indices, rhs_indices, w.shape[-2])
    return [(shape, _block_dtype(x, rest[-2]))]


def grouped_qqmm(x, w, *rest):
    return [((x.shape[0], w.shape[-2]), _block_dtype(x, rest[-2]))]


def moe_route(logits, k, *_):
    shape = (logits.shape[0], k)
    return [(shape, torch.int32), (shape, torch.float32)]


def moe_permute(x, ids, experts, expert_map):
    rows = (ids.shape[0] * ids.shape[1], x.shape[1])
    return [(rows, x.dtype), ((experts,), torch.int32), (tuple(ids.shape), torch.int32)]


def moe_unpermute(y, inverse, weights):
    return [((inverse.shape[0], y.shape[1]), y.dtype)]


def moe_ffn(x, *_):
    return [(tuple(x.shape), x.dtype)]
