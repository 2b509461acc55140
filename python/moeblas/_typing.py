"""Types for annotations. No module of the package imports this when it runs."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict, TypeVar

from typing_extensions import Unpack


class Array(Protocol):
    """What functions take: numpy's arrays, and all that speak DLPack (torch, jax, cupy, mlx)."""

    def __dlpack__(self) -> Any: ...
    @property
    def shape(self) -> Any: ...


A = TypeVar("A", bound=Any)
"""Of the first array argument, and so of the result."""

Mode = Literal["affine", "mxfp4", "mxfp8", "nvfp4"]
WeightMode = Literal["affine", "mxfp4", "mxfp8", "nvfp4", "dense"]
BlockMode = Literal["mxfp4", "mxfp8", "nvfp4"]
ScaleLayout = Literal["rows", "swizzled_128x4"]
Precision = Literal["native", "exact", "fast"]
TensorScale = float | Array
DType = Any
"""float32, float16 or bfloat16: the name, or the dtype of any library."""


class Options(TypedDict, total=False):
    """What every operation takes besides; `help(moeblas)` says what each is."""

    precision: Precision
    deterministic: bool
    check_ids: bool
    kernel: str | None
    stream: Any


__all__ = [
    "A",
    "Array",
    "BlockMode",
    "DType",
    "Mode",
    "Options",
    "Precision",
    "ScaleLayout",
    "TensorScale",
    "Unpack",
    "WeightMode",
]
