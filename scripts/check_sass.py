#!/usr/bin/env python3
"""What the compiler made of the CUDA kernels: registers, local memory, and the instructions they must have.

    scripts/check_sass.py [--check] [--only PATTERN] [--objects ARCHITECTURE=FOLDER ...]

Builds the objects of src/cuda for sm_90a, and of its *_sm80* folders for sm_80, in the folders that
scripts/cuda_architectures.sh uses (some minutes the first time; no GPU), or takes those that lie under
FOLDER; reads the kernels in them, disassembles them, holds every kernel against sass_rules.py, and writes
docs/kernel_resources.md. --check writes nothing: a broken rule is an error, and so is a table that is not
what the same compiler makes now. --only looks at files whose name contains PATTERN, and at the rules
alone.

nvdisasm is the one on PATH, or the toolkit's, or the registry's package in an environment of its own
(scripts/python_env.sh). What a kernel's local memory, its stack, holds is what was spilled and what the
compiler could not keep in registers: where there is none, nothing was spilled.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from sass_rules import LOCAL, NAMES, RULES, broken, rule_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "kernel_resources.md"
REQUIREMENTS = ROOT / "scripts" / "requirements-sass.txt"
# Which files are looked at as code for which architecture.
FILES = {"90a": "*/*.cu", "80": "*_sm80*/*.cu"}
REGISTERS, WARPS = 65536, 64  # of a multiprocessor


@dataclasses.dataclass
class Kernel:
    name: str
    file: str
    architecture: str
    registers: int = 0
    stack: int = 0  # bytes a thread
    shared: int = 0  # bytes, without what a launch adds
    threads: int = 0  # at most, of a block; 0: not said
    code: list = dataclasses.field(default_factory=list)

    def blocks(self):
        """Blocks that a multiprocessor has registers for."""
        if not self.threads:
            return None
        warps = (self.threads + 31) // 32
        of_warp = (self.registers * 32 + 255) // 256 * 256
        return min(REGISTERS // of_warp // 4 * 4, WARPS) // warps

    def count(self, pattern):
        return sum(1 for line in self.code if re.match(pattern, line))


# ---- Objects


def elf_sections(data):
    """(name, type, link, contents) of each."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no 64-bit ELF file")
    at, size, count, names = (
        struct.unpack_from("<Q", data, 40)[0],
        *struct.unpack_from("<HHH", data, 58),
    )
    headers = [struct.unpack_from("<IIQQQQII", data, at + i * size) for i in range(count)]
    base = headers[names][4]
    for name, kind, _, _, offset, length, link, _ in headers:
        end = data.index(b"\0", base + name)
        contents = b"\0" * length if kind == 8 else data[offset : offset + length]
        yield data[base + name : end].decode(), kind, link, contents


def cubins(path):
    """The machine code in an object of nvcc's."""
    fat = b"".join(c for name, _, _, c in elf_sections(path.read_bytes()) if name == ".nv_fatbin")
    at = 0
    while at + 16 <= len(fat):
        magic, _, header, size = struct.unpack_from("<IHHQ", fat, at)
        if magic != 0xBA55ED50:
            at += 8  # padding
            continue
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, length = struct.unpack_from("<HHI", fat, entry)
            size = struct.unpack_from("<Q", fat, entry + 8)[0]
            code = fat[entry + length : entry + length + size]
            entry += length + size
            if kind != 2:
                continue  # text for later architectures
            if code[:4] != b"\x7fELF":
                sys.exit(
                    f"{path} holds compressed code: build for one architecture, without --compress-all"
                )
            yield code


