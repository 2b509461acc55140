"""Routing and the fused expert layer against numpy."""

import math

import ml_dtypes
import numpy as np
import pytest

import moeblas as mb
from cases import SEEDS, draw_format, floats, indices, packed, pick, spread_out
from reference import FLOATS, Expected, check, gamma, product, unit


def route(logits, k, score, normalize, bias, n_group, topk_group, factor):
    """(ids, weights) in float64."""
    x = logits.astype(np.float64)
    if score == "softmax":
        e = np.exp(x - x.max(-1, keepdims=True))
        scores = e / e.sum(-1, keepdims=True)
    else:
        scores = 1 / (1 + np.exp(-x))
    choice = scores if bias is None else scores + bias
    if n_group > 1:
        groups = choice.reshape(len(x), n_group, choice.shape[-1] // n_group)
        worth = np.sort(groups, -1)[..., -2:].sum(-1)
        best = np.argsort(-worth, -1, kind="stable")[:, :topk_group]
        keep = np.zeros(worth.shape, bool)
        np.put_along_axis(keep, best, True, -1)
        choice = np.where(np.repeat(keep, groups.shape[-1], -1), choice, -np.inf)
    ids = np.argsort(-choice, -1, kind="stable")[:, :k]
    weights = np.take_along_axis(scores, ids, -1)
    if normalize:
        weights = weights / weights.sum(-1, keepdims=True)
    return ids, weights * factor


@pytest.mark.parametrize("seed", SEEDS)
def test_route(seed):
    rng = np.random.default_rng([seed, 31])
    experts, tokens = pick(rng, [8, 64, 128]), pick(rng, [0, 1, 7])
    options = {
        "score": pick(rng, ["softmax", "sigmoid"]),
        "normalize": bool(rng.integers(2)),
        "scaling_factor": float(np.float32(rng.uniform(0.5, 3))),
    }
    if rng.integers(2):
        options["bias"] = floats(rng, (experts,), np.float32) * np.float32(0.1)
    if rng.integers(2):
        options |= {"n_group": 4, "topk_group": pick(rng, [1, 2, 4])}
    # Distinct by more than float32's rounding of a score, so that there is one right order.
    steps = np.stack([rng.permutation(experts) for _ in range(tokens)] or [np.zeros(experts)])[
        :tokens
    ]
    logits = (steps * (4 / experts) - 2).astype(FLOATS["float32"])
    k = pick(rng, [1, 2, 2])
    ids, weights = mb.moe_route(spread_out(rng, logits), k, **options)
    want_ids, want = route(
        logits,
        k,
        options["score"],
        options["normalize"],
        options.get("bias"),
        options.get("n_group", 1),
        options.get("topk_group", 1),
        options["scaling_factor"],
    )
    assert ids.dtype == np.int32 and weights.dtype == np.float32
    np.testing.assert_array_equal(ids, want_ids)
    # An exponential to a few units, one rounding for each of E additions, a division, a product.
    assert np.all(np.abs(weights - want) <= gamma(experts + 16) * np.abs(want))


def test_route_prefers_the_lower_expert_and_leaves_nan_for_last():
    ids, weights = mb.moe_route(np.array([[1, 2, 2, np.nan, 0]], np.float32), 4, score="sigmoid")
    assert ids.tolist() == [[1, 2, 0, 4]] and not np.isnan(weights).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_permute_and_back(seed):
    rng = np.random.default_rng([seed, 32])
    dtype = pick(rng, list(FLOATS.values()))
    tokens, k, experts, h = (
        pick(rng, [0, 1, 13]),
        pick(rng, [1, 2, 4]),
        pick(rng, [1, 6]),
        pick(rng, [1, 40]),
    )
    x = spread_out(rng, floats(rng, (tokens, h), dtype))
    ids = indices(rng, (tokens, k), experts)
    here, expert_map = experts, None
    if rng.integers(2):
        here = 3
        expert_map = rng.integers(-1, here, experts).astype(np.int32)
    rows, offsets, inverse = mb.moe_permute(x, ids, here, expert_map)

    flat = np.asarray(ids).astype(np.int64)
    local = np.where((flat >= 0) & (flat < experts), flat, -1)
    if expert_map is not None:
        local = np.where(local >= 0, expert_map[np.where(local >= 0, local, 0)], -1)
    pairs = [(local[t, j], t, j) for t in range(tokens) for j in range(k) if local[t, j] >= 0]
    pairs.sort()
    want_rows, want_inverse = np.zeros((tokens * k, h), dtype), np.full((tokens, k), -1, np.int32)
    for r, (_, t, j) in enumerate(pairs):
        want_rows[r], want_inverse[t, j] = x[t], r
    np.testing.assert_array_equal(rows.astype(np.float32), want_rows.astype(np.float32))
    np.testing.assert_array_equal(inverse, want_inverse)
    np.testing.assert_array_equal(offsets, [sum(e <= i for e, _, _ in pairs) for i in range(here)])

    weights = rng.random((tokens, k), np.float32) if rng.integers(2) else None
    y = mb.moe_unpermute(rows, inverse, weights)
    w64 = np.ones((tokens, k)) if weights is None else weights.astype(np.float64)
    terms = np.where(inverse[..., None] >= 0, w64[..., None] * x.astype(np.float64)[:, None], 0.0)
    check(y, Expected(terms.sum(1), gamma(k + 1) * np.abs(terms).sum(1)))


# ---- moe_ffn -----------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[np.float64])


def activated(name, g, u, alpha, limit):
    if name == "clamped_swiglu":
        g, u = np.minimum(g, limit), np.clip(u, -limit, limit) + 1
        return u * g / (1 + np.exp(-alpha * g)), u
    if name == "silu":
        a = g / (1 + np.exp(-g))
    elif name == "gelu_erf":
        a = g * (1 + _erf(g / np.sqrt(2))) / 2
    elif name == "gelu_tanh":
        a = g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) / 2
    else:
        a = np.maximum(g, 0)
    return a * u, u


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("seed", SEEDS)
def test_ffn(seed):
    rng = np.random.default_rng([seed, 33])
    dtype = pick(rng, list(FLOATS.values()))
    experts, tokens, k = 3, pick(rng, [0, 1, 6]), pick(rng, [1, 2])
    h, inner = 128, 128
    activation = pick(rng, ["silu", "gelu_erf", "gelu_tanh", "relu", "clamped_swiglu"])
    layout = pick(rng, ["gate_up", "up_gate", "interleaved", "pair"])
    alpha, limit = (1.702, 7.0) if rng.integers(2) else (1.25, 0.5)

    def matrix(rows, columns):
        """(argument, values (E, columns, rows), spread, quantized)"""
        if rng.integers(3) == 0:
            w = spread_out(rng, floats(rng, (experts, rows, columns), dtype) * dtype(0.1))
            values = np.swapaxes(w.astype(np.float64), -1, -2)
            return w, values, np.abs(values), False
        mode, bits, group_size = draw_format(rng)
        w = packed(rng, (experts, rows), columns, mode, bits, group_size)
        argument = mb.Quantized(*w.arrays, **w.options)
        d = w.decoded
        return argument, np.swapaxes(d.values, -1, -2), np.swapaxes(d.spread, -1, -2), True

    bias = bool(rng.integers(2))
    down, down_values, down_spread, down_quantized = matrix(h, inner)
    if layout == "pair":
        (gate, gate_v, gate_s, gate_q), (up, up_v, up_s, up_q) = matrix(inner, h), matrix(inner, h)
        gate_up = (gate, up)
        gate_bias, up_bias = floats(rng, (2, experts, inner), np.float32)
        gate_up_bias = (gate_bias, up_bias)
    else:
        gate_up, values, spread, gate_q = matrix(2 * inner, h)
        up_q = gate_q
        gate_up_bias = floats(rng, (experts, 2 * inner), np.float32)
        first, second = slice(0, inner), slice(inner, None)
        if layout == "interleaved":
            first, second = slice(0, None, 2), slice(1, None, 2)
        if layout == "up_gate":
            first, second = second, first
        gate_v, up_v = values[..., first], values[..., second]
        gate_s, up_s = spread[..., first], spread[..., second]
        gate_bias, up_bias = gate_up_bias[:, first], gate_up_bias[:, second]
    down_bias = floats(rng, (experts, h), np.float32)
    # Small enough for what float16 holds between the products.
    x = floats(rng, (tokens, h), dtype) * dtype(2.0**-11 if dtype == np.float16 else 1)
    x = spread_out(rng, x)
    ids = indices(rng, (tokens, k), experts)
    weights = rng.random((tokens, k), np.float32)
    y = mb.moe_ffn(
        x,
        gate_up,
        down,
        ids,
        weights,
        activation,
        "gate_up" if layout == "pair" else layout,
        gate_up_bias=gate_up_bias if bias else None,
        down_bias=down_bias if bias else None,
        alpha=alpha,
        limit=limit,
    )

    exact, slack = np.zeros((tokens, h)), np.zeros((tokens, h))
    x64, u32 = x.astype(np.float64), 2.0**-24
    for t in range(tokens):
        for j in range(k):
            e = int(ids[t, j])
            if not 0 <= e < experts:
                continue
            g = product(x64[t : t + 1], gate_v[e], gate_s[e], dtype, gate_q)
            u = product(x64[t : t + 1], up_v[e], up_s[e], dtype, up_q)
            if bias:
                for part, b in ((g, gate_bias[e]), (u, up_bias[e])):
                    part.exact = part.exact + b
                    part.slack = part.slack + u32 * (np.abs(part.exact) + part.slack)
            a, up_factor = activated(activation, g.exact, u.exact, alpha, limit)
            # No activation here is steeper than 1.13 in g, nor larger than |g|; its own evaluation
            # costs a few roundings, its result one to x's dtype.
            off = 1.13 * g.slack * (np.abs(up_factor) + u.slack) + np.abs(g.exact) * u.slack
            off = off + (unit(dtype) + 16 * u32) * (np.abs(g.exact * up_factor) + off)
            off = off + float(ml_dtypes.finfo(dtype).smallest_subnormal)
            d = product(a, down_values[e], down_spread[e], dtype, down_quantized)
            d.slack = d.slack + (1 + gamma(inner)) * np.matmul(off, np.abs(down_spread[e]))
            if bias:
                d.exact = d.exact + down_bias[e]
            weight = float(weights[t, j])
            d.slack = d.slack + gamma(k + 2) * (np.abs(d.exact) + d.slack)
            exact[t] += weight * d.exact[0]
            slack[t] += weight * d.slack[0]
    assert y.dtype == x.dtype
    check(y, Expected(exact, slack))


def test_expert_map_leaves_out_what_is_elsewhere():
    """Each half of the experts on its own, and together: integers, so that every sum is exact."""
    rng = np.random.default_rng(34)

    def integers(*shape):
        return rng.integers(-1, 2, shape).astype(np.float32)

    x, gate_up, down = integers(4, 64), integers(4, 128, 64), integers(4, 64, 64)
    ids, weights = rng.integers(0, 4, (4, 2)), np.full((4, 2), 0.5, np.float32)
    whole = mb.moe_ffn(x, gate_up, down, ids, weights, "relu")
    parts = [
        mb.moe_ffn(x, gate_up[half], down[half], ids, weights, "relu", expert_map=np.array(places))
        for half, places in ((slice(0, 2), [0, 1, -1, -1]), (slice(2, 4), [-1, -1, 0, 1]))
    ]
    assert all(part.any() for part in parts)
    np.testing.assert_array_equal(parts[0] + parts[1], whole)


def test_quantized_shows_what_it_is():
    w = np.zeros((2, 8, 64), np.float32)
    assert repr(mb.Quantized(*mb.quantize(w))) == "<moeblas.Quantized affine, codes (2, 8, 8)>"
