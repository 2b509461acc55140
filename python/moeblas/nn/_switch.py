"""Expert layers: a matrix per expert, chosen by the indices of each token."""

from __future__ import annotations

import torch
from torch import nn

from .. import torch as ops
from ._packed import PackedModule, random_dense, random_packed, resolved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..torch._typing import Activation, Device, GluLayout, Mode, Packed, Tensor


def _add_bias(y, bias, indices):
    """y (..., k, M, N) plus the bias of each pair's expert."""
    return y if bias is None else y + bias[indices].unsqueeze(-2).to(y.dtype)


class SwitchLinear(nn.Module):
    """y = x @ W[e]^T + bias[e] with floating W (E, N, K): x (..., M, K), indices (...) of experts."""

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        num_experts: int,
        bias: bool = True,
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = random_dense((num_experts, output_dims, input_dims), device, dtype)
        self.bias = None
        if bias:
            self.bias = nn.Parameter(
                torch.zeros(num_experts, output_dims, device=device, dtype=dtype)
            )

    @classmethod
    def from_tensors(cls, weight: Tensor, bias: Tensor | None = None) -> SwitchLinear:
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.weight = nn.Parameter(weight, requires_grad=weight.requires_grad)
        layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=bias.requires_grad)
        return layer

    @property
    def packed(self) -> Tensor:
        return self.weight

    def forward(self, x: Tensor, indices: Tensor, sorted_indices: bool = False) -> Tensor:
        y = ops.gather_qmm(
            x, self.weight, None, None, None, indices, mode="dense", sorted_indices=sorted_indices
        )
        return _add_bias(y, self.bias, indices)

    def to_quantized(
        self, group_size: int | None = None, bits: int | None = None, mode: Mode = "affine"
    ) -> QuantizedSwitchLinear:
        bits, group_size = resolved(mode, bits, group_size)
        packed = ops.quantize(self.weight.detach(), group_size, bits, mode)
        bias = None if self.bias is None else self.bias.detach()
        return QuantizedSwitchLinear.from_packed(
            packed, bias, mode=mode, bits=bits, group_size=group_size
        )


class QuantizedSwitchLinear(PackedModule):
    """SwitchLinear with a quantized W."""

    def __init__(
        self,
        input_dims: int,
        output_dims: int,
        num_experts: int,
        bias: bool = True,
        group_size: int | None = None,
        bits: int | None = None,
        mode: Mode = "affine",
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shape = (num_experts, output_dims, input_dims)
        packed = random_packed(shape, mode, bits, group_size, device, dtype)
        zeros = torch.zeros(shape[:2], device=device, dtype=dtype) if bias else None
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
    ) -> QuantizedSwitchLinear:
        layer = cls.__new__(cls)
        PackedModule.__init__(layer, packed, bias, mode, bits, group_size)
        return layer

    def forward(self, x: Tensor, indices: Tensor, sorted_indices: bool = False) -> Tensor:
        y = ops.gather_qmm(
            x,
            self.weight,
            self.scales,
            self.biases,
            None,
            indices,
            sorted_indices=sorted_indices,
            **self.form,
        )
        return _add_bias(y, self.bias, indices)


