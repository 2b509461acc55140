"""Values to codes and back, bit for bit."""

import ml_dtypes
import numpy as np
import pytest

import moeblas as mb
from cases import SEEDS, draw_format, draw_k, floats, packed, pick, spread_out
from reference import DEFAULTS, FLOATS, decode, quantize, to_e4m3


def same(got, want):
    """Equal codes; equal values, NaN included."""
    assert got.dtype == want.dtype and got.shape == want.shape
    if got.dtype.kind not in "iu":
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(got, want)


def draw_values(rng, shape, dtype):
    scale = np.float32(2.0 ** rng.integers(-6, 7))
    w = (rng.standard_normal(shape) * scale).astype(dtype)
    if w.size and rng.integers(3) == 0:
        w[rng.random(shape) < 0.3] = 0
    if w.ndim > 1 and len(w) and rng.integers(4) == 0:
        w[0] = 0  # groups of zeros
    return w


@pytest.mark.parametrize("seed", SEEDS)
def test_quantize(seed):
    rng = np.random.default_rng([seed, 11])
    mode, bits, group_size = draw_format(rng)
    dtype = pick(rng, list(FLOATS.values()))
    k = draw_k(rng, bits, group_size)
    w = draw_values(rng, [(k,), (5, k), (2, 3, k), (0, k)][rng.integers(4)], dtype)
    view = spread_out(rng, w)
    options, kwargs = {}, {}
    if mode == "nvfp4" and rng.integers(2):
        options["tensor_scale"] = float(np.float32(rng.uniform(0.01, 4)))
    if mode == "affine" and rng.integers(2):
        kwargs["scale_dtype"] = pick(rng, list(FLOATS))
    got = mb.quantize(view, group_size, bits, mode, **options, **kwargs)
    want = quantize(w, group_size, bits, mode, **options)
    if mode == "affine":
        to = FLOATS[kwargs["scale_dtype"]] if kwargs else dtype
        want = (want[0], want[1].astype(to), want[2].astype(to))
    assert len(got) == len(want)
    for g, e in zip(got, want, strict=True):
        same(g, e)


