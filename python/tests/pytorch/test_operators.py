"""Every operator against its meaning in plain torch, float64."""

import pytest
import torch

import moeblas.torch as mt
import torch_reference as ref

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_format = pytest.mark.parametrize("mode,bits,group_size", ref.FORMATS)


def randn(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape).to(device, dtype)


def packed(shape, mode, bits, group_size, device):
    return ref.Packed(mt, shape, mode, bits, group_size, device=device)


def check(got, product, x, w, terms, magnitude=None):
    """got = product(x, w), within what float32 sums may lose."""
    x, w = x.cpu(), w.cpu()
    limit = ref.bound(product, x, w if magnitude is None else magnitude, got.dtype, terms)
    ref.assert_within(got, product(x.double(), w), limit)


@by_format
def test_decoding_is_that_of_the_bits(mode, bits, group_size, device):
    p = packed((3, 12, 256), mode, bits, group_size, device)
    got = mt.dequantize(*p.operands, **p.form, dtype=torch.float32)
    expected = p.values.float()
    if mode == "affine":  # one multiplication, then one addition, each rounded to float32
        scales, biases = (t.cpu().repeat_interleave(group_size, -1) for t in p.operands[1:])
        expected = ref.codes_of(p.w.cpu(), bits).float() * scales + biases
    assert torch.equal(got.cpu(), expected)


@by_format
def test_quantize_is_near(mode, bits, group_size, device):
    w = randn(7, 256, device=device)
    out = mt.quantize(w, group_size, bits, mode)
    values = ref.values(*[t.cpu() for t in out], *[None] * (3 - len(out)), mode, bits, group_size)
    groups = w.cpu().double().unflatten(-1, (-1, group_size))
    error = (values - w.cpu()).abs().unflatten(-1, (-1, group_size)).amax(-1)
    if mode == "affine":
        # A step is at most the group's range over the largest code, and its end is exact; the code
        # at the other end may be one step off where the edge was moved to a multiple of the step.
        step = (groups.amax(-1) - groups.amin(-1)) / (2**bits - 1)
        assert bool((error <= 1.5 * step).all())
    else:
        # Half of the widest gap of codes (2 of 6, 32 of 448), by a scale less than twice r.
        share = 32 / 448 if mode == "mxfp8" else 2 / 6
        assert bool((error <= groups.abs().amax(-1) * share * 1.1).all())


def test_dual_is_both(device):
    w = randn(2, 64, 96, device=device)
    rows, columns = mt.quantize_dual(w, mode="mxfp8")
    for got, of in ((rows, w), (columns, w.mT)):
        for a, b in zip(got, mt.quantize(of, mode="mxfp8")):
            assert torch.equal(a, b)


def test_swizzled_scales_mean_the_same(device):
    w = randn(2, 130, 96, device=device)
    rows = mt.quantize(w, mode="mxfp8")
    swizzled = mt.quantize(w, mode="mxfp8", scale_layout="swizzled_128x4")
    assert swizzled[1].shape == (2, 256, 4)
    assert torch.equal(
        mt.dequantize(*rows, mode="mxfp8"),
        mt.dequantize(*swizzled, mode="mxfp8", scale_layout="swizzled_128x4"),
    )
    x = randn(2, 5, 96, device=device)
    fx, fw = fake_quantized(x, "mxfp8"), fake_quantized(w, "mxfp8")
    for y in (
        mt.qqmm(x, *rows, mode="mxfp8"),
        mt.qqmm(x, *swizzled, mode="mxfp8", scale_layout="swizzled_128x4"),
    ):
        check(y, lambda x, w: x @ w.mT, fx, fw, 96)


