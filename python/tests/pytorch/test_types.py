"""Annotations of what users call: complete, and right to a type checker."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import moeblas.torch
from moeblas import nn
from moeblas.integrations import executorch

ROOT = Path(__file__).resolve().parents[3]


def public():
    for module in (moeblas.torch, nn, executorch):
        names = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
        for name in names:
            value = getattr(module, name)
            if not getattr(value, "__module__", "").startswith("moeblas."):
                continue
            if inspect.isfunction(value):
                yield name, value
            elif inspect.isclass(value):
                for method, function in inspect.getmembers(value, inspect.isroutine):
                    ours = getattr(function, "__module__", None) or ""
                    if ours.startswith("moeblas.") and (
                        not method.startswith("_") or method == "__init__"
                    ):
                        yield f"{name}.{method}", function


@pytest.mark.parametrize("function", [f for _, f in public()], ids=[n for n, _ in public()])
def test_every_argument_has_a_type(function):
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        if parameter.name not in ("self", "cls"):
            assert parameter.annotation is not inspect.Parameter.empty, parameter.name


def test_a_program_that_uses_them(tmp_path):
    # The package's own inside is not its users' concern.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml",
         "--follow-imports=silent", "--cache-dir", tmp_path,
         Path(__file__).with_name("typed_torch_usage.py")],
        capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(ROOT / "python")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
