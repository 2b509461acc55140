"""Mixture-of-experts models of Hugging Face (transformers 5) on moeblas' products.

    model = quantize_model(AutoModelForCausalLM.from_pretrained(...), mode="mxfp4")
    model = load_mlx_checkpoint("folder of an MLX checkpoint")

Every expert product (through transformers' registry of experts, as "moeblas"), every linear layer and
every router then runs in moeblas, on the packed weights: no weight is ever dequantized. What `skip` names
and what a format's groups do not divide stays floating, and its product is moeblas' too.
`model.save_pretrained(folder)` writes MLX's layout, which `moeblas generate`, mlx-lm and
load_mlx_checkpoint read.

OLMoE, Qwen3-MoE, Mixtral, gpt-oss and DeepSeek-V3. Of gpt-oss, load_mlx_checkpoint also takes Hugging
Face's own files, whose mxfp4 blocks it uses as they are.
"""

from ._convert import quantize_model
from ._load import load_mlx_checkpoint
from ._save import save_mlx_checkpoint

__all__ = ["load_mlx_checkpoint", "quantize_model", "save_mlx_checkpoint"]
