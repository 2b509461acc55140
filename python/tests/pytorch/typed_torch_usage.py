"""Never run: what a type checker has to find right, and wrong where it says so."""

from __future__ import annotations

import torch
from torch import Tensor

import moeblas.torch as mt
from moeblas import nn
from moeblas.integrations.executorch import inductor_configs

x = torch.zeros(4, 64)
experts = torch.zeros(8, 16, 64)
ids, weights = mt.moe_route(x[:, :8], 2, score="sigmoid")
w_q, scales, biases = mt.quantize(experts, 64, 4)
y: Tensor = mt.gather_qmm(x[:, None, None], w_q, scales, biases, rhs_indices=ids)
z: Tensor = mt.qqmm(x, experts[0], mode="mxfp4", bias=torch.zeros(16))
layer: Tensor = mt.moe_ffn(
    x, mt.Quantized(w_q, scales, biases), torch.zeros(8, 64, 8), ids, weights, "relu"
)
linear: nn.QuantizedLinear = nn.QuantizedLinear.from_linear(torch.nn.Linear(64, 16), mode="mxfp4")
trained: nn.QQLinear = nn.to_qqlinear(torch.nn.Linear(64, 16))
values: Tensor = linear.dequantize(torch.float16)
settings: dict[str, object] = inductor_configs("cuda")

mt.gather_qmm(x, w_q, scales, mode="q4_0")  # type: ignore[arg-type]
mt.gather_qmm(x, w_q, scales, precision="sloppy")  # type: ignore[arg-type]
mt.qqmm(x, experts[0], mode="affine")  # type: ignore[arg-type]
mt.moe_route(x, "2")  # type: ignore[arg-type]
mt.quantize(experts, group=64)  # type: ignore[call-arg]
nn.QuantizedLinear(64, 16, mode="dense")  # type: ignore[arg-type]
wrong: str = mt.to_fp8(x)  # type: ignore[assignment]
