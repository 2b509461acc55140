"""What stands around the products in an expert layer, and the whole of it."""

from __future__ import annotations

import torch
from torch.compiler import is_compiling

from .. import _core
from ._calls import DIRECT, ops, tensor_scale_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .. import Quantized
    from ._typing import Activation, GluLayout, Precision, Score, Tensor


def moe_route(
    logits: Tensor,
    k: int,
    *,
    score: Score = "softmax",
    normalize: bool = False,
    bias: Tensor | None = None,
    n_group: int = 1,
    topk_group: int = 1,
    scaling_factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """logits (T, E) -> ids (T, k) int32 and weights (T, k) float32, largest first.

    score: "softmax" over all experts or "sigmoid". bias (E,) float32 counts for the choice only.
    With n_group > 1 only the topk_group groups of the best two sums are considered."""
    if not is_compiling():
        groups = (n_group, topk_group, scaling_factor)
        out = _core.moe_route(logits, k, score, normalize, bias, *groups, None, DIRECT["native"])
        if out is not None:
            return out
    return ops.moe_route(
        logits,
        k,
        bias,
        score=score,
        normalize=normalize,
        n_group=n_group,
        topk_group=topk_group,
        scaling_factor=scaling_factor,
    )


def moe_permute(
    x: Tensor, ids: Tensor, experts: int, expert_map: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of x (T, H) in the order of their experts, ids (T, k) -> rows (T * k, H), offsets
    (experts,) and inverse (T, k), int32, as the grouped products and moe_unpermute take them."""
    if not is_compiling():
        out = _core.moe_permute(x, ids, experts, expert_map, None, DIRECT["native"])
        if out is not None:
            return out
    return ops.moe_permute(x, ids, experts, expert_map)


def moe_unpermute(y: Tensor, inverse: Tensor, weights: Tensor | None = None) -> Tensor:
    """out[t] = sum over j of weights[t, j] * y[inverse[t, j]], in float32, in the order of j."""
    if not is_compiling():
        out = _core.moe_unpermute(y, inverse, weights, None, DIRECT["native"])
        if out is not None:
            return out
    return ops.moe_unpermute(y, inverse, weights)


def _weight(w, bias):
    """The eight arguments of one matrix, a Quantized or a floating tensor."""
    if isinstance(w, torch.Tensor):
        return w, None, None, None, None, None, "dense", bias
    if w is None:
        return None, None, None, None, None, None, "dense", bias
    tensor_scale = tensor_scale_of("moe_ffn", w.w_q, None, w.tensor_scale)
    return w.w_q, w.scales, w.biases, tensor_scale, w.group_size, w.bits, w.mode, bias


def moe_ffn(
    x: Tensor,
    gate_up: Quantized | Tensor | tuple[Quantized | Tensor, Quantized | Tensor],
    down: Quantized | Tensor,
    ids: Tensor,
    weights: Tensor,
    activation: Activation = "silu",
    glu_layout: GluLayout = "gate_up",
    expert_map: Tensor | None = None,
    *,
    gate_up_bias: Tensor | tuple[Tensor | None, Tensor | None] | None = None,
    down_bias: Tensor | None = None,
    alpha: float = 1.702,
    limit: float = 7.0,
    precision: Precision = "native",
) -> Tensor:
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
    if not is_compiling():
        out = _core.moe_ffn(
            x, gate_up, gate, up, down, ids, weights, activation, glu_layout, expert_map,
            gate_up_bias, gate_bias, up_bias, down_bias, alpha, limit, None, DIRECT[precision],
        )  # fmt: skip
        if out is not None:
            return out
    matrices = [v for w, bias in (*first, (down, down_bias)) for v in _weight(w, bias)]
    return ops.moe_ffn(
        x, ids, weights, *matrices, expert_map, activation, glu_layout, alpha, limit, precision
    )
