"""Routing and the fused expert layer. T tokens, H features, I hidden features, k experts a token."""

from __future__ import annotations

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from ._typing import A, Array, Mode, Options, ScaleLayout, TensorScale, Unpack


class Quantized:
    """A quantized matrix, or a stack of them, with what its bits mean: for functions that take several.

    ``Quantized(*quantize(w, mode="mxfp4"), mode="mxfp4")``. The arrays are those of ``quantize``.
    """

    __slots__ = (
        "biases",
        "bits",
        "group_size",
        "mode",
        "scale_layout",
        "scales",
        "tensor_scale",
        "w_q",
    )

    def __init__(
        self,
        w_q: Array,
        scales: Array,
        biases: Array | None = None,
        group_size: int | None = None,
        bits: int | None = None,
        mode: Mode = "affine",
        *,
        tensor_scale: TensorScale | None = None,
        scale_layout: ScaleLayout = "rows",
    ) -> None:
        self.w_q = w_q
        self.scales = scales
        self.biases = biases
        self.group_size = group_size
        self.bits = bits
        self.mode = mode
        self.tensor_scale = tensor_scale
        self.scale_layout = scale_layout

    def __repr__(self) -> str:
        width = "" if self.bits is None else f", {self.bits} bits"
        group = "" if self.group_size is None else f", groups of {self.group_size}"
        return f"<moeblas.Quantized {self.mode}{width}{group}, codes {tuple(self.w_q.shape)}>"


def moe_route(
    logits: A,
    k: int,
    *,
    score: Literal["softmax", "sigmoid"] = "softmax",
    normalize: bool = False,
    bias: Array | None = None,
    n_group: int = 1,
    topk_group: int = 1,
    scaling_factor: float = 1.0,
    out: tuple[A, A] | None = None,
    **options: Unpack[Options],
) -> tuple[A, A]:
    """The k experts of each token and their weights: ``(ids, weights)``.

    Scores are softmax(logits) over all experts, or sigmoid(logits), in float32. The k experts of
    largest score + bias are chosen, largest first; ties go to the lower expert, NaN comes last.
    With n_group > 1 the experts form groups of equal size, a group's worth is the sum of its two
    best values, and only the topk_group best are considered. A weight is the score without the
    bias, with ``normalize`` divided by the sum of the chosen ones (0 where that is 0), times
    scaling_factor.

    Mixtral, Qwen3-MoE, gpt-oss: normalize. OLMoE: the defaults. DeepSeek-V3: sigmoid, normalize,
    bias, groups, scaling_factor.

    Args:
        logits: (T, E), float32, float16 or bfloat16.
        bias: (E,) float32.
        out: (ids, weights) to write.
        options: see ``help(moeblas)``.

    Returns:
        ids: (T, k) int32; weights: (T, k) float32.

    Raises:
        ValueError, TypeError, RuntimeError: as ``quantized_matmul``.
    """
    return _core.moe_route(
        logits, k, score, normalize, bias, n_group, topk_group, scaling_factor, out, options
    )


def moe_permute(
    x: A,
    ids: Array,
    experts: int,
    expert_map: Array | None = None,
    *,
    out: tuple[A, A, A] | None = None,
    **options: Unpack[Options],
) -> tuple[A, A, A]:
    """Rows of x in the order of their experts, as ``grouped_mm`` takes them:
    ``(rows, offsets, inverse)``.

    Args:
        x: (T, H), float32, float16 or bfloat16.
        ids: (T, k) integers.
        experts: how many there are here.
        expert_map: one integer per global expert, its place here; pairs that lead outside
            [0, experts) are dropped.
        out: (rows, offsets, inverse) to write.
        options: see ``help(moeblas)``.

    Returns:
        rows: (T * k, H) of x's dtype, sorted by expert, then token, zeros past the last.
        offsets: (experts,) int32, where each expert's rows end.
        inverse: (T, k) int32, the row of each pair, -1 if dropped.

    Raises:
        ValueError, TypeError, RuntimeError: as ``quantized_matmul``.
    """
    return _core.moe_permute(x, ids, experts, expert_map, out, options)


