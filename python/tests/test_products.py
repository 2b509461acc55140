"""The products on random arguments against float64."""

import numpy as np
import pytest

import moeblas as mb
from cases import (
    OUTPUTS,
    ROWS,
    SEEDS,
    draw_format,
    draw_k,
    floats,
    indices,
    packed,
    pick,
    spread_out,
)
from reference import FLOATS, Expected, check, gathered, product


def matrices(decoded, transpose):
    """Values and spread as right-hand sides (..., K, N)."""
    if not transpose:
        return decoded.values, decoded.spread
    return np.swapaxes(decoded.values, -1, -2), np.swapaxes(decoded.spread, -1, -2)


def draw_weights(rng, batch, transpose):
    """(weights, K, N) of a stack of shape `batch`."""
    mode, bits, group_size = draw_format(rng)
    columns, rows = draw_k(rng, bits, group_size), pick(rng, OUTPUTS)
    w = packed(rng, batch + (rows,), columns, mode, bits, group_size)
    return (w, columns, rows) if transpose else (w, rows, columns)


@pytest.mark.parametrize("seed", SEEDS)
def test_quantized_matmul(seed):
    rng = np.random.default_rng([seed, 1])
    transpose = bool(rng.integers(4))
    dtype = pick(rng, list(FLOATS.values()))
    kind = rng.integers(4)
    w_batch = [(), (), (3,), (2, 1)][kind]
    w, k, _n = draw_weights(rng, w_batch, transpose)
    m = pick(rng, ROWS)
    x_shape = [(k,), (2, m, k), (3, m, k), (1, 4, m, k)][kind]
    x = spread_out(rng, floats(rng, x_shape, dtype))
    values, spread = matrices(w.decoded, transpose)
    y = mb.quantized_matmul(x, *w.arrays, transpose=transpose, **w.options)
    assert y.dtype == x.dtype
    want = product(np.atleast_2d(x.astype(np.float64)), values, spread, dtype, True)
    check(y, want[0] if x.ndim == 1 else want)


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_qmm(seed):
    rng = np.random.default_rng([seed, 2])
    transpose = bool(rng.integers(4))
    dtype = pick(rng, list(FLOATS.values()))
    experts, tokens, top_k = pick(rng, [1, 4, 8]), pick(rng, [0, 1, 3, 20]), pick(rng, [1, 2, 4])
    w, k, _n = draw_weights(rng, (experts,), transpose)
    kind = rng.integers(3)
    lhs = None
    if kind == 0:  # mlx-lm's way: every token meets k experts
        x = floats(rng, (tokens, 1, 1, k), dtype)
        rhs = indices(rng, (tokens, top_k), experts)
    elif kind == 1:
        x = floats(rng, (5, pick(rng, [1, 3, 16]), k), dtype)
        lhs, rhs = indices(rng, (tokens, 1), 5), indices(rng, (tokens, top_k), experts)
    else:  # no index at all: batches broadcast
        x = floats(rng, (pick(rng, [1, experts]), pick(rng, ROWS), k), dtype)
        rhs = None
    x = spread_out(rng, x)
    values, spread = matrices(w.decoded, transpose)
    y = mb.gather_qmm(
        x,
        *w.arrays,
        lhs_indices=lhs,
        rhs_indices=rhs,
        transpose=transpose,
        sorted_indices=bool(rng.integers(2)),
        **w.options,
    )
    assert y.dtype == x.dtype
    check(y, gathered(x.astype(np.float64), values, spread, lhs, rhs, dtype, True))


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_qmv(seed):
    rng = np.random.default_rng([seed, 3])
    dtype = pick(rng, list(FLOATS.values()))
    w, k, _n = draw_weights(rng, (6,), True)
    pairs = pick(rng, [0, 1, 2, 40])
    x = spread_out(rng, floats(rng, (pairs, k), dtype))
    ids = indices(rng, (pairs,), 6)
    values, spread = matrices(w.decoded, True)
    biases = w.arrays[2] if w.mode == "affine" else None
    y = mb.gather_qmv(x, w.arrays[0], w.arrays[1], biases, ids, **w.options)
    want = gathered(x.astype(np.float64)[:, None], values, spread, None, ids, dtype, True)
    check(y, want[:, 0])


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_mm(seed):
    rng = np.random.default_rng([seed, 4])
    dtype = pick(rng, list(FLOATS.values()))
    k, n, experts = pick(rng, [0, 1, 7, 64, 129]), pick(rng, OUTPUTS), pick(rng, [1, 5])
    a = spread_out(rng, floats(rng, (4, pick(rng, ROWS), k), dtype))
    b = spread_out(rng, floats(rng, (experts, k, n), dtype))
    lhs = indices(rng, (9,), 4) if rng.integers(2) else None
    rhs = indices(rng, (9 if lhs is not None else 4,), experts)
    y = mb.gather_mm(a, b, lhs, rhs, sorted_indices=bool(rng.integers(2)))
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    check(y, gathered(a64, b64, np.abs(b64), lhs, rhs, dtype, False))


