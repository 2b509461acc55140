#!/usr/bin/env python3
"""What a call of a torch operator costs, under inference_mode, where nothing else takes time.

    python python/bench/torch_overhead.py [--device cuda] [--json FILE]

A gather_qmm so small that the way to it is most of it (one token, one expert of two, 8 outputs of 32
inputs), on one thread; on CUDA the time until the call returns, not the kernel's. Rows take turns, 40
times, and the table has medians. Every answer is compared with that of the dequantized weights.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch

import moeblas
import moeblas.torch as mt

ROUNDS, CALLS = 40, 500


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    device = arguments.device
    moeblas.set_num_threads(1)

    w, scales, biases = mt.quantize(torch.randn(2, 8, 32), group_size=32)
    x, ids = torch.randn(1, 1, 1, 32), torch.tensor([[1]])

    # What float32 sums of 32 products may lose, made of scale * code and bias apart.
    def row(scales, biases, x):
        return mt.dequantize(w, scales, biases, 32)[1].double() @ x.flatten().double()

    exact = row(scales, biases, x)
    bound = row(scales.abs(), biases.abs(), x.abs()) * 36 * 2.0**-24
    x, w, scales, biases, ids = (t.to(device) for t in (x, w, scales, biases, ids))
    operator = torch.ops.moeblas.gather_qmm.default
    empty = torch.empty
    rows = {
        "torch.empty, for comparison": lambda: empty((1, 1, 1, 8), device=device),
        "torch.ops.moeblas.gather_qmm": lambda: operator(
            x, w, scales, biases, None, ids, True, 32),
        "moeblas.torch.gather_qmm": lambda: mt.gather_qmm(
            x, w, scales, biases, None, ids, group_size=32),
        "moeblas.gather_qmm, through DLPack": lambda: moeblas.gather_qmm(
            x, w, scales, biases, None, ids, group_size=32),
    }  # fmt: skip
    kernel = moeblas.explain(
        moeblas.gather_qmm, x, w, scales, biases, None, ids, group_size=32
    ).kernel
    times = {name: [] for name in rows}
    with torch.inference_mode():
        for name, call in rows.items():
            if "gather" in name:
                if not bool(((call().flatten().cpu() - exact).abs() <= bound).all()):
                    raise SystemExit(f"{name} gives a wrong answer")
        for _ in range(ROUNDS):
            for name, call in rows.items():
                if device != "cpu":
                    torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                times[name].append((time.perf_counter() - start) / CALLS)
    medians = {name: statistics.median(t) * 1e6 for name, t in times.items()}
    print(f"registered from {mt.registration}, torch {torch.__version__}, {device}")
    for name, us in medians.items():
        print(f"{name:40} {us:6.2f} us")
    if arguments.json:
        machine = {"python": platform.python_version(), "torch": torch.__version__}
        machine["device"] = torch.cuda.get_device_name() if device == "cuda" else device
        machine["kernel"] = kernel
        figures = {"registration": mt.registration, "us": medians}
        arguments.json.write_text(json.dumps({**machine, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
