#!/usr/bin/env python3
"""Times our products on the CPU beside torch's in one process, interleaved, on the same numbers.

    bench/compare/torch_cpu_products.py --workload decode --threads 1 --json FILE

torch's products with int4 weights (_weight_int4pack_mm_for_cpu, on our codes and scales) and with bfloat16 weights
(linear, which is oneDNN's), ours with affine 4-bit weights; bfloat16 activations. One row and 512 rows times 14336 x
4096; one row takes the next of four matrices each time. Every answer is compared with float64 on the weights that it was
given. A sample is as many calls as last 2 ms after 30 ms of calls that are not timed; medians. Needs torch and this
package; installs nothing.
"""

import argparse
import datetime
import itertools
import json
import math
import platform
import statistics
import time
from pathlib import Path

import torch

import moeblas

N, K, GROUP = 14336, 4096, 64
ROWS = {"decode": (1, 4), "prefill": (512, 1)}  # and matrices
WARM, SAMPLE, LONG = 0.030, 0.002, 0.050  # seconds
LIMIT = 2.0**-8  # of the relative RMS error: results are bfloat16


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def products(x, matrices):
    """(library, format, kernel, bits per weight, weights as numbers, calls) of each; a call per matrix."""
    ours, int4, dense = [], [], []
    for w in matrices:
        codes, scales, biases = moeblas.quantize(w, group_size=GROUP, bits=4)
        ours.append(
            lambda c=codes, s=scales, b=biases: moeblas.quantized_matmul(
                x, c, s, b, group_size=GROUP, bits=4
            )
        )
        nibbles = codes.view(torch.uint8)
        values = torch.stack([nibbles & 15, nibbles >> 4], -1).reshape(N, K)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.int(), 2)
        # torch's codes are centered on 8.
        zeros = (biases.float() + 8 * scales.float()).bfloat16()
        both = torch.stack([scales.T, zeros.T], -1).contiguous()
        int4.append(
            lambda p=packed, b=both: torch.ops.aten._weight_int4pack_mm_for_cpu(x, p, GROUP, b)
        )
        dense.append(lambda w=w: torch.nn.functional.linear(x, w))
    # Of the last matrix, which is the one that is checked.
    wide = values.double().reshape(N, K // GROUP, GROUP)
    s, b, z = (t.double().unsqueeze(-1) for t in (scales, biases, zeros))
    kernel = moeblas.explain(
        moeblas.quantized_matmul, x, codes, scales, biases, group_size=GROUP, bits=4
    ).kernel
    return [
        ("moeblas", "affine4 g64", kernel, 4.5, (wide * s + b).reshape(N, K), ours),
        ("torch", "int4 g64", "_weight_int4pack_mm", 4.5, ((wide - 8) * s + z).reshape(N, K), int4),
        ("torch", "bfloat16", "linear", 16, w.double(), dense),
    ]


class Timer:
    def __init__(self, calls):
        self.calls, self.count, self.last = itertools.cycle(calls), 1, 0.0

    def run(self, count):
        start = time.perf_counter()
        for _ in range(count):
            next(self.calls)()
        return time.perf_counter() - start

    def sample(self):
        start = time.perf_counter()
        while self.last < LONG and time.perf_counter() - start < WARM:
            self.run(1)
        self.last = self.run(self.count) / self.count
        self.count = max(1, math.ceil(SAMPLE / self.last))
        return self.last


def measure(workload, threads, seconds):
    rows, sets = ROWS[workload]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, K, generator=generator).bfloat16()
    matrices = [torch.randn(N, K, generator=generator).bfloat16() for _ in range(sets)]
    results, timers = [], []
    for library, form, kernel, bits, weights, calls in products(x, matrices):
        some = x[:: max(1, rows // 16)].double()
        expected = some @ weights.T
        got = calls[-1]()[:: max(1, rows // 16)].double()
        error = ((got - expected).norm() / expected.norm()).item()
        if not error <= LIMIT:
            raise SystemExit(
                f"{library} {form} is off by {error:.2e}, expected at most {LIMIT:.2e}"
            )
        timers.append(Timer(calls))
        results.append(
            {
                "library": library,
                "format": form,
                "kernel": kernel,
                "threads": threads,
                "bits_per_weight": bits,
                "relative_rms_error": error,
                "error_limit": LIMIT,
                "limit_is": "results are bfloat16",
            }
        )
    times = [[] for _ in timers]
    for _ in range(2):
        for timer in timers:
            timer.sample()
    for turn in range(25):
        for timer, taken in zip(timers, times, strict=True):
            if turn < 3 or sum(taken) < seconds:
                taken.append(timer.sample())
    flop = 2.0 * rows * N * K
    for result, taken in zip(results, times, strict=True):
        result["seconds"] = median = statistics.median(taken)
        result["min_seconds"] = min(taken)
        result["samples"] = len(taken)
        result["flop_per_s"] = flop / median
        result["weight_bytes_per_s"] = N * K * result["bits_per_weight"] / 8 / median
        print(
            f"{workload}, {threads} threads: {result['library']} {result['format']} {result['kernel']}"
            f" {median * 1e6:.1f} us, {flop / median / 1e9:.1f} GFLOP/s, error {result['relative_rms_error']:.1e}",
            flush=True,
        )
    return {
        "workload": {"name": workload, "rows": rows, "n": N, "k": K, "sets": sets, "flop": flop},
        "results": results,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--workload", choices=list(ROWS), required=True)
    parser.add_argument("--seconds", type=float, default=0.4, help="of samples for each product")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    moeblas.set_num_threads(arguments.threads)
    run = {
        "schema": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": cpu_model(),
        "libraries": {"moeblas": moeblas.__version__, "torch": torch.__version__},
        **measure(arguments.workload, arguments.threads, arguments.seconds),
    }
    Path(arguments.json).write_text(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
