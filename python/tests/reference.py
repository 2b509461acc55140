"""What every operation means, in numpy and float64, without a line of the library: formats from the bits
of their codes, products from decoded values, and how far a result may lie from the exact one.
"""

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DEFAULTS = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
# The largest code.
LARGEST = {"mxfp4": 6.0, "mxfp8": 448.0, "nvfp4": 6.0}


def unit(dtype):
    """The unit roundoff."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def gamma(n, u=2.0**-24):
    return n * u / (1 - n * u)


# ---- Formats -----------------------------------------------------------------------------------


def unpack(codes, bits):
    """Integers (..., K) from packed rows: element i is bits [i*bits, (i+1)*bits), lowest first."""
    rows = np.ascontiguousarray(codes)
    stream = np.unpackbits(rows.view(np.uint8), axis=-1, bitorder="little")
    digits = stream.reshape(rows.shape[:-1] + (stream.shape[-1] // bits, bits)).astype(np.int64)
    return digits @ (1 << np.arange(bits))


def pack(values, bits):
    """The inverse of unpack, as uint32."""
    digits = (values[..., None] >> np.arange(bits)) & 1
    stream = digits.reshape(values.shape[:-1] + (values.shape[-1] * bits,)).astype(np.uint8)
    return np.packbits(stream, axis=-1, bitorder="little").view(np.uint32)


def e2m1(codes):
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return np.where(codes & 8, -1, 1).astype(np.float32) * magnitudes[codes & 7]


def e4m3(codes):
    return codes.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def e8m0(codes):
    return codes.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)


def per_group(values, group_size):
    return values.reshape(values.shape[:-1] + (values.shape[-1] // group_size, group_size))


@dataclass
class Decoded:
    """A quantized matrix as numbers, (..., rows, K)."""

    values: np.ndarray  # float64, before any rounding of a decoder
    rounded: np.ndarray  # float32: one multiplication, then one addition
    spread: np.ndarray  # |scale| * code + |bias|: what the terms of a value add up to


def decode(w_q, scales, biases, group_size, bits, mode, tensor_scale=None):
    q = per_group(unpack(w_q, bits), group_size)
    if mode == "affine":
        s, b = scales.astype(np.float32)[..., None], biases.astype(np.float32)[..., None]
        values = q * s.astype(np.float64) + b.astype(np.float64)
        rounded = q.astype(np.float32) * s + b
        spread = q * np.abs(s.astype(np.float64)) + np.abs(b.astype(np.float64))
    else:
        code = e4m3(q) if mode == "mxfp8" else e2m1(q)
        s = (e4m3 if mode == "nvfp4" else e8m0)(scales)[..., None]
        if tensor_scale is not None:
            t = np.asarray(tensor_scale, np.float32)
            s = s * t.reshape(t.shape + (1,) * (s.ndim - t.ndim))
        rounded = code * s
        values = rounded.astype(np.float64)
        spread = np.abs(values)
    flat = w_q.shape[:-1] + (q.shape[-2] * group_size,)
    return Decoded(values.reshape(flat), rounded.reshape(flat), spread.reshape(flat))


def quantize(w, group_size, bits, mode, tensor_scale=None):
    """(codes, scales[, biases]) of finite values; scales of affine are float32 still."""
    g = per_group(np.asarray(w).astype(np.float32), group_size)
    if mode == "affine":
        n = np.float32(2**bits - 1)
        low, high = g.min(-1), g.max(-1)
        s = np.maximum((high - low) / n, np.float32(1e-7))
        top = np.abs(low) <= np.abs(high)
        s, edge = np.where(top, -s, s), np.where(top, high, low)
        q0 = np.rint(edge / s)
        s = np.where(q0 != 0, edge / np.where(q0 != 0, q0, 1), s)
        b = np.where(q0 != 0, edge, np.float32(0))
        codes = np.clip(np.rint((g - b[..., None]) / s[..., None]), 0, n)
        return pack(codes.astype(np.int64).reshape(w.shape), bits), s, b
    amax = np.abs(g).max(-1)
    r = amax / np.float32(LARGEST[mode])
    if mode == "nvfp4":
        t = np.float32(1) if tensor_scale is None else np.asarray(tensor_scale, np.float32)
        t = np.asarray(t).reshape(np.shape(t) + (1,) * (r.ndim - np.ndim(t)))
        enc = np.float32(1) / t
        scales = to_e4m3(r * enc)
        decoded = e4m3(scales)
        inverse = np.where(decoded != 0, enc / np.where(decoded != 0, decoded, 1), np.float32(0))
    else:
        mantissa, exponent = np.frexp(r)  # r = mantissa * 2^exponent, mantissa in [1/2, 1)
        up = exponent - (mantissa == 0.5)
        scales = np.where(r <= np.float32(2.0**-127), 0, up + 127).astype(np.uint8)
        inverse = np.where(amax > 0, np.float32(1) / e8m0(scales), np.float32(0))
    scaled = g * inverse[..., None]
    scaled = np.where((inverse == 0)[..., None], np.float32(0), scaled)
    if mode == "mxfp8":
        codes = to_e4m3(scaled)
    else:
        clipped = np.clip(scaled, -6, 6).astype(ml_dtypes.float4_e2m1fn)
        codes = clipped.view(np.uint8)
    return pack(codes.astype(np.int64).reshape(w.shape), bits), scales


def to_e4m3(x):
    """Codes, to nearest even, saturating; NaN is 0x7F."""
    x = np.asarray(x, np.float32)
    codes = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), codes)


# ---- Products ----------------------------------------------------------------------------------


@dataclass
class Expected:
    """A result and how far a float32 sum of its products may lie from it.

    Three ways to a product are allowed (decoded weights; integer codes with scales per group; weights
    rounded to 16 bits, for 16-bit activations); the bound holds for each: K roundings of the sum, one
    or two for each group and the decoder's own, of magnitudes |x| (|s| q + |b|).
    """

    exact: np.ndarray
    slack: np.ndarray

    def __getitem__(self, at):
        return Expected(self.exact[at], self.slack[at])


def product(x, values, spread, x_dtype, quantized):
    """x (..., M, K) @ values (..., K, N), both float64."""
    k = x.shape[-1]
    exact = np.matmul(x, values)
    roundings = k + (k // 8 + 6 if quantized else 0)
    slack = gamma(roundings) * np.matmul(np.abs(x), spread)
    if quantized and x_dtype != np.float32:
        slack = slack + unit(x_dtype) * (1 + gamma(k + 2)) * np.matmul(np.abs(x), np.abs(values))
    return Expected(exact, slack + k * 2.0**-149)


def select(array, indices):
    """array[indices] over flat batch positions, with zeros where nothing is selected."""
    flat = array.reshape((math.prod(array.shape[:-2]),) + array.shape[-2:])
    chosen = (indices >= 0) & (indices < len(flat))
    if len(flat) == 0:
        return np.zeros(indices.shape + array.shape[-2:])
    return np.where(chosen[..., None, None], flat[np.where(chosen, indices, 0)], 0.0)


def counted(array):
    """What a missing index stands for."""
    batch = array.shape[:-2]
    return np.arange(math.prod(batch)).reshape(batch)


def gathered(x, values, spread, lhs, rhs, x_dtype, quantized):
    lhs = counted(x) if lhs is None else np.asarray(lhs)
    rhs = counted(values) if rhs is None else np.asarray(rhs)
    lhs, rhs = np.broadcast_arrays(lhs, rhs)
    return product(select(x, lhs), select(values, rhs), select(spread, rhs), x_dtype, quantized)


def check(got, expected, note=""):
    """Every element lies within the bound, after one more rounding to its own dtype."""
    assert got.shape == expected.exact.shape, note
    y = np.asarray(got).astype(np.float64)
    u = unit(got.dtype)
    least = float(ml_dtypes.finfo(got.dtype).smallest_subnormal)
    reach = np.abs(expected.exact) + expected.slack
    bound = expected.slack + u * reach + least
    # A result beyond the dtype's range is infinite, and may be.
    largest = float(ml_dtypes.finfo(got.dtype).max)
    fine = (np.abs(y - expected.exact) <= bound) | (np.isinf(y) & (reach * (1 + u) >= largest))
    if not fine.all():
        at = tuple(np.argwhere(~fine)[0])
        raise AssertionError(
            f"{note} element {at} is {y[at]}, expected {expected.exact[at]} within {bound[at]}; "
            f"{(~fine).sum()} of {fine.size} are wrong"
        )
