"""gather_qmv and gather_qmm for programs without Python: models compiled ahead of time by AOTInductor,
as ExecuTorch runs its CUDA and Metal delegates.

    program = torch.export.export(module, inputs)
    torch._inductor.aoti_compile_and_package(program, inductor_configs=inductor_configs())

A compiled model calls the C functions of libmoeblas_torch by name, with neither torch's dispatcher nor
Python between; whoever loads it has that library loaded (torch.ops.load_library, or linked). A runtime
without the functions finds the same operators through `SCHEMAS`, in torch's dispatcher.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from .. import _core
from .. import torch as ops
from ..torch import _register

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from ..torch._typing import Packed, Tensor

    Device = Literal["cpu", "cuda"]

NAMES = ("gather_qmv", "gather_qmm")
SCHEMAS = {f"moeblas::{name}": _register._schemas()[name] for name in NAMES}

_C_TYPES = {
    "Tensor": "AtenTensorHandle", "Optional[Tensor]": "AtenTensorHandle*", "int": "int64_t",
    "Optional[int]": "int64_t*", "bool": "int32_t", "str": "const char*",
}  # fmt: skip


def shim_name(name: str, device: Device = "cpu") -> str:
    return f"aoti_torch_{device}_{name}"


def declaration(name: str, device: Device = "cpu") -> str:
    """The C function of an operator, as its schema says."""
    schema = getattr(torch.ops.moeblas, name).default._schema
    arguments = [f"{_C_TYPES[str(a.type)]} {a.name}" for a in schema.arguments]
    return (
        f"AOTITorchError {shim_name(name, device)}({', '.join(arguments)}, AtenTensorHandle* ret0)"
    )


def custom_ops_to_c_shims(device: Device = "cpu") -> dict[Any, list[str]]:
    """What config.aot_inductor.custom_ops_to_c_shims takes."""
    return {getattr(torch.ops.moeblas, name).default: [declaration(name, device)] for name in NAMES}


def library() -> Path:
    """The file of libmoeblas_torch; an error where it was not built."""
    found = next(Path(_core.__file__).parent.glob("libmoeblas_torch.*"), None)
    if found is None:
        raise RuntimeError("libmoeblas_torch was not built: torch 2.10 was not there")
    return found


def shared_runtime() -> list[str]:
    """What a model is to be linked with besides, so that its C++ runtime is the process's.

    A compiler that has libstdc++ as an archive alone puts a copy of it into the model. Where the process
    has another version, Python breaks off when the model is loaded: torch's code in it compiles a
    regular expression, for which the loader mixes the locales of both."""
    if sys.platform != "linux":
        return []
    from torch._inductor import cpp_builder  # which takes a second to import

    ask = [cpp_builder.get_cpp_compiler(), "-print-file-name=libstdc++.so"]
    found = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
    return [] if Path(found).is_absolute() else [":libstdc++.so.6"]


def inductor_configs(device: Device = "cpu") -> dict[str, Any]:
    """Settings for aoti_compile_and_package: the C functions, and the libraries that have them and
    the C++ runtime. (The linker finds moeblas' by the environment variable LIBRARY_PATH, the loader
    as every other.)"""
    library()
    return {
        "aot_inductor.custom_ops_to_c_shims": custom_ops_to_c_shims(device),
        "aot_inductor.custom_op_libs": ["moeblas_torch", *shared_runtime()],
    }


class Experts(torch.nn.Module):
    """A gated expert layer of one product per pair, gather_qmv, or of pairs by tokens, gather_qmm.

    weights: (w, scales, biases) with w the packed bytes (E, N, K / 2), uint8, of 4-bit affine."""

    def __init__(self, gate_up: Packed, down: Packed, group_size: int) -> None:
        super().__init__()
        self.group_size = group_size
        for name, (w, scales, biases) in (("gate_up", gate_up), ("down", down)):
            self.register_buffer(f"{name}_w", w.view(torch.uint8))
            self.register_buffer(f"{name}_scales", scales)
            self.register_buffer(f"{name}_biases", biases)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """x (P, K), one expert for each row."""
        both = ops.gather_qmm(
            x.unsqueeze(1),
            self.gate_up_w,
            self.gate_up_scales,
            self.gate_up_biases,
            rhs_indices=ids,
            group_size=self.group_size,
        )
        gate, up = both.squeeze(1).chunk(2, -1)
        h = torch.nn.functional.silu(gate) * up
        return ops.gather_qmv(
            h, self.down_w, self.down_scales, self.down_biases, ids, self.group_size
        )
