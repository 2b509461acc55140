"""The layers: their values, their checkpoint keys, training."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import moeblas.nn as mnn
import moeblas.torch as mt
import torch_reference as ref

MODES = ["affine", "mxfp4", "mxfp8", "nvfp4"]
by_mode = pytest.mark.parametrize("mode", MODES)


def values(layer):
    return layer.dequantize().cpu().double()


def within(y, expected, size, terms):
    ref.assert_within(y, expected, size * (terms + 8) * 2.0**-24)


@by_mode
def test_quantized_linear(mode, device):
    linear = torch.nn.Linear(128, 40, device=device)
    layer = mnn.to_quantized(linear, mode=mode)
    x = torch.randn(3, 2, 128).to(device)
    w, b, xd = values(layer), linear.bias.detach().cpu().double(), x.cpu().double()
    within(layer(x), xd @ w.mT + b, xd.abs() @ (w.abs() + 1).mT + b.abs(), 128)


@by_mode
def test_state_dicts_are_mlxs_and_round_trip(mode, device, tmp_path):
    layers = {
        "linear": (mnn.QuantizedLinear, (128, 40)),
        "embedding": (mnn.QuantizedEmbedding, (40, 128)),
        "experts": (mnn.QuantizedSwitchLinear, (128, 40, 3)),
    }
    for kind, (cls, arguments) in layers.items():
        layer = cls(*arguments, mode=mode, device=device)
        keys = ["weight", "scales"]
        keys += ["biases"] if mode == "affine" else []
        keys += ["bias"] if kind != "embedding" else []
        assert sorted(layer.state_dict()) == sorted(keys)
        assert layer.weight.dtype == torch.uint32
        save_file(layer.state_dict(), tmp_path / f"{kind}.safetensors")
        again = cls(*arguments, mode=mode, device=device)
        assert not torch.equal(again.weight, layer.weight)
        again.load_state_dict(load_file(tmp_path / f"{kind}.safetensors"))
        assert all(
            torch.equal(a, b)
            for a, b in zip(layer.state_dict().values(), again.state_dict().values())
        )
        assert torch.equal(layer.dequantize(), again.dequantize())


@by_mode
def test_embedding_and_tied_head(mode, device):
    table = torch.nn.Embedding(50, 64, device=device)
    layer = mnn.to_quantized(table, mode=mode)
    ids = torch.randint(0, 50, (4, 3), device=device)
    assert torch.equal(layer(ids), layer.dequantize()[ids])
    x = torch.randn(5, 64).to(device)
    w, xd = values(layer), x.cpu().double()
    within(layer.as_linear(x), xd @ w.mT, xd.abs() @ (w.abs() + 1).mT, 64)


def glu_reference(layer, x, ids):
    """The experts' outputs (T, k, H), float64, of a SwitchGLU of separate matrices."""
    w = {
        n: (values(m) if hasattr(m, "dequantize") else m.weight.detach().cpu().double())
        for n, m in layer.named_children()
    }
    x, ids = x.detach().cpu().double(), ids.cpu()
    gate, up = (torch.einsum("tjnk,tk->tjn", w[n][ids], x) for n in ("gate_proj", "up_proj"))
    h = torch.nn.functional.silu(gate) * up
    y = torch.einsum("tjni,tji->tjn", w["down_proj"][ids], h)
    # Magnitudes: |silu(g)| <= |g|, its slope below 1.1; codes cancel by less than 2 of a weight.
    w = {n: m.abs() + m.abs().amax(-1, keepdim=True) for n, m in w.items()}
    g, u = (torch.einsum("tjnk,tk->tjn", w[n][ids], x.abs()) for n in ("gate_proj", "up_proj"))
    size = torch.einsum("tjni,tji->tjn", w["down_proj"][ids], 2.1 * g * u + h.abs())
    return y, size


@pytest.mark.parametrize("mode", [None, *MODES])
def test_switch_glu(mode, device):
    layer = mnn.SwitchGLU(64, 96, 5, device=device)
    if mode:
        layer = mnn.to_quantized(layer, mode=mode, group_size=32 if mode == "affine" else None)
    x = torch.randn(7, 64).to(device)
    ids = torch.randint(0, 5, (7, 2), device=device)
    weights = torch.rand(7, 2, device=device)
    y, size = glu_reference(layer, x, ids)
    within(layer(x, ids), y, size, 64 + 96)
    wd = weights.cpu().double().unsqueeze(-1)
    with torch.no_grad():
        fused = layer(x, ids, weights)
    within(fused, (y * wd).sum(1), (size * wd).sum(1), 64 + 96)
    x.requires_grad_()
    composed = layer(x, ids, weights)
    within(composed, (y * wd).sum(1), (size * wd).sum(1), 64 + 96)
    (dx,) = torch.autograd.grad(composed.sum(), x)
    assert dx.isfinite().all() and dx.abs().sum() > 0
    expected = {f"{p}_proj.weight" for p in ("gate", "up", "down")}
    assert {k for k in layer.state_dict() if k.endswith("weight")} == expected


