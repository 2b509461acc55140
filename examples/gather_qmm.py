"""The product of an expert layer: every token's rows times those experts that a router chose for it."""

import numpy as np

import moeblas as mb

rng = np.random.default_rng(0)
x = rng.standard_normal((4, 1, 1, 256), np.float32)  # four tokens
w = rng.standard_normal((8, 512, 256), np.float32)  # eight experts
ids = np.array([[0, 3], [1, 2], [7, 0], [3, 4]])  # two for each token

w_q, scales, biases = mb.quantize(w, group_size=64, bits=4)
y = mb.gather_qmm(x, w_q, scales, biases, rhs_indices=ids, group_size=64, bits=4)

exact = np.einsum("tk,tjnk->tjn", x[:, 0, 0], w[ids])
print(y.shape, y.dtype)
print(f"{w.nbytes // 1024} KiB became {(w_q.nbytes + scales.nbytes + biases.nbytes) // 1024} KiB")
print(f"error of 4 bits: {np.linalg.norm(y[:, :, 0] - exact) / np.linalg.norm(exact):.1%}")

# > (4, 2, 1, 512) float32
# > 4096 KiB became 640 KiB
# > error of 4 bits: 9.0%
