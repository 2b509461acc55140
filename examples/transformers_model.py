"""A Hugging Face model on moeblas: the trained model of this repository, quantized here, writes text.

    python examples/transformers_model.py [FOLDER]

With FOLDER the quantized model is saved there, in MLX's layout, for `moeblas generate` and mlx-lm.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from moeblas.integrations.transformers import quantize_model

folder = Path(__file__).resolve().parent.parent / "models/kjv-olmoe-8m"
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
quantize_model(model, mode="mxfp4")

prompt = torch.tensor([list(b"And it came to pass")])  # this model's tokens are bytes
out = model.generate(prompt, max_new_tokens=80, do_sample=False)
print(bytes(out[0].tolist()).decode())
if len(sys.argv) > 1:
    model.save_pretrained(sys.argv[1])
