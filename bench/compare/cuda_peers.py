#!/usr/bin/env python3
"""Times other libraries' CUDA kernels beside ours, in one process on one GPU, on the same numbers.

    bench/compare/cuda_peers.py --json FILE [--only dense,moe,segmented] [--seconds 70]

Ours are the functions of moeblas.torch. Beside them, where they can be had: torch.mm and torch's
grouped product on the dequantized weights in bfloat16, torch's int4 product, and humming-kernels,
which packs weights anew and compiles its kernels with nvcc while the others are timed. Weights are
random 4-bit codes in groups: "int4" (q - 8) * scale in groups of 64, which ours read as affine with
biases of -8 * scale, and mxfp4. Grouped products and humming's grouped form take rows that are
sorted already, humming's indexed form ids that are; ours sort in the call.

Every time is the median of replayed CUDA graphs; calls take weights and routings in turn, so that
what one reads is not in the cache from the last. Every answer is compared with float64 on some rows
first; what is wrong, or fails, has no time. Needs torch with CUDA and the package moeblas.
"""

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path

import torch
from humming_peer import Humming, aligned

import moeblas
import moeblas.torch as mt

BF16 = torch.bfloat16
FORMATS = ("int4", "mxfp4")
GROUP = {"int4": 64, "mxfp4": 32}
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
DENSE, ROWS = (8192, 16384), (1, 4, 16, 64, 4096)
LAYERS = {"qwen3-30b-a3b": (128, 8, 1536, 2048), "mixtral-8x7b": (8, 2, 28672, 4096)}  # E, k, N, K
TOKENS = (1, 8, 64, 512, 2048)
SHAPES = Path(__file__).resolve().parents[2] / "shapes" / "moe.txt"
MANY = 256  # rows from which on samples come after a rest, for the clocks of a rested device
CALLS = 20  # routings in turn


# ---- Weights ------------------------------------------------------------------------------------


