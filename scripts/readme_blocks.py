"""The parts of the README that scripts write: each stands between two comments, by which a script finds it again."""

import argparse
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def replaced(readme, name, script, lines):
    """The README's text with the block of this name made of `lines`."""
    begin, end = f"<!-- {name}: written by scripts/{script} -->", f"<!-- end of {name} -->"
    before, rest = readme.split(begin)
    text = "\n".join(lines)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def main(description, script, blocks):
    """Prints the blocks, {name: function that yields lines}; with --readme writes them, with --check looks for them."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    old = new = README.read_text(encoding="utf-8")
    for name, lines in blocks.items():
        if args.readme or args.check:
            new = replaced(new, name, script, lines())
        else:
            print("\n".join(lines()))
    if args.check and new != old:
        sys.exit(f"README.md: run scripts/{script} --readme")
    if args.readme:
        README.write_text(new, encoding="utf-8")
