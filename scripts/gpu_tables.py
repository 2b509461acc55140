#!/usr/bin/env python3
"""The README's tables of what a Hopper GPU does: ours from the JSON that scripts/gpu_bench.sh writes, and beside
other libraries from that of bench/compare/cuda_peers.py.

python3 scripts/gpu_tables.py            print them, in Markdown
python3 scripts/gpu_tables.py --readme   write them into README.md
python3 scripts/gpu_tables.py --check    fail if README.md has others
"""

import json

import readme_blocks

MEASUREMENTS = readme_blocks.README.parent / "docs" / "measurements"
MODELS = {
    "qwen3-30b-a3b": "Qwen3-30B",
    "mixtral-8x7b": "Mixtral-8x7B",
    "deepseek-v3": "DeepSeek-V3",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b",
    "olmoe-1b-7b": "OLMoE",
}


def format_name(text):
    """affine4g64 -> 4-bit; a group that is not the usual 64 is named."""
    if not text or not text.startswith("affine"):
        return text or ""
    bits, group = text.removeprefix("affine").split("g")
    return f"{bits}-bit" + ("" if group == "64" else f", groups of {group}")


def rounded(value):
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def us(result):
    return rounded(result["seconds"]["median"] * 1e6)


def tflops(result):
    return f"{result['flop_per_s'] / 1e12:.0f}"


def share(result):
    return f"{100 * result['floor']['share']:.0f} %"


def both(result):
    return f"{us(result)} ({share(result)})"


class Run:
    """One file: the results that the library's own choice gave, or all of them."""

    def __init__(self, name):
        with open(MEASUREMENTS / "h200" / f"{name}.json", encoding="utf-8") as file:
            run = json.load(file)
        if run["wrong"]:
            raise SystemExit(f"{name}.json has wrong answers")
        self.device, self.date = run["device"]["model"], run["date"][:10]
        self.commit = run["library"]["commit"]
        rested = ", rested" if run["regime"]["rest_seconds"] > 0 else ""
        self.results = [{**result, "rested": rested} for result in run["results"]]
        ceilings = [g[w] for g in run["groups"] for w in ("ceilings_before", "ceilings_after")]
        self.read = max(c["read_bytes_per_s"] for c in ceilings)


