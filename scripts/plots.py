#!/usr/bin/env python3
"""Draws docs/images/*.svg from the JSON in docs/measurements, and from nothing else.

    scripts/plots.py [--check]

    roofline_cpu, roofline_h200   every timed row (cpu/*.json, h200/*.json)
    peers_cpu                     products beside other libraries' (compare_cpu_*.json)
    sweep_h200                    time over tokens (bench_h200_sweep*.json)

--check draws into a folder that is thrown away. Where matplotlib is missing, the script goes on in the environment
of scripts/requirements-plots.txt, which it has made.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "scripts" / "requirements-plots.txt"
MEASUREMENTS = ROOT / "docs" / "measurements"
sys.path.insert(0, str(ROOT / "bench"))

try:
    import matplotlib
except ImportError:
    made = subprocess.run(
        [ROOT / "scripts" / "python_env.sh", REQUIREMENTS],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    python = f"{made.stdout.strip()}/bin/python"
    if sys.executable == python:
        raise
    os.execv(python, [python, *sys.argv])

import matplotlib.pyplot as plt  # noqa: E402
import plot  # noqa: E402

# Text stays text, and the same input gives the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "moeblas"})

OURS, THEIRS = "C0", "0.65"
WORKLOADS = {
    "decode": "one row x (14336 x 4096)",
    "decode-moe": "one token, 8 of 128 experts (768 x 2048)",
    "prefill": "512 rows x (14336 x 4096)",
    "prefill-moe-32": "32 rows for each of 128 experts (768 x 2048)",
    "prefill-moe-64": "64 rows for each of 128 experts (768 x 2048)",
}


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def files(pattern):
    found = sorted(MEASUREMENTS.glob(pattern))
    if not found:
        sys.exit(f"no {MEASUREMENTS.relative_to(ROOT)}/{pattern}")
    return found


def roofline(pattern, path):
    plot.draw([plot.read_run(name) for name in files(pattern)], path, listing=False)


def peers(path):
    """A panel for each workload, other library and number of threads: milliseconds, the shortest on top; of each
    library's ways for a format the fastest."""
    best, about = defaultdict(dict), set()
    for name in files("compare_cpu_*.json"):
        run = json.loads(name.read_text())
        other = next(library for library in run["libraries"] if library != "moeblas")
        about.add(f"{other} {run['libraries'][other]}, {run['device']}, {run['date'][:10]}")
        for r in run["results"]:
            panel = best[run["workload"]["name"], other, r["threads"]]
            row = r["library"], r["format"]
            if row not in panel or r["seconds"] < panel[row]["seconds"]:
                panel[row] = r
    threads = sorted({key[2] for key in best})
    lines = [(w, o) for w in WORKLOADS for o in sorted({k[1] for k in best if k[0] == w})]
    heights = [max(len(best[(*line, t)]) for t in threads) + 1.5 for line in lines]
    figure, axes = plt.subplots(
        len(lines),
        len(threads),
        squeeze=False,
        figsize=(5 * len(threads), 0.19 * sum(heights) + 0.4),
        height_ratios=heights,
    )
    for line, panels in zip(lines, axes, strict=True):
        for count, panel in zip(threads, panels, strict=True):
            rows = sorted(best[(*line, count)].values(), key=lambda r: -r["seconds"])
            names = [
                f"{r['library']} {r['format']}"
                + ("" if r["library"] == "moeblas" else f" {r['kernel']}")
                for r in rows
            ]
            colors = [OURS if r["library"] == "moeblas" else THEIRS for r in rows]
            times = [r["seconds"] * 1e3 for r in rows]
            bars = panel.barh(range(len(rows)), times, color=colors)
            labels = [f" {t:.0f}" if t >= 100 else f" {t:.3g}" for t in times]
            panel.bar_label(bars, labels, fontsize=6)
            panel.set_yticks(range(len(rows)), names, fontsize=6)
            panel.tick_params(length=0)
            panel.set_xticks([])
            panel.set_xlim(0, 1.12 * max(times, default=1))
            panel.spines[:].set_visible(False)
            noun = "thread" if count == 1 else "threads"
            panel.set_title(f"{WORKLOADS[line[0]]}, {count} {noun}, ms", fontsize=7)
    figure.suptitle("; ".join(sorted(about)), fontsize=8)
    save(figure, path)


def sweep(path):
    """Times of every kernel over the tokens of a product, a panel each; lines join what the library chooses."""
    chosen, by_kernel = defaultdict(dict), defaultdict(lambda: defaultdict(list))
    about = set()
    for name in files("bench_h200_sweep*.json"):
        run = plot.read_run(name)
        about.add(f"{run['device']['model']}, {run['library']['commit'][:10]}, {run['date'][:10]}")
        for r in run["results"]:
            case = f"{r['op']} {r['shape']} {r['format']}"
            us = r["seconds"]["median"] * 1e6
            by_kernel[case][r["kernel"]].append((r["tokens"], us))
            if r["chosen"]:
                chosen[case][r["tokens"]] = us
    kernels = sorted({kernel for times in by_kernel.values() for kernel in times})
    across = min(2, len(by_kernel))
    down = -(-len(by_kernel) // across)
    figure, axes = plt.subplots(down, across, figsize=(8, 1 + 3.2 * down), squeeze=False)
    for panel in axes.flat[len(by_kernel) :]:
        panel.axis("off")
    for panel, (case, times) in zip(axes.flat, sorted(by_kernel.items()), strict=False):
        panel.plot(*zip(*sorted(chosen[case].items()), strict=True), color="0.4", linewidth=1)
        for i, kernel in enumerate(kernels):
            if kernel in times:
                points = zip(*times[kernel], strict=True)
                panel.plot(*points, "os^vDPX*"[i % 8], color=f"C{i}", markersize=3, label=kernel)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("tokens", fontsize=7)
        panel.set_ylabel("us", fontsize=7)
        panel.tick_params(labelsize=7)
        panel.grid(True, which="both", linewidth=0.3, alpha=0.6)
        panel.legend(fontsize=6)
        panel.set_title(case, fontsize=8)
    figure.suptitle("; ".join(sorted(about)), fontsize=8)
    save(figure, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only see that everything is drawn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as thrown_away:
        to = Path(thrown_away) if arguments.check else ROOT / "docs" / "images"
        roofline("cpu/*.json", to / "roofline_cpu.svg")
        roofline("h200/*.json", to / "roofline_h200.svg")
        peers(to / "peers_cpu.svg")
        sweep(to / "sweep_h200.svg")
        for path in sorted(to.glob("*.svg")):
            print(f"{path.name}: {path.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
