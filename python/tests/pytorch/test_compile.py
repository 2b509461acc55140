"""The operators as torch's tools see them: opcheck, torch.compile, dynamic shapes."""

import pytest
import torch
from torch.library import opcheck

import moeblas.torch as mt
import torch_reference as ref
from operator_examples import NAMES, block, block_sizes, examples, flat, same

ops = torch.ops.moeblas


def test_every_operator_has_an_example():
    assert sorted(NAMES) == sorted(mt._register.names)


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name, device):
    for arguments in examples(device)[name]:
        # A number is not a decision about dynamic shapes: those have a test of their own.
        opcheck(getattr(ops, name).default, arguments)


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


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_compiles_without_a_break(name, device):
    torch._dynamo.reset()
    operator = getattr(ops, name)
    compiled = torch.compile(lambda *a: operator(*a), backend="aot_eager", fullgraph=True)
    for arguments in examples(device)[name]:
        same(compiled(*arguments), operator(*arguments))


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
        y_size, dx_size = block_sizes(p, q, x, ids, weights)
        ref.assert_within(y, z.detach().cpu().double(), y_size * 16 * 2.0**-24)
        (a,) = torch.autograd.grad(y.sum(), x)
        (b,) = torch.autograd.grad(z.sum(), x)
        ref.assert_within(a, b.cpu().double(), dx_size * 16 * 2.0**-24)
    if dynamic and backend == "aot_eager":
        torch._dynamo.reset()
        counted = torch.compile(eager, backend=counter, fullgraph=True, dynamic=True)
        for tokens in (5, 7, 9):
            counted(
                torch.randn(tokens, 64).to(device),
                torch.randint(0, 4, (tokens, 2), device=device),
                torch.rand(tokens, 2, device=device),
            )
        assert counter.frame_count == 1  # sizes stayed symbols
