"""Products of two block-quantized operands on random arguments against float64."""

import numpy as np
import pytest

import moeblas as mb
from cases import OUTPUTS, SEEDS, floats, indices, pick, spread_out
from reference import DEFAULTS, FLOATS, Expected, check, decode, gathered, product, quantize
from test_products import experts_of

MODES = ["mxfp4", "mxfp8", "nvfp4"]


def fq(x, mode, tensor_scale=None):
    """quantize and then dequantize, as float64."""
    bits, group_size = DEFAULTS[mode]
    codes = quantize(x, group_size, bits, mode, tensor_scale)
    return decode(*codes, None, group_size, bits, mode, tensor_scale).values


class Operands:
    """x and w, each float or packed, with or without multipliers."""

    def __init__(self, rng, x_shape, w_shape, dtype):
        self.mode = mode = pick(rng, MODES)
        self.dtype = dtype
        tx = tw = None
        if mode == "nvfp4" and rng.integers(2):
            tx, tw = (float(np.float32(rng.uniform(0.1, 2))) for _ in range(2))
        x, w = floats(rng, x_shape, dtype), floats(rng, w_shape, dtype)
        self.x, self.w = fq(x, mode, tx), np.swapaxes(fq(w, mode, tw), -1, -2)
        self.options = {"mode": mode, "tensor_scale_x": tx, "tensor_scale_w": tw}
        self.scales = None
        self.args = [spread_out(rng, x), spread_out(rng, w)]
        if rng.integers(2):
            layout = pick(rng, ["rows", "swizzled_128x4"])
            self.args[1], self.scales = mb.quantize(
                w, mode=mode, tensor_scale=tw, scale_layout=layout
            )
            self.options["scale_layout"] = layout
        if rng.integers(3) == 0:
            self.args[0], self.options["x_scales"] = mb.quantize(x, mode=mode, tensor_scale=tx)
            self.options["dtype"] = dtype


@pytest.mark.parametrize("seed", SEEDS)
def test_qqmm(seed):
    rng = np.random.default_rng([seed, 21])
    dtype = pick(rng, list(FLOATS.values()))
    m, n, k = pick(rng, [0, 1, 3, 17]), pick(rng, OUTPUTS), int(rng.integers(1, 5)) * 32
    x_shape, w_shape = [((m, k), (n, k)), ((2, m, k), (n, k)), ((2, m, k), (2, n, k))][
        rng.integers(3)
    ]
    o = Operands(rng, x_shape, w_shape, dtype)
    y = mb.qqmm(*o.args, o.scales, **o.options)
    check(y, product(o.x, o.w, np.abs(o.w), np.float32, False))


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_and_grouped_qqmm(seed):
    rng = np.random.default_rng([seed, 22])
    dtype = pick(rng, list(FLOATS.values()))
    rows, n, k = pick(rng, [0, 1, 9]), pick(rng, OUTPUTS), 64
    o = Operands(rng, (rows, 1, k), (3, n, k), dtype)
    ids = indices(rng, (rows,), 3)
    y = mb.gather_qqmm(*o.args, o.scales, rhs_indices=ids, **o.options)
    check(y, gathered(o.x, o.w, np.abs(o.w), None, ids, np.float32, False))

    o = Operands(rng, (rows, k), (3, n, k), dtype)
    offsets = np.sort(rng.integers(0, rows + 1, 3)).astype(np.int32)
    y = mb.grouped_qqmm(*o.args, o.scales, offsets, **o.options)
    ids = experts_of(offsets, rows)
    check(y, gathered(o.x[:, None], o.w, np.abs(o.w), None, ids, np.float32, False)[:, 0])


@pytest.mark.parametrize("seed", range(8))
def test_epilogue(seed):
    rng = np.random.default_rng([seed, 23])
    o = Operands(rng, (5, 64), (7, 64), np.float32)
    bias, c = floats(rng, (7,), np.float32), floats(rng, (1, 7), np.float32)
    y = mb.qqmm(*o.args, o.scales, **o.options, bias=bias, alpha=0.5, beta=2.0, c=c)
    want = product(o.x, o.w, np.abs(o.w), np.float32, False)
    exact = 0.5 * want.exact + 2.0 * c.astype(np.float64) + bias
    # Four more roundings of numbers no larger than these together.
    more = 4 * 2.0**-24 * (np.abs(want.exact) + want.slack + 2 * np.abs(c) + np.abs(bias))
    check(y, Expected(exact, want.slack + more))


def test_one_of_two_multipliers_is_refused():
    x = np.ones((2, 32), np.float32)
    with pytest.raises(ValueError, match=r"\[qqmm\] tensor_scale"):
        mb.qqmm(x, x, tensor_scale_x=1.0)
