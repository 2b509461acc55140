#!/usr/bin/env python3
"""Shows that the tests can fail: plants one bug after the other and demands that a named test sees it.

    scripts/mutants.py [--only NAME ...] [--seeds 20] [--markdown FILE]

Works on a copy of the tracked files under build/mutants. First the unmutated code must pass every named
test, and the generated cases from `--seeds` fresh starting points. Then, for every mutant of
tests/mutants/mutants.toml, `find` (which must occur exactly once in `file`) is replaced, the tests are
rebuilt, and the test named in `killed_by` must fail. A mutant that survives, or that no longer applies,
is an error.
"""

import argparse
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "mutants" / "tree"
BUILD = ROOT / "build" / "mutants" / "build"


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def must(command, **options):
    result = run(command, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stdout[-4000:]}")
    return result


def copy_tree():
    """Copies what has changed, so that the build stays incremental from one run to the next."""
    listing = must(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT).stdout.split("\n")
    for name in filter(None, listing):
        source, target = ROOT / name, TREE / name
        if not source.is_file():
            continue
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        target.touch()


def configure(targets):
    must(
        ["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
        + ["-DMOEBLAS_TOOLS=OFF", "-DMOEBLAS_TESTS=ON", "-DMOEBLAS_CUDA=OFF"]
    )
    build(targets)


def build(targets):
    must(["cmake", "--build", BUILD, "--target", *targets])


def passes(killer, environment=None):
    """Whether `binary filter` passes; a crash counts as a failure, a filter without tests as an error."""
    binary, test_filter = killer.split()
    found = [p for p in (BUILD / "tests").rglob(binary) if p.is_file()]
    if not found:
        sys.exit(f"{binary} was not built")
    command = [found[0], f"--gtest_filter={test_filter}", "--gtest_brief=1"]
    result = run(command, env=dict(os.environ, **(environment or {})), timeout=600)
    if "0 tests from 0 test suites" in result.stdout or "[  PASSED  ] 0 tests" in result.stdout and result.returncode == 0:
        sys.exit(f"{killer} names no test")
    return result.returncode == 0


def check_unmutated(mutants, seeds):
    for killer in sorted({m["killed_by"] for m in mutants}):
        if not passes(killer):
            sys.exit(f"{killer} fails on unmutated code")
    for i in range(seeds):
        first = str(random.SystemRandom().randrange(1 << 40))
        environment = {"MOEBLAS_TEST_FIRST": first, "MOEBLAS_TEST_CASES": "40"}
        if not passes("ops_test *.Generated", environment):
            sys.exit(f"generated cases from MOEBLAS_TEST_FIRST={first} fail on unmutated code")
        print(f"fresh seeds {i + 1}/{seeds}: from {first}: pass", flush=True)


def plant(mutant):
    path = TREE / mutant["file"]
    text = path.read_text()
    count = text.count(mutant["find"])
    if count != 1:
        sys.exit(f"{mutant['name']}: `find` occurs {count} times in {mutant['file']}, expected once")
    path.write_text(text.replace(mutant["find"], mutant["replace"]))
    return path, text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", help="names of mutants; default: all")
    parser.add_argument("--seeds", type=int, default=20, help="fresh starting points of the generator")
    parser.add_argument("--markdown", type=pathlib.Path, help="where to write the table")
    arguments = parser.parse_args()

    with open(ROOT / "tests" / "mutants" / "mutants.toml", "rb") as file:
        mutants = tomllib.load(file)["mutant"]
    if arguments.only:
        mutants = [m for m in mutants if m["name"] in arguments.only]
    targets = sorted({m["killed_by"].split()[0] for m in mutants} | {"ops_test"})

    copy_tree()
    configure(targets)
    check_unmutated(mutants, arguments.seeds)
    rows, survivors = [], []
    for mutant in mutants:
        start = time.monotonic()
        path, text = plant(mutant)
        try:
            build([mutant["killed_by"].split()[0]])
            killed = not passes(mutant["killed_by"])
        finally:
            path.write_text(text)
        verdict = "killed" if killed else "SURVIVED"
        print(f"{mutant['name']}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
        rows.append(f"| {mutant['name']} | {mutant['class']} | `{mutant['killed_by'].split()[1]}` | {verdict} |")
        if not killed:
            survivors.append(mutant["name"])
    if arguments.markdown:
        header = "| mutant | class of bug | test that must fail | |\n|---|---|---|---|\n"
        arguments.markdown.write_text(header + "\n".join(rows) + "\n")
    print(f"{len(rows) - len(survivors)} passed, {len(survivors)} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
