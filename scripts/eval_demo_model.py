#!/usr/bin/env python3
"""Measure the demo model with `transformers`, as a reference that shares no code with moeblas.

    python3 scripts/eval_demo_model.py models/kjv-olmoe-8m --text models/kjv-olmoe-8m/heldout.txt
    python3 scripts/eval_demo_model.py models/kjv-olmoe-8m-4bit --prompt "In the beginning"

Takes both forms of the model; the quantized one is dequantized to float32 first. Everything is
computed in float32 on the CPU.

Bits per byte: the text is read in windows of `max_position_embeddings` bytes, and each window's
bytes predict the next byte, the last one the first of the next window. So every byte but the
text's first is predicted once, from what stands before it in its window.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from quantize_demo_model import dequantize, read_safetensors
from transformers import OlmoeConfig, OlmoeForCausalLM


def dequantized_state(folder, quantization):
    """The float32 weights of an MLX checkpoint, under transformers' parameter names."""
    tensors = read_safetensors(folder / "model.safetensors")
    state = {}
    for name, (_, array) in tensors.items():
        module = name.removesuffix(".weight")
        if f"{module}.scales" in tensors and name.endswith(".weight"):
            bits = quantization.get(module, quantization)["bits"]
            scales, biases = (tensors[f"{module}.{part}"][1] for part in ("scales", "biases"))
            state[name] = torch.from_numpy(dequantize(array, scales, biases, bits))
        elif name.endswith(".weight"):
            values = (array.astype(np.uint32) << 16).view(np.float32)
            state[name] = torch.from_numpy(values)
    for name in [name for name in state if name.endswith("switch_mlp.gate_proj.weight")]:
        mlp = name.removesuffix("switch_mlp.gate_proj.weight")
        gate, up, down = (
            state.pop(f"{mlp}switch_mlp.{part}_proj.weight") for part in ("gate", "up", "down")
        )
        state[f"{mlp}experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        state[f"{mlp}experts.down_proj"] = down
    return state


def load(folder):
    config = json.loads((folder / "config.json").read_text())
    quantization = config.pop("quantization", None)
    if quantization is None:
        model = OlmoeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        del config["quantization_config"]
        model = OlmoeForCausalLM(OlmoeConfig(**config)).float()
        model.load_state_dict(dequantized_state(folder, quantization))
    model.set_experts_implementation("eager")
    return model.eval()


@torch.no_grad()
def bits_per_byte(model, text):
    context = model.config.max_position_embeddings
    data = torch.tensor(list(text))
    total = 0.0
    for start in range(0, len(data) - 1, context):
        window = data[start : start + context + 1]
        logits = model(input_ids=window[None, :-1], use_cache=False).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, window[1:], reduction="none")
        total += float(loss.sum(dtype=torch.float64))
    return total / math.log(2) / (len(data) - 1)


@torch.no_grad()
def generate(model, prompt, count, temperature, seed):
    """The prompt's continuation, byte by byte; the likeliest byte at temperature 0."""
    generator = torch.Generator().manual_seed(seed)
    tokens, cache, text = torch.tensor([list(prompt)]), None, b""
    for _ in range(count):
        out = model(input_ids=tokens, past_key_values=cache, use_cache=True)
        logits, cache = out.logits[0, -1], out.past_key_values
        if temperature > 0:
            chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        else:
            chosen = logits.argmax(keepdim=True)
        tokens = chosen[None]
        text += bytes([int(chosen)])
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, help="print the bits per byte of this file")
    parser.add_argument("--prompt", help="print a continuation of this text")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    model = load(args.model)
    if args.text:
        print(f"{bits_per_byte(model, args.text.read_bytes()):.4f} bits per byte")
    if args.prompt:
        prompt = args.prompt.encode()
        text = generate(model, prompt, args.tokens, args.temperature, args.seed)
        print((prompt + text).decode(errors="replace"))


if __name__ == "__main__":
    main()
