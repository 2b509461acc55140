"""Never run: what a type checker has to find right, and wrong where it says so."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import moeblas as mb

F32 = NDArray[np.float32]

x: F32 = np.zeros((4, 1, 1, 64), np.float32)
ids = np.zeros((4, 2), np.int32)
w_q, scales, biases = mb.quantize(np.zeros((8, 16, 64), np.float32), 64, 4)
y: F32 = mb.gather_qmm(
    x, w_q, scales, biases, rhs_indices=ids, sorted_indices=True, precision="exact"
)
plan = mb.explain(mb.gather_qmm, x, w_q, scales, biases, rhs_indices=ids)
name: str | None = plan.kernel
reasons: list[str] = plan.reasons
experts: list[str] = [kernel.summary for kernel in mb.kernels()]
layer: F32 = mb.moe_ffn(
    x[:, 0, 0], mb.Quantized(w_q, scales, biases), (np.zeros((8, 64, 8), np.float32)), ids, x
)
chosen, weights = mb.moe_route(x[:, 0, 0], 2, score="sigmoid")

mb.gather_qmm(x, w_q, scales, mode="q4_0")  # type: ignore[arg-type]
mb.gather_qmm(x, w_q, scales, precision="sloppy")  # type: ignore[arg-type]
mb.gather_qmm(x, w_q, scales, group="64")  # type: ignore[call-arg]
mb.moe_route(x, "2")  # type: ignore[arg-type]
wrong: str = mb.to_fp8(x)  # type: ignore[assignment]
