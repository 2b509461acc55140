#!/usr/bin/env python3
"""Draws a roofline from the JSON files that `moeblas bench --json` writes.

    bench/plot.py run.json [more.json ...] -o roofline.svg

Arithmetic intensity (FLOP per necessary byte) against FLOP/s, both logarithmic. The roofs are the
run's own: the read bandwidth and the arithmetic ceilings that were measured around each group (the
highest of the run). Every (case, kernel) is a numbered point, with its name in the list beside the
plot; a kernel that the library would not have chosen is hollow. Runs on different devices or numbers
of threads have roofs of their own. Conversions do no counted arithmetic and are left out.
"""

import argparse
import json
from collections import defaultdict

import matplotlib

UNITS = {"f32": "f32_flop_per_s", "bf16": "bf16_flop_per_s", "fp8": "fp8_flop_per_s"}

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def machine(run, result):
    threads = result["threads"]
    return run["device"]["model"] + (f", {threads} threads" if threads else "")


def roofs_of(runs):
    """{machine: {ceiling: the highest over groups, before and after}}"""
    values = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for result in run["results"]:
            group = run["groups"][result["group"]]
            roof = values[machine(run, result)]
            for when in ("ceilings_before", "ceilings_after"):
                for name in ("read_bytes_per_s", *UNITS.values()):
                    roof[name].append(group[when][name])
    return {key: {name: max(v) for name, v in roof.items()} for key, roof in values.items()}


def human(value, unit):
    for factor, letter in ((1e12, "T"), (1e9, "G")):
        if value >= factor:
            scaled = value / factor
            return f"{scaled:.{0 if scaled >= 100 else 2}f} {letter}{unit}"
    return f"{value:.3g} {unit}"


def draw_roof(axes, roof, intensities, name, style):
    read = roof["read_bytes_per_s"]
    low, high = min(intensities) / 2, max(intensities) * 2
    for unit, key in UNITS.items():
        peak = roof[key]
        if peak <= 0:
            continue
        ridge = peak / read
        end = max(high, 2 * ridge)
        xs = [min(low, ridge / 2), ridge, end]
        ys = [min(x * read, peak) for x in xs]
        axes.plot(xs, ys, style, color="0.35", linewidth=1)
        axes.annotate(
            f"{unit} {human(peak, 'FLOP/s')}", (end, peak), fontsize=7, ha="right", va="bottom"
        )
    x = min(low, roof["f32_flop_per_s"] / read / 2)
    axes.annotate(
        f"{name}: read {human(read, 'B/s')}",
        (x, x * read),
        fontsize=7,
        rotation=35,
        rotation_mode="anchor",
        va="bottom",
    )


def read_run(name):
    with open(name, encoding="utf-8") as file:
        run = json.load(file)
    if run.get("schema") != 2:
        raise ValueError(f"{name}: schema {run.get('schema')}, expected 2")
    return run


def draw(runs, output, listing=True):
    """A roofline of these runs; without the listing, points have no numbers and no names."""
    points = defaultdict(list)  # by kernel: (number, intensity, FLOP/s, chosen)
    names = []
    for run in runs:
        for result in run["results"]:
            work = result["work"]
            if work["flop"] == 0:
                continue
            intensity = work["flop"] / (work["read_bytes"] + work["write_bytes"])
            share = 100 * result["floor"]["share"]
            threads = f" {result['threads']} threads" if result["threads"] else ""
            names.append(f"{result['name']}{threads}: {share:.3g} %")
            points[result["kernel"]].append(
                (len(names), intensity, result["flop_per_s"], result["chosen"])
            )
    if not points:
        raise ValueError("no products in these files")

    figure, axes = plt.subplots(figsize=(14 if listing else 9, 7))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    intensities = [p[1] for ps in points.values() for p in ps]
    styles = ["-", "--", ":", "-."]
    for i, (name, roof) in enumerate(sorted(roofs_of(runs).items())):
        draw_roof(axes, roof, intensities, name, styles[i % len(styles)])
    markers = "osD^v<>Pp*h"  # one more than colors: no pair comes twice
    for i, (kernel, ps) in enumerate(sorted(points.items())):
        for chosen, fill, label in ((True, f"C{i}", kernel), (False, "none", f"{kernel}, forced")):
            some = [p for p in ps if p[3] == chosen]
            if some:
                axes.plot(
                    [p[1] for p in some],
                    [p[2] for p in some],
                    markers[i % len(markers)],
                    color=f"C{i}",
                    markerfacecolor=fill,
                    markersize=5,
                    label=label,
                )
        for number, x, y, _ in ps if listing else ():
            axes.annotate(
                str(number), (x, y), fontsize=7, xytext=(4, 2), textcoords="offset points"
            )
    if listing:
        lines = [f"{i:3} {name}" for i, name in enumerate(names, 1)]
        axes.text(
            1.02,
            1.0,
            "\n".join(["share of the floor", *lines]),
            transform=axes.transAxes,
            va="top",
            family="monospace",
            fontsize=min(7, 500 / (len(names) + 2)),
        )
    axes.set_xlabel("FLOP per necessary byte")
    axes.set_ylabel("FLOP/s")
    commits = sorted(
        {run["library"]["commit"][:10] + ("+" if run["library"]["dirty"] else "") for run in runs}
    )
    dates = sorted({run["date"][:10] for run in runs})
    of = ", ".join(commits) if len(commits) <= 4 else f"at {len(commits)} commits"
    axes.set_title(f"moeblas {of}, {', '.join(dates)}", fontsize=10)
    axes.grid(True, which="both", linewidth=0.3, alpha=0.6)
    if listing:
        axes.legend(loc="upper left", fontsize=8)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=7)
    figure.tight_layout()
    figure.savefig(
        output,
        dpi=160,
        bbox_inches="tight",
        metadata={"Date": None} if str(output).endswith(".svg") else None,
    )
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", help="JSON of moeblas bench")
    parser.add_argument("-o", "--output", default="roofline.png", help=".png or .svg")
    args = parser.parse_args()
    try:
        draw([read_run(name) for name in args.files], args.output)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
