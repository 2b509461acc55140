#!/usr/bin/env python3
"""Times our products of many rows beside torch's bfloat16 products, in one run on one GPU.

    bench/compare/torch_products.py --moeblas build/release/cli/moeblas --json FILE

Two regimes: cold (every sample after 15 ms of rest) and hot (after half a second of work). In each:
torch.mm of 8192 x 8192 x 8192 before and after, torch's grouped product on sorted rows with dense
weights where this torch has one, and `moeblas bench`, which checks its answers. Torch's answers are
compared with float64 on a few rows. A sample is one replay of a CUDA graph of about 2 ms, as in the
bench. Shares are of the higher torch.mm of the regime. Needs torch with CUDA; installs nothing.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch

REGIMES = {"cold": ["--rest", "0.015"], "hot": ["--heat", "0.5"]}
# E, N, K of gate and up
LAYERS = {"qwen3-30b-a3b": (128, 1536, 2048), "mixtral-8x7b": (8, 28672, 4096)}


def median_seconds(call, regime, samples=15):
    call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    calls = max(1, round(2.0 / start.elapsed_time(end)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    if regime == "hot":
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            graph.replay()
            torch.cuda.synchronize()
    times = []
    for _ in range(samples):
        torch.cuda.synchronize()
        if regime == "cold":
            time.sleep(0.015)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times)


def check(got, rows, weights):
    expected = rows.double() @ weights.double()
    error = (got.double() - expected).norm() / expected.norm()
    if not error < 1e-2:
        raise SystemExit(f"torch's product is off by {error:.2e}")


def torch_mm(regime):
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    seconds = median_seconds(lambda: torch.mm(a, b.T, out=out), regime)
    check(out[:16], a[:16], b.T)
    return {
        "name": "torch.mm 8192 x 8192 x 8192 bfloat16",
        "seconds": seconds,
        "flop_per_s": 2 * 8192**3 / seconds,
    }


def torch_grouped(regime, layer, rows):
    grouped = getattr(torch.nn.functional, "grouped_mm", getattr(torch, "_grouped_mm", None))
    if grouped is None:
        return None
    experts, n, k = LAYERS[layer]
    x = torch.randn(experts * rows, k, device="cuda").bfloat16()
    w = torch.randn(experts, n, k, device="cuda").bfloat16().transpose(1, 2)
    ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * rows
    seconds = median_seconds(lambda: grouped(x, w, offs=ends), regime)
    check(grouped(x, w, offs=ends)[:16], x[:16], w[0])
    return {
        "name": f"torch grouped_mm {layer} gate_up {rows} rows an expert bfloat16",
        "seconds": seconds,
        "flop_per_s": 2 * experts * rows * n * k / seconds,
    }


def ours(program, regime, arguments):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [program, "bench", "--device", "cuda", "--seconds", "0.15", "--json", file.name]
        subprocess.run(command + REGIMES[regime] + arguments, check=True, stdout=subprocess.DEVNULL)
        run = json.loads(Path(file.name).read_text())
    if run["wrong"]:
        raise SystemExit(f"wrong answers: {run['wrong']}")
    return run["library"], [
        {
            "name": r["name"],
            "kernel": r["kernel"],
            "seconds": r["seconds"]["median"],
            "flop_per_s": r["flop_per_s"],
            "worst_error_over_limit": r["check"]["worst_error_over_limit"],
        }
        for r in run["results"]
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moeblas", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--regimes", default="cold,hot")
    parser.add_argument("--op", help="of ours, this one alone")
    arguments = parser.parse_args()
    layers = "--dtype bfloat16 --routing even --op"
    cases = [
        f"{layers} gather_qmm --model qwen3-30b --tokens 512,1024,2048,4096,8192",  # 32 .. 512 rows
        f"{layers} gather_qmm --model mixtral --tokens 512,2048",
        f"{layers} gather_mm,grouped_mm --model qwen3-30b --tokens 8192",
        "--dtype bfloat16 --op quantized_matmul --shape 4096x8192x8192"
        " --format affine4-g64,affine8-g64,mxfp4,nvfp4,mxfp8",
    ]
    cases = [case.split() for case in cases]
    cases = [case for case in cases if arguments.op in (None, case[case.index("--op") + 1])]
    result = {
        "schema": 1,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "regimes": {},
    }
    for regime in arguments.regimes.split(","):
        rows = [torch_mm(regime)]
        rows += [torch_grouped(regime, "qwen3-30b-a3b", r) for r in (64, 512)]
        rows.append(torch_grouped(regime, "mixtral-8x7b", 512))
        for case in cases:
            torch.cuda.empty_cache()
            result["library"], more = ours(arguments.moeblas, regime, case)
            rows += more
        rows = [r for r in rows + [torch_mm(regime)] if r]
        peak = max(r["flop_per_s"] for r in rows if r["name"].startswith("torch.mm"))
        for r in rows:
            r["share"] = r["flop_per_s"] / peak
            print(
                f"{regime} {r['name']}: {r['seconds'] * 1e6:.1f} us, {r['flop_per_s'] / 1e12:.0f} TFLOP/s, {r['share']:.1%}",
                flush=True,
            )
        result["regimes"][regime] = rows
    with open(arguments.json, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
