"""Gradients. With y = x @ W^T, W the values of w:

    dx = dy @ W           the same product with `transpose` flipped; gather_*: added up by lhs_indices
    dW = dy^T @ x         float32; of it scales and biases (affine): dscales = sum of dW * code,
                          dbiases = sum of dW, over each group
    qqmm: straight-through, dx = dy @ fq(w), dw = dy^T @ fq(x): dy is not quantized

Packed codes and indices are integers, for which torch has no gradients. Every other argument that asks
for a gradient that is not there is an error, never a silent zero.
"""

import torch

_ops = torch.ops.moeblas


def _needs(ctx, *positions):
    """Whether any of these inputs asks for a gradient. (torch leaves trailing defaults out of the
    list.)"""
    return any(ctx.needs_input_grad[i] for i in positions if i < len(ctx.needs_input_grad))


def _refuse(op, ctx, names):
    """Refuses gradients of the named inputs, by position."""
    for position, name in names.items():
        if _needs(ctx, position):
            raise RuntimeError(f"[{op}] {name} has no gradient")


def _save(ctx, inputs, keyword_only_inputs=None, kept=None):
    """Keeps the inputs for the backward; of tensors not in `kept` only the shape and dtype."""
    tensors = [
        v if isinstance(v, torch.Tensor) and (kept is None or i in kept) else None
        for i, v in enumerate(inputs)
    ]
    ctx.save_for_backward(*tensors)
    ctx.constants = [None if isinstance(v, torch.Tensor) else v for v in inputs]
    ctx.shapes = [v.shape if isinstance(v, torch.Tensor) else None for v in inputs]
    ctx.dtypes = [v.dtype if isinstance(v, torch.Tensor) else None for v in inputs]
    ctx.keywords = keyword_only_inputs or {}


def _saved(ctx):
    return [c if t is None else t for t, c in zip(ctx.saved_tensors, ctx.constants)]


def _gradients(ctx, found):
    """A gradient for each input, None where `found` has none."""
    return tuple(found.get(i) for i in range(len(ctx.constants)))


def _quantized_gradients(ctx, found, dw, w, scales, group_size, bits, at):
    """From dW, float32, those of w (floating) or of scales and biases; `at` is the position of w."""
    if _needs(ctx, at):
        found[at] = dw.to(w.dtype)
    groups = None
    if _needs(ctx, at + 1):
        groups = dw.unflatten(-1, (scales.shape[-1], -1))
        one, zero = torch.ones_like(scales, dtype=torch.float32), None
        zero = torch.zeros_like(one)
        codes = _ops.dequantize(w, one, zero, group_size, bits, "affine", dtype=torch.float32)
        found[at + 1] = (groups * codes.view_as(groups)).sum(-1).to(scales.dtype)
    if _needs(ctx, at + 2):
        groups = dw.unflatten(-1, (ctx.shapes[at + 2][-1], -1)) if groups is None else groups
        found[at + 2] = groups.sum(-1).to(ctx.dtypes[at + 2])


def _outer(left, right):
    """left^T @ right over the rows, in float32: (..., R, A), (..., R, B) -> (..., A, B)."""
    return _ops.gather_mm(left.float().transpose(-1, -2), right.float())


# ---- quantized_matmul --------------------------------------------------------------------------


def _quantized_matmul_setup(ctx, inputs, keyword_only_inputs, output):
    weights = _needs(ctx, 1, 2, 3)
    _save(ctx, inputs, keyword_only_inputs, {0, 1, 2, 3, 8} if weights else {1, 2, 3, 8})


def _quantized_matmul_backward(ctx, dy):
    _refuse("quantized_matmul", ctx, {8: "tensor_scale"})
    x, w, scales, biases, transpose, group_size, bits, mode, tensor_scale = _saved(ctx)
    found = {}
    if _needs(ctx, 0):
        dx = _ops.quantized_matmul(
            dy,
            w,
            scales,
            biases,
            not transpose,
            group_size,
            bits,
            mode,
            tensor_scale,
            **ctx.keywords,
        )
        found[0] = dx.sum_to_size(ctx.shapes[0])
    if _needs(ctx, 1, 2, 3):
        if w.dim() == 2:
            x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        dw = _outer(dy, x) if transpose else _outer(x, dy)
        dw = dw.sum_to_size((*w.shape[:-2], *dw.shape[-2:]))
        _quantized_gradients(ctx, found, dw, w, scales, group_size, bits, 1)
    return _gradients(ctx, found)


# ---- gather_qmm, gather_mm ---------------------------------------------------------------------