@pytest.mark.parametrize("seed", SEEDS)
def test_dequantize(seed):
    rng = np.random.default_rng([seed, 12])
    mode, bits, group_size = draw_format(rng)
    w = packed(
        rng,
        [(5,), (2, 3), (0,)][rng.integers(3)],
        draw_k(rng, bits, group_size),
        mode,
        bits,
        group_size,
    )
    if w.arrays[0].ndim < 2 or np.ndim(w.options.get("tensor_scale", 0)) > 0:
        return
    dtype = pick(rng, [None, *FLOATS])
    got = mb.dequantize(*w.arrays, dtype=dtype, **w.options)
    default = w.arrays[1].dtype if mode == "affine" else np.dtype(ml_dtypes.bfloat16)
    same(got, w.decoded.rounded.astype(default if dtype is None else FLOATS[dtype]))


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_swizzled_scales(mode):
    rng = np.random.default_rng(13)
    w = floats(rng, (2, 150, 160), np.float32)
    codes, scales = mb.quantize(w, mode=mode)
    swizzled_codes, swizzled = mb.quantize(w, mode=mode, scale_layout="swizzled_128x4")
    same(swizzled_codes, codes)
    rows, groups = scales.shape[-2:]
    assert swizzled.shape == (2, -(-rows // 128) * 128, -(-groups // 4) * 4)
    r, g = np.arange(swizzled.shape[1])[:, None], np.arange(swizzled.shape[2])[None]
    at = (
        ((r // 128) * (swizzled.shape[2] // 4) + g // 4) * 512
        + r % 32 * 16
        + r // 32 % 4 * 4
        + g % 4
    )
    padded = np.zeros_like(swizzled)
    padded[:, :rows, :groups] = scales
    same(swizzled.reshape(2, -1)[:, at], padded)
    same(
        mb.dequantize(codes, swizzled, mode=mode, scale_layout="swizzled_128x4"),
        mb.dequantize(codes, scales, mode=mode),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_quantize_dual_is_quantize_twice(seed):
    rng = np.random.default_rng([seed, 14])
    mode, bits, group_size = draw_format(rng)
    w = draw_values(rng, (2, 128, 256), pick(rng, list(FLOATS.values())))
    layout = "rows" if mode == "affine" or rng.integers(2) else "swizzled_128x4"
    args = {"group_size": group_size, "bits": bits, "mode": mode, "scale_layout": layout}
    rows, columns = mb.quantize_dual(w, **args)
    for got, of in ((rows, w), (columns, np.swapaxes(w, -1, -2))):
        want = mb.quantize(of, **args)
        assert len(got) == len(want)
        for g, e in zip(got, want, strict=True):
            same(g, e)
    out = tuple(tuple(np.empty_like(part) for part in parts) for parts in (rows, columns))
    again = mb.quantize_dual(w, **args, out=out)
    assert all(a is b for x, y in zip(again, out, strict=True) for a, b in zip(x, y, strict=False))
    same(out[1][0], columns[0])


@pytest.mark.parametrize("dtype", list(FLOATS))
def test_fp8(dtype):
    rng = np.random.default_rng(15)
    x = np.concatenate([draw_values(rng, (4, 33), FLOATS[dtype]).ravel() for _ in range(8)])
    specials = np.array([np.nan, np.inf, -np.inf, 448, 464, 500, -1e4, 2.0**-10, 0.0, -0.0])
    x = np.concatenate([x, specials.astype(FLOATS[dtype])])
    codes = mb.to_fp8(x)
    same(codes, to_e4m3(x))
    every = np.arange(256, dtype=np.uint8)
    values = every.view(ml_dtypes.float8_e4m3fn)
    for given in (every, values):
        same(mb.from_fp8(given, dtype), values.astype(FLOATS[dtype]))
    assert mb.from_fp8(every).dtype == ml_dtypes.bfloat16


def test_bytes_of_other_libraries_dtypes():
    """Scales and codes may come as the 8-bit floats that they are."""
    rng = np.random.default_rng(16)
    w = floats(rng, (4, 64), np.float32)
    for mode, dtype in (
        ("nvfp4", ml_dtypes.float8_e4m3fn),
        ("mxfp4", ml_dtypes.float8_e8m0fnu),
        ("mxfp8", ml_dtypes.float8_e8m0fnu),
    ):
        codes, scales = mb.quantize(w, mode=mode)
        same(
            mb.dequantize(codes, scales.view(dtype), mode=mode),
            mb.dequantize(codes, scales, mode=mode),
        )
    with pytest.raises(ValueError, match=r"\[dequantize\] scales has dtype"):
        mb.dequantize(codes, scales.view(ml_dtypes.float8_e4m3fn), mode="mxfp8")
    out = np.empty(w.shape, ml_dtypes.float8_e4m3fn)
    assert mb.to_fp8(w, out=out) is out
    same(out.view(np.uint8), mb.to_fp8(w))


def test_global_scale_is_mlx_s_form_of_tensor_scale():
    rng = np.random.default_rng(17)
    w = floats(rng, (4, 64), np.float32)
    codes, scales = mb.quantize(w, mode="nvfp4", tensor_scale=2.0)
    for g in (5376.0, np.float32(5376), np.array(5376, np.float32)):
        got = mb.quantize(w, mode="nvfp4", global_scale=g)
        same(got[0], codes)
        same(got[1], scales)
    same(
        mb.dequantize(codes, scales, mode="nvfp4", global_scale=5376.0),
        mb.dequantize(codes, scales, mode="nvfp4", tensor_scale=2.0),
    )
    with pytest.raises(ValueError, match="tensor_scale and global_scale"):
        mb.quantize(w, mode="nvfp4", global_scale=5376.0, tensor_scale=2.0)


def test_one_multiplier_per_matrix():
    rng = np.random.default_rng(18)
    w = floats(rng, (3, 4, 64), np.float32)
    scales_of = np.array([0.5, 1.0, 3.0], np.float32)
    got = mb.quantize(w, mode="nvfp4", tensor_scale=scales_of)
    for e in range(3):
        for g, want in zip(got, quantize(w[e], 16, 4, "nvfp4", scales_of[e]), strict=True):
            same(g[e], want)
    want = decode(*got, None, 16, 4, "nvfp4", scales_of).rounded
    same(mb.dequantize(*got, mode="nvfp4", tensor_scale=scales_of, dtype="float32"), want)


@pytest.mark.parametrize("value", [0.0, 1.5, -3.0, np.nan])
@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_groups_of_one_value(mode, value):
    w = np.full((1, 64), value, np.float32)
    back = mb.dequantize(*mb.quantize(w, mode=mode), mode=mode, dtype="float32")
    if np.isnan(value):
        assert np.isnan(back).all()
    elif mode == "affine" or value == 0:
        assert (back == value).all()
    else:
        bits, group_size = DEFAULTS[mode]
        codes = quantize(w, group_size, bits, mode)
        same(back, decode(*codes, None, group_size, bits, mode).rounded)