def test_global_and_tensor_scale_are_one(device):
    w = randn(3, 64, device=device)
    x = randn(2, 64, device=device)
    a = mt.quantize(w, mode="nvfp4", global_scale=5.0)
    b = mt.quantize(w, mode="nvfp4", tensor_scale=torch.tensor(5.0, device=device) / 2688)
    assert all(torch.equal(s, t) for s, t in zip(a, b))
    y = mt.quantized_matmul(x, *a, mode="nvfp4", global_scale=5.0)
    values = ref.values(a[0].cpu(), a[1].cpu(), None, "nvfp4", 4, 16, torch.tensor(5.0) / 2688)
    check(y, lambda x, w: x @ w.mT, x, values, 64)
    for number in (float("nan"), float("inf"), -1.0, 0.0, 1e-40):
        with pytest.raises(ValueError, match=rf"\[quantize\] tensor_scale is {number}, expected"):
            mt.quantize(torch.zeros(16, 32), mode="nvfp4", tensor_scale=number)
    with pytest.raises(ValueError, match=r"\[quantize\] global_scale is 0.0, expected"):
        mt.quantize(torch.zeros(16, 32), mode="nvfp4", global_scale=0.0)
    with pytest.raises(ValueError, match="both given"):
        mt.quantized_matmul(x, *a, mode="nvfp4", global_scale=5.0, tensor_scale=1.0)


def test_fp8(device):
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    got = mt.from_fp8(codes, torch.float32)
    assert torch.equal(
        got.cpu().double().nan_to_num(7e5), ref.e4m3(codes.cpu().long()).nan_to_num(7e5)
    )
    finite = got.isfinite()
    assert torch.equal(mt.to_fp8(got)[finite], codes[finite])
    assert mt.from_fp8(codes).dtype == torch.bfloat16


@by_dtype
@by_format
@pytest.mark.parametrize("transpose", [True, False])
def test_quantized_matmul(mode, bits, group_size, dtype, transpose, device):
    p = packed((128, 256), mode, bits, group_size, device)
    k = 256 if transpose else 128

    def product(x, w):
        return x @ (w.mT if transpose else w)

    for shape in ((k,), (1, k), (3, 2, k), (0, k), (19, k)):
        x = randn(*shape, dtype=dtype, device=device)
        y = mt.quantized_matmul(x, *p.operands, transpose, **p.form)
        assert y.dtype == dtype
        check(y, product, x, p.values, k, p.magnitude)


@by_dtype
def test_dense_weights_count_as_they_are(dtype, device):
    x, w = randn(5, 33, dtype=dtype, device=device), randn(7, 33, device=device)
    check(mt.quantized_matmul(x, w, mode="dense"), lambda x, w: x @ w.double().mT, x, w, 33)


def test_batches_broadcast(device):
    p = packed((3, 24, 64), "affine", 4, 64, device)
    x = randn(2, 1, 5, 64, device=device)
    y = mt.quantized_matmul(x, *p.operands, **p.form)
    assert y.shape == (2, 3, 5, 24)
    check(y, lambda x, w: x @ w.mT, x, p.values, 64, p.magnitude)


@by_dtype
@by_format
@pytest.mark.parametrize("transpose", [True, False])
def test_gather_qmm(mode, bits, group_size, dtype, transpose, device):
    p = packed((5, 64, 128), mode, bits, group_size, device)
    k = 128 if transpose else 64
    tokens, top_k = 9, 3
    x = randn(tokens, 1, 1, k, dtype=dtype, device=device)
    ids = torch.randint(-1, 6, (tokens, top_k), device=device)
    cases = [(x, None, ids), (x, None, ids.sort(0).values.int())]
    cases += [
        (
            randn(4, 2, k, dtype=dtype, device=device),
            torch.randint(-1, 5, (6,), device=device),
            torch.randint(0, 5, (2, 6), device=device),
        )
    ]
    cases += [(randn(3, k, dtype=dtype, device=device), None, None)]
    for x, lhs, rhs in cases:
        y = mt.gather_qmm(x, *p.operands, lhs, rhs, transpose, **p.form)
        check(
            y,
            lambda x, w: ref.gather(x, w.mT if transpose else w, lhs, rhs),
            x,
            p.values,
            k,
            p.magnitude,
        )


@by_format
def test_gather_qmv(mode, bits, group_size, device):
    p = packed((4, 40, 256), mode, bits, group_size, device)
    x = randn(11, 256, device=device)
    ids = torch.randint(0, 4, (11,), device=device)
    rows = (p.w.view(torch.uint8), *p.operands[1:])
    for w in (p.operands, rows):
        y = mt.gather_qmv(x, *w, ids, **p.form)
        check(
            y,
            lambda x, w: (w[ids.cpu()] @ x.unsqueeze(-1)).squeeze(-1),
            x,
            p.values,
            256,
            p.magnitude,
        )


