"""The operators as torch's tools see them: opcheck, torch.compile, dynamic shapes, CUDA graphs."""

import pytest
import torch_reference as ref
import torch
from torch.library import opcheck

import moeblas.torch as mt

ops = torch.ops.moeblas


def examples(device):
    """A call of every operator: name, arguments, keywords."""

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


def test_every_operator_has_an_example():
    assert sorted(NAMES) == sorted(mt._register.names)


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name, device):
    for arguments in examples(device)[name]:
        # A number is not a decision about dynamic shapes: those have a test of their own.
        opcheck(getattr(ops, name).default, arguments)


def flat(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("name", NAMES)
def test_formulas_of_shapes_are_the_librarys(name, device):
    """What torch.compile is told where sizes are symbols, and what the C interface says."""
    schema = getattr(ops, name).default._schema
    for arguments in examples(device)[name]:
        values = [*arguments, *(a.default_value for a in schema.arguments[len(arguments) :])]
        expected = [(tuple(t.shape), t.dtype) for t in flat(getattr(ops, name)(*arguments))]
        got = getattr(mt._register._shapes, name)(*values)
        assert [(tuple(shape), dtype) for shape, dtype in got] == expected
        meta = [v.to("meta") if isinstance(v, torch.Tensor) else v for v in arguments]
        assert [(tuple(t.shape), t.dtype) for t in flat(getattr(ops, name)(*meta))] == expected


def block(p, q):
    """A mixture-of-experts layer of products, differentiable."""

    def forward(x, ids, weights):
        h = mt.gather_qmm(x[:, None, None], *p.operands, None, ids, **p.form)
        gate, up = h.chunk(2, -1)
        h = (torch.nn.functional.silu(gate) * up).flatten(0, 1)
        y = mt.gather_qmm(h, *q.operands, None, ids.flatten(), **q.form)
        return (y.view(*ids.shape, -1) * weights.unsqueeze(-1)).sum(1)

    return forward


def sizes(p, q, x, ids, weights):
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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_break(backend, dynamic, device):
    torch._dynamo.reset()
    p = ref.Packed(mt, (4, 128, 64), "affine", 4, 64, device=device)
    q = ref.Packed(mt, (4, 64, 64), "mxfp4", 4, 32, device=device)
    eager = block(p, q)
    compiled = torch.compile(eager, backend=backend, fullgraph=True, dynamic=dynamic)
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    for tokens in (5, 7, 9) if dynamic else (5,):
        x = torch.randn(tokens, 64).to(device).requires_grad_()
        ids = torch.randint(0, 4, (tokens, 2), device=device)
        weights = torch.rand(tokens, 2, device=device)
        y, z = compiled(x, ids, weights), eager(x, ids, weights)
        # The products are the same calls: between them a compiler may round some 16 times elsewhere.
        y_size, dx_size = sizes(p, q, x, ids, weights)
        ref.assert_within(y, z.detach().cpu().double(), y_size * 16 * 2.0**-24)
        (a,) = torch.autograd.grad(y.sum(), x)
        (b,) = torch.autograd.grad(z.sum(), x)
        ref.assert_within(a, b.cpu().double(), dx_size * 16 * 2.0**-24)
    if dynamic and backend == "aot_eager":
        torch._dynamo.reset()
        counted = torch.compile(eager, backend=counter, fullgraph=True, dynamic=True)
        for tokens in (5, 7, 9):
            counted(torch.randn(tokens, 64).to(device), torch.randint(0, 4, (tokens, 2), device=device),
                    torch.rand(tokens, 2, device=device))
        assert counter.frame_count == 1  # sizes stayed symbols


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_graphs_and_streams():
    """Replays of a captured graph see new data; a call runs on the current stream."""
    p = ref.Packed(mt, (8, 256, 512), "affine", 4, 64, device="cuda")
    x = torch.randn(64, 1, 1, 512, device="cuda")
    ids = torch.randint(0, 8, (64, 2), device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        mt.gather_qmm(x, *p.operands, None, ids, **p.form)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = mt.gather_qmm(x, *p.operands, None, ids, **p.form)
    # Memory of the capture must not be given to others while the graph lives.
    noise = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(32)]
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        ids.copy_(torch.randint_like(ids, -1, 8))
        graph.replay()
        torch.testing.assert_close(y, mt.gather_qmm(x, *p.operands, None, ids, **p.form), rtol=0, atol=0)
    del noise
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = torch.randn(64, 1, 1, 512, device="cuda")
        z = mt.gather_qmm(late, *p.operands, None, ids, **p.form)
    stream.synchronize()
    torch.testing.assert_close(z, mt.gather_qmm(late, *p.operands, None, ids, **p.form), rtol=0, atol=0)
