#!/usr/bin/env python3
"""The contents of docs/performance-log.md: of each kernel the entries that are about it.

    python3 scripts/log_contents.py            print them, in Markdown
    python3 scripts/log_contents.py --write    write them into the log
    python3 scripts/log_contents.py --check    fail if they are not those

A subject's entries are those whose headings bear its words; every entry has a subject.
"""

import argparse
import re
import sys
from pathlib import Path

from readme_blocks import README, replaced

LOG = README.parent / "docs/performance-log.md"
SCRIPT = Path(__file__).name
# What a line is called, and the words of headings that are its own.
SUBJECTS = {
    "`qmv_sm90`": r"\bqmv_sm90|decode on Hopper|CUDA: decode",
    "`qmv_one_sm90`": r"qmv_one_sm90",
    "`qmm_sm90`": r"\bqmm_sm90\b|prefill on Hopper|\d to \d+ rows",
    "`qmm_sm90`, few rows in one launch": r"qmm_sm90_one|qmm_few_sm90|qmm_sm90_held|few rows of 4-bit weights",
    "`mm_sm90`, dense weights": r"\bmm_sm90|dense weights",
    "`qmm_sm90_fields`": r"qmm_sm90_fields",
    "`ffn_one_sm90`": r"ffn_one_sm90|one token's expert layer",
    "`ffn_sm90`": r"\bffn_sm90|expert layers of few tokens",
    "`ffn_qmm_sm90`": r"ffn_qmm_sm90",
    "`segmented_*`": r"CUDA.*ranges of K",
    "`qqmm_fp8_sm90`, `qqmm_cuda`": r"on fp8|two quantized operands|for fp8",
    "`quantize_cuda`, `fp8_cuda`": r"CUDA.*(quantize|conversions|swizzled|groups of 16)",
    "`qmv_sm80`": r"qmv_sm80",
    "`qmm_sm80`": r"qmm_sm80`",
    "`qmm_sm80_limbs`": r"qmm_sm80_limbs",
    "portable kernels": r"portable tier",
    "CPU, products": r"CPU(?!.. *quantize (and|in) )",
    "CPU, conversions": r"CPU.*(quantize|conversions|dequantize|stores)",
    "calls from torch": r"[Cc]alls from torch",
    "everything in one run": r"in one tree|as the bench sees",
}


def slug(heading):
    """As GitHub names it in addresses."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def title(heading):
    """Without the machine, and without what its line says."""
    return re.sub(
        r"^(CUDA|CPU|Calls from torch)( on Hopper| prefill on Hopper)?[,:] ",
        "",
        heading.split(" (20")[0],
    )


def lines(log):
    headings = re.findall(r"^## (.*)$", log, re.MULTILINE)
    for heading in headings:
        if not any(re.search(words, heading.split(" (20")[0]) for words in SUBJECTS.values()):
            sys.exit(
                f"docs/performance-log.md: no subject of scripts/{SCRIPT} has the entry {heading}"
            )
    for subject, words in SUBJECTS.items():
        entries = [h for h in headings if re.search(words, h.split(" (20")[0])]
        yield f"- {subject}: " + " · ".join(f"[{title(h)}](#{slug(h)})" for h in entries)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    old = LOG.read_text(encoding="utf-8")
    if not args.write and not args.check:
        print("\n".join(lines(old)))
        return
    new = replaced(old, "contents", SCRIPT, lines(old))
    if args.check and new != old:
        sys.exit(f"docs/performance-log.md: run scripts/{SCRIPT} --write")
    if args.write:
        LOG.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