def moe_unpermute(
    y: A,
    inverse: Array,
    weights: Array | None = None,
    *,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """``out[t] = sum over j of weights[t, j] * y[inverse[t, j]]``, added in float32 in the order of j
    and rounded once.

    Args:
        y: (R, H), float32, float16 or bfloat16.
        inverse: (T, k) integers; entries outside [0, R) add nothing.
        weights: (T, k) float32; absent: all 1.
        out: the array to write.
        options: see ``help(moeblas)``.

    Returns:
        (T, H) of y's dtype.

    Raises:
        ValueError, TypeError, RuntimeError: as ``quantized_matmul``.
    """
    return _core.moe_unpermute(y, inverse, weights, out, options)


def moe_ffn(
    x: A,
    gate_up: Quantized | Array | tuple[Quantized | Array, Quantized | Array],
    down: Quantized | Array,
    ids: Array,
    weights: Array,
    activation: Literal["silu", "gelu_erf", "gelu_tanh", "relu", "clamped_swiglu"] = "silu",
    glu_layout: Literal["gate_up", "up_gate", "interleaved"] = "gate_up",
    expert_map: Array | None = None,
    *,
    gate_up_bias: Array | tuple[Array | None, Array | None] | None = None,
    down_bias: Array | None = None,
    alpha: float = 1.702,
    limit: float = 7.0,
    out: A | None = None,
    **options: Unpack[Options],
) -> A:
    """An expert layer: ``out[t] = sum over j of weights[t, j] * (down[e] @ act(gate[e] @ x[t], up[e] @
    x[t]) + down_bias[e])`` with ``e = ids[t, j]``, gate and up with their biases likewise.

    Gate and up stay float32 through the activation, whose result is rounded once to x's dtype; the
    down product is not rounded before the sum, which is float32 in the order of j, rounded once.

    Args:
        x: (T, H), float32, float16 or bfloat16.
        gate_up: (E, 2I, H), or the pair (gate, up) of (E, I, H); each a ``Quantized`` or a dense
            array.
        down: (E, H, I), likewise.
        ids: (T, k) integers; weights: (T, k) float32, as ``moe_route`` returns them. An id out of
            range adds nothing.
        activation: act(g, u) is silu(g) * u, or with gelu or relu in its place; "clamped_swiglu" is
            gpt-oss's (min(max(u, -limit), limit) + 1) * g' * sigmoid(alpha * g'), g' = min(g, limit).
        glu_layout: the order of gate's and up's rows where they are one matrix.
        expert_map: one integer per global expert, its place here, or -1.
        gate_up_bias: (E, 2I), or the pair of (E, I); down_bias: (E, H); any float dtype.
        out: the array to write.
        options: see ``help(moeblas)``.

    Returns:
        (T, H) of x's dtype.

    Raises:
        ValueError, TypeError, RuntimeError: as ``quantized_matmul``.
    """
    gate: Any = None
    up: Any = None
    gate_bias: Any = None
    up_bias: Any = None
    if isinstance(gate_up, tuple):
        gate, up = _pair("gate_up", gate_up)
        gate_up = None  # type: ignore[assignment]
    if isinstance(gate_up_bias, tuple):
        gate_bias, up_bias = _pair("gate_up_bias", gate_up_bias)
        gate_up_bias = None
    return _core.moe_ffn(
        x,
        gate_up,
        gate,
        up,
        down,
        ids,
        weights,
        activation,
        glu_layout,
        expert_map,
        gate_up_bias,
        gate_bias,
        up_bias,
        down_bias,
        alpha,
        limit,
        out,
        options,
    )


def _pair(name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(given) != 2:
        raise ValueError(
            f"[moe_ffn] {name} is a tuple of {len(given)}, expected (gate, up);"
            " what quantize returns is one matrix as Quantized(*quantize(...), mode=...)"
        )
    return given
