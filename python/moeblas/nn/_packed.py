"""What the layers share: a packed matrix, or a stack of them, among a module's tensors."""

from __future__ import annotations

import torch
from torch import nn

from .. import torch as ops

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .. import Quantized
    from ..torch._typing import Mode, Packed, Tensor

DEFAULTS = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}


def resolved(mode, bits, group_size):
    """(bits, group_size), the mode's where they are None."""
    if mode not in DEFAULTS:
        raise ValueError(f"mode is {mode!r}, expected one of {', '.join(DEFAULTS)}")
    default_bits, default_group = DEFAULTS[mode]
    return bits or default_bits, group_size or default_group


class PackedModule(nn.Module):
    """A module with one packed `weight`; its shape without packing is `shape`."""

    def __init__(
        self,
        packed: Packed,
        bias: Tensor | None,
        mode: Mode,
        bits: int | None,
        group_size: int | None,
    ) -> None:
        """packed: (codes, scales[, biases]) as moeblas.torch.quantize returns them."""
        super().__init__()
        self.mode = mode
        self.bits, self.group_size = resolved(mode, bits, group_size)
        codes, scales, *rest = packed
        self.register_buffer("weight", codes)
        if mode == "affine":
            self.scales = nn.Parameter(scales, requires_grad=False)
            self.biases = nn.Parameter(rest[0], requires_grad=False)
        else:
            self.register_buffer("scales", scales)
            self.biases = None
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=bias.requires_grad)

    @property
    def shape(self) -> tuple[int, ...]:
        width = self.weight.shape[-1] * self.weight.element_size() * 8 // self.bits
        return (*self.weight.shape[:-1], width)

    @property
    def form(self) -> dict[str, Any]:
        return {"mode": self.mode, "bits": self.bits, "group_size": self.group_size}

    @property
    def packed(self) -> Quantized:
        """The weight for functions that take several."""
        return ops.Quantized(
            self.weight, self.scales, self.biases, self.group_size, self.bits, self.mode
        )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values of the weight: for tests and export, never for a product."""
        return ops.dequantize(self.weight, self.scales, self.biases, **self.form, dtype=dtype)

    def extra_repr(self) -> str:
        return (
            f"{tuple(self.shape)}, {self.mode} {self.bits}-bit, groups of {self.group_size}, "
            f"bias={self.bias is not None}"
        )


def random_packed(shape, mode, bits, group_size, device, dtype):
    """Packed uniform numbers of variance 1 / (3 * K), as layers begin in mlx.nn."""
    bits, group_size = resolved(mode, bits, group_size)
    scale = shape[-1] ** -0.5
    w = torch.empty(shape, device=device, dtype=dtype).uniform_(-scale, scale)
    return ops.quantize(w, group_size, bits, mode)


def random_dense(shape, device, dtype):
    scale = shape[-1] ** -0.5
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype).uniform_(-scale, scale))
