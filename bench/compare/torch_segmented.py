#!/usr/bin/env python3
"""Times torch beside `moeblas bench --op segmented_mm`, on one GPU, by the same rules.

  bench/compare/torch_segmented.py --json FILE [--rest SECONDS] [--seed N]

For each shape of shapes/moe.txt, and one as training has it, segments of equal length:
torch._grouped_mm of two matrices, and one torch.mm per segment. Also torch.mm of 8192 cubed,
the rate that the card gives dense bfloat16. Replayed CUDA graphs over buffer sets that exceed three
L2 caches, random data, medians of 20 samples, each after --rest seconds of idleness; answers are
compared with float64 at random places before anything is timed. Needs torch with CUDA and nothing
of moeblas but the shapes.
"""

import argparse
import json
import pathlib
import random
import statistics
import time

import torch

SHAPES = pathlib.Path(__file__).resolve().parents[2] / "shapes" / "moe.txt"
TRAINING = ("2048x7168x32768x8", 2048, 7168, 32768, 8)
DENSE = 8192
SAMPLES = 20


def shapes():
    for line in SHAPES.read_text().splitlines():
        words = line.split()
        if words[:1] == ["segmented"]:
            size = dict(word.split("=") for word in words[2:])
            yield (words[1], *(int(size[key]) for key in ("m", "n", "k", "segments")))
    yield TRAINING


def median_us(calls, rest):
    """Of one of `calls`, which work on buffers of their own."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(SAMPLES + 2):
        time.sleep(rest)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / len(calls))
    return statistics.median(times[2:])


def check(out, a, b, length, rng):
    segments, m, n = out.shape
    for _ in range(64):
        s, i, j = rng.randrange(segments), rng.randrange(m), rng.randrange(n)
        k = slice(s * length, (s + 1) * length)
        x, y = a[i, k].double(), b[k, j].double()
        expected = (x @ y).item()
        limit = 2.0**-8 * abs(expected) + length * 2.0**-23 * (x.abs() @ y.abs()).item()
        if not abs(out[s, i, j].item() - expected) <= limit:
            raise SystemExit(f"torch has {out[s, i, j].item()} at {s, i, j}, not {expected}")


def run_shape(m, n, k, segments, args):
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(2, min(64, -(-3 * cache // (2 * (m * k + k * n + segments * m * n)))))
    length = k // segments

    def make(*shape):
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda")

    a, b = [make(m, k) for _ in range(sets)], [make(k, n) * 0.125 for _ in range(sets)]
    ends = torch.arange(length, k + 1, length, dtype=torch.int32, device="cuda")
    outs = [make(segments, m, n) for _ in range(sets)]
    rng = random.Random(args.seed)

    def grouped(i):
        # A new tensor, as this function has no place for one: the graph's own memory.
        return torch._grouped_mm(a[i], b[i], offs=ends, out_dtype=torch.bfloat16)

    def loop(i):
        for s in range(segments):
            part = slice(s * length, (s + 1) * length)
            torch.mm(a[i][:, part], b[i][part], out=outs[i][s])

    result = {}
    for name, call in (("grouped_mm", grouped), ("loop_of_mm", loop)):
        out = call(0)
        torch.cuda.synchronize()
        check(outs[0] if out is None else out, a[0], b[0], length, rng)
        del out
        us = median_us([lambda i=i, call=call: call(i) for i in range(sets)], args.rest)
        result[name] = {"us": us, "tflops": 2 * m * n * k / us / 1e6}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True, type=pathlib.Path)
    parser.add_argument("--rest", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    x, y = (torch.randn(DENSE, DENSE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(x)
    us = median_us([lambda: torch.mm(x, y, out=out)], args.rest)
    dense = 2 * DENSE**3 / us / 1e6
    print(f"torch {torch.__version__}, mm {DENSE}^3: {dense:.0f} TFLOP/s", flush=True)
    cases = []
    for name, m, n, k, segments in shapes():
        row = {"shape": name, "m": m, "n": n, "k": k, "segments": segments}
        row |= run_shape(m, n, k, segments, args)
        cases.append(row)
        words = [f"{key} {row[key]['us']:.1f} us" for key in ("grouped_mm", "loop_of_mm")]
        print(name, ", ".join(words), flush=True)
    args.json.write_text(json.dumps({
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rest_seconds": args.rest,
        "dtype": "bfloat16",
        "mm_8192_tflops": dense,
        "cases": cases,
    }, indent=1) + "\n")


if __name__ == "__main__":
    main()