def pivot(head, results, row, column, cell):
    """A table whose rows and columns are what `row` and `column` make of a result, in the order in which they
    come first; columns that are numbers, in theirs."""
    rows, columns = {}, []
    for result in results:
        key = column(result)
        if key not in columns:
            columns.append(key)
        rows.setdefault(row(result), {})[key] = cell(result)
    if all(isinstance(key, int) for key in columns):
        columns.sort()
    lines = [f"| {head} | " + " | ".join(str(key) for key in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name, cells in rows.items():
        lines.append(f"| {name} | " + " | ".join(cells.get(key, "") for key in columns) + " |")
    return lines


def model_and_format(result):
    return f"{MODELS[result['shape']]}, {format_name(result['format'])}"


def matrix_and_format(result):
    sizes = result["sizes"]
    return f"{sizes['N']} x {sizes['K']}, {format_name(result['format'])}"


def rows_per_expert(result):
    return result["sizes"]["M"] // result["sizes"]["E"]


def commits():
    """The commit that most files are of, and which files are of another."""
    names = {}
    for path in sorted((MEASUREMENTS / "h200").glob("*.json")):
        names.setdefault(Run(path.stem).commit[:7], []).append(path.stem)
    most = max(names, key=lambda commit: len(names[commit]))
    others = [
        f"; of {commit} " + ", ".join(f"`{n}`" for n in names[commit])
        for commit in names
        if commit != most
    ]
    return f"commit {most}" + "".join(others)


def tables():
    def run(*names):
        # A group is new until it has been measured.
        measured = (n for n in names if (MEASUREMENTS / "h200" / f"{n}.json").exists())
        return [result for name in measured for result in Run(name).results]

    def tokens(result):
        return result["tokens"]

    def shape(result):
        return result["shape"].removeprefix("seg-").replace("x", " x ")

    decode = Run("decode_experts")
    yield f"{decode.device}, {decode.date}, {commits()}: `scripts/gpu_bench.sh`"
    yield "(`docs/measurements/h200/*.json`), replayed graphs, weights and routings rotated beyond the L2 cache,"
    yield f"every answer checked, bfloat16 activations unless said, reads {decode.read / 1e12:.2f} TB/s in the same run."
    yield ""
    yield "**gather_qmm, gate and up, uniform routing**, us (share of reads), at tokens:"
    yield ""
    yield from pivot("", decode.results, model_and_format, tokens, both)
    yield ""
    yield "**quantized_matmul, few rows of one matrix**, us (share of the floor), at rows:"
    yield ""
    few = run("decode_matrix", "few_rows")
    yield from pivot("", few, matrix_and_format, tokens, both)
    yield ""
    yield "**The same, one row, other widths and activations**, us (share of reads):"
    yield ""
    yield from pivot(
        "",
        run("decode_widths", "decode_dtypes"),
        lambda r: f"{r['sizes']['N']} x {r['sizes']['K']}",
        lambda r: (
            format_name(r["format"]) + ("" if r["dtype"] == "bfloat16" else f", {r['dtype']} x")
        ),
        both,
    )
    yield ""
    yield "**quantized_matmul, 4096 rows of 8192 x 8192**, TFLOP/s, device rested before each sample:"
    yield ""
    yield from pivot(
        "",
        run("many_rows", "many_rows_sm80"),
        lambda r: f"`{r['kernel'].replace('_fields', '')}`",
        lambda r: format_name(r["format"]),
        tflops,
    )
    yield ""
    yield "**gather_qmm, gate and up, even routing, sorting and gathering included**, us (TFLOP/s), rested, at rows per expert:"
    yield ""
    yield from pivot(
        "",
        [
            result
            for result in run("prefill_qwen3", "prefill_mixtral", "prefill_others")
            if result["routing"] == "even"
        ],
        model_and_format,
        rows_per_expert,
        lambda r: f"{us(r)} ({tflops(r)})",
    )
    yield ""
    yield "**The same, Qwen3-30B, by routing** (models with a seed, not recordings), at tokens:"
    yield ""
    yield from pivot(
        "",
        run("prefill_qwen3"),
        lambda r: f"{format_name(r['format'])}, {r['routing']}",
        tokens,
        us,
    )
    yield ""
    yield "**moe_ffn, a whole expert layer, uniform routing**, us, at tokens:"
    yield ""
    yield from pivot(
        "",
        run("layers", "layers_many"),
        model_and_format,
        lambda r: f"{r['tokens']}{r['rested']}",
        us,
    )
    yield ""
    yield "**segmented_mm**, us, M x N x K x segments:"
    yield ""
    kinds = {
        "segmented": "{dtype}",
        "segmented_fast": "{dtype}, `fast`",
        "segmented_exact": "{dtype}, `exact`",
        "segmented_cuts": "{dtype}, cut at random",
    }
    results = [
        {**result, "kind": kind.format(dtype=result["dtype"]) + result["rested"]}
        for name, kind in kinds.items()
        for result in run(name)
    ]
    yield from pivot("", results, lambda r: r["kind"], shape, us)
    yield ""
    yield "**Dense weights, and segments, Qwen3-30B, gate and up**, bfloat16, us and TFLOP/s, by rows of a matrix, rested"
    yield ""
    results = [
        {**result, "kind": f"{result['op']}, {kind}{result['routing']}"}
        for name, dense in (("dense_experts", True), ("segments", False))
        for result in run(name)
        for kind in ["" if dense else format_name(result["format"]) + ", "]
    ]
    yield from pivot(
        "", results, lambda r: r["kind"], rows_per_expert, lambda r: f"{us(r)}; {tflops(r)}"
    )
    yield ""
    yield "**Others**"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for result in run("segmented_training"):
        yield f"| segmented_mm, {shape(result)}, bfloat16, rested | {tflops(result)} TFLOP/s |"
    for result in run("prefill_sustained"):
        yield f"| gather_qmm, {model_and_format(result)}, {rows_per_expert(result)} rows per expert, sustained | {us(result)} us, {tflops(result)} TFLOP/s |"
    for result in run("layers_sustained"):
        yield f"| moe_ffn, {model_and_format(result)}, T = {result['tokens']}, sustained | {us(result)} us |"
    for one, what in ((Run("qqmm"), ""), (Run("qqmm_fast"), ", `fast`")):
        # qqmm_packed once, as it was timed in turn with qqmm.
        cases = {}
        for result in one.results:
            if result["op"].startswith("qqmm"):
                cases.setdefault((result["op"], result["format"]), result)
        for result in cases.values():
            packed = ", x packed before" if result["op"] == "qqmm_packed" else ""
            case = f"{result['format']}{what}{packed}"
            yield f"| qqmm, 16384 x 9728 x 2560, {case} | {us(result)} us |"
    for result in run("decode_slices"):
        yield f"| gather_qmm, {model_and_format(result)}, T = {result['tokens']}, rows of w twice their length apart | {us(result)} us ({share(result)}) |"
    yield ""
    yield "**Conversions of 8192 x 8192 bfloat16 values**, share of a copy's bandwidth:"
    yield ""
    yield from pivot(
        "",
        run("conversions"),
        lambda r: r["op"],
        lambda r: format_name(r["format"]),
        share,
    )


def first(results, **wanted):
    """The first result whose fields are these."""
    for result in results:
        if all(result[key] == value for key, value in wanted.items()):
            return result
    raise SystemExit(f"nothing measured has {wanted}")


def short():
    """A few rows of the tables, for whoever reads no further."""

    def row(what, name, figure, **wanted):
        return f"| {what} | {figure(first(Run(name).results, **wanted))} |"

    def of_reads(result):
        return f"{us(result)} us, {share(result)} of the rate of reads"

    def rate(result):
        return f"{us(result)} us, {tflops(result)} TFLOP/s"

    affine = dict(format="affine4g64")
    mixtral = dict(shape="mixtral-8x7b", **affine)
    qwen3 = dict(shape="qwen3-30b-a3b", **affine)
    yield "| one H200, affine 4-bit weights in groups of 64, bfloat16 activations | |"
    yield "|---|---|"
    one_row = dict(shape="dense-16384x16384", tokens=1, **affine)
    yield row("one row times 16384 x 16384", "decode_matrix", of_reads, **one_row)
    yield row(
        "gate and up of Mixtral-8x7B, 1 token", "decode_experts", of_reads, tokens=1, **mixtral
    )
    yield row("gate and up of Qwen3-30B, 64 tokens", "decode_experts", of_reads, tokens=64, **qwen3)
    yield row(
        "an expert layer of Qwen3-30B, 1 token",
        "layers",
        lambda r: f"{us(r)} us",
        tokens=1,
        **qwen3,
    )
    yield row(
        "gate and up of Mixtral-8x7B, 512 rows an expert",
        "prefill_mixtral",
        rate,
        tokens=2048,
        routing="even",
        **mixtral,
    )
    yield row("4096 rows times 8192 x 8192", "many_rows", rate, **affine)


def peers_run():
    with open(MEASUREMENTS / "compare_h200_cuda_peers.json", encoding="utf-8") as file:
        return json.load(file)


PEERS = {
    "moeblas": "ours",
    "humming, indexed": "humming, ids sorted before",
    "humming, sorted": "humming, rows sorted before",
    "torch grouped bfloat16": "torch grouped, bfloat16 weights, rows sorted before",
    "torch.mm bfloat16": "cuBLAS (torch.mm), bfloat16 weights",
}


def behind():
    """Where another library takes less time than ours does, by a hundredth or more."""
    times = {}
    for case in peers_run()["cases"]:
        times.setdefault(case["case"], {})[case["who"]] = case["us"]
    compared = {case: who for case, who in times.items() if len(who) > 1}
    lines = []
    for case, who in compared.items():
        ours = who["moeblas"]
        best = min(who, key=who.get)
        if ours > 1.01 * who[best]:
            words = case.split()
            what = (
                f"{MODELS[words[0]]}, {words[2]}"
                if words[0] in MODELS
                else f"{words[1]} x {words[1]}, {words[2]}"
            )
            count = words[-1].replace("T=", "tokens ").replace("M=", "rows ")
            longer = f"{100 * (ours / who[best] - 1):.0f} %"
            lines.append(
                f"| {what}, {count} | {rounded(ours)} | {rounded(who[best])} | {PEERS.get(best, best)} | {longer} |"
            )
    yield f"In {len(compared) - len(lines)} of {len(compared)} cases ours takes the least time of all, or at most 1 % more. In the others:"
    yield ""
    yield "| case | ours, us | the least | whose | ours longer by |"
    yield "|---|---|---|---|---|"
    yield from lines


def peers():
    run = peers_run()
    rate = [
        f"{c['flop_per_s'] / 1e12:.0f}" for c in run["cases"] if c["who"] == "torch.mm bfloat16"
    ]

    def named(result):
        return PEERS.get(result["who"], result["who"])

    experts, dense, segmented = [], [], []
    for case in run["cases"]:
        words = case["case"].split()
        if words[0] in MODELS:
            what = f"{MODELS[words[0]]}, {words[2]}"
            experts.append({**case, "row": f"{what}: {named(case)}", "column": int(words[3][2:])})
        elif words[0] == "dense":
            what = f"{words[1]} x {words[1]}, {words[2]}"
            dense.append({**case, "row": f"{what}: {named(case)}", "column": int(words[3][2:])})
        elif words[0].startswith("seg-"):
            segmented.append({**case, "row": named(case), "column": words[0].removeprefix("seg-")})
    yield f"{run['device']}, {run['date'][:10]}, commit {run['commit'][:7]}: torch {run['torch']}, humming-kernels"
    yield f"{run['humming']}; torch.mm of 8192^3 {' and '.join(rate[:1] + rate[-1:])} TFLOP/s before and after. us:"
    for head, results in (
        ("gate and up, tokens", experts),
        ("one matrix, rows", dense),
        ("segmented_mm, bfloat16", segmented),
    ):
        yield ""
        yield from pivot(
            head, results, lambda r: r["row"], lambda r: r["column"], lambda r: rounded(r["us"])
        )


BLOCKS = {"h200 in short": short, "h200": tables, "peers behind": behind, "peers": peers}

if __name__ == "__main__":
    readme_blocks.main(__doc__, "gpu_tables.py", BLOCKS)
