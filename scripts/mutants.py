#!/usr/bin/env python3
"""Shows that the tests can fail: plants one bug after the other and demands that a named test sees it.

    scripts/mutants.py [--check] [--only NAME ...] [--resume] [--seeds 20] [--markdown FILE]

First every mutant of tests/mutants/mutants.toml must apply: `find` occurs exactly once in `file`, `row` is
a row of a dispatch table, and every pattern of `killed_by` names a test; --check ends there, without
building anything. The rest works on a copy of the tracked files under build/mutants. The unmutated code
must pass every named test, and the generated cases from `--seeds` fresh starting points. Then, for every
mutant, `find` is replaced, the tests are rebuilt, and the test named in `killed_by` must fail. A mutant
that survives is an error, and so is one that does not build, unless `killed_by` says that a static_assert
must refuse it. Bugs in CUDA's own rows take a toolkit (nvcc), and no GPU.

Every verdict goes into tests/mutants/results.json at once, with its day and the digest of the file that had
the bug: --resume leaves out what was killed in a file that is still the same. The table that --markdown puts
in the place of FILE's says of every bug what became of it and when; --only without names makes the table alone.
"""

import argparse
import datetime
import fnmatch
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "mutants" / "tree"
BUILD = ROOT / "build" / "mutants" / "build"
RESULTS = ROOT / "tests" / "mutants" / "results.json"
BY_COMPILER = "static_assert"
NO_SINGLE_ROW = {"every row", "no row"}
GENERATED = ["ops_test *.Generated", "moe_test *.Generated"]


def run(command, **options):
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


def must(command, **options):
    result = run(command, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stdout[-4000:]}")
    return result


def table_rows():
    """The names of all rows of all dispatch tables."""
    sources = [path for kind in ("cpp", "h") for path in (ROOT / "src").rglob(f"*.{kind}")]
    return {name for path in sources for name in re.findall(r'Name\{"(\w+)"\}', path.read_text())}


def test_names():
    """The tests of every file, by the names that filters see; parameters as `*`."""
    names = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        text = path.read_text()
        names.update(
            f"{suite}.{name}"
            for suite, name in re.findall(r"^TEST(?:_F)?\((\w+), (\w+)\)", text, re.M)
        )
        names.update(
            f"{suite}/*.{name}"
            for suite, name in re.findall(r"^TYPED_TEST\((\w+), (\w+)\)", text, re.M)
        )
        tests = re.findall(r"^TEST_P\((\w+), (\w+)\)", text, re.M)
        for prefix, suite in re.findall(r"INSTANTIATE_TEST_SUITE_P\((\w+), (\w+),", text):
            names.update(f"{prefix}/{suite}.{name}/*" for of, name in tests if of == suite)
    return names


def check(mutants):
    """Whether every mutant can be planted, and its test can be run."""
    rows, names, wrong = table_rows(), test_names(), []
    for mutant in mutants:
        count = (ROOT / mutant["file"]).read_text().count(mutant["find"])
        if count != 1:
            wrong.append(
                f"{mutant['name']}: `find` occurs {count} times in {mutant['file']}, expected once"
            )
        if mutant["row"] not in rows | NO_SINGLE_ROW:
            wrong.append(f"{mutant['name']}: no table has a row {mutant['row']}")
        for pattern in mutant["killed_by"].split()[1].split(":"):
            if pattern == BY_COMPILER:
                continue
            # Of a parameterized test, the parameter's own name is known to the binary alone.
            base = re.sub(r"(/\w+\.\w+)/.*", r"\1/*", pattern)
            if not any(fnmatch.fnmatch(name, base) for name in names):
                wrong.append(f"{mutant['name']}: {pattern} names no test")
    for name in {m["name"] for m in mutants if [o["name"] for o in mutants].count(m["name"]) > 1}:
        wrong.append(f"{name}: two mutants have this name")
    if wrong:
        sys.exit("\n".join(wrong))


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
        + ["-DMOEBLAS_TOOLS=OFF", "-DMOEBLAS_TESTS=ON", "-DMOEBLAS_CUDA_KERNELS=OFF"]
    )
    if result := build(targets):
        sys.exit(f"unmutated code does not build:\n{result[-2000:]}")


def build(targets):
    """What the compiler says where it fails."""
    result = run(["cmake", "--build", BUILD, "--target", *targets])
    return result.stdout if result.returncode != 0 else ""


def verdict_of(mutant):
    """Builds what has the bug, and what becomes of it."""
    binary, by = mutant["killed_by"].split()
    errors = build([binary])
    if by == BY_COMPILER:
        # Failed, or no constant, where what it evaluates leaves an array.
        return "killed" if "static assertion" in errors else "SURVIVED"
    if errors:
        print(errors[-2000:])
        return "DOES NOT BUILD"
    return "SURVIVED" if passes(mutant["killed_by"], tier(mutant)) else "killed"


