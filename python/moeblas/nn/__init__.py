"""Layers on quantized weights, as torch modules, with the names and the checkpoint keys of mlx.nn and
mlx-lm: `weight` (packed codes), `scales`, `biases` (affine) and `bias`.

Codes, scales and biases are not trained unless their requires_grad is set (scales and biases of affine
can be). A layer's state dict holds the tensors as they are in a file, and loads them without a copy of
their values.
"""

from ._linear import (
    Embedding,
    Linear,
    QQLinear,
    QuantizedEmbedding,
    QuantizedLinear,
    to_qqlinear,
    to_quantized,
)
from ._switch import QuantizedSwitchLinear, SwitchGLU, SwitchLinear

__all__ = [
    "Embedding", "Linear", "QQLinear", "QuantizedEmbedding", "QuantizedLinear",
    "QuantizedSwitchLinear", "SwitchGLU", "SwitchLinear", "to_qqlinear", "to_quantized",
]  # fmt: skip
