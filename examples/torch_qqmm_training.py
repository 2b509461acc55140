"""Training a layer whose two operands are rounded to nvfp4 blocks, straight-through.

python examples/torch_qqmm_training.py
"""

import torch

import moeblas.nn as mnn

torch.manual_seed(0)
target = torch.randn(32, 128) / 128**0.5
layer = mnn.to_qqlinear(torch.nn.Linear(128, 32, bias=False), mode="nvfp4")
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
for step in range(101):
    x = torch.randn(256, 128)
    loss = ((layer(x) - x @ target.T) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:3}: loss {loss.item():.4f}")

packed = mnn.to_quantized(layer)
print(
    "packed for inference:",
    ", ".join(packed.state_dict()),
    "- the same answers:",
    torch.equal(packed(x), layer(x)),
)