class _Pairs:
    """The pairs of a gathered product, in one row: which matrix of x and which of w."""

    def __init__(self, x_batch, w_batch, lhs, rhs, device):
        def index(given, batch):
            if given is not None:
                return given.long()
            return torch.arange(batch.numel(), device=device).view(batch)

        self.x_batch, self.w_batch, self.lhs_given = x_batch, w_batch, lhs is not None
        lhs, rhs = torch.broadcast_tensors(index(lhs, x_batch), index(rhs, w_batch))
        self.shape, self.lhs, self.rhs = lhs.shape, lhs.reshape(-1), rhs.reshape(-1)

    def into_x(self, rows):
        """Adds (P, M, K) up over the pairs of each matrix of x, in float32."""
        matrix = rows.shape[1:]
        if not self.lhs_given:
            total = rows.float().view(*self.shape, *matrix).sum_to_size((*self.x_batch, *matrix))
        else:
            count = self.x_batch.numel()
            inside = (self.lhs >= 0) & (self.lhs < count)
            total = rows.new_zeros((count, *matrix), dtype=torch.float32)
            total.index_add_(
                0, self.lhs.clamp(0, max(count - 1, 0)), rows.float() * inside.view(-1, 1, 1)
            )
            total = total.view(*self.x_batch, *matrix)
        return total

    def outer(self, left, right, w_side):
        """For each matrix of w the sum over its pairs of left[p]^T @ right[p], float32. Which of the
        two is x's is said by w_side ("left" or "right" is dy's): x's rows are found by lhs."""
        count = self.w_batch.numel()
        inside = (self.lhs >= 0) & (self.lhs < self.x_batch.numel())
        expert = torch.where(inside, self.rhs, -1)
        order = torch.argsort(expert, stable=True)
        bounds = torch.searchsorted(expert[order], torch.arange(count + 1, device=order.device))
        from_x = self.lhs.clamp(0, max(self.x_batch.numel() - 1, 0))[order]
        rows = [
            t.reshape(-1, *t.shape[-2:])[order if side == w_side else from_x]
            for side, t in (("left", left), ("right", right))
        ]
        m = rows[0].shape[1]
        flat = [t.reshape(-1, t.shape[-1]).float() for t in rows]
        segments = torch.stack((bounds[:-1], bounds[1:]), -1) * m
        out = _ops.segmented_mm(flat[0].t(), flat[1], segments)
        return out.view(*self.w_batch, *out.shape[-2:])


def _gather_qmm_setup(ctx, inputs, keyword_only_inputs, output):
    weights = _needs(ctx, 1, 2, 3)
    _save(ctx, inputs, keyword_only_inputs, set(range(0 if weights else 1, 11)))


def _gather_qmm_backward(ctx, dy):
    _refuse("gather_qmm", ctx, {10: "tensor_scale"})
    x, w, scales, biases, lhs, rhs, transpose, group_size, bits, mode, tensor_scale = _saved(ctx)
    x_shape = ctx.shapes[0]
    pairs = _Pairs(x_shape[:-2], w.shape[:-2], lhs, rhs, dy.device)
    found = {}
    if _needs(ctx, 0):
        rows = dy.reshape(-1, *dy.shape[-2:])
        dx = _ops.gather_qmm(
            rows,
            w,
            scales,
            biases,
            None,
            pairs.rhs,
            not transpose,
            group_size,
            bits,
            mode,
            tensor_scale,
            precision=ctx.keywords["precision"],
        )
        found[0] = pairs.into_x(dx).to(ctx.dtypes[0])
    if _needs(ctx, 1, 2, 3):
        dw = pairs.outer(dy, x, "left") if transpose else pairs.outer(x, dy, "right")
        _quantized_gradients(ctx, found, dw, w, scales, group_size, bits, 1)
    return _gradients(ctx, found)


def _gather_mm_setup(ctx, inputs, keyword_only_inputs, output):
    _save(ctx, inputs, keyword_only_inputs)


def _gather_mm_backward(ctx, dy):
    a, b, lhs, rhs = _saved(ctx)
    if b.dim() == 1:
        dy = dy.unsqueeze(-1)
    if a.dim() == 1:
        dy = dy.unsqueeze(-2)
    rows = a if a.dim() > 1 else a.unsqueeze(0)
    columns = b if b.dim() > 1 else b.unsqueeze(-1)
    pairs = _Pairs(rows.shape[:-2], columns.shape[:-2], lhs, rhs, dy.device)
    found = {}
    if _needs(ctx, 0):
        da = _ops.gather_mm(
            dy.reshape(-1, *dy.shape[-2:]),
            columns.transpose(-1, -2),
            None,
            pairs.rhs,
            precision=ctx.keywords["precision"],
        )
        found[0] = pairs.into_x(da).to(a.dtype).view(a.shape)
    if _needs(ctx, 1):
        found[1] = pairs.outer(rows, dy, "right").to(b.dtype).view(b.shape)
    return _gradients(ctx, found)


