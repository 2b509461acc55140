"""Random arguments: formats, dtypes, shapes with every kind of tail, strided views, indices that repeat,
broadcast or select nothing. A seed is a case.
"""

import os
from dataclasses import dataclass

import numpy as np

from reference import DEFAULTS, FLOATS, Decoded, decode, pack

CASES = int(os.environ.get("MOEBLAS_TEST_CASES", "40"))
FIRST = int(os.environ.get("MOEBLAS_TEST_FIRST", "0"))
SEEDS = range(FIRST, FIRST + CASES)
ROWS = [0, 1, 1, 1, 2, 3, 5, 8, 17, 33]
OUTPUTS = [1, 5, 6, 7, 8, 16, 31, 67]


def pick(rng, choices):
    return choices[rng.integers(len(choices))]


def spread_out(rng, array, packed=False):
    """The same values as a strided view: gaps between rows, other orders of axes, backwards."""
    a = np.asarray(array)
    kind = rng.integers(4)
    if a.ndim == 0 or kind == 0:
        return a
    if kind == 1:  # a slice of something larger; what lies between is never to be read
        room = [int(s + rng.integers(3)) for s in a.shape]
        at = tuple(slice(r - s, r) for s, r in zip(a.shape, room, strict=True))
        whole = np.empty(room, a.dtype)
        whole.view(np.uint8).fill(0xFF)
        whole[at] = a
        return whole[at]
    if kind == 2 and a.ndim > 1:  # axes in another order; packed rows stay in one piece
        order = rng.permutation(a.ndim - 1 if packed else a.ndim)
        order = np.append(order, a.ndim - 1) if packed else order
        return np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))
    axis = int(rng.integers(a.ndim - 1 if packed and a.ndim > 1 else a.ndim))
    if packed and a.ndim == 1:
        return a
    back = np.flip(np.ascontiguousarray(np.flip(a, axis)), axis)
    return back


def floats(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


@dataclass
class Packed:
    """A quantized matrix or stack: what functions take, and what it means."""

    arrays: tuple  # w_q, scales[, biases]
    options: dict  # group_size, bits, mode, tensor_scale
    decoded: Decoded

    @property
    def mode(self):
        return self.options["mode"]


def draw_format(rng):
    mode = pick(rng, ["affine", "affine", "mxfp4", "mxfp8", "nvfp4"])
    bits, group_size = DEFAULTS[mode]
    if mode == "affine":
        bits, group_size = pick(rng, [2, 3, 4, 5, 6, 8]), pick(rng, [16, 32, 64, 128])
    return mode, bits, group_size


def draw_k(rng, bits, group_size):
    """A multiple of the group whose codes fill whole words."""
    groups = int(rng.integers(1, 5))
    while groups * group_size * bits % 32:
        groups += 1
    return groups * group_size


def packed(rng, lead, k, mode, bits, group_size):
    codes = rng.integers(0, 2**bits, lead + (k,))
    if mode == "mxfp8":  # no NaN
        codes = np.where((codes & 0x7F) == 0x7F, 0, codes)
    groups = lead + (k // group_size,)
    options = {"group_size": group_size, "bits": bits, "mode": mode}
    if mode == "affine":
        dtype = pick(rng, list(FLOATS.values()))
        arrays = (
            rng.standard_normal(groups).astype(dtype) * dtype(0.25),
            floats(rng, groups, dtype),
        )
    elif mode == "nvfp4":
        arrays = (rng.integers(0, 0x7F, groups).astype(np.uint8),)
        kind = rng.integers(3)
        if kind == 1:
            options["tensor_scale"] = float(np.float32(rng.uniform(0.01, 2)))
        if kind == 2:
            options["tensor_scale"] = np.asarray(rng.uniform(0.01, 2), np.float32)
    else:
        arrays = (rng.integers(120, 134, groups).astype(np.uint8),)
    w_q = pack(codes, bits)
    decoded = decode(
        w_q,
        arrays[0],
        arrays[1] if mode == "affine" else None,
        group_size,
        bits,
        mode,
        options.get("tensor_scale"),
    )
    if rng.integers(4) == 0:
        w_q = w_q.view(np.uint8)  # the same bytes
    arrays = tuple(spread_out(rng, a, packed=True) for a in (w_q,) + arrays)
    return Packed(arrays, options, decoded)


def indices(rng, shape, count):
    """Positions among `count`, some of them none; of any integer dtype and stride."""
    dtype = pick(rng, [np.int32, np.int64, np.uint8, np.int16, np.uint32])
    ids = rng.integers(0, max(count, 1), shape)
    if rng.integers(3) == 0 and np.issubdtype(dtype, np.signedinteger):
        ids = np.where(rng.random(shape) < 0.2, pick(rng, [-1, count, -7]), ids)
    if rng.integers(4) == 0:
        ids = np.sort(ids, axis=-1) if ids.ndim else ids
    ids = ids.astype(dtype)
    if ids.ndim and ids.size and rng.integers(5) == 0:  # one row of ids for all, without a copy
        return np.broadcast_to(ids[:1], ids.shape)
    return spread_out(rng, ids)
