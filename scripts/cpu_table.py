#!/usr/bin/env python3
"""The README's tables of what two CPU cores do, from the JSON that scripts/cpu_bench.sh writes.

python3 scripts/cpu_table.py            print them, in Markdown
python3 scripts/cpu_table.py --readme   write them into README.md
python3 scripts/cpu_table.py --check    fail if README.md has others
"""

import json

import readme_blocks
from gpu_tables import MEASUREMENTS, first, format_name, pivot, rounded

FILES = MEASUREMENTS / "cpu"


class Run:
    """One file: what the library's own choice gave."""

    def __init__(self, name):
        with open(FILES / f"{name}.json", encoding="utf-8") as file:
            run = json.load(file)
        if run["wrong"]:
            raise SystemExit(f"{name}.json has wrong answers")
        self.device, self.date = run["device"]["model"], run["date"][:10]
        self.commit = run["library"]["commit"]
        self.results = [result for result in run["results"] if result["chosen"]]
        self.ceilings = [
            (result["threads"], result["in_turn"]["bytes_per_s"])
            for result in self.results
            if "in_turn" in result
        ]


def threads(result):
    return "one thread" if result["threads"] == 1 else f"{result['threads']} threads"


def share_in_turn(result):
    """Of memory in turn with the samples, or of what arithmetic can do."""
    where = result["in_turn"] if "in_turn" in result else result["floor"]
    return where["share"]


def share(result):
    """The same, for threads that read of as many times one's rate if that is less."""
    return f"{100 * result.get('share_of_bandwidth', share_in_turn(result)):.0f} %"


def time(result):
    seconds = result["seconds"]["median"]
    if seconds >= 0.01:
        return f"{rounded(seconds * 1e3)} ms"
    return f"{seconds * 1e6:.0f} us"


def time_and_share(result):
    return f"{time(result)}, {share(result)}"


def rate_and_share(result):
    return f"{result['flop_per_s'] / 1e9:.0f} GFLOP/s, {share(result)}"


def of_formats(results, cell):
    """A row for each number of threads, a column for each format."""
    return pivot("", results, threads, lambda r: format_name(r["format"]), cell)


def case(result, what=""):
    """What a row of a table of cases is called."""
    sizes, op = result["sizes"], result["op"]
    words = [op]
    if op == "moe_ffn":
        words.append(f"Qwen3-30B, {result['tokens']} tokens")
    elif "segments" in sizes:
        words.append(f"{sizes['M']} x {sizes['N']} x {sizes['K']} x {sizes['segments']}")
    elif "E" in sizes:
        words.append(
            f"{result['tokens']} tokens, {sizes['experts_used']} of {sizes['E']} experts of"
            f" {sizes['N']} x {sizes['K']}"
        )
    else:
        words.append(f"{sizes['M']} rows, {sizes['N']} x {sizes['K']}")
    if result["format"]:
        words.append(format_name(result["format"]))
    words.append(f"{result['dtype']} x")
    text = ", ".join(words) + (f", {what}" if what else "")
    return text.replace(", 1 tokens", ", 1 token").replace(", 1 rows", ", 1 row")


def cell(result):
    memory = result["floor"]["bound"] in ("read", "copy")
    return time_and_share(result) if memory else f"{time(result)}, {rate_and_share(result)}"


def tables():
    first = Run("decode")
    others = sorted(
        {
            json.loads(f.read_text(encoding="utf-8"))["library"]["commit"][:7]
            for f in FILES.glob("*.json")
        }
        - {first.commit[:7]}
    )
    commits = first.commit[:7] + (f" (some {', '.join(others)})" if others else "")
    brought = {
        count: sorted(rate for of, rates in first.ceilings if of == count for rate in rates)
        for count in (1, 2)
    }
    one, two = (f"{r[len(r) // 2] / 1e9:.0f}" for r in brought.values())
    yield f"{first.device}, {first.date}, commit {commits}: `scripts/cpu_bench.sh` (`docs/measurements/cpu/*.json`), every answer"
    yield "checked, weights in 2 MiB pages and rotated beyond the last-level cache, bfloat16 x unless said. Memory is shared with"
    yield f"others and changes its speed within seconds: in the first table it brought {one} GB/s to one thread and {two} to two, in the middle."
    yield "So a share of memory is the median over samples of what a sample moved, of what a plain loop of reads, or of copies, did"
    yield "just before and after it ([how](bench/README.md)), of two threads that read, of the smaller of this and of twice the rate"
    yield "that one has; a share of arithmetic is of the highest rate of multiply-adds in the same run."
    yield ""
    yield "**quantized_matmul, one row, 14336 x 4096**, time, share of reads in turn:"
    yield ""
    yield from of_formats(first.results, time_and_share)
    yield ""
    yield "**The same, rows of w twice their length apart**, time, share of reads without gaps in turn:"
    yield ""
    yield from of_formats(
        Run("decode_slices").results, lambda r: f"{time(r)}, {100 * share_in_turn(r):.0f} %"
    )
    yield ""
    yield "**quantized_matmul, 512 rows, 14336 x 4096**, GFLOP/s, share of arithmetic:"
    yield ""
    yield from of_formats(
        Run("prefill").results, lambda r: rate_and_share(r).replace(" GFLOP/s", "")
    )
    yield ""
    yield "**Conversions of 4096 x 4096 values**, time, share of copies in turn:"
    yield ""
    yield from pivot(
        "",
        Run("conversions").results,
        lambda r: f"{r['op']}, {threads(r)}",
        lambda r: format_name(r["format"]),
        time_and_share,
    )
    yield ""
    yield "**Others**"
    yield ""
    kinds = {
        "decode_dtypes": "",
        "decode_rows": "",
        "decode_experts": "",
        "decode_floats": "",
        "few_rows_experts": "",
        "prefill_dtypes": "",
        "prefill_fast": "`fast`",
        "prefill_experts": "",
        "prefill_experts_fast": "`fast`",
        "prefill_floats": "",
        "layers": "",
        "segmented": "",
        "qqmm": "",
        "avx2_decode": "AVX2 alone",
        "avx2_prefill": "AVX2 alone",
    }
    results = [
        {**result, "case": case(result, what)}
        for name, what in kinds.items()
        for result in Run(name).results
    ]
    yield from pivot("", results, lambda r: r["case"], threads, cell)


def short():
    """A few rows of the tables, for whoever reads no further."""

    def row(what, name, figure, **wanted):
        return f"| {what} | {figure(first(Run(name).results, **wanted))} |"

    def of_reads(result):
        return f"{time(result)}, {share(result)} of the rate of reads"

    def rate(result):
        return f"{time(result)}, {rate_and_share(result)} of the rate of multiply-adds"

    wanted = dict(threads=2, format="affine4g64", dtype="bfloat16")
    yield "| two cores of an AMD EPYC (Zen 5), affine 4-bit weights in groups of 64, bfloat16 activations | |"
    yield "|---|---|"
    yield row("one row times 14336 x 4096", "decode", of_reads, **wanted)
    yield row("an expert layer of Qwen3-30B, 1 token", "layers", of_reads, tokens=1, **wanted)
    yield row("512 rows times 14336 x 4096", "prefill", rate, **wanted)


if __name__ == "__main__":
    readme_blocks.main(__doc__, "cpu_table.py", {"cpu in short": short, "cpu": tables})
