"""MLX on the CPU as a second oracle, wherever it means the same.

It does not, and is not compared, where fp4 codes are ties (its CPU breaks them towards zero), for signs
of zero in fp4 and for scales of zero groups (it writes 127), and where a 16-bit dtype makes it round
twice. Its CPU has qqmm for one row only.
"""

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

import moeblas as mb
from reference import Expected, check, gathered, product

DTYPES = [mx.float32, mx.float16, mx.bfloat16]
SEEDS = range(10)


def values(array):
    """As numpy; bfloat16 through its bits, which numpy's protocol has no name for."""
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)


def same(got, want):
    got, want = values(got), values(want)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def within(got, want, expected):
    """Both lie within the bound."""
    check(values(got), expected)
    check(values(want), expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_affine_quantize_is_bit_identical(seed, dtype):
    rng = np.random.default_rng([seed, 41])
    bits, group_size = int(rng.choice([2, 3, 4, 5, 6, 8])), int(rng.choice([32, 64, 128]))
    w = mx.array(rng.standard_normal((33, 256)).astype(np.float32) * 3).astype(dtype)
    got, want = mb.quantize(w, group_size, bits), mx.quantize(w, group_size, bits)
    for g, e in zip(got, want, strict=True):
        assert isinstance(g, mx.array)
        same(g, e)
    if dtype == mx.float32:
        same(mb.dequantize(*got, group_size, bits), mx.dequantize(*want, group_size, bits))


@pytest.mark.parametrize("seed", SEEDS)
def test_mxfp8_is_bit_identical(seed):
    rng = np.random.default_rng([seed, 42])
    w = mx.array(rng.standard_normal((17, 128)).astype(np.float32))
    got, want = mb.quantize(w, mode="mxfp8"), mx.quantize(w, mode="mxfp8")
    for g, e in zip(got, want, strict=True):
        same(g, e)
    same(
        mb.dequantize(*got, mode="mxfp8", dtype=mx.float32),
        mx.dequantize(*want, mode="mxfp8", dtype=mx.float32),
    )


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4"])
def test_fp4_of_mlx_is_read_as_mlx_reads_it(mode):
    rng = np.random.default_rng(43)
    w = mx.array(rng.standard_normal((17, 128)).astype(np.float32))
    packed = mx.quantize(w, mode=mode)
    got = mb.quantize(w, mode=mode)
    same(got[1], packed[1])
    same(
        mb.dequantize(*packed, mode=mode, dtype="float32"),
        mx.dequantize(*packed, mode=mode, dtype=mx.float32),
    )


def draw(rng, shape):
    """Weights of a mode as MLX quantizes them, with their values (..., K, N) and spread."""
    mode = str(rng.choice(["affine", "mxfp4", "mxfp8", "nvfp4"]))
    packed = mx.quantize(mx.array(rng.standard_normal(shape).astype(np.float32)), mode=mode)
    decoded = mx.dequantize(*packed, mode=mode, dtype=mx.float32)
    w = np.swapaxes(np.array(decoded).astype(np.float64), -1, -2)
    if mode != "affine":
        return packed, mode, w, np.abs(w)
    bias = np.repeat(np.abs(np.array(packed[2])), 64, -1)
    return packed, mode, w, np.abs(w) + 2 * np.swapaxes(bias, -1, -2)


@pytest.mark.parametrize("seed", SEEDS)
def test_quantized_matmul(seed):
    rng = np.random.default_rng([seed, 44])
    packed, mode, w, spread = draw(rng, (48, 128))
    x = mx.array(rng.standard_normal((int(rng.integers(1, 20)), 128)).astype(np.float32))
    want = product(np.array(x).astype(np.float64), w, spread, np.float32, True)
    within(
        mb.quantized_matmul(x, *packed, mode=mode), mx.quantized_matmul(x, *packed, mode=mode), want
    )
    xt = x[:, :48]
    want = product(
        np.array(xt).astype(np.float64),
        np.swapaxes(w, 0, 1),
        np.swapaxes(spread, 0, 1),
        np.float32,
        True,
    )
    within(
        mb.quantized_matmul(xt, *packed, transpose=False, mode=mode),
        mx.quantized_matmul(xt, *packed, transpose=False, mode=mode),
        want,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_qmm(seed):
    rng = np.random.default_rng([seed, 45])
    packed, mode, w, spread = draw(rng, (5, 32, 64))
    x = mx.array(rng.standard_normal((6, 1, 1, 64)).astype(np.float32))
    ids = mx.array(rng.integers(0, 5, (6, 2)).astype(np.uint32))
    args = {"rhs_indices": ids, "mode": mode}
    want = gathered(
        np.array(x).astype(np.float64), w, spread, None, np.array(ids), np.float32, True
    )
    within(mb.gather_qmm(x, *packed, **args), mx.gather_qmm(x, *packed, **args), want)


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_mm_and_segmented_mm(seed):
    rng = np.random.default_rng([seed, 46])
    a = mx.array(rng.standard_normal((4, 7, 40)).astype(np.float32))
    b = mx.array(rng.standard_normal((3, 40, 9)).astype(np.float32))
    lhs = mx.array(rng.integers(0, 4, (8,)).astype(np.uint32))
    rhs = mx.array(rng.integers(0, 3, (8,)).astype(np.uint32))
    a64, b64 = np.array(a).astype(np.float64), np.array(b).astype(np.float64)
    want = gathered(a64, b64, np.abs(b64), np.array(lhs), np.array(rhs), np.float32, False)
    within(mb.gather_mm(a, b, lhs, rhs), mx.gather_mm(a, b, lhs, rhs), want)

    ends = np.sort(rng.integers(0, 41, (5, 2)), -1).astype(np.uint32)
    wants = [
        product(a64[0][:, s:e], b64[0][s:e], np.abs(b64[0][s:e]), np.float32, False)
        for s, e in ends
    ]
    want = Expected(np.stack([w.exact for w in wants]), np.stack([w.slack for w in wants]))
    segments = mx.array(ends)
    within(mb.segmented_mm(a[0], b[0], segments), mx.segmented_mm(a[0], b[0], segments), want)


@pytest.mark.parametrize("seed", SEEDS)
def test_qqmm(seed):
    rng = np.random.default_rng([seed, 48])
    w = mx.array(rng.standard_normal((24, 96)).astype(np.float32))
    x = mx.array(rng.standard_normal((1, 96)).astype(np.float32))
    packed = mx.quantize(w, mode="mxfp8")
    rounded = [
        np.array(mx.dequantize(*mx.quantize(v, mode="mxfp8"), mode="mxfp8", dtype=mx.float32))
        for v in (x, w)
    ]
    x64, w64 = (v.astype(np.float64) for v in rounded)
    want = product(x64, w64.T, np.abs(w64.T), np.float32, False)
    within(mb.qqmm(x, *packed, mode="mxfp8"), mx.qqmm(x, *packed, mode="mxfp8"), want)


def test_fp8():
    x = mx.array(np.random.default_rng(47).standard_normal(1000).astype(np.float32) * 50)
    same(mb.to_fp8(x), mx.to_fp8(x))
    codes = mx.arange(0x7F).astype(mx.uint8)
    same(mb.from_fp8(codes, mx.float32), mx.from_fp8(codes, mx.float32))
