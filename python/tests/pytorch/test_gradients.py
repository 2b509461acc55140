"""Gradients against finite differences and against torch's own of the same formulas."""

import pytest
import torch
from torch.autograd import gradcheck

import moeblas.torch as mt
import torch_reference as ref
from moeblas.torch import _autograd
from operator_examples import NAMES, examples, flat


def randn(*shape, device="cpu", grad=True):
    return torch.randn(shape).to(device).requires_grad_(grad)


def numeric(function, *inputs):
    """gradcheck in float32: all of these are linear in each argument, so that a difference of 1 has no
    error but the sums' roundings, of at most 300 terms of size 4 * 4 of which half the ulp is lost."""
    limit = 300 * 16 * 2.0**-24
    assert gradcheck(
        function, inputs, eps=0.5, atol=300 * limit, rtol=300 * limit, check_batched_grad=False
    )


@pytest.fixture(params=["affine", "mxfp4", "nvfp4"])
def packed(request, device):
    bits, _ = ref.DEFAULTS[request.param]
    group = {"affine": 32, "mxfp4": 32, "nvfp4": 16}[request.param]

    def make(*shape):
        p = ref.Packed(mt, shape, request.param, bits, group, device=device)
        if p.biases is not None:
            p.scales.requires_grad_()
            p.biases.requires_grad_()
        return p

    return make


@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_quantized_matmul(packed, transpose, batch, device):
    p = packed(*batch, 32, 64)
    k = 64 if transpose else 32
    x = randn(*(3, *batch, 2, k) if batch else (3, k), device=device)
    numeric(
        lambda x, s, b: mt.quantized_matmul(x, p.w, s, b, transpose, **p.form),
        x,
        p.scales,
        p.biases,
    )
    if not batch:
        numeric(
            lambda x: mt.quantized_matmul(x, *p.operands, transpose, **p.form),
            randn(k, device=device),
        )


def test_dense_weight(device):
    x, w = randn(4, 6, device=device), randn(5, 6, device=device)
    numeric(lambda x, w: mt.quantized_matmul(x, w, mode="dense"), x, w)


@pytest.mark.parametrize("transpose", [True, False])
def test_gather_qmm(packed, transpose, device):
    p = packed(3, 32, 64)
    k = 64 if transpose else 32
    ids = torch.tensor([[0, 2], [2, -1], [2, 0], [3, 2]], device=device)

    def product(lhs, rhs):
        return lambda x, s, b: mt.gather_qmm(x, p.w, s, b, lhs, rhs, transpose, **p.form)

    numeric(product(None, ids), randn(4, 1, 1, k, device=device), p.scales, p.biases)
    lhs = torch.tensor([1, 1, 0, 5], device=device)
    numeric(product(lhs, ids[:, 0]), randn(2, 2, k, device=device), p.scales, p.biases)


def test_gather_mm(device):
    lhs, rhs = torch.tensor([1, 0, 1, -1], device=device), torch.tensor([0, 2, 2, 1], device=device)
    a, b = randn(2, 3, 5, device=device), randn(3, 5, 4, device=device)
    numeric(lambda a, b: mt.gather_mm(a, b, lhs, rhs), a, b)
    numeric(lambda a, b: mt.gather_mm(a, b), a[:, None].detach().requires_grad_(), b)
    numeric(mt.gather_mm, randn(5, device=device), randn(5, device=device))