# ---- segmented_mm ------------------------------------------------------------------------------


def _segmented_mm_setup(ctx, inputs, keyword_only_inputs, output):
    _save(ctx, inputs, keyword_only_inputs)


def _segmented_mm_backward(ctx, dy):
    """Segment by segment, over all of K: segments may overlap, and their ends are on the device."""
    a, b, segments = _saved(ctx)
    k = torch.arange(a.shape[1], device=a.device)
    da, db = (torch.zeros_like(t, dtype=torch.float32) for t in (a, b))
    for (start, end), dout in zip(segments.reshape(-1, 2).long(), dy.reshape(-1, *dy.shape[-2:])):
        inside = (k >= start) & (k < end)
        if _needs(ctx, 0):
            da += torch.where(inside, _ops.gather_mm(dout.float(), b.float().t()), 0.0)
        if _needs(ctx, 1):
            db += torch.where(
                inside.unsqueeze(-1), _ops.gather_mm(a.float().t(), dout.float()), 0.0
            )
    return da.to(a.dtype), db.to(b.dtype), None


# ---- qqmm --------------------------------------------------------------------------------------


def _qqmm_setup(ctx, inputs, keyword_only_inputs, output):
    kept = {1, 2, 6, 7}
    if _needs(ctx, 1):
        kept |= {0, 10}
    _save(ctx, inputs, keyword_only_inputs, kept)


def _qqmm_backward(ctx, dy):
    _refuse("qqmm", ctx, {6: "tensor_scale_x", 7: "tensor_scale_w"})
    x, w, scales, group_size, bits, mode, scale_x, scale_w, _, _, x_scales = _saved(ctx)
    alpha, beta = ctx.keywords["alpha"], ctx.keywords["beta"]
    found = {}
    if _needs(ctx, 0):
        if scales is None:
            w, scales, _ = _ops.quantize(w, group_size, bits, mode, scale_w)
        if ctx.keywords["scale_layout"] != "rows":
            # The products read scales row by row: here the values themselves are formed.
            w = _ops.dequantize(
                w,
                scales,
                None,
                group_size,
                bits,
                mode,
                scale_w,
                dtype=dy.dtype,
                scale_layout=ctx.keywords["scale_layout"],
            )
            dx = _ops.quantized_matmul(dy, w, transpose=False, mode="dense")
        else:
            dx = _ops.quantized_matmul(dy, w, scales, None, False, group_size, bits, mode, scale_w)
        found[0] = (alpha * dx).sum_to_size(ctx.shapes[0])
    if _needs(ctx, 1):
        if scale_x is not None and scale_x.numel() > 1:
            raise RuntimeError("[qqmm] w has no gradient where tensor_scale_x has several numbers")
        if x_scales is None:
            x, x_scales, _ = _ops.quantize(x, group_size, bits, mode, scale_x)
        x = _ops.dequantize(
            x,
            x_scales,
            None,
            group_size,
            bits,
            mode,
            scale_x,
            dtype=torch.float32,
            scale_layout=ctx.keywords["x_scale_layout"],
        )
        rows = dy
        if w.dim() == 2:
            x, rows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        dw = alpha * _outer(rows, x)
        found[1] = dw.sum_to_size(ctx.shapes[1]).to(ctx.dtypes[1])
    if _needs(ctx, 8):
        # A bias of one row per matrix, w's batch + (N,), stands for all rows of x.
        shape = ctx.shapes[8]
        rows = dy.float().sum_to_size((*shape[:-1], 1, shape[-1])) if len(shape) > 1 else dy.float()
        found[8] = rows.sum_to_size((*shape[:-1], 1, shape[-1])).view(shape).to(ctx.dtypes[8])
    if _needs(ctx, 9):
        found[9] = (beta * dy.float()).sum_to_size(ctx.shapes[9]).to(ctx.dtypes[9])
    return _gradients(ctx, found)


_FORMULAS = {
    "quantized_matmul": (_quantized_matmul_setup, _quantized_matmul_backward),
    "gather_qmm": (_gather_qmm_setup, _gather_qmm_backward),
    "gather_mm": (_gather_mm_setup, _gather_mm_backward),
    "segmented_mm": (_segmented_mm_setup, _segmented_mm_backward),
    "qqmm": (_qqmm_setup, _qqmm_backward),
}


def _without(name):
    """Refuses: a layer that is to be trained is made of the operators above."""
    formulas = ", ".join(_FORMULAS)

    def backward(ctx, *_):
        raise RuntimeError(f"[{name}] has no gradient, expected an operator that has: {formulas}")

    return backward


def register(names, library):
    for name in names:
        setup, backward = _FORMULAS.get(name, (None, _without(name)))
        torch.library.register_autograd(
            f"moeblas::{name}", backward, setup_context=setup, lib=library
        )