@by_dtype
def test_gather_mm(dtype, device):
    a, b = randn(6, 3, 50, dtype=dtype, device=device), randn(4, 50, 7, dtype=dtype, device=device)
    lhs, rhs = torch.tensor([0, 5, -1, 2], device=device), torch.tensor([[3], [4]], device=device)
    check(mt.gather_mm(a, b, lhs, rhs), lambda a, b: ref.gather(a, b, lhs, rhs), a, b, 50)
    check(mt.gather_mm(a[:4], b), lambda a, b: a @ b.double(), a[:4], b, 50)
    check(mt.gather_mm(a[0, 0], b[0]), lambda a, b: a @ b.double(), a[0, 0], b[0], 50)
    # Views: transposed, one row broadcast, every second.
    t = b.mT.contiguous().mT
    check(
        mt.gather_mm(a[::2, :1].expand(3, 2, 50), t, None, lhs[:3]),
        lambda a, b: ref.gather(a, b, None, lhs[:3]),
        a[::2, :1].expand(3, 2, 50),
        t,
        50,
    )


@by_dtype
def test_segmented_mm(dtype, device):
    a, b = randn(9, 70, dtype=dtype, device=device), randn(70, 6, dtype=dtype, device=device)
    segments = torch.tensor([[[0, 70], [3, 5]], [[60, 99], [8, 2]]], device=device)
    check(mt.segmented_mm(a, b, segments), lambda a, b: ref.segmented(a, b, segments), a, b, 70)


@by_dtype
def test_grouped(dtype, device):
    x = randn(13, 64, dtype=dtype, device=device)
    offsets = torch.tensor([2, 2, 9, 1], device=device)
    w = randn(4, 64, 10, dtype=dtype, device=device)
    check(mt.grouped_mm(x, w, offsets), lambda x, w: ref.grouped(x, w, offsets), x, w, 64)
    p = packed((4, 24, 64), "mxfp4", 4, 32, device)
    check(
        mt.grouped_qmm(x, *p.operands, offsets, **p.form),
        lambda x, w: ref.grouped(x, w.mT, offsets),
        x,
        p.values,
        64,
    )


def fake_quantized(t, mode, tensor_scale=None):
    bits, group = ref.DEFAULTS[mode]
    codes, scales = mt.quantize(t, mode=mode, tensor_scale=tensor_scale)
    scale = None if tensor_scale is None else torch.tensor(tensor_scale)
    return ref.values(codes.cpu(), scales.cpu(), None, mode, bits, group, scale)


@by_dtype
@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_qqmm(mode, dtype, device):
    x = randn(6, 64, dtype=dtype, device=device)
    w, bias = randn(24, 64, dtype=dtype, device=device), randn(24, device=device)
    c = randn(6, 24, dtype=dtype, device=device)
    fx, fw = fake_quantized(x, mode), fake_quantized(w, mode)
    codes = mt.quantize(w, mode=mode)
    for given in ((w,), codes):
        check(mt.qqmm(x, *given, mode=mode), lambda x, w: x @ w.mT, fx, fw, 64)
    got = mt.qqmm(x, w, mode=mode, alpha=0.5, beta=-2.0, c=c, bias=bias)
    size = 0.5 * fx.abs() @ fw.abs().mT + 2 * c.cpu().double().abs() + bias.cpu().double().abs()
    ref.assert_within(
        got,
        0.5 * fx @ fw.mT - 2 * c.cpu().double() + bias.cpu().double(),
        size * (70 * 2.0**-24 + ref.HALF_ULP[dtype]),
    )
    x_codes, x_scales = mt.quantize(x, mode=mode)
    got = mt.qqmm(x_codes, *codes, mode=mode, x_scales=x_scales, dtype=dtype)
    check(got, lambda x, w: x @ w.mT, fx, fw, 64)
    if device == "cpu":  # where one kernel takes both: others add up in another order
        assert torch.equal(got, mt.qqmm(x, w, mode=mode))


