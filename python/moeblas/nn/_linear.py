"""Linear and embedding layers."""

from __future__ import annotations

import torch
from torch import nn

from .. import torch as ops
from ._packed import DEFAULTS, PackedModule, random_packed, resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..torch._typing import BlockMode, Device, Mode, Packed, Tensor


class Linear(nn.Linear):
    """torch's Linear, its product by moeblas: float32 sums, rounded once to x's dtype, the weight of
    any floating dtype."""

    def forward(self, x: Tensor) -> Tensor:
        y = ops.quantized_matmul(x, self.weight, mode="dense")
        return y if self.bias is None else y + self.bias.to(y.dtype)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Linear:
        """Shares the tensors of a torch Linear."""
        layer = cls(linear.in_features, linear.out_features, False, device="meta")
        layer.weight, layer.bias = linear.weight, linear.bias
        return layer


class Embedding(nn.Embedding):
    """torch's Embedding with as_linear, the product that a tied head is."""

    def as_linear(self, x: Tensor) -> Tensor:
        return ops.quantized_matmul(x, self.weight, mode="dense")


class QuantizedLinear(PackedModule):
    """y = x @ W^T + bias with a quantized W (N, K)."""

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        bias: bool = True,
        group_size: int | None = None,
        bits: int | None = None,
        mode: Mode = "affine",
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        packed = random_packed((output_dims, input_dims), mode, bits, group_size, device, dtype)
        zeros = torch.zeros(output_dims, device=device, dtype=dtype) if bias else None
        super().__init__(packed, zeros, mode, bits, group_size)

    @classmethod
    def from_packed(
        cls,
        packed: Packed,
        bias: Tensor | None = None,
        *,
        mode: Mode = "affine",
        bits: int | None = None,
        group_size: int | None = None,
    ) -> QuantizedLinear:
        """On tensors as they are: (codes, scales[, biases])."""
        layer = cls.__new__(cls)
        PackedModule.__init__(layer, packed, bias, mode, bits, group_size)
        return layer

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        group_size: int | None = None,
        bits: int | None = None,
        mode: Mode = "affine",
    ) -> QuantizedLinear:
        """Quantizes a torch Linear."""
        bits, group_size = resolved(mode, bits, group_size)
        packed = ops.quantize(linear.weight.detach(), group_size, bits, mode)
        bias = None if linear.bias is None else linear.bias.detach()
        return cls.from_packed(packed, bias, mode=mode, bits=bits, group_size=group_size)

    def forward(self, x: Tensor) -> Tensor:
        y = ops.quantized_matmul(x, self.weight, self.scales, self.biases, **self.form)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class QQLinear(nn.Module):
    """y = fq(x) @ fq(W)^T + bias: x is quantized on the fly, W is floating (to be trained) or packed.

    Gradients are straight-through: dx = dy @ fq(W), dW = dy^T @ fq(x), with dy as it is and float32
    sums, rounded once to the dtype of x and of W. Only nvfp4, mxfp8 and mxfp4 exist."""

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        bias: bool = True,
        group_size: int | None = None,
        bits: int | None = None,
        mode: BlockMode = "nvfp4",
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        linear = nn.Linear(input_dims, output_dims, bias, device=device, dtype=dtype)
        self._set(linear.weight, None, linear.bias, group_size, bits, mode)

    def _set(self, weight, scales, bias, group_size, bits, mode):
        if mode == "affine" or mode not in DEFAULTS:
            raise ValueError(f"mode is {mode!r}, expected nvfp4, mxfp8 or mxfp4")
        self.mode = mode
        self.bits, self.group_size = resolved(mode, bits, group_size)
        if scales is None:
            self.weight = weight
        else:
            self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.bias = bias

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        group_size: int | None = None,
        bits: int | None = None,
        mode: BlockMode = "nvfp4",
    ) -> QQLinear:
        """On the parameters of a torch Linear, shared with it."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._set(linear.weight, None, linear.bias, group_size, bits, mode)
        return layer

    def to_quantized(self) -> QQLinear:
        """The same layer with a packed weight, for inference: a new module."""
        if self.scales is not None:
            return self
        codes, scales = ops.quantize(self.weight.detach(), self.group_size, self.bits, self.mode)
        layer = type(self).__new__(type(self))
        nn.Module.__init__(layer)
        bias = None if self.bias is None else nn.Parameter(self.bias.detach(), requires_grad=False)
        layer._set(codes, scales, bias, self.group_size, self.bits, self.mode)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        return ops.qqmm(
            x, self.weight, self.scales, self.group_size, self.bits, self.mode, bias=self.bias
        )

    def extra_repr(self) -> str:
        state = "packed" if self.scales is not None else "floating"
        return (
            f"{self.mode}, {state} weight {tuple(self.weight.shape)}, bias={self.bias is not None}"
        )


class QuantizedEmbedding(PackedModule):
    """Rows of a quantized table (V, K); as_linear is the product that a tied head is."""

    def __init__(
        self,
        num_embeddings: int,
        dims: int,
        group_size: int | None = None,
        bits: int | None = None,
        mode: Mode = "affine",
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        packed = random_packed((num_embeddings, dims), mode, bits, group_size, device, dtype)
        super().__init__(packed, None, mode, bits, group_size)
        self.dtype = dtype or torch.get_default_dtype()

    @classmethod
    def from_packed(
        cls,
        packed: Packed,
        *,
        mode: Mode = "affine",
        bits: int | None = None,
        group_size: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> QuantizedEmbedding:
        """dtype: of the rows; by default the scales' for affine, bfloat16 otherwise."""
        layer = cls.__new__(cls)
        PackedModule.__init__(layer, packed, None, mode, bits, group_size)
        layer.dtype = dtype or (packed[1].dtype if mode == "affine" else torch.bfloat16)
        return layer

    @classmethod
    def from_embedding(
        cls,
        embedding: nn.Embedding,
        group_size: int | None = None,
        bits: int | None = None,
        mode: Mode = "affine",
    ) -> QuantizedEmbedding:
        bits, group_size = resolved(mode, bits, group_size)
        w = embedding.weight.detach()
        return cls.from_packed(
            ops.quantize(w, group_size, bits, mode),
            mode=mode,
            bits=bits,
            group_size=group_size,
            dtype=w.dtype,
        )

    def forward(self, ids: Tensor) -> Tensor:
        # torch selects no rows of uint32.
        codes = self.weight.view(torch.int32)[ids].view(torch.uint32)
        biases = None if self.biases is None else self.biases[ids]
        return ops.dequantize(codes, self.scales[ids], biases, **self.form, dtype=self.dtype)

    def as_linear(self, x: Tensor) -> Tensor:
        return ops.quantized_matmul(x, self.weight, self.scales, self.biases, **self.form)


def to_qqlinear(
    linear: nn.Linear,
    group_size: int | None = None,
    bits: int | None = None,
    mode: BlockMode = "nvfp4",
) -> QQLinear:
    """A torch Linear as a QQLinear on the same parameters."""
    return QQLinear.from_linear(linear, group_size, bits, mode)


def to_quantized(
    layer: nn.Module, group_size: int | None = None, bits: int | None = None, mode: Mode = "affine"
) -> nn.Module:
    """A layer with a packed weight: of a torch Linear or Embedding, a SwitchLinear, a QQLinear."""
    if isinstance(layer, QQLinear):
        return layer.to_quantized()
    if isinstance(layer, nn.Embedding):
        return QuantizedEmbedding.from_embedding(layer, group_size, bits, mode)
    if isinstance(layer, nn.Linear):
        return QuantizedLinear.from_linear(layer, group_size, bits, mode)
    if hasattr(layer, "to_quantized"):
        return layer.to_quantized(group_size, bits, mode)
    raise TypeError(f"{type(layer).__name__} has no quantized form")
