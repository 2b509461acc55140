#!/usr/bin/env python3
"""Writes the golden vectors of this folder: make_golden.py [FOLDER].

Needs numpy and MLX's CPU package (`pip install numpy 'mlx[cpu]'`; the files here come from MLX
0.32.4). The tests read the files and never run this.

affine_mlx.txt      quantize of groups of 32, 64 and 128 in float32, float16 and bfloat16, every
                    width. Codes, scales and biases are what MLX's CPU backend returned.
affine_group16.txt  the same for groups of 16, which MLX does not have: from `affine_rule` below, the
                    rule of the format written in numpy. Before anything is written, the rule is
                    held against MLX on every group of the first file, bit for bit.

    input NAME DTYPE GROUP     then a line per group: the values' bit patterns in hex, no spaces
    case NAME BITS             then a line per group of input NAME: packed bytes, scale, bias in hex

specification.txt is not generated: it restates the vectors of the format specification.
"""

import pathlib
import sys

import mlx.core as mx
import numpy as np

WIDTHS = (2, 3, 4, 5, 6, 8)
DTYPES = {"float32": 8, "float16": 4, "bfloat16": 4}  # hex digits of an element


def to_patterns(values, dtype):
    """float32 values rounded to dtype, as unsigned bit patterns."""
    values = np.asarray(values, np.float32)
    if dtype == "float32":
        return values.view(np.uint32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    u = values.view(np.uint32).astype(np.uint64)
    rounded = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_patterns(patterns, dtype):
    if dtype == "float32":
        return patterns.view(np.float32)
    if dtype == "float16":
        return patterns.view(np.float16).astype(np.float32)
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def groups(dtype, size):
    """Random groups and those that rules tend to get wrong."""
    rng = np.random.default_rng(size)
    i = np.arange(size, dtype=np.float32)
    normal = rng.standard_normal(size, np.float32)
    big = np.float32(6e4 if dtype == "float16" else 3e38)
    tiny = np.float32(6e-8 if dtype == "float16" else 1e-40)
    one_nan, one_inf, one_minus_inf = normal.copy(), normal.copy(), normal.copy()
    one_nan[3], one_inf[5], one_minus_inf[7] = np.nan, np.inf, -np.inf
    outlier = normal * np.float32(1e-3)
    outlier[-1] = -50
    signs = np.where(i % 2 == 0, np.float32(1), np.float32(-1))
    return [
        normal,
        np.float32(0.02) * rng.standard_normal(size, np.float32),
        (i - 10) / 4,  # ties in many codes
        np.zeros(size, np.float32),
        -np.zeros(size, np.float32),
        np.full(size, 0.7, np.float32),  # constants
        np.full(size, -3, np.float32),
        np.full(size, 4e-8, np.float32),  # rounds to 0 against the least scale
        -np.abs(normal) - 1,  # all negative
        np.abs(normal) + 100,  # a small range far from zero
        signs,  # |min| = |max|
        signs * big,  # max - min beyond float32 (or all of float16)
        i * tiny,  # subnormals
        outlier,
        one_nan,
        one_inf,
        one_minus_inf,
        normal[::-1] * normal,
    ]


def affine_rule(w, bits):
    """The format's rule for one group, every operation in float32."""
    f = np.float32
    n = f(2**bits - 1)
    with np.errstate(all="ignore"):
        low, high = np.nanmin(w), np.nanmax(w)
        scale = f(f(high - low) / n)
        scale = scale if scale > f(1e-7) else f(1e-7)
        low_is_larger = np.abs(low) > np.abs(high)
        edge = low if low_is_larger else high
        scale = scale if low_is_larger else f(-scale)
        steps = np.round(f(edge / scale))
        bias = f(0)
        if steps != 0:
            scale, bias = f(edge / steps), edge
        q = np.round((w - bias).astype(f) / scale)
        q = np.where(q > 0, np.minimum(q, n), 0).astype(np.uint32)
    stream = 0
    for k, code in enumerate(q):
        stream |= int(code) << (k * bits)
    return stream.to_bytes(len(w) * bits // 8, "little"), scale, bias


def mlx_rule(patterns, dtype, bits):
    values = from_patterns(patterns, dtype)
    w = mx.array(values[None, :]).astype(getattr(mx, dtype))
    codes, scales, biases = mx.quantize(w, group_size=len(values), bits=bits)
    pattern = mx.uint32 if dtype == "float32" else mx.uint16
    return (
        np.array(codes)[0].astype("<u4").tobytes(),
        int(np.array(scales.view(pattern))[0, 0]),
        int(np.array(biases.view(pattern))[0, 0]),
    )


def same(a, b, dtype):
    x, y = (
        from_patterns(np.array([v], np.uint32 if dtype == "float32" else np.uint16), dtype)
        for v in (a, b)
    )
    return a == b or (np.isnan(x[0]) and np.isnan(y[0]))


def write(path, sizes, use_mlx):
    lines = [
        f"# Written by make_golden.py; see there. Source: "
        f"{'MLX ' + mx.__version__ + ', CPU backend' if use_mlx else 'affine_rule'}."
    ]
    for size in sizes:
        for dtype, digits in DTYPES.items():
            name = f"{dtype}_{size}"
            inputs = [to_patterns(g, dtype) for g in groups(dtype, size)]
            lines.append(f"input {name} {dtype} {size}")
            lines += ["".join(f"{int(p):0{digits}x}" for p in g) for g in inputs]
            for bits in WIDTHS:
                lines.append(f"case {name} {bits}")
                for g in inputs:
                    packed, scale, bias = affine_rule(from_patterns(g, dtype), bits)
                    scale, bias = (int(to_patterns([v], dtype)[0]) for v in (scale, bias))
                    if use_mlx:
                        ours = (packed, scale, bias)
                        packed, scale, bias = mlx_rule(g, dtype, bits)
                        if (
                            packed != ours[0]
                            or not same(scale, ours[1], dtype)
                            or not same(bias, ours[2], dtype)
                        ):
                            sys.exit(
                                f"MLX differs from the rule: {name}, {bits} bits, "
                                f"{from_patterns(g, dtype)}: {packed.hex()} {scale:x} {bias:x}, "
                                f"expected {ours[0].hex()} {ours[1]:x} {ours[2]:x}"
                            )
                    lines.append(packed.hex() + f" {scale:0{digits}x} {bias:0{digits}x}")
    path.write_text("\n".join(lines) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    write(folder / "affine_mlx.txt", (32, 64, 128), True)
    write(folder / "affine_group16.txt", (16,), False)


if __name__ == "__main__":
    main()
