#!/usr/bin/env python3
"""What a call from Python costs more than the same call from C, and what importing the package costs.

    python python/bench/overhead.py [--json FILE]

A gather_qmm so small that the way to it is most of it (one token, one expert of two, 8 outputs of 32
inputs), on one thread. Rows take turns, 40 times, a few milliseconds each; the table has medians. The C
call runs in overhead.c, which is compiled here against the library that the package has loaded. Every
answer is compared with the C call's.
"""

import argparse
import ctypes
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np

import moeblas as mb

HERE = Path(__file__).resolve().parent
ROUNDS, CALLS = 40, 2000


def c_call():
    """overhead.c's function, linked with the loaded library."""
    maps = Path("/proc/self/maps").read_text()
    library = re.search(r"(/\S*libmoeblas\S*)", maps)[1]
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder) / "overhead.so"
        include = HERE.parents[1] / "include"
        command = ["cc", "-O2", "-shared", "-fPIC", "-I", include, HERE / "overhead.c", library]
        subprocess.run([*command, f"-Wl,-rpath,{Path(library).parent}", "-o", shared], check=True)
        function = ctypes.CDLL(str(shared)).seconds
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 6
    return function


class Exported:
    """An array that is not numpy's to look at, with numpy's own capsule."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def seconds(call):
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - start


def calls_us():
    """Microseconds of every row, the C call's first."""
    mb.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 1, 1, 32), np.float32)
    packed = mb.quantize(rng.standard_normal((2, 8, 32), np.float32), 32)
    ids = np.ones((1, 1), np.int32)
    out, from_c = np.empty((1, 1, 1, 8), np.float32), np.empty((1, 1, 1, 8), np.float32)
    x_bf16 = x.astype(ml_dtypes.bfloat16)
    exported = [Exported(a) for a in (x, *packed, ids, out)]
    function = c_call()
    addresses = [a.ctypes.data for a in (x, *packed, ids, from_c)]

    def gather(x, w_q, scales, biases, ids, **more):
        return mb.gather_qmm(x, w_q, scales, biases, rhs_indices=ids, group_size=32, **more)

    rows = {
        "C": None,
        "numpy": lambda: gather(x, *packed, ids),
        "numpy, out=": lambda: gather(x, *packed, ids, out=out),
        "numpy bfloat16": lambda: gather(x_bf16, *packed, ids),
        "DLPack, out=": lambda: gather(*exported[:5], out=exported[5]),
    }
    times = {name: [] for name in rows}
    for _ in range(ROUNDS):
        for name, call in rows.items():
            taken = seconds(call) if call else function(*addresses, 1, 1, 2, 8, 32, CALLS)
            times[name].append(taken / CALLS * 1e6)
    assert np.array_equal(gather(x, *packed, ids), from_c) and np.array_equal(out, from_c)
    return {name: statistics.median(t) for name, t in times.items()}


def import_ms():
    """Milliseconds that `import moeblas` takes after numpy, and numpy itself."""
    program = "import time; a = time.perf_counter(); import numpy; b = time.perf_counter(); import moeblas; c = time.perf_counter(); print(b - a, c - b)"
    runs = [
        [float(t) * 1e3 for t in subprocess.check_output([sys.executable, "-c", program]).split()]
        for _ in range(15)
    ]
    return [statistics.median(column) for column in zip(*runs)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    calls, (numpy_ms, moeblas_ms) = calls_us(), import_ms()
    print(f"{'gather_qmm of 8 x 32':24} {'us':>7} {'over C':>7}")
    for name, us in calls.items():
        print(f"{name:24} {us:7.2f} {us - calls['C']:7.2f}")
    print(f"import moeblas {moeblas_ms:.1f} ms after numpy's {numpy_ms:.1f} ms")
    if arguments.json:
        machine = {"python": platform.python_version(), "numpy": np.__version__}
        figures = {"us": calls, "import_ms": {"numpy": numpy_ms, "moeblas": moeblas_ms}}
        arguments.json.write_text(json.dumps({**machine, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
