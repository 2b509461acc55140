"""A call of every operator, for tests that hold for all of them."""

import torch

import moeblas.torch as mt
import torch_reference as ref


def examples(device):
    """Lists of positional arguments, by the operator's name. What the operator differentiates asks for
    gradients."""

    def randn(*shape, grad=False):
        return torch.randn(shape).to(device).requires_grad_(grad)

    def packed(*shape, mode="affine"):
        return ref.Packed(mt, shape, mode, *ref.DEFAULTS[mode], device=device)

    p, e = packed(12, 64), packed(3, 64, 128)
    ids = torch.randint(-1, 4, (5, 2), device=device)
    ends = torch.tensor([1, 1, 4], device=device)
    x, rows = randn(5, 64, grad=True), randn(5, 1, 1, 128, grad=True)
    mx = mt.quantize(randn(8, 64), mode="mxfp8")
    blocks = randn(3, 8, 64)
    permuted = mt.moe_permute(x.detach(), ids, 3)
    no = (None, None, None, None, None, None, "affine", None)
    up, down = packed(3, 128, 64), packed(3, 64, 64)
    form = (None, None, None, "affine", None)
    return {
        "quantize": [(randn(4, 64),), (randn(4, 64), None, None, "nvfp4")],
        "quantize_dual": [(randn(64, 64), 32)],
        "dequantize": [(p.w, p.scales, p.biases), (*mx, None, None, None, "mxfp8")],
        "to_fp8": [(randn(3, 4),)],
        "from_fp8": [(torch.arange(8, dtype=torch.uint8, device=device),)],
        "quantized_matmul": [(x, *p.operands), (x[0], *p.operands),
                             (randn(2, 12), *p.operands, False)],
        "gather_mm": [(randn(2, 3, 4, grad=True), randn(3, 4, 5, grad=True), None, ids[:, :1]),
                      (randn(4, grad=True), randn(4))],
        "gather_qmm": [(rows, *e.operands, None, ids),
                       (randn(5, 1, 1, 64), *e.operands, None, ids, False)],
        "gather_qmv": [(randn(5, 128), *e.operands, ids[:, 0])],
        "segmented_mm": [(randn(3, 9), randn(9, 4), torch.tensor([[0, 9], [2, 3]], device=device))],
        "grouped_mm": [(x.detach(), randn(3, 64, 7), ends)],
        "grouped_qmm": [(randn(5, 128), *e.operands, ends)],
        "qqmm": [(x, randn(8, 64, grad=True)), (x, *mx, None, None, "mxfp8")],
        "gather_qqmm": [(x.unsqueeze(1).detach(), blocks, None, None, ids[:, 0])],
        "grouped_qqmm": [(x.detach(), blocks, None, ends)],
        "moe_route": [(randn(5, 8), 2)],
        "moe_permute": [(x.detach(), ids, 3)],
        "moe_unpermute": [(permuted[0], permuted[2], torch.rand(5, 2, device=device))],
        "moe_ffn": [(x.detach(), ids, torch.rand(5, 2, device=device), *up.operands, *form,
                     *no, *no, *down.operands, *form, None, "silu", "gate_up", 1.702, 7.0,
                     "native")],
    }  # fmt: skip


NAMES = list(examples("cpu"))


def flat(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def same(got, expected):
    """Bit for bit, NaN too."""
    for a, b in zip(flat(got), flat(expected), strict=True):
        assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        assert torch.equal(*(t.detach().reshape(-1).view(torch.uint8) for t in (a, b)))


def block(p, q):
    """A mixture-of-experts layer of products, differentiable."""

    def forward(x, ids, weights):
        h = mt.gather_qmm(x[:, None, None], *p.operands, None, ids, **p.form)
        gate, up = h.chunk(2, -1)
        h = (torch.nn.functional.silu(gate) * up).flatten(0, 1)
        y = mt.gather_qmm(h, *q.operands, None, ids.flatten(), **q.form)
        return (y.view(*ids.shape, -1) * weights.unsqueeze(-1)).sum(1)

    return forward


def block_sizes(p, q, x, ids, weights):
    """The same of absolute values, and that of the gradient of its sum by x: what roundings are
    fractions of. |silu(g)| <= |g|, and its slope is below 1.1."""
    ids, x, weights = ids.cpu(), x.detach().cpu().double().abs(), weights.cpu().double()
    gate, up = p.magnitude[ids].chunk(2, -2)
    g, u = (torch.einsum("tjik,tk->tji", m, x) for m in (gate, up))
    down = q.values.abs()[ids] * weights[..., None, None]
    back = down.sum(-2)
    y = torch.einsum("tjni,tji->tn", down, g * u)
    dx = torch.einsum("tji,tjik->tk", back * 1.1 * u, gate)
    return y, dx + torch.einsum("tji,tjik->tk", back * 1.1 * g, up)