def test_qqmm_forms(device):
    mode, scale = "nvfp4", 0.01
    x, w = randn(7, 64, device=device), randn(3, 24, 64, device=device)
    fx, fw = fake_quantized(x, mode, scale), fake_quantized(w, mode, scale)
    scales = dict(tensor_scale_x=scale, tensor_scale_w=scale)
    ids = torch.tensor([0, 2, 2, -1, 1, 0, 3], device=device)
    got = mt.gather_qqmm(x.unsqueeze(1), w, rhs_indices=ids, mode=mode, **scales)
    check(got, lambda x, w: ref.gather(x, w.mT, None, ids), fx.unsqueeze(1), fw, 64)
    offsets = torch.tensor([2, 2, 6], device=device)
    got = mt.grouped_qqmm(x, w, None, offsets, mode=mode, **scales)
    check(got, lambda x, w: ref.grouped(x, w.mT, offsets), fx, fw, 64)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalize", [True, False])
def test_moe_route(score, normalize, device):
    logits = randn(17, 12, device=device)
    bias = randn(12, device=device)
    ids, weights = mt.moe_route(
        logits,
        3,
        score=score,
        normalize=normalize,
        bias=bias,
        n_group=4,
        topk_group=2,
        scaling_factor=2.5,
    )
    z = logits.cpu().double()
    scores = z.softmax(-1) if score == "softmax" else z.sigmoid()
    choice = scores + bias.cpu().double()
    worth = choice.view(-1, 4, 3).topk(2).values.sum(-1)
    kept = torch.zeros_like(worth).scatter_(1, worth.topk(2).indices, 1.0).bool()
    choice = choice.masked_fill(~kept.repeat_interleave(3, 1), -torch.inf)
    expected = choice.topk(3).indices
    assert torch.equal(ids.cpu().long(), expected)
    w = scores.gather(1, expected)
    if normalize:
        w = w / w.sum(-1, keepdim=True)
    ref.assert_within(weights, 2.5 * w, 2.5 * w * 40 * 2.0**-24)