def passes(killer, environment=None):
    """Whether `binary filter` passes; it fails if it crashes or runs for two minutes; no tests are an error."""
    binary, test_filter = killer.split()
    found = [p for p in (BUILD / "tests").rglob(binary) if p.is_file()]
    if not found:
        sys.exit(f"{binary} was not built")
    command = [found[0], f"--gtest_filter={test_filter}", "--gtest_brief=1"]
    try:
        result = run(command, env=dict(os.environ, **(environment or {})), timeout=120)
    except subprocess.TimeoutExpired:
        return False
    if (
        "0 tests from 0 test suites" in result.stdout
        or "[  PASSED  ] 0 tests" in result.stdout
        and result.returncode == 0
    ):
        sys.exit(f"{killer} names no test")
    return result.returncode == 0


def tier(mutant):
    """A bug of the portable kernels shows where they are chosen: in the portable tier of the CPU."""
    return {} if "_avx" in mutant["row"] else {"MOEBLAS_CPU_TIER": "portable"}


def check_unmutated(mutants, seeds):
    tests = [m for m in mutants if m["killed_by"].split()[1] != BY_COMPILER]
    for killer, environment in sorted({(m["killed_by"], tuple(tier(m).items())) for m in tests}):
        if not passes(killer, dict(environment)):
            sys.exit(f"{killer} fails on unmutated code")
    for i in range(seeds):
        first = str(random.SystemRandom().randrange(1 << 40))
        environment = {"MOEBLAS_TEST_FIRST": first, "MOEBLAS_TEST_CASES": "40"}
        if not all(passes(generated, environment) for generated in GENERATED):
            sys.exit(f"generated cases from MOEBLAS_TEST_FIRST={first} fail on unmutated code")
        print(f"fresh seeds {i + 1}/{seeds}: from {first}: pass", flush=True)


def planted(mutant, root):
    """The file as it is, and with the bug."""
    text = (root / mutant["file"]).read_text()
    return text, text.replace(mutant["find"], mutant["replace"])


def digest(mutant, root):
    """Of the file with the bug and of the test that is named; what changes beside them does not count."""
    text = "\0".join([mutant["file"], planted(mutant, root)[1], mutant["killed_by"]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def results_so_far():
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}


def record(mutant, verdict):
    """Reads again first: another run may have written in the meantime."""
    results = results_so_far()
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    results[mutant["name"]] = {"verdict": verdict, "day": day, "planted": digest(mutant, TREE)}
    # A line each: a result that is new is one line of a diff.
    lines = (f"  {json.dumps(name)}: {json.dumps(results[name])}" for name in sorted(results))
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write_table(mutants, path):
    """In the place of the table that `path` has, which is its end; the text in front stays."""
    header = "| class of bug | planted in | mutant | test that must fail | | when |\n|---|---|---|---|---|---|\n"
    results, rows = results_so_far(), []
    for mutant in mutants:
        result = results.get(mutant["name"], {"verdict": "not run yet", "day": ""})
        cells = [mutant["class"], mutant["row"], mutant["name"]]
        cells += [f"`{mutant['killed_by'].split()[1]}`", result["verdict"], result["day"]]
        rows.append("| " + " | ".join(cells) + " |")
    text = path.read_text() if path.is_file() else ""
    front = text[: text.find("| class of bug |")] if "| class of bug |" in text else text
    path.write_text(front + header + "\n".join(sorted(rows)) + "\n")


def plant_all(mutants, seeds):
    """The names of those that survive."""
    generated = {g.split()[0] for g in GENERATED} if seeds else set()
    copy_tree()
    configure(sorted({m["killed_by"].split()[0] for m in mutants} | generated))
    check_unmutated(mutants, seeds)
    survivors = []
    for mutant in mutants:
        start = time.monotonic()
        path = TREE / mutant["file"]
        text, with_bug = planted(mutant, TREE)
        path.write_text(with_bug)
        try:
            verdict = verdict_of(mutant)
        finally:
            path.write_text(text)
        print(
            f"{mutant['name']} in {mutant['row']}: {verdict} ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
        record(mutant, verdict)
        if verdict != "killed":
            survivors.append(mutant["name"])
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only whether every mutant applies")
    parser.add_argument("--only", nargs="*", help="names of mutants; default: all")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what was killed in files that are the same"
    )
    parser.add_argument(
        "--seeds", type=int, default=20, help="fresh starting points of the generator"
    )
    parser.add_argument("--markdown", type=pathlib.Path, help="where to write the table")
    arguments = parser.parse_args()

    with open(ROOT / "tests" / "mutants" / "mutants.toml", "rb") as file:
        mutants = tomllib.load(file)["mutant"]
    check(mutants)
    if arguments.check:
        print(
            f"{len(mutants)} mutants in {len({m['row'] for m in mutants} - NO_SINGLE_ROW)} rows apply"
        )
        return 0
    chosen = mutants
    if arguments.only is not None:
        chosen = [m for m in mutants if m["name"] in arguments.only]
    if arguments.resume:
        results = results_so_far()
        done = {name: r["planted"] for name, r in results.items() if r["verdict"] == "killed"}
        chosen = [m for m in chosen if done.get(m["name"]) != digest(m, ROOT)]
    survivors = plant_all(chosen, arguments.seeds) if chosen else []
    if arguments.markdown:
        write_table(mutants, arguments.markdown)
    print(f"{len(chosen) - len(survivors)} passed, {len(survivors)} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