def test_segmented_mm(device):
    a, b = randn(3, 8, device=device), randn(8, 4, device=device)
    segments = torch.tensor([[0, 8], [2, 5], [4, 99], [6, 3]], device=device)
    numeric(lambda a, b: mt.segmented_mm(a, b, segments), a, b)


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_qqmm_is_straight_through(mode, device):
    x, w = randn(6, 32, device=device), randn(10, 32, device=device)
    bias, c = randn(10, device=device), randn(6, 10, device=device)
    dy = torch.randn(6, 10).to(device)
    y = mt.qqmm(x, w, mode=mode, alpha=0.5, beta=3.0, c=c, bias=bias)
    got = torch.autograd.grad(y, (x, w, bias, c), dy)

    def through(t):
        """fq(t), whose gradient is taken for t's own."""
        bits, group = ref.DEFAULTS[mode]
        codes, scales = mt.quantize(t.detach(), mode=mode)
        return ref.values(codes.cpu(), scales.cpu(), None, mode, bits, group).requires_grad_()

    fx, fw = through(x), through(w)
    cd, bd = (t.detach().cpu().double().requires_grad_() for t in (c, bias))
    expected = torch.autograd.grad(
        0.5 * fx @ fw.mT + 3 * cd + bd, (fx, fw, bd, cd), dy.cpu().double()
    )
    size = dy.cpu().double().abs()
    limits = (size @ fw.abs(), size.mT @ fx.abs(), size.sum(0), 3 * size)
    for g, e, limit in zip(got, expected, limits):
        ref.assert_within(g, e, limit.detach() * 40 * 2.0**-24)


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_qqmm_in_what_is_not_quantized(mode, device):
    """In bias and c it is linear, so that differences say what its gradient is."""
    x, w = (randn(*shape, 32, device=device, grad=False) for shape in ((2, 3), (10,)))
    bias, c = randn(10, device=device), randn(2, 3, 10, device=device)
    numeric(lambda bias, c: mt.qqmm(x, w, mode=mode, beta=3.0, c=c, bias=bias), bias, c)


def test_qqmm_of_packed_weights(device):
    x, w = randn(6, 32, device=device), randn(10, 32, device=device, grad=False)
    rows = mt.quantize(w, mode="mxfp8")
    swizzled = mt.quantize(w, mode="mxfp8", scale_layout="swizzled_128x4")
    dy = torch.randn(6, 10).to(device)
    (a,) = torch.autograd.grad(mt.qqmm(x, *rows, mode="mxfp8"), x, dy)
    (b,) = torch.autograd.grad(
        mt.qqmm(x, *swizzled, mode="mxfp8", scale_layout="swizzled_128x4"), x, dy
    )
    limit = dy.cpu().abs().double() @ mt.dequantize(*rows, mode="mxfp8").cpu().double().abs()
    ref.assert_within(b, a.cpu().double(), limit * 40 * 2.0**-24)


def test_sixteen_bit_gradients_have_their_inputs_dtype(device):
    p = ref.Packed(mt, (3, 16, 64), "affine", 4, 64, dtype=torch.bfloat16, device=device)
    x = torch.randn(5, 1, 1, 64).to(device, torch.bfloat16).requires_grad_()
    scales = p.scales.detach().requires_grad_()
    ids = torch.randint(0, 3, (5, 2), device=device)
    mt.gather_qmm(x, p.w, scales, p.biases, None, ids).sum().backward()
    assert x.grad.dtype == scales.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(_autograd._FORMULAS)))
def test_operators_without_a_gradient_say_so(name, device):
    """What spec and docs list is differentiable; the rest refuses, whichever argument asks."""
    for arguments in examples(device)[name]:
        asking = [
            t.detach().requires_grad_()
            if isinstance(t, torch.Tensor) and t.is_floating_point()
            else t
            for t in arguments
        ]
        floating = [
            t for t in flat(getattr(torch.ops.moeblas, name)(*asking)) if t.is_floating_point()
        ]
        if not floating or not any(getattr(t, "requires_grad", False) for t in asking):
            continue  # codes alone
        with pytest.raises(RuntimeError, match=rf"\[{name}\] has no gradient, expected"):
            sum(t.sum() for t in floating).backward()


def test_arguments_without_a_gradient_say_so(device):
    w = randn(4, 64, device=device)
    x = randn(4, 64, device=device)
    nvfp4 = mt.quantize(w.detach(), mode="nvfp4", tensor_scale=0.5)
    t = torch.tensor(0.5, device=device, requires_grad=True)
    for y, text in (
        (mt.quantized_matmul(x, *nvfp4, mode="nvfp4", tensor_scale=t), "tensor_scale has no"),
        (mt.qqmm(x, w, mode="nvfp4", tensor_scale_x=t, tensor_scale_w=t), "tensor_scale_x has no"),
    ):
        with pytest.raises(RuntimeError, match=text):
            y.float().sum().backward()
    with pytest.raises(RuntimeError, match="floating point"):
        nvfp4[0].requires_grad_()
