"""Types for annotations of `moeblas.torch` and `moeblas.nn`. No module imports this when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .._typing import BlockMode, Mode, Precision, ScaleLayout, WeightMode

Activation = Literal["silu", "gelu_erf", "gelu_tanh", "relu", "clamped_swiglu"]
GluLayout = Literal["gate_up", "up_gate", "interleaved"]
Score = Literal["softmax", "sigmoid"]
Scale = float | Tensor
"""nvfp4's multiplier, or what MLX gives instead."""
Packed = Sequence[Tensor]
"""Codes, scales and, for affine, biases, as `quantize` returns them."""
Device = torch.device | str | int

__all__ = [
    "Activation", "BlockMode", "Device", "GluLayout", "Mode", "Packed", "Precision",
    "Scale", "ScaleLayout", "Score", "Tensor", "WeightMode",
]  # fmt: skip
