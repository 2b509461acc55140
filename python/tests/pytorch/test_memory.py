"""References, memory and threads through the torch operators."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import moeblas.torch as mt
import torch_reference as ref
from operator_examples import same
from test_process import CALLS, in_use, refused


class Experts:
    def __init__(self, device):
        self.packed = ref.Packed(mt, (4, 16, 64), "affine", 4, 32, device=device)
        self.x = torch.randn(6, 1, 1, 64).to(device)
        self.ids = torch.randint(0, 4, (6, 2)).to(device)
        self.leaf = self.x.clone().requires_grad_()

    def call(self, x=None, **more):
        x = self.x if x is None else x
        return mt.gather_qmm(x, *self.packed.operands, None, self.ids, group_size=32, **more)

    def tensors(self):
        return [self.x, self.ids, self.leaf, *self.packed.operands]


JOBS = {
    "forward": lambda e: e.call(),
    "direct": lambda e: torch.no_grad()(e.call)(),
    "backward": lambda e: torch.autograd.grad(e.call(e.leaf).sum(), e.leaf),
    "refused": lambda e: refused(lambda: e.call(bits=3))(),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
@pytest.mark.parametrize("job", JOBS)
def test_references_and_memory_stay_as_they_were(job, device):
    experts = Experts(device)

    def state():
        return [sys.getrefcount(t) for t in experts.tensors()], torch.cuda.memory_allocated()

    for _ in range(200):
        JOBS[job](experts)
    (heap, blocks), before = in_use(), state()
    for _ in range(CALLS):
        JOBS[job](experts)
    # The least that a call could lose is one block.
    after = in_use()
    assert after[1] - blocks < CALLS // 10
    assert after[0] - heap < 4 * CALLS
    assert state() == before


def test_threads_get_the_same_results(device):
    experts = Experts(device)
    jobs = [
        lambda: experts.call(),
        lambda: torch.autograd.grad(experts.call(experts.leaf).sum(), experts.leaf),
        lambda: mt.quantize(experts.x, mode="mxfp8"),
        lambda: mt.dequantize(*experts.packed.operands, 32),
    ]
    want = [job() for job in jobs]
    if device == "cuda":
        torch.cuda.synchronize()

    def work(first):
        for i in range(first, first + 200):
            same(jobs[i % 4](), want[i % 4])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
