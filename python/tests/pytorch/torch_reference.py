"""What the operators mean, slowly and in float64, in plain torch: the formats from their bits, the
products from those values. Written from docs/formats.md and moeblas.h, without moeblas."""

import torch

DEFAULTS = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
FORMATS = [("affine", b, g) for b, g in ((4, 64), (4, 32), (8, 64), (3, 32), (6, 128), (2, 16))]
FORMATS += [(mode, *pair) for mode, pair in DEFAULTS.items() if mode != "affine"]

# float32's and the outputs' half units in the last place.
HALF_ULP = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def codes_of(w, bits):
    """(..., K) integers from packed bytes: element i is bits [i*bits, (i+1)*bits), low bits first."""
    data = w.contiguous().view(torch.uint8).to(torch.int64)
    bit = (data.unsqueeze(-1) >> torch.arange(8)) & 1
    bit = bit.flatten(-2)
    return (bit.unflatten(-1, (-1, bits)) << torch.arange(bits)).sum(-1)


def e2m1(code):
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    return torch.where(code >= 8, -1.0, 1.0) * table[code & 7]


def e4m3(code):
    exponent, mantissa = (code >> 3) & 15, (code & 7).double()
    value = torch.where(
        exponent == 0,
        mantissa / 8 * 2.0**-6,
        (1 + mantissa / 8) * torch.exp2(exponent.double() - 7),
    )
    value = torch.where((code & 0x7F) == 0x7F, torch.nan, value)
    return torch.where(code >= 0x80, -value, value)


def values(w, scales, biases, mode, bits, group_size, tensor_scale=None):
    """The float64 values of packed w."""
    code = codes_of(w, bits)

    def spread(t):
        return t.repeat_interleave(group_size, -1)

    if mode == "affine":
        return code.double() * spread(scales.double()) + spread(biases.double())
    scale = scales.to(torch.int64)
    if mode == "nvfp4":
        t = torch.tensor(1.0) if tensor_scale is None else tensor_scale.cpu().float()
        t = t.view(*t.shape, *[1] * (scales.dim() - t.dim())) if t.dim() else t
        # The scale and its multiplier meet in float32.
        return e2m1(code) * spread((e4m3(scale).float() * t).double())
    power = torch.where(scale == 255, torch.nan, torch.exp2(scale.double() - 127))
    return (e2m1(code) if mode == "mxfp4" else e4m3(code)) * spread(power)


class Packed:
    """Random weights in a format, packed by moeblas and decoded here."""

    def __init__(
        self, ops, shape, mode, bits, group_size, dtype=torch.float32, generator=None, device="cpu"
    ):
        self.mode, self.bits, self.group_size = mode, bits, group_size
        w = torch.randn(shape, generator=generator).to(dtype)
        self.w, self.scales, *rest = ops.quantize(w, group_size, bits, mode)
        self.biases = rest[0] if rest else None
        self.values = values(self.w, self.scales, self.biases, mode, bits, group_size)
        # What the bound of a factored product is in: |scale| * code + |bias|.
        self.magnitude = self.values.abs()
        if mode == "affine":
            self.magnitude = values(
                self.w, self.scales.abs(), self.biases.abs(), mode, bits, group_size
            )
        self.to(device)

    def to(self, device):
        self.w, self.scales = self.w.to(device), self.scales.to(device)
        self.biases = None if self.biases is None else self.biases.to(device)

    @property
    def operands(self):
        return self.w, self.scales, self.biases

    @property
    def form(self):
        return dict(mode=self.mode, bits=self.bits, group_size=self.group_size)


def index(given, batch):
    if given is not None:
        return given.cpu().long()
    return torch.arange(batch.numel()).view(batch)


def gather(x, w, lhs=None, rhs=None):
    """out[p] = x[lhs[p]] @ w[rhs[p]] in float64; an id outside its range gives 0."""
    left, right = (t.double().reshape(-1, *t.shape[-2:]) for t in (x, w))
    i, j = torch.broadcast_tensors(index(lhs, x.shape[:-2]), index(rhs, w.shape[:-2]))
    good = (i >= 0) & (i < len(left)) & (j >= 0) & (j < len(right))
    out = left[i.clamp(0, len(left) - 1)] @ right[j.clamp(0, len(right) - 1)]
    return torch.where(good[..., None, None], out, 0.0)


def segmented(a, b, segments):
    k = a.shape[1]
    rows = []
    for start, end in segments.cpu().reshape(-1, 2).clamp(0, k).tolist():
        rows.append(a.double()[:, start:end] @ b.double()[start:end, :])
    return torch.stack(rows).view(*segments.shape[:-1], a.shape[0], b.shape[1])


def grouped(x, w, offsets):
    """w (E, K, N)."""
    out = x.new_zeros((x.shape[0], w.shape[-1]), dtype=torch.float64)
    start = 0
    for e, end in enumerate(offsets.tolist()):
        end = min(max(end, start), x.shape[0])
        out[start:end] = x[start:end].double() @ w[e].double()
        start = end
    return out


def bound(product, x, w, dtype, terms):
    """How far a float32 sum of `terms` products, rounded once to dtype, may be from float64's:
    `product` is the same product, of |x| and |w|. The weight is formed in float32 before
    (two roundings) and the sum makes at most `terms` roundings."""
    size = product(x.double().abs(), w.double().abs())
    # 16-bit weights may be rounded once to the activations' dtype (a documented bound of the rows).
    weight = HALF_ULP[dtype] if dtype != torch.float32 else 0.0
    unit = HALF_ULP[torch.float32]
    return size * ((terms + 4) * unit + weight + HALF_ULP[dtype]) + torch.finfo(dtype).tiny


def assert_within(got, expected, limit):
    assert got.shape == expected.shape, (got.shape, expected.shape)
    error = (got.double().cpu() - expected).abs()
    worst = (error / limit.clamp_min(1e-300)).max() if error.numel() else 0.0
    assert bool((error <= limit).all()), f"{float(worst):.3g} of the bound"
