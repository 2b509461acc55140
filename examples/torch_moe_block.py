"""A mixture-of-experts block in torch on 4-bit experts: routed, compiled, differentiated.

python examples/torch_moe_block.py
"""

import torch

import moeblas.nn as mnn
import moeblas.torch as mt

torch.manual_seed(0)
tokens, hidden, inner, experts, k = 64, 128, 256, 16, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        self.experts = mnn.to_quantized(mnn.SwitchGLU(hidden, inner, experts), mode="mxfp4")

    def forward(self, x):
        ids, weights = mt.moe_route(self.router(x).detach(), k, normalize=True)
        return x + self.experts(x, ids, weights)


block, x = Block(), torch.randn(tokens, hidden)
with torch.no_grad():
    y = block(x)  # without a gradient to keep, one fused call
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    print("compiled as called:", torch.allclose(compiled(x), y, atol=1e-5))

x.requires_grad_()
block(x).square().mean().backward()
print("gradient by x:", tuple(x.grad.shape), "finite:", bool(x.grad.isfinite().all()))
print("keys:", ", ".join(list(block.state_dict())[:4]))