def test_permute_and_back(device):
    x = randn(10, 24, device=device)
    ids = torch.randint(0, 5, (10, 3), device=device)
    rows, offsets, inverse = mt.moe_permute(x, ids, 5)
    flat = ids.cpu().flatten()
    order = flat.argsort(stable=True)
    assert torch.equal(rows.cpu(), x.cpu()[order // 3])
    assert torch.equal(offsets.cpu().long(), flat.bincount(minlength=5).cumsum(0))
    assert torch.equal(inverse.cpu().flatten()[order].long(), torch.arange(30))
    weights = torch.rand(10, 3, device=device)
    expected = x.cpu().double() * weights.cpu().double().sum(1, keepdim=True)
    limit = x.cpu().double().abs() * weights.cpu().double().sum(1, keepdim=True) * 8 * 2.0**-24
    ref.assert_within(mt.moe_unpermute(rows, inverse, weights), expected, limit)


def gate(name, g, u, alpha=1.702, limit=7.0):
    if name == "clamped_swiglu":
        g, u = g.clamp(max=limit), u.clamp(-limit, limit)
        return (u + 1) * g * torch.sigmoid(alpha * g)
    act = {
        "silu": torch.nn.functional.silu,
        "relu": torch.relu,
        "gelu_erf": torch.nn.functional.gelu,
        "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    }[name]
    return act(g) * u


@pytest.mark.parametrize("layout", ["gate_up", "up_gate", "interleaved", "pair"])
@pytest.mark.parametrize("name", ["silu", "gelu_erf", "gelu_tanh", "relu", "clamped_swiglu"])
def test_moe_ffn(layout, name, device):
    tokens, hidden, inner, experts = 7, 64, 96, 4
    first = packed((experts, 2 * inner, hidden), "affine", 4, 32, device)
    down = packed((experts, hidden, inner), "mxfp8", 8, 32, device)
    bias, down_bias = (
        randn(experts, 2 * inner, device=device),
        randn(experts, hidden, device=device),
    )
    x, weights = randn(tokens, hidden, device=device), torch.rand(tokens, 2, device=device)
    ids = torch.randint(-1, experts, (tokens, 2), device=device)

    def halves(t):
        if layout == "interleaved":
            return t[:, ::2], t[:, 1::2]
        return (t[:, inner:], t[:, :inner]) if layout == "up_gate" else (t[:, :inner], t[:, inner:])

    if layout == "pair":
        parts = zip(*[(t[:, :inner], t[:, inner:]) for t in first.operands])
        matrix = tuple(mt.Quantized(*part, 32, 4, "affine") for part in parts)
        biases, words = (bias[:, :inner], bias[:, inner:]), "gate_up"
    else:
        matrix, biases, words = mt.Quantized(*first.operands, 32, 4, "affine"), bias, layout
    y = mt.moe_ffn(
        x,
        matrix,
        mt.Quantized(*down.operands, 32, 8, "mxfp8"),
        ids,
        weights,
        name,
        words,
        gate_up_bias=biases,
        down_bias=down_bias,
    )

    e = ids.cpu().clamp_min(0)
    xd = x.cpu().double()
    products, sizes = [], []
    for m, b in zip(halves(first.values), halves(bias.cpu().double())):
        products.append(torch.einsum("tjnk,tk->tjn", m[e], xd) + b[e])
    for m, b in zip(halves(first.magnitude), halves(bias.cpu().double().abs())):
        sizes.append(torch.einsum("tjnk,tk->tjn", m[e], xd.abs()) + b[e])
    h = gate(name, *products)
    # An error of (hidden + 4) roundings in g and u passes through the gate: no activation is steeper
    # than 1.2 in g, or than its own size in u; the sums after it round like a product's.
    unit = (hidden + inner + 16) * 2.0**-24
    g, u = (p.abs() for p in products)
    h_size = 1.2 * (sizes[0] * (u + 1) + (g + 1) * sizes[1]) + h.abs()
    w = weights.cpu().double() * (ids.cpu() >= 0)
    dv, db = down.values[e], down_bias.cpu().double()[e]
    expected = ((torch.einsum("tjni,tji->tjn", dv, h) + db) * w.unsqueeze(-1)).sum(1)
    limit = ((torch.einsum("tjni,tji->tjn", dv.abs(), h_size) + db.abs()) * w.unsqueeze(-1)).sum(1)
    ref.assert_within(y, expected, limit * unit)


def test_every_bad_argument_is_a_value_error(device):
    p = packed((4, 24, 64), "affine", 4, 64, device)
    x = randn(3, 64, device=device)
    bad = [
        lambda: mt.quantized_matmul(x, p.w, p.scales[:, :5], p.biases),
        lambda: mt.quantized_matmul(x[:, :32], *p.operands),
        lambda: mt.quantized_matmul(x, *p.operands, mode="int4"),
        lambda: mt.quantized_matmul(x, *p.operands, precision="best"),
        lambda: mt.quantized_matmul(x.double(), *p.operands),
        lambda: mt.quantized_matmul(x.to(torch.complex64), *p.operands),
        lambda: mt.gather_qmm(x, *p.operands, None, torch.rand(3, device=device)),
        lambda: mt.gather_qmm(x, *p.operands, mode="dense"),
        lambda: mt.gather_mm(x, x),
        lambda: mt.qqmm(x, x, mode="affine"),
        lambda: mt.from_fp8(torch.zeros(3, dtype=torch.uint8, device=device), torch.int32),
        lambda: mt.moe_route(x, 65),
        lambda: mt.moe_route(x, 2, score="max"),
        lambda: mt.quantize(x, group_size=48),
        lambda: mt.quantize_dual(x[0], mode="mxfp8"),
        lambda: mt.segmented_mm(x, x.mT, torch.zeros(3, 3, dtype=torch.int64, device=device)),
    ]  # fmt: skip
    for call in bad:
        with pytest.raises(ValueError, match=r"^\[\w+\] "):
            call()


def test_texts_are_the_librarys():
    x = torch.zeros(2, 64)
    p = packed((24, 64), "affine", 4, 64, "cpu")
    with pytest.raises(ValueError) as error:
        mt.quantized_matmul(x, p.w, p.scales[:7], p.biases)
    assert str(error.value).startswith(
        "[quantized_matmul] scales has shape (7, 1), expected (24, 1)"
    )