def resources(cubin, kernels):
    """Registers, stack, threads and shared memory, from the notes that go with the code."""
    sections = list(elf_sections(cubin))
    names = {}  # of symbols, by index
    for _, kind, link, contents in sections:
        if kind == 2:
            strings = sections[link][3]
            for i in range(len(contents) // 24):
                at = struct.unpack_from("<I", contents, i * 24)[0]
                names[i] = strings[at : strings.index(b"\0", at)].decode()
    for name, _, _, contents in sections:
        if name.startswith(".nv.shared."):
            kernels[name[len(".nv.shared.") :]].shared = len(contents)
        if not name.startswith(".nv.info"):
            continue
        at = 0
        while at < len(contents):
            form, attribute, value = struct.unpack_from("<BBH", contents, at)
            data = contents[at + 4 : at + 4 + value] if form == 4 else b""
            at += 4 + len(data)
            if attribute in (0x2F, 0x11) and len(data) == 8:  # registers; the frame on the stack
                symbol, number = struct.unpack("<II", data)
                if (kernel := kernels.get(names[symbol])) is not None:
                    setattr(kernel, "registers" if attribute == 0x2F else "stack", number)
            elif attribute in (0x05, 0x10) and len(data) == 12:  # threads: at most; exactly
                kernel = kernels.get(name[len(".nv.info.") :])
                if kernel is not None:
                    kernel.threads = kernel.threads or struct.unpack("<I", data[:4])[0]


def readable(symbol, demangled):
    """The kernel's name without namespaces and parameters."""
    text = re.sub(
        r"\(anonymous namespace\)::|\b(moeblas|cuda|device|formats|simt)::", "", demangled
    )
    text = re.sub(r"\((unsigned )?\w+\)(?=\d)|\(\w+\)(?=\d)", "", text)
    depth, end = 0, len(text)
    for i, c in enumerate(text):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            end = i
            break
    text = re.sub(r"^void ", "", text[:end]).replace(" >", ">")
    return re.sub(r"\b(\d+)u\b", r"\1", text) or symbol


def read_object(path, architecture, nvdisasm):
    found = []
    source = f"{path.parent.name}/{path.name.removesuffix('.o')}"
    for cubin in cubins(path):
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            text = subprocess.run(
                [nvdisasm, "-c", file.name], stdout=subprocess.PIPE, text=True, check=True
            ).stdout
        kernels, code = {}, None
        for line in text.splitlines():
            if section := re.match(r"\s*\.section\s+\.text\.([^,\s]+),", line):
                kernels[section[1]] = Kernel(section[1], source, architecture)
                code = kernels[section[1]].code
            elif code is not None:
                if op := re.match(
                    r"\s+/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?(.*?)\s*;", line
                ):
                    code.append(op[1])
        resources(cubin, collections.defaultdict(lambda: Kernel("", "", ""), kernels))
        found += kernels.values()
    shown = subprocess.run(
        ["c++filt"],
        input="\n".join(k.name for k in found),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for kernel, demangled in zip(found, shown.stdout.split("\n")):
        kernel.name = readable(kernel.name, demangled)
    return found


def find_nvdisasm():
    beside = shutil.which("nvcc")
    places = [
        shutil.which("nvdisasm"),
        beside and pathlib.Path(beside).resolve().parent / "nvdisasm",
    ]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if variable in os.environ:
            places.append(pathlib.Path(os.environ[variable]) / "bin" / "nvdisasm")
    for place in places:
        if place and pathlib.Path(place).is_file():
            return str(place)
    made = subprocess.run(
        [ROOT / "scripts" / "python_env.sh", REQUIREMENTS], stdout=subprocess.PIPE, text=True
    )
    found = sorted(
        pathlib.Path(made.stdout.strip()).glob("lib/python*/site-packages/nvidia/*/bin/nvdisasm")
    )
    if made.returncode != 0 or not found:
        sys.exit(
            f"no nvdisasm on PATH or beside nvcc, and {REQUIREMENTS.relative_to(ROOT)} could not be installed"
        )
    found[0].chmod(0o755)
    return str(found[0])


def within(source):
    return source.relative_to(ROOT / "src" / "cuda")


def build(architecture, sources):
    """The objects of these files; made where they are missing or older."""
    folder = ROOT / "build" / f"cuda-{architecture}"
    configure = [
        "cmake",
        "-S",
        ROOT,
        "-B",
        folder,
        "-G",
        "Ninja",
        "-DMOEBLAS_CUDA=ON",
        "-DMOEBLAS_TESTS=OFF",
    ]
    configure += [
        "-DMOEBLAS_TOOLS=OFF",
        "-DMOEBLAS_WERROR=ON",
        f"-DMOEBLAS_CUDA_ARCHITECTURES={architecture}-real",
    ]
    objects = [f"src/CMakeFiles/moeblas_cuda_kernels.dir/cuda/{within(s)}.o" for s in sources]
    for command in (configure, ["cmake", "--build", folder, "--target", *objects]):
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if result.returncode != 0:
            sys.exit(f"{' '.join(map(str, command[:4]))} ... failed:\n{result.stdout[-4000:]}")
    return [folder / o for o in objects]


# ---- The table


def compiler():
    nvcc = shutil.which("nvcc")
    text = (
        subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, text=True).stdout
        if nvcc
        else ""
    )
    return (re.search(r"release [\d.]+, (V[\d.]+)", text) or ["", "unknown"])[1]


def table(kernels):
    lines = [
        "# What kernels take",
        "",
        f"Written by `scripts/check_sass.py` from what nvcc {compiler()} makes of `src/cuda`; `--check` holds it against",
        "the sources. Bytes of stack a thread; local: instructions that use them, of which 0 means that nothing was",
        "spilled. Of shared memory only what the kernel declares itself; rings of stages come with the launch. Blocks:",
        "what the registers of a multiprocessor hold, for the most threads that a launch has.",
        "",
        "## Rules",
        "",
        "The first that is for a kernel's name; local: at most. Of no kernel may most wgmma instructions stand alone,",
        "each waited for, which is what the compiler does where it warns of C7510.",
        "",
        "| names | has | has not | local | kernels | because |",
        "|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        count = sum(1 for k in kernels if rule_of(k) is rule)
        pattern = rule.pattern.replace("|", "\\|")
        has, lacks = (", ".join(NAMES[p] for p in patterns) for patterns in (rule.has, rule.lacks))
        lines.append(f"| `{pattern}` | {has} | {lacks} | {rule.local} | {count} | {rule.why} |")
    for file, architecture in sorted({(k.file, k.architecture) for k in kernels}):
        lines += ["", f"## {file}, sm_{architecture}", ""]
        lines += [
            "| kernel | registers | stack bytes | local | shared bytes | blocks |",
            "|---|---|---|---|---|---|",
        ]
        of_file = [k for k in kernels if (k.file, k.architecture) == (file, architecture)]
        for k in sorted(of_file, key=lambda k: k.name):
            blocks = "" if k.blocks() is None else k.blocks()
            lines.append(
                f"| `{k.name}` | {k.registers} | {k.stack} | {k.count(LOCAL)} | {k.shared} | {blocks} |"
            )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; a stale table is an error"
    )
    parser.add_argument("--only", default="", help="files with this in their name; the rules alone")
    parser.add_argument(
        "--objects", action="append", default=[], help="ARCHITECTURE=FOLDER with objects to take"
    )
    arguments = parser.parse_args()
    taken = dict(o.split("=", 1) for o in arguments.objects)

    nvdisasm = find_nvdisasm()
    work = []
    for architecture, pattern in FILES.items():
        sources = sorted(
            s for s in (ROOT / "src" / "cuda").glob(pattern) if arguments.only in str(within(s))
        )
        if not sources or (taken and architecture not in taken):
            continue
        if architecture in taken:
            objects = [
                o
                for s in sources
                for o in pathlib.Path(taken[architecture]).rglob(f"cuda/{within(s)}.o")
            ]
            if len(objects) != len(sources):
                sys.exit(
                    f"{taken[architecture]} has {len(objects)} objects of {len(sources)} files"
                )
        else:
            objects = build(architecture, sources)
        work += [(o, architecture) for o in objects]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = [
            k for found in pool.map(lambda w: read_object(*w, nvdisasm), work) for k in found
        ]
    if not kernels:
        sys.exit("no kernels")

    failures = [
        f"{k.file}, sm_{k.architecture}: {k.name}: {wrong}" for k in kernels for wrong in broken(k)
    ]
    if not arguments.only and set(taken) in (set(), set(FILES)):
        text = table(kernels)
        if not arguments.check:
            TABLE.write_text(text)
        else:
            old = TABLE.read_text() if TABLE.exists() else ""
            if f"nvcc {compiler()} " not in old:
                print(
                    f"{TABLE.relative_to(ROOT)} is of another compiler than nvcc {compiler()}: not compared"
                )
            elif old != text:
                failures.append(f"{TABLE.relative_to(ROOT)} is stale: run scripts/check_sass.py")
    print("\n".join(failures + [f"{len(kernels)} kernels, {len(failures)} failures"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
