"""What only a GPU has: streams, captured graphs, arrays of other libraries on it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import moeblas as mb
import moeblas.torch as mt
import torch_reference as ref
from operator_examples import NAMES, block, block_sizes, examples, flat, same

pytestmark = pytest.mark.usefixtures("cuda")
ops = torch.ops.moeblas
by_name = pytest.mark.parametrize("name", NAMES)
LATE = 20_000_000  # cycles that a stream is kept busy: about 10 ms


def tensors(arguments):
    return [t for t in arguments if isinstance(t, torch.Tensor)]


def bits(t):
    """The same memory as integers that torch has all functions for."""
    return t.detach().view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    )


def shuffle(t):
    """Other numbers of the same kind, in place."""
    t = bits(t)
    t.copy_(t.flatten()[torch.randperm(t.numel(), device=t.device)].view_as(t))


def poison(outputs):
    for t in flat(outputs):
        bits(t).fill_(-1 if t.element_size() > 1 else 255)


def captured(call):
    """A graph of the call, and what it writes."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()  # kernels are loaded
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    return graph, out


@by_name
@torch.no_grad()
def test_replays_see_new_data(name):
    for arguments in examples("cuda")[name]:

        def call(arguments=arguments):
            return getattr(ops, name)(*arguments)

        graph, out = captured(call)
        # Memory of the capture must not be given to others while the graph lives.
        noise = [torch.full((1 << 18,), torch.nan, device="cuda") for _ in range(16)]
        for _ in range(3):
            for t in tensors(arguments):
                shuffle(t)
            poison(out)
            graph.replay()
            same(out, call())
        del noise


@by_name
@torch.no_grad()
def test_the_current_stream_is_used(name):
    """Arguments are written late, on a stream of which no other stream knows."""
    for arguments in examples("cuda")[name]:
        expected = getattr(ops, name)(*arguments)
        originals = [bits(t).clone() for t in tensors(arguments)]
        for t in tensors(arguments):
            bits(t).zero_()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LATE)
            for t, original in zip(tensors(arguments), originals):
                bits(t).copy_(original)
            got = getattr(ops, name)(*arguments)
        stream.synchronize()
        same(got, expected)


class Experts:
    """Arguments of a gather_qmm of many rows, whose kernels need a workspace."""

    def __init__(self, tokens=64):
        self.packed = ref.Packed(mt, (8, 256, 512), "affine", 4, 64, device="cuda")
        self.x = torch.randn(tokens, 1, 1, 512, device="cuda")
        self.ids = torch.randint(0, 8, (tokens, 2), device="cuda")

    def change(self):
        self.x.copy_(torch.randn_like(self.x))
        self.ids.copy_(torch.randint_like(self.ids, -1, 8))

    def call(self, module, **more):
        return module.gather_qmm(self.x, *self.packed.operands, None, self.ids, True, 64, 4, **more)


@pytest.mark.parametrize("module", [mt, mb], ids=["moeblas.torch", "moeblas"])
@pytest.mark.parametrize("tokens", [4, 64, 2000])
def test_workspaces_live_as_long_as_a_graph(module, tokens):
    experts = Experts(tokens)
    graph, y = captured(lambda: experts.call(module))
    torch.cuda.empty_cache()
    noise = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(32)]
    for _ in range(3):
        experts.change()
        graph.replay()
        same(y, experts.call(module))
    del noise


def test_compiled_into_graphs_by_torch():
    """inductor's own captures and replays."""
    torch._dynamo.reset()
    p = ref.Packed(mt, (4, 128, 64), "affine", 4, 64, device="cuda")
    q = ref.Packed(mt, (4, 64, 64), "mxfp4", 4, 32, device="cuda")
    eager = block(p, q)
    compiled = torch.compile(eager, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for _ in range(5):
            x, weights = torch.randn(5, 64, device="cuda"), torch.rand(5, 2, device="cuda")
            ids = torch.randint(0, 4, (5, 2), device="cuda")
            got, expected = compiled(x, ids, weights).clone(), eager(x, ids, weights)
            # The products are the same calls; a compiler may round some 16 times elsewhere.
            size, _ = block_sizes(p, q, x, ids, weights)
            ref.assert_within(got, expected.cpu().double(), size * 16 * 2.0**-24)


# ---- Arrays through DLPack ---------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 300])
def test_a_thread_that_never_used_cuda(rows):
    """Of which the driver knows no device, as of those that compute gradients."""
    p = ref.Packed(mt, (64, 256), "affine", 4, 64, device="cuda")
    x = torch.randn(rows, 256, device="cuda").bfloat16()
    call = mb.quantized_matmul, (x, *p.operands)
    expected, outs = call[0](*call[1]), torch.empty(4, rows, 64, device="cuda").bfloat16()
    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(call[0], *call[1], out=out, stream=1) for out in outs]
        for future in futures:
            future.result()
    torch.cuda.synchronize()
    for out in outs:
        same(out, expected)