class SwitchGLU(nn.Module):
    """Gated experts: down(a(gate(x), up(x))), a token's experts chosen by indices (..., k).

    gate_proj, up_proj and down_proj are SwitchLinears of either kind. A checkpoint that has gate and up
    in one matrix keeps it: gate_up_proj instead of the two, rows as glu_layout says. With weights the
    result is the weighted sum over a token's experts (..., H), else each expert's own (..., k, H).

    activation: silu, gelu_erf, gelu_tanh, relu, or clamped_swiglu with alpha and limit."""

    def __init__(
        self,
        input_dims: int,
        hidden_dims: int,
        num_experts: int,
        activation: Activation = "silu",
        bias: bool = False,
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        def switch(k, n):
            return SwitchLinear(k, n, num_experts, bias, device=device, dtype=dtype)

        super().__init__()
        self._set(activation, 1.702, 7.0, "gate_up")
        self.gate_proj = switch(input_dims, hidden_dims)
        self.up_proj = switch(input_dims, hidden_dims)
        self.down_proj = switch(hidden_dims, input_dims)

    def _set(self, activation, alpha, limit, glu_layout):
        self.activation, self.alpha, self.limit = activation, alpha, limit
        self.glu_layout = glu_layout

    @classmethod
    def from_layers(
        cls,
        down_proj: nn.Module,
        *,
        gate_proj: nn.Module | None = None,
        up_proj: nn.Module | None = None,
        gate_up_proj: nn.Module | None = None,
        activation: Activation = "silu",
        alpha: float = 1.702,
        limit: float = 7.0,
        glu_layout: GluLayout = "gate_up",
    ) -> SwitchGLU:
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._set(activation, alpha, limit, glu_layout)
        if gate_up_proj is not None:
            layer.gate_up_proj = gate_up_proj
        else:
            layer.gate_proj, layer.up_proj = gate_proj, up_proj
        layer.down_proj = down_proj
        return layer

    def to_quantized(
        self, group_size: int | None = None, bits: int | None = None, mode: Mode = "affine"
    ) -> SwitchGLU:
        layers = {
            name: child.to_quantized(group_size, bits, mode)
            for name, child in self.named_children()
        }
        return type(self).from_layers(
            **layers,
            activation=self.activation,
            alpha=self.alpha,
            limit=self.limit,
            glu_layout=self.glu_layout,
        )

    @property
    def _first(self):
        if "gate_up_proj" in self._modules:
            return (self.gate_up_proj,)
        return self.gate_proj, self.up_proj

    def forward(self, x: Tensor, indices: Tensor, weights: Tensor | None = None) -> Tensor:
        differentiated = torch.is_grad_enabled() and (
            x.requires_grad
            or (weights is not None and weights.requires_grad)
            or any(p.requires_grad for p in self.parameters())
        )
        if weights is not None and not differentiated:
            return self._fused(x, indices, weights)
        y = self._composed(x, indices)
        if weights is None:
            return y
        return (y.float() * weights.unsqueeze(-1)).sum(-2).to(y.dtype)

    def _fused(self, x, indices, weights):
        first = self._first
        matrix = first[0].packed if len(first) == 1 else tuple(layer.packed for layer in first)
        bias = first[0].bias if len(first) == 1 else tuple(layer.bias for layer in first)
        k = indices.shape[-1]
        y = ops.moe_ffn(
            x.reshape(-1, x.shape[-1]),
            matrix,
            self.down_proj.packed,
            indices.reshape(-1, k),
            weights.reshape(-1, k).float(),
            self.activation,
            self.glu_layout,
            gate_up_bias=bias,
            down_bias=self.down_proj.bias,
            alpha=self.alpha,
            limit=self.limit,
        )
        return y.view(x.shape)

    def _composed(self, x, indices):
        """One call per product: the form that has a gradient."""
        x = x[..., None, None, :]
        if len(self._first) == 1:
            both = self.gate_up_proj(x, indices)
            if self.glu_layout == "interleaved":
                gate, up = both[..., ::2], both[..., 1::2]
            else:
                gate, up = both.chunk(2, -1)
                if self.glu_layout == "up_gate":
                    gate, up = up, gate
        else:
            gate, up = self.gate_proj(x, indices), self.up_proj(x, indices)
        h = _ACTIVATIONS[self.activation](self, gate.float(), up.float()).to(x.dtype)
        # One token per pair: (..., k, 1, I) with (..., k) indices.
        shape = h.shape
        h = self.down_proj(h.reshape(-1, 1, shape[-1]), indices.reshape(-1))
        return h.view(*shape[:-2], -1)


def _clamped_swiglu(layer, gate, up):
    gate, up = gate.clamp(max=layer.limit), up.clamp(-layer.limit, layer.limit)
    return (up + 1) * gate * torch.sigmoid(layer.alpha * gate)


_ACTIVATIONS = {
    "silu": lambda _, gate, up: nn.functional.silu(gate) * up,
    "gelu_erf": lambda _, gate, up: nn.functional.gelu(gate) * up,
    "gelu_tanh": lambda _, gate, up: nn.functional.gelu(gate, approximate="tanh") * up,
    "relu": lambda _, gate, up: torch.relu(gate) * up,
    "clamped_swiglu": _clamped_swiglu,
}
