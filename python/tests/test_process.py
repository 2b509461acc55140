"""Threads, references and memory."""

import ctypes
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import moeblas as mb
from dlpack import Namespaced

CALLS = 10_000


def operands(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((6, 1, 1, 64)).astype(np.float32)
    ids = rng.integers(0, 4, (6, 2))
    return x, mb.quantize(rng.standard_normal((4, 16, 64)).astype(np.float32)), ids


def test_threads_get_the_same_results():
    """Different operations at once, each many times, all equal to what one thread computes."""
    x, packed, ids = operands()
    bf = x.astype(ml_dtypes.bfloat16)
    route = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    jobs = [
        lambda: mb.gather_qmm(x, *packed, rhs_indices=ids),
        lambda: mb.gather_qmm(bf, *packed, rhs_indices=ids),
        lambda: mb.dequantize(*packed),
        lambda: mb.quantize(x, mode="mxfp8")[0],
        lambda: mb.qqmm(x[:, 0, 0], x[0, 0], mode="mxfp8"),
        lambda: mb.moe_route(route, 2)[1],
        lambda: np.asarray(mb.gather_qmm(Namespaced(x), *packed, rhs_indices=ids)),
        lambda: np.array(0 if _refused(packed) else 1),
    ]
    want = [job() for job in jobs]
    start = threading.Barrier(8)

    def work(first):
        start.wait()
        return all(np.array_equal(want[i % 8], jobs[i % 8]()) for i in range(first, first + 400))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def _refused(packed):
    try:
        mb.dequantize(*packed, bits=3)
    except ValueError as error:
        return str(error).startswith("[dequantize] ")
    return False


def test_other_threads_run_during_a_call():
    """This thread sees a result that is not there yet: with the lock held it would see it finished."""
    rng = np.random.default_rng(2)
    before = sys.getswitchinterval()
    sys.setswitchinterval(10)  # the lock changes hands where it is given up, and nowhere else
    try:
        for size in (256, 512, 1024, 2048):
            a = rng.standard_normal((size, size)).astype(np.float32)
            for _ in range(10):
                out, inside = np.full((size, size), np.nan, np.float32), threading.Event()

                def work(a=a, out=out, inside=inside):
                    inside.set()
                    mb.gather_mm(a, a, out=out)

                worker = threading.Thread(target=work)
                worker.start()
                inside.wait()
                unfinished = np.isnan(out).any()
                worker.join()
                assert not np.isnan(out).any()
                if unfinished:
                    return
    finally:
        sys.setswitchinterval(before)
    pytest.fail("no call was seen unfinished")


class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost",
    )]  # fmt: skip


def in_use():
    """Bytes that malloc has given out, and Python's own blocks."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Heap
    heap = libc.mallinfo2()
    return heap.uordblks + heap.hblkhd, sys.getallocatedblocks()


def refused(call):
    def run():
        with pytest.raises(ValueError):
            call()

    return run


X, PACKED, IDS = operands()
DLPACK = [Namespaced(a) for a in (X, *PACKED)]
OUT = mb.gather_qmm(X, *PACKED, rhs_indices=IDS)
JOBS = {
    "numpy": lambda: mb.gather_qmm(X, *PACKED, rhs_indices=IDS),
    "out": lambda: mb.gather_qmm(X, *PACKED, rhs_indices=IDS, out=OUT),
    "quantize": lambda: mb.quantize(X),
    "dlpack": lambda: [mb.gather_qmm(*DLPACK, rhs_indices=IDS), *(e.asked.clear() for e in DLPACK)],
    "options": lambda: mb.to_fp8(X, precision="exact", kernel=None, deterministic=True),
    "explain": lambda: mb.explain(mb.to_fp8, X),
    "refused by the core": refused(lambda: mb.gather_qmm(X, *PACKED, rhs_indices=IDS, bits=3)),
    "refused on its way": refused(lambda: mb.gather_qmm(X, *PACKED, rhs_indices=IDS, mode="")),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
@pytest.mark.parametrize("job", JOBS)
def test_references_and_memory_stay_as_they_were(job):
    run = JOBS[job]
    held = [X, IDS, OUT, *PACKED, *DLPACK, X.dtype, IDS.dtype, PACKED[0].dtype]
    for _ in range(200):
        run()
    (heap, blocks), references = in_use(), [sys.getrefcount(a) for a in held]
    for _ in range(CALLS):
        run()
    # The least that a call could lose is one block.
    after = in_use()
    assert after[1] - blocks < CALLS // 10
    assert after[0] - heap < 4 * CALLS
    assert [sys.getrefcount(a) for a in held] == references


def test_number_of_threads():
    before = mb.get_num_threads()
    try:
        x, packed, ids = operands()
        want = mb.gather_qmm(x, *packed, rhs_indices=ids)
        for n in (1, 2, 3):
            mb.set_num_threads(n)
            assert mb.get_num_threads() == n
            np.testing.assert_array_equal(mb.gather_qmm(x, *packed, rhs_indices=ids), want)
        mb.set_num_threads(None)
        assert mb.get_num_threads() >= 1
        with pytest.raises(TypeError, match=r"\[set_num_threads\] n is a str"):
            mb.set_num_threads("two")
    finally:
        mb.set_num_threads(before)
