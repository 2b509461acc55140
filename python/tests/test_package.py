"""The package as such: names, documentation, types, what importing it costs, and the examples."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

import moeblas as mb

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = [
    getattr(mb, name)
    for name in mb.__all__
    if name in {"quantize", "quantize_dual", "dequantize"}
    or re.search("_(mm|qmm|qmv|matmul|qqmm|fp8)$|^qqmm|^moe_", name)
]


def run(*args, **kwargs):
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_version_is_the_library_s():
    header = (ROOT / "include/moeblas/version.h").read_text()
    assert mb.__version__ == re.search(r'VERSION_STRING "(.*)"', header)[1]


def test_import_needs_no_other_library():
    loaded = run("-c", "import moeblas, sys; print(*sys.modules)").split()
    assert not {"numpy", "ml_dtypes", "torch", "typing", "inspect"} & set(loaded)


def test_names_are_complete():
    public = {n for n, v in vars(mb).items() if not n.startswith("_") and not inspect.ismodule(v)}
    assert public == set(mb.__all__)
    assert len(OPERATIONS) == 19


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_documentation_names_every_argument(operation):
    text = inspect.getdoc(operation)
    related = text + "".join(
        inspect.getdoc(getattr(mb, name))
        for name in re.findall(r"``(\w+)``", text)
        if hasattr(mb, name)
    )
    for name, parameter in inspect.signature(operation).parameters.items():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            assert re.search(rf"\b{name}\b", related), name
    for option in ("precision", "deterministic", "check_ids", "kernel", "stream"):
        assert f"    {option}: " in mb.__doc__


@pytest.mark.parametrize(
    "name", ["quantize", "dequantize", "quantized_matmul", "gather_mm", "gather_qmm", "segmented_mm", "qqmm", "to_fp8", "from_fp8"]
)  # fmt: skip
def test_arguments_are_mlx_s(name):
    """Every argument of MLX's is here in its place with its default."""
    written = getattr(mx, name).__doc__.splitlines()[0]
    theirs = ast.parse(f"def {written}: ...".replace("def def", "def")).body[0].args
    ours = inspect.signature(getattr(mb, name)).parameters
    positional = [a.arg for a in theirs.posonlyargs + theirs.args]
    mine = [p.name for p in ours.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    # dequantize's first, which can only be passed by position, is called what the messages call it.
    mine[0] = positional[0] if name == "dequantize" else mine[0]
    assert mine[: len(positional)] == positional
    for argument, default in zip(reversed(positional), reversed(theirs.defaults), strict=False):
        if argument in ("scales", "dtype"):
            continue
        assert ours[argument].default == ast.literal_eval(default), argument
    for argument, default in zip(theirs.kwonlyargs, theirs.kw_defaults, strict=True):
        if argument.arg != "stream":  # one of the options
            assert ours[argument.arg].default == ast.literal_eval(default)


def test_types():
    """The package and a program that uses it, by a type checker at its strictest."""
    modules = (ROOT / "python/moeblas").glob("_*.py*")
    run("-m", "mypy", "--config-file", ROOT / "pyproject.toml", *sorted(modules))
    usage = ROOT / "python/tests/typed_usage.py"
    config = ["--config-file", ROOT / "pyproject.toml"]
    run("-m", "mypy", *config, usage, env={"MYPYPATH": str(ROOT / "python"), "PATH": ""})


def needs_torch(text):
    """Of an example that python/tests/pytorch runs."""
    return re.search(r"^(?:import|from) (torch|transformers)\b", text, re.M)


def readme_examples():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


EXAMPLES = [
    path for path in sorted((ROOT / "examples").glob("*.py")) if not needs_torch(path.read_text())
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_example(example):
    """Its output is what its last lines say that it is."""
    shown = re.findall(r"^# > (.*)$", example.read_text(), re.MULTILINE)
    assert shown, "an example shows its output"
    assert run(str(example)).splitlines() == shown


def test_readme_example():
    blocks = [block for block in readme_examples() if not needs_torch(block)]
    assert blocks
    for block in blocks:
        shown = re.findall(r"#> (.*)$", block, re.MULTILINE)
        assert shown and run("-c", block).splitlines() == shown


def test_kernels_and_info():
    rows = mb.kernels()
    assert {row.name for row in rows if row.backend == "cpu"} >= {
        "matmul_portable",
        "quantize_portable",
    }
    assert "cpu" in mb.info()


def test_explain_runs_nothing():
    import numpy as np

    x, w = np.full((4, 64), np.nan, np.float32), np.zeros((8, 64), np.float32)
    packed = mb.quantize(w)
    plan = mb.explain(mb.quantized_matmul, x, *packed)
    assert plan.kernel in {row.name for row in mb.kernels()}
    assert plan.reasons[-1].startswith(f"{plan.kernel}: ")
    out = np.zeros((4, 8), np.float32)
    assert mb.explain(mb.quantized_matmul, x, *packed, out=out) == plan
    assert not out.any()
    assert mb.explain(mb.quantized_matmul, x[:0], *packed).kernel is None
    with pytest.raises(ValueError, match=r"\[quantized_matmul\] "):
        mb.explain(mb.quantized_matmul, x[:, :32], *packed)
