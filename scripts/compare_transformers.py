#!/usr/bin/env python3
"""Compare `moeblas eval` and `moeblas generate` with `transformers` on the same weights.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers numpy
    /tmp/venv/bin/python scripts/compare_transformers.py --moeblas build/release/cli/moeblas \\
        models/kjv-olmoe-8m models/kjv-olmoe-8m-4bit

For each model, on the CPU and in float32: the bits per byte of a text must agree to 1e-3, and the
greedy continuations of some prompts must be equal byte by byte. transformers gets the quantized
weights dequantized to float32. Exits with 1 if anything differs.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from eval_demo_model import bits_per_byte, generate, load

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ("In the beginning", "And it came to pass", "The vision of ", "7 ")
TOLERANCE = 1e-3


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--moeblas", type=Path, default=ROOT / "build/release/cli/moeblas")
    parser.add_argument("--text", type=Path, default=ROOT / "models/kjv-olmoe-8m/heldout.txt")
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()

    right = True
    for folder in args.models:
        model = load(folder)
        theirs = bits_per_byte(model, args.text.read_bytes())
        out = run(args.moeblas, "eval", "--model", folder, "--text", args.text).decode()
        ours = float(re.match(r"([0-9.]+) bits per byte", out)[1])
        agree = abs(ours - theirs) <= TOLERANCE
        right &= agree
        print(
            f"{folder}: moeblas {ours:.5f}, transformers {theirs:.5f} bits per byte, "
            f"difference {abs(ours - theirs):.1e}: {'agree' if agree else 'DIFFER'}",
            flush=True,
        )
        for prompt in PROMPTS:
            text = prompt.encode()
            expected = text + generate(model, text, args.tokens, 0, 0)
            got = run(
                args.moeblas,
                "generate",
                "--model",
                folder,
                "--prompt",
                prompt,
                "--max-tokens",
                args.tokens,
            )[:-1]  # less the line end after the text
            same = next(
                (i for i, pair in enumerate(zip(got, expected)) if pair[0] != pair[1]),
                min(len(got), len(expected)),
            )
            equal = got == expected
            right &= equal
            print(
                f"  {prompt!r}: {'equal' if equal else 'DIFFERENT'} in {same - len(text)} of "
                f"{args.tokens} greedy bytes",
                flush=True,
            )
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
