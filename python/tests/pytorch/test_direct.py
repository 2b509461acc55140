"""moeblas.torch calls the library itself where nothing has to know of the operator, and the operator
wherever something does."""

import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import moeblas as mb
import moeblas.torch as mt
from operator_examples import NAMES, examples, same


@pytest.fixture
def product(device):
    """x, and a product of it that takes less than what it is asked for."""
    w = mt.quantize(torch.randn(3, 16, 64, device=device), 32)
    ids = torch.tensor([[0, 2], [1, 1]], device=device)
    x = torch.randn(2, 1, 1, 64, device=device)
    return x, lambda x: mt.gather_qmm(x, *w, rhs_indices=ids, group_size=32)


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


# Whose arguments by position are the operators'.
DIRECT = [n for n in NAMES if n.startswith(("gather_q", "gather_mm", "grouped_", "segmented", "quantized", "moe_")) and "qq" not in n and n != "moe_ffn"]  # fmt: skip


@pytest.mark.parametrize("name", DIRECT)
def test_is_the_operator_bit_for_bit(name, device):
    for arguments in examples(device)[name]:
        expected = getattr(torch.ops.moeblas, name)(*arguments)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                same(getattr(mt, name)(*arguments), expected)


def test_a_layer_is_the_operators(device):
    packed = [mt.quantize(torch.randn(3, n, 64, device=device), mode="mxfp4") for n in (128, 64)]
    gate_up, down = (mb.Quantized(*p, mode="mxfp4") for p in packed)
    x, weights = torch.randn(5, 64, device=device), torch.rand(5, 2, device=device)
    ids = torch.randint(-1, 3, (5, 2), device=device)
    expected = mt.moe_ffn(x, gate_up, down, ids, weights)
    with torch.no_grad():
        same(mt.moe_ffn(x, gate_up, down, ids, weights), expected)


def test_products_are_the_operators(product, device):
    x, call = product
    expected = call(x)  # gradients are on: the operator
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            got = call(x)
        assert torch.equal(got, expected) and got.device == expected.device
        assert got.is_inference() == (mode is torch.inference_mode)
        assert not got.requires_grad
    with torch.no_grad():
        assert torch.equal(call(torch.nn.Parameter(x)), expected)
        assert torch.equal(call(x.clone().requires_grad_()), expected)


@torch.no_grad()
def test_modes_see_the_operator(product):
    x, call = product
    for mode in (Operators(), Functions()):
        with mode:
            call(x)
        assert any("gather_qmm" in name for name in mode.seen)


@torch.no_grad()
def test_profilers_see_the_operator(product):
    x, call = product
    with torch.profiler.profile() as profile:
        call(x)
    assert any(e.key == "moeblas::gather_qmm" for e in profile.key_averages())


@torch.no_grad()
def test_tracers_see_the_operator(product):
    x, call = product
    graph = make_fx(call)(x).graph
    assert any("gather_qmm" in str(node.target) for node in graph.nodes)
    assert torch.equal(torch.jit.trace(call, x)(x * 2), call(x * 2))


@torch.no_grad()
def test_subclasses_see_the_operator(product):
    x, call = product
    seen = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return super().__torch_function__(function, types, args, kwargs or {})

    assert type(call(x.as_subclass(Watched))) is Watched
    assert any("gather_qmm" in name for name in seen)


@torch.no_grad()
def test_stand_ins_are_not_read(product):
    x, call = product
    assert call(x).shape == (2, 2, 1, 16)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert call(mode.from_tensor(x)).shape == (2, 2, 1, 16)
    w = mt.quantize(torch.randn(3, 16, 64), 32)
    meta = [t.to("meta") for t in (x, *w)]
    out = mt.gather_qmm(*meta, rhs_indices=torch.zeros(2, 1, dtype=torch.int, device="meta"), group_size=32)  # fmt: skip
    assert out.is_meta and out.shape == (2, 1, 1, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap takes an operator without a rule one by one
        many = torch.vmap(call)(torch.stack([x, 2 * x]))
    assert torch.equal(many, torch.stack([call(x), call(2 * x)]))


@torch.no_grad()
def test_negated_numbers_are_negated(device):
    z = torch.view_as_complex(torch.randn(5, 64, 2, device=device))
    x, w = z.conj().imag, torch.randn(7, 64, device=device)
    assert x.is_neg()
    got = mt.quantized_matmul(x, w, mode="dense")
    assert torch.equal(got, mt.quantized_matmul(x.resolve_neg().clone(), w, mode="dense"))
    with pytest.raises(ValueError, match="x is to be negated when it is read"):
        mb.quantized_matmul(x, w, mode="dense")


def test_errors_are_the_operators(product, device):
    x, call = product
    for wrong in (x[..., :32], x.int()):
        texts = []
        for mode in (torch.enable_grad, torch.no_grad):
            with mode(), pytest.raises(ValueError) as error:
                call(wrong)
            texts.append(str(error.value))
        assert texts[0] == texts[1]


def test_the_functions_for_arrays_refuse_gradients(product, device):
    x, _call = product
    w = mb.quantize(torch.randn(16, 64, device=device), 32)
    with pytest.raises(ValueError, match="x refuses DLPack: .*gradient"):
        mb.quantized_matmul(x.requires_grad_(), *w, group_size=32)