@pytest.mark.parametrize("seed", SEEDS)
def test_segmented_mm(seed):
    rng = np.random.default_rng([seed, 5])
    dtype = pick(rng, list(FLOATS.values()))
    m, n, k = pick(rng, ROWS), pick(rng, OUTPUTS), pick(rng, [0, 5, 64, 200])
    a = spread_out(rng, floats(rng, (m, k), dtype))
    b = spread_out(rng, floats(rng, (k, n), dtype))
    segments = spread_out(
        rng, rng.integers(-3, k + 4, (7, 2)).astype(pick(rng, [np.int32, np.int64]))
    )
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    parts = [slice(*np.clip(segment, 0, k)) for segment in segments]
    wants = [product(a64[:, p], b64[p], np.abs(b64[p]), dtype, False) for p in parts]
    want = Expected(np.stack([w.exact for w in wants]), np.stack([w.slack for w in wants]))
    check(mb.segmented_mm(a, b, segments), want)


def experts_of(offsets, rows):
    """The expert of every row: the first whose end lies beyond it, or none."""
    ends = np.clip(np.asarray(offsets), 0, rows)
    beyond = ends[None, :] > np.arange(rows)[:, None]
    return np.where(beyond.any(1), beyond.argmax(1), -1)


@pytest.mark.parametrize("seed", SEEDS)
def test_grouped(seed):
    rng = np.random.default_rng([seed, 6])
    dtype = pick(rng, list(FLOATS.values()))
    experts, rows = pick(rng, [1, 4]), pick(rng, [0, 1, 30])
    offsets = np.sort(rng.integers(0, rows + 1, experts))
    if rng.integers(3) == 0:
        offsets = rng.permutation(offsets)  # ends below their predecessor: empty experts
    offsets = spread_out(rng, offsets.astype(pick(rng, [np.int32, np.int64])))
    ids = experts_of(offsets, rows)

    w, k, n = draw_weights(rng, (experts,), transpose := bool(rng.integers(2)))
    x = spread_out(rng, floats(rng, (rows, k), dtype))
    biases = w.arrays[2] if w.mode == "affine" else None
    y = mb.grouped_qmm(x, w.arrays[0], w.arrays[1], biases, offsets, transpose, **w.options)
    values, spread = matrices(w.decoded, transpose)
    check(y, gathered(x.astype(np.float64)[:, None], values, spread, None, ids, dtype, True)[:, 0])

    dense = spread_out(rng, floats(rng, (experts, k, n), dtype))
    d64 = dense.astype(np.float64)
    y = mb.grouped_mm(x, dense, offsets)
    check(
        y, gathered(x.astype(np.float64)[:, None], d64, np.abs(d64), None, ids, dtype, False)[:, 0]
    )


def test_dense_weights_where_quantized_ones_are_taken():
    rng = np.random.default_rng(7)
    x, w = floats(rng, (3, 40), np.float32), floats(rng, (5, 40), FLOATS["bfloat16"])
    y = mb.quantized_matmul(x, w, mode="dense")
    w64 = w.astype(np.float64).T
    check(y, product(x.astype(np.float64), w64, np.abs(w64), np.float32, False))


def test_out_is_written_and_returned():
    rng = np.random.default_rng(8)
    x, w = floats(rng, (4, 64), np.float32), floats(rng, (6, 64), np.float32)
    q = mb.quantize(w)
    room = np.full((4, 9), np.nan, np.float32)
    out = room[:, :6]
    assert mb.quantized_matmul(x, *q, out=out) is out
    assert np.array_equal(out, mb.quantized_matmul(x, *q))
    assert np.isnan(room[:, 6:]).all()


def test_precision_and_the_other_options():
    rng = np.random.default_rng(9)
    x, w = floats(rng, (4, 64), np.float32), floats(rng, (6, 64), np.float32)
    q = mb.quantize(w)
    decoded = mb.dequantize(*q).astype(np.float64).T
    for options in (
        {"precision": "exact"},
        {"precision": "native"},
        {"deterministic": True},
        {"kernel": "matmul_portable"},
        {"kernel": None, "stream": None, "check_ids": False},
    ):
        y = mb.quantized_matmul(x, *q, **options)
        check(y, product(x.astype(np.float64), decoded, np.abs(decoded), np.float32, True))


def test_check_ids_names_the_first():
    x, w = np.zeros((3, 32), np.float32), np.ones((2, 8, 32), np.float32)
    q = mb.quantize(w, group_size=32)
    ids = np.array([0, 5, 1])
    assert not mb.gather_qmv(x, *q, ids, group_size=32).any()
    with pytest.raises(ValueError, match=r"\[gather_qmv\] expert_indices.*5"):
        mb.gather_qmv(x, *q, ids, group_size=32, check_ids=True)