def test_joint_matrices(device):
    """gate_up_proj in every layout is the pair of its halves."""
    pair = mnn.SwitchGLU(64, 32, 4, bias=True, device=device)
    for m in pair.children():
        torch.nn.init.normal_(m.bias)
    gate, up = pair.gate_proj, pair.up_proj
    x, ids = torch.randn(6, 64).to(device), torch.randint(0, 4, (6, 2), device=device)
    weights = torch.rand(6, 2, device=device)
    for layout in ("gate_up", "up_gate", "interleaved"):

        def join(a, b, layout=layout):
            if layout == "interleaved":
                return torch.stack((a, b), 2).flatten(1, 2).detach()
            return torch.cat((a, b) if layout == "gate_up" else (b, a), 1).detach()

        joint = mnn.SwitchLinear.from_tensors(
            join(gate.weight, up.weight), join(gate.bias, up.bias)
        )
        layer = mnn.SwitchGLU.from_layers(pair.down_proj, gate_up_proj=joint, glu_layout=layout)
        with torch.no_grad():
            assert torch.equal(layer(x, ids, weights), pair(x, ids, weights))
        # The products are the same; torch's silu rounds views otherwise than what is in one piece.
        g, u = (m(x[:, None, None], ids).squeeze(-2).detach() for m in (gate, up))
        h = (torch.nn.functional.silu(g) * u).cpu().double().abs()
        size = torch.einsum(
            "tjni,tji->tjn", pair.down_proj.weight.detach().cpu().double()[ids.cpu()].abs(), h
        )
        ref.assert_within(layer(x, ids), pair(x, ids).detach().cpu().double(), size * 8 * 2.0**-24)


@pytest.mark.parametrize("mode", ["nvfp4", "mxfp8", "mxfp4"])
def test_training_through_qqlinear(mode, device):
    """A layer learns a linear map although both operands are rounded to blocks: the loss ends below
    half of what it began with, and the packed layer holds and answers what the trained one does."""
    target = torch.randn(16, 64).to(device) / 8
    layer = mnn.to_qqlinear(torch.nn.Linear(64, 16, device=device), mode=mode)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        x = torch.randn(64, 64).to(device)
        loss = ((layer(x) - x @ target.mT) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    packed = mnn.to_quantized(layer)
    assert sorted(packed.state_dict()) == ["bias", "scales", "weight"]
    codes, scales = mt.quantize(layer.weight.detach(), mode=mode)
    assert torch.equal(packed.weight, codes) and torch.equal(packed.scales, scales)
    # The same numbers, by kernels that may add them in another order.
    fx, fw = (
        mt.dequantize(*t, mode=mode, dtype=torch.float32).cpu().double().abs()
        for t in (mt.quantize(x, mode=mode), (codes, scales))
    )
    size = fx @ fw.mT + layer.bias.detach().cpu().double().abs()
    within(packed(x), layer(x).detach().cpu().double(), size, 2 * 64)


def test_dense_linear_is_a_product_of_ours(device):
    linear = torch.nn.Linear(33, 7, device=device)
    layer = mnn.Linear.from_linear(linear)
    assert layer.weight is linear.weight
    x = torch.randn(4, 33).to(device)
    w, xd = linear.weight.detach().cpu().double(), x.cpu().double()
    b = linear.bias.detach().cpu().double()
    within(layer(x), xd @ w.mT + b, xd.abs() @ w.abs().mT + b.abs(), 33)


def test_formats_that_there_are_not():
    linear = torch.nn.Linear(64, 8)
    with pytest.raises(ValueError, match="mode is 'affine', expected nvfp4"):
        mnn.to_qqlinear(linear, mode="affine")
    with pytest.raises(ValueError, match="mode is 'int4'"):
        mnn.to_quantized(linear, mode="int4")
    with pytest.raises(ValueError, match="bits"):
        mnn.to_quantized(linear, bits=7)
    with pytest.raises(TypeError, match="ReLU has no quantized form"):
        mnn.to_quantized(torch.nn.ReLU())