class Weights:
    """Codes int32 (..., N, K / 8), eight of four bits each, the first in the lowest; and scales."""

    def __init__(self, form, shape, seed):
        generator = torch.Generator("cuda").manual_seed(seed)
        *lead, n, k = shape
        self.form, self.group = form, GROUP[form]
        self.codes = torch.empty((*lead, n, k // 8), dtype=torch.int32, device="cuda")
        self.codes.random_(-(2**31), 2**31 - 1, generator=generator)
        size = (*lead, n, k // self.group)
        if form == "mxfp4":
            self.scales = torch.randint(
                118, 123, size, generator=generator, dtype=torch.uint8, device="cuda"
            )
        else:
            uniform = torch.rand(size, generator=generator, device="cuda")
            self.scales = (uniform * 0.01 + 0.005).to(BF16)
            self.biases = self.scales * -8

    def ours(self):
        codes = self.codes.view(torch.uint32)
        if self.form == "mxfp4":
            return (codes, self.scales, None), {"mode": "mxfp4"}
        return (codes, self.scales, self.biases), {"group_size": self.group, "bits": 4}

    def values(self, expert=None):
        """float32, exact."""
        codes, scales = self.codes, self.scales
        if expert is not None:
            codes, scales = codes[expert], scales[expert]
        shifts = torch.arange(0, 32, 4, dtype=torch.int32, device="cuda")
        q = ((codes.unsqueeze(-1) >> shifts) & 15).flatten(-2)
        if self.form == "mxfp4":
            values, factors = (
                torch.tensor(E2M1, device="cuda")[q],
                torch.exp2(scales.float() - 127),
            )
        else:
            values, factors = q.float() - 8, scales.float()
        return values * factors.repeat_interleave(self.group, -1)

    def dense(self):
        if self.codes.dim() == 2:
            return self.values().to(BF16)
        return torch.stack([self.values(e).to(BF16) for e in range(len(self.codes))])


# ---- Clock and check ----------------------------------------------------------------------------


def median_us(call, calls, rested):
    """Of call(0), call(1) ... in one graph."""
    for i in range(calls):
        call(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    times = []
    for _ in range(9 if rested else 15):
        if rested:
            torch.cuda.synchronize()
            time.sleep(0.015)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def error_of(out, picks, reference):
    """Relative, by the root of the mean square, on some rows; infinite where a number is not one."""
    if not bool(out.isfinite().all()):
        return math.inf
    got = torch.stack([out[i] for i in picks]).double()
    return float((got - reference).norm() / reference.norm())


class Report:
    def __init__(self, file, commit):
        self.file = file
        self.result = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "library": moeblas.info().splitlines()[0],
            "commit": commit,
            "cases": [],
        }

    def run(self, case, name, make, calls, rested, picks, reference, work):
        """`make` returns call(i) -> output rows; call(0)'s are what `reference` is of."""
        row = {"case": case, "who": name}
        try:
            call = make()
            row["error"] = error_of(call(0), picks, reference)
            if not row["error"] < 1e-2:
                raise ValueError(f"wrong by {row['error']:.1e}")
            row["us"] = median_us(call, calls, rested)
            for key, amount in work.items():
                row[key] = amount / row["us"] * 1e6
            words = f"{row['us']:9.2f} us" + "".join(f"  {k} {row[k]:.3g}" for k in work)
        except Exception as problem:
            row["problem"] = words = f"{type(problem).__name__}: {problem}"[:200]
        print(f"{case:40} {name:24} {words}", flush=True)
        self.result["cases"].append(row)
        self.file.write_text(json.dumps(self.result, indent=1) + "\n")
        return row


# ---- Cases --------------------------------------------------------------------------------------


def sets_for(bytes_of_call, bytes_of_set):
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(1, min(16, math.ceil(3 * cache / bytes_of_call), int(16e9 // bytes_of_set)))


def int4_pack(w, x):
    """torch's own int4: even columns in the upper half of a byte, (scale, zero) by group and row."""
    b = w.codes.view(torch.uint8)
    packed = torch._convert_weight_to_int4pack((b << 4) | (b >> 4), 8)
    pairs = torch.stack([w.scales, torch.zeros_like(w.scales)], -1).transpose(0, 1).contiguous()
    return lambda: torch._weight_int4pack_mm(x, packed, w.group, pairs)


def dense_cases(report, humming, until):
    for size in DENSE:
        for form in FORMATS:
            stored = size * size * (4 + (16 if form == "int4" else 8) / GROUP[form]) / 8
            count = sets_for(stored, stored)
            weights = [Weights(form, (size, size), 100 + i) for i in range(count)]
            values = weights[0].values()
            dense = [w.dense() for w in weights[: max(1, min(count, 3))]]
            for m in ROWS:
                x = torch.randn((m, size), device="cuda").to(BF16)
                picks = sorted({0, m // 2, m - 1})
                reference = torch.stack([(values.double() @ x[i].double()) for i in picks])
                shared = (picks, reference, {"bytes_per_s": stored, "flop_per_s": 2 * m * size**2})
                rested = m >= MANY
                calls = 4 if rested else max(count, CALLS)
                case = f"dense {size} {form} M={m}"

                def ours(x=x, weights=weights):
                    given = [w.ours() for w in weights]

                    def call(i):
                        operands, words = given[i % len(given)]
                        return mt.quantized_matmul(x, *operands, **words)

                    return call

                report.run(case, "moeblas", ours, calls, rested, *shared)
                as_dense = {"bytes_per_s": 2 * size**2, "flop_per_s": 2 * m * size**2}
                report.run(
                    case, "torch.mm bfloat16",
                    lambda x=x, dense=dense: lambda i: torch.mm(x, dense[i % len(dense)].T),
                    calls, rested, picks, reference, as_dense,
                )  # fmt: skip
                if form == "int4" and m <= 64:

                    def packed(x=x, weights=weights):
                        made = [int4_pack(w, x) for w in weights]
                        return lambda i: made[i % len(made)]()

                    report.run(case, "torch int4pack", packed, calls, rested, *shared)
                if humming:
                    key = (form, 0, size, size, m, "dense")
                    report.run(
                        case, "humming",
                        lambda key=key, x=x, m=m, weights=weights: humming.caller(
                            key, weights, x, m, None, until
                        ),
                        calls, rested, *shared,
                    )  # fmt: skip
            del weights, dense, values
            torch.cuda.empty_cache()


def layer_cases(report, humming, until):
    for model, (experts, top_k, n, k) in LAYERS.items():
        for form in FORMATS:
            stored = n * k * (4 + (16 if form == "int4" else 8) / GROUP[form]) / 8
            weights = [Weights(form, (experts, n, k), 7)]
            dense = weights[0].dense().transpose(1, 2)
            for tokens in TOKENS:
                rows = tokens * top_k
                generator = torch.Generator("cuda").manual_seed(tokens)
                routings = [
                    torch.rand((tokens, experts), generator=generator, device="cuda")
                    .topk(top_k, 1)
                    .indices.int()
                    for _ in range(CALLS)
                ]
                x = torch.randn((tokens, k), device="cuda").to(BF16)
                orders = [r.flatten().argsort(stable=True) for r in routings]
                ends = [
                    torch.bincount(r.flatten().long(), minlength=experts).cumsum(0)
                    for r in routings
                ]
                given = [x[o // top_k].contiguous() for o in orders[:1]] * CALLS
                if tokens < MANY:
                    given = [x[o // top_k].contiguous() for o in orders]
                distinct = statistics.mean(len(r.unique()) for r in routings)
                places = sorted({0, rows // 2, rows - 1})

                def reference(pairs, routing=routings[0], x=x, weights=weights[0]):
                    flat = routing.flatten()
                    return torch.stack(
                        [
                            weights.values(int(flat[p])).double() @ x[p // top_k].double()
                            for p in pairs
                        ]
                    )

                by_pair = (places, reference(places))
                sorted_pairs = [int(orders[0][i]) for i in places]
                by_order = (places, reference(sorted_pairs))
                rested = rows >= MANY * 8
                calls = 3 if rested else CALLS
                work = {"bytes_per_s": distinct * stored, "flop_per_s": 2 * rows * n * k}
                case = f"{model} gate_up {form} T={tokens}"

                def ours(x=x, routings=routings, weights=weights[0]):
                    operands, words = weights.ours()
                    rows_of_x = x[:, None, None]
                    return lambda i: mt.gather_qmm(
                        rows_of_x, *operands, rhs_indices=routings[i], **words
                    ).flatten(0, 2)

                report.run(case, "moeblas", ours, calls, rested, *by_pair, work)
                as_dense = work | {"bytes_per_s": distinct * 2 * n * k}

                def grouped(given=given, ends=ends, dense=dense):
                    limits = [e.int() for e in ends]
                    return lambda i: torch._grouped_mm(given[i], dense, offs=limits[i])

                # Rows of one routing with the ends of others are as good, but not to be compared.
                report.run(
                    case, "torch grouped bfloat16", grouped, calls if tokens < MANY else 1,
                    rested, *by_order, as_dense,
                )  # fmt: skip
                if not humming:
                    continue

                def indexed(tuning, routings=routings):
                    return [aligned(r, experts, tuning["block_shape"][0]) | {"top_k": top_k} for r in routings]  # fmt: skip

                def contiguous(_tuning, ends=ends):
                    return [{"expert_layout": torch.nn.functional.pad(ends[0], (1, 0)).long()}]

                kinds = [("humming, indexed", "indexed", x, indexed, by_pair)]
                if tokens >= MANY:
                    kinds.append(
                        ("humming, sorted", "grouped_contiguous", given[0], contiguous, by_order)
                    )
                for who, kind, rows_of_x, arguments, expected in kinds:
                    key = (form, experts, n, k, rows, kind)
                    report.run(
                        case, who,
                        lambda key=key, w=weights, r=rows_of_x, rows=rows, a=arguments: humming.caller(
                            key, w, r, rows, a, until
                        ),
                        calls, rested, *expected, work,
                    )  # fmt: skip
            del weights, dense
            torch.cuda.empty_cache()


def segmented_cases(report):
    for line in SHAPES.read_text().splitlines():
        words = line.split()
        if words[:1] != ["segmented"]:
            continue
        size = {key: int(value) for key, value in (word.split("=") for word in words[2:])}
        m, n, k, segments = (size[key] for key in ("m", "n", "k", "segments"))
        moved = 2 * (m * k + k * n + segments * m * n)
        count = sets_for(moved, moved)
        a = [torch.randn((m, k), device="cuda").to(BF16) for _ in range(count)]
        b = [torch.randn((k, n), device="cuda").to(BF16) for _ in range(count)]
        length = k // segments
        ends = torch.arange(length, k + 1, length, dtype=torch.int32, device="cuda")
        ranges = torch.stack([ends - length, ends], -1)
        picks = [0, segments // 2, segments - 1]
        reference = torch.stack(
            [
                a[0][:, s * length : (s + 1) * length].double()
                @ b[0][s * length : (s + 1) * length].double()
                for s in picks
            ]
        )
        work = {"bytes_per_s": moved, "flop_per_s": 2 * m * n * k}
        shared = (max(count, 8), False, picks, reference, work)
        report.run(
            words[1], "moeblas",
            lambda: lambda i: mt.segmented_mm(a[i % count], b[i % count], ranges), *shared,
        )  # fmt: skip
        report.run(
            words[1], "torch grouped bfloat16",
            lambda: lambda i: torch._grouped_mm(a[i % count], b[i % count], offs=ends), *shared,
        )  # fmt: skip


def dense_rate(report, when):
    x, y = (torch.randn((8192, 8192), device="cuda").to(BF16) for _ in range(2))
    picks = [0, 4000, 8191]
    reference = torch.stack([x[i].double() @ y.double() for i in picks])
    report.run(
        f"8192 x 8192 x 8192, {when}", "torch.mm bfloat16", lambda: lambda i: torch.mm(x, y), 4,
        True, picks, reference, {"flop_per_s": 2 * 8192**3},
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--only", default="dense,moe,segmented")
    parser.add_argument("--seconds", type=float, default=300, help="to wait for others' compilers")
    parser.add_argument("--commit", help="what the package was built from")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    only = arguments.only.split(",")
    until = time.monotonic() + arguments.seconds
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    report = Report(arguments.json, arguments.commit)
    try:
        humming = Humming(arguments.workers, GROUP)
        report.result["humming"] = humming.version
    except Exception as problem:
        humming = None
        report.result["humming"] = f"not there: {problem}"[:200]
    if humming and "moe" in only:
        for experts, top_k, n, k in LAYERS.values():
            for form in FORMATS:
                for tokens in TOKENS:
                    humming.prepare(form, experts, n, k, tokens * top_k, "indexed")
                    if tokens >= MANY:
                        kind = "grouped_contiguous"
                        humming.prepare(form, experts, n, k, tokens * top_k, kind)
    if humming and "dense" in only:
        for size in DENSE:
            for form in FORMATS:
                for m in ROWS:
                    humming.prepare(form, 0, size, size, m, "dense")
    with torch.inference_mode():
        dense_rate(report, "before")
        if "segmented" in only:
            segmented_cases(report)
        if "moe" in only:
            layer_cases(report, humming, until)
        if "dense" in only:
            dense_cases(report, humming, until)
        dense_rate(report, "after")
    if humming:
        humming.pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