class Spied(torch.Tensor):
    """Notes the stream that it is asked to be ready on."""

    def __dlpack__(self, *args, **keywords):
        Spied.asked.append(keywords["stream"])
        return torch.Tensor.__dlpack__(self.as_subclass(torch.Tensor), *args, **keywords)


def test_producers_hear_of_the_stream():
    """DLPack's numbers: 1 is the legacy default stream, which torch calls 0; others are addresses."""
    x = torch.randn(3, 4, device="cuda")
    side = torch.cuda.Stream()
    for current, given, expected in (
        (torch.cuda.default_stream(), {}, 1),
        (side, {}, side.cuda_stream),
        (side, {"stream": 0}, 1),
        (side, {"stream": 1}, 1),
        (torch.cuda.default_stream(), {"stream": side}, side.cuda_stream),
    ):
        Spied.asked = []
        with torch.cuda.stream(current):
            y = mb.to_fp8(x.as_subclass(Spied), **given)
        torch.cuda.synchronize()
        assert Spied.asked == [expected]
        same(y, mt.to_fp8(x))
    with pytest.raises(ValueError, match="x refuses DLPack: per-thread default stream"):
        mb.to_fp8(x, stream=2)  # which torch cannot wait on


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_torch_tensors_without_a_copy(dtype):
    p = ref.Packed(mt, (3, 24, 128), "mxfp4", 4, 32, device="cuda")
    x = torch.randn(9, 2, 128, device="cuda").to(dtype)[:, :1]  # a strided view
    ids = torch.randint(-1, 4, (9,), device="cuda")
    args = x, p.w, p.scales, None, None, ids
    y = mb.gather_qmm(*args, mode="mxfp4")
    same(y, mt.gather_qmm(*args, mode="mxfp4"))
    out = torch.full((9, 2, 24), 7.0, device="cuda", dtype=dtype)[:, :1]
    assert mb.gather_qmm(*args, mode="mxfp4", out=out) is out
    torch.testing.assert_close(out, y, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"\[gather_qmm\] "):
        mb.gather_qmm(x, p.w.cpu(), *args[2:], mode="mxfp4")
    plan = mb.explain(mb.gather_qmm, *args, mode="mxfp4")
    assert plan.kernel in {k.name for k in mb.kernels() if k.backend == "cuda"}


def test_torch_arrays_on_their_current_stream():
    experts = Experts()
    expected = experts.call(mb)
    x = experts.x.clone()
    experts.x.zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LATE)
        experts.x.copy_(x)
        y = experts.call(mb)
    stream.synchronize()
    same(y, expected)


def test_cupy_arrays():
    cupy = pytest.importorskip("cupy")
    experts = Experts()
    expected = experts.call(mt)
    w, scales, biases, ids, source = (
        cupy.from_dlpack(t) for t in (*experts.packed.operands, experts.ids, experts.x)
    )
    x = cupy.zeros_like(source)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch.cuda._sleep(LATE)
        x[...] = source
        y = mb.gather_qmm(x, w, scales, biases, None, ids)
    stream.synchronize()
    assert type(y) is cupy.ndarray
    same(torch.from_dlpack(y), expected)
    out = cupy.zeros_like(y)
    assert mb.gather_qmm(x, w, scales, biases, None, ids, out=out) is out
    cupy.cuda.Device().synchronize()
    same(torch.from_dlpack(out), expected)


def test_jax_arrays(monkeypatch):
    # Beside torch it may not take most of the GPU's memory.
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if not any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("jax sees no NVIDIA GPU")
    experts = Experts()
    # ids of 32 bits: jax has no wider ones as it comes.
    x, w, scales, biases, ids = (
        jax.dlpack.from_dlpack(t) for t in (experts.x, *experts.packed.operands, experts.ids.int())
    )
    for _ in range(5):
        # Both the argument and what follows are jax's own, enqueued and not waited for.
        y = mb.gather_qmm(jax.numpy.sin(x) + 1, w, scales, biases, None, ids)
        assert isinstance(y, jax.Array) and next(iter(y.devices())).platform == "gpu"
        z = y * 2 + 1
        experts.x.copy_(torch.from_dlpack(jax.numpy.sin(x) + 1))
        same(torch.from_dlpack(z), experts.call(mt) * 2 + 1)
        x = x + 0.5
    with pytest.raises(ValueError, match="read-only"):
        mb.gather_qmm(x, w, scales, biases, None, ids, out=y)
