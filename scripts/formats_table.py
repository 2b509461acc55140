#!/usr/bin/env python3
"""What quantization costs the demo model: bits per byte and file size in every format.

    python3 scripts/formats_table.py            print the table, in Markdown
    python3 scripts/formats_table.py --readme   write it into README.md

Quantizes a float checkpoint with `moeblas quantize` into every format, with every matrix quantized
and the format's default group, and reads a text with `moeblas eval`. The whole held-out text takes
about 100 s a format on two cores; --bytes N takes only its first N bytes and says so.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from readme_blocks import README, replaced

ROOT = README.parent
FORMATS = [("affine", bits) for bits in (8, 6, 5, 4, 3, 2)] + [
    ("mxfp8", 8),
    ("mxfp4", 4),
    ("nvfp4", 4),
]
GROUPS = {"affine": 64, "mxfp8": 32, "mxfp4": 32, "nvfp4": 16}


def run(*command):
    return subprocess.run(
        [str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def megabytes(folder):
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6


def measure(args, text):
    """(name, megabytes, bits per byte) of each format, floats first."""
    with tempfile.TemporaryDirectory() as temporary:
        for mode, bits in [("bf16", 16), *FORMATS]:
            folder, name = args.model, "bfloat16"
            if mode != "bf16":
                folder = Path(temporary) / f"{mode}{bits}"
                name = f"affine {bits}-bit" if mode == "affine" else mode
                name += f", groups of {GROUPS[mode]}"
                run(args.moeblas, "quantize", args.model, folder, "--mode", mode, "--bits", bits)
            out = run(args.moeblas, "eval", "--model", folder, "--text", text)
            yield name, megabytes(folder), float(re.match(r"([0-9.]+) bits per byte", out)[1])
            print(name, out.strip(), file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moeblas", type=Path, default=ROOT / "build/release/cli/moeblas")
    parser.add_argument("--model", type=Path, default=ROOT / "models/kjv-olmoe-8m")
    parser.add_argument("--text", type=Path, default=ROOT / "models/kjv-olmoe-8m/heldout.txt")
    parser.add_argument("--bytes", type=int, help="only so many bytes of the text")
    parser.add_argument("--readme", action="store_true")
    args = parser.parse_args()

    content = args.text.read_bytes()
    part = content[: args.bytes]
    what = f"all {len(part):,}" if len(part) == len(content) else f"the first {len(part):,}"
    lines = [
        f"Bits per byte on {what} bytes of `{args.text.resolve().relative_to(ROOT)}`:",
        "",
        "| weights | file, MB | bits per byte | more than bfloat16 |",
        "|---|---|---|---|",
    ]
    with tempfile.NamedTemporaryFile() as file:
        file.write(part)
        file.flush()
        original = None
        for name, size, bits in measure(args, file.name):
            original = original or bits
            lines.append(f"| {name} | {size:.1f} | {bits:.4f} | {bits / original - 1:.1%} |")
    print("\n".join(lines))
    if args.readme:
        old = README.read_text(encoding="utf-8")
        README.write_text(replaced(old, "formats", "formats_table.py", lines), encoding="utf-8")


if __name__ == "__main__":
    main()
