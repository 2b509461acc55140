"""Registers the operators moeblas::* with torch.

Their kernels for CPU and CUDA come from C++ (libmoeblas_torch, torch's stable ABI) where that was
built, from Python otherwise or with MOEBLAS_TORCH=python. Inference and gradients are Python's in
both cases.
"""

import os
from pathlib import Path

import torch

from .. import _core
from . import _operators, _shapes

_FOLDER = Path(__file__).resolve().parent


def _schemas():
    """The schema of each operator, by name."""
    lines = (_FOLDER / "schemas.txt").read_text().splitlines()
    return {line.split("(")[0]: line for line in lines if line and not line.startswith("#")}


names = list(_schemas())


def _extension():
    if os.environ.get("MOEBLAS_TORCH") == "python":
        return None
    return next(Path(_core.__file__).parent.glob("libmoeblas_torch.*"), None)


def _in_order(schema, function):
    """`function` of all arguments in the schema's order, called as torch calls a kernel: trailing
    defaults left out, keyword-only ones by name."""
    names = [a.name for a in schema.arguments]
    defaults = [a.default_value if a.has_default_value() else None for a in schema.arguments]
    index = {name: i for i, name in enumerate(names)}

    def kernel(*args, **kwargs):
        values = [*args, *defaults[len(args) :]]
        for name, value in kwargs.items():
            values[index[name]] = value
        return function(*values)

    return kernel


def _real(operator):
    return lambda *values: operator(True, *values)


def _fake(name, operator):
    def infer(*values):
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        if all(isinstance(s, int) for t in tensors for s in (*t.shape, *t.stride())):
            return operator(False, *values)
        outputs = [
            torch.empty(shape, dtype=dtype, device=tensors[0].device)
            for shape, dtype in getattr(_shapes, name)(*values)
        ]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return infer


def register():
    """Returns the library object, which owns the registrations, and which language's kernels run."""
    extension = _extension()
    library = torch.library.Library("moeblas", "FRAGMENT")
    if extension:
        torch.ops.load_library(extension)
    for name, text in _schemas().items():
        operator = getattr(_operators, name)
        if not extension:
            library.define(text)
        schema = getattr(torch.ops.moeblas, name).default._schema
        if not extension:
            kernel = _in_order(schema, _real(operator))
            library.impl(name, kernel, "CPU")
            library.impl(name, kernel, "CUDA")
        torch.library.register_fake(
            f"moeblas::{name}", _in_order(schema, _fake(name, operator)), lib=library
        )
    return library, "c++" if extension else "python"
