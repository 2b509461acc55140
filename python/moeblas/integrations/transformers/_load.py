"""MLX's checkpoint layout, read."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from ... import nn as layers
from ...nn._packed import resolved
from ._convert import attach_experts, attach_model, attach_router
from ._families import family, floating, gating, is_experts, is_router, mlx_name
from ._modules import TiedHead, set_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike

    from transformers import PreTrainedModel


class _Files:
    """The tensors of a folder's safetensors files, by MLX's names. Each is taken once; on the CPU it
    stays a view of the mapped file."""

    def __init__(self, folder, device):
        self.folder, self.device, self.where = folder, device, {}
        for path in sorted(folder.glob("model*.safetensors")):
            file = safe_open(path, "pt", device=str(device))
            for name in file.keys():  # noqa: SIM118 - it is no dict
                if name in self.where:
                    raise ValueError(f"{path.name}: {name}: stands in another file too")
                self.where[name] = file
        if not self.where:
            raise FileNotFoundError(f"no model*.safetensors in {folder}")

    def __contains__(self, name):
        return name in self.where

    def take(self, name):
        if name not in self.where:
            raise ValueError(f"{self.folder}: {name} is missing")
        return self.where.pop(name).get_tensor(name)


class _Reader:
    def __init__(self, folder, files, quantization, dtype):
        self.files, self.dtype = files, dtype
        self.overrides = {k: v for k, v in quantization.items() if isinstance(v, dict)}
        self.default = {k: quantization.get(k) for k in ("mode", "bits", "group_size")}

    def form(self, name):
        form = self.overrides.get(name, self.default)
        mode = form.get("mode") or "affine"
        bits, group_size = resolved(mode, form.get("bits"), form.get("group_size"))
        return {"mode": mode, "bits": bits, "group_size": group_size}

    def float(self, name):
        tensor = self.files.take(name)
        return tensor.to(self.dtype) if floating(tensor) else tensor

    def bias(self, name):
        return self.float(name + ".bias") if name + ".bias" in self.files else None

    def packed(self, name):
        """(codes, scales[, biases]) and the format of a module; None if it is floating."""
        if name + ".scales" not in self.files:
            return None
        form = self.form(name)
        keys = ("weight", "scales", "biases") if form["mode"] == "affine" else ("weight", "scales")
        return [self.files.take(f"{name}.{key}") for key in keys], form

    def linear(self, name):
        found = self.packed(name)
        if found:
            return layers.QuantizedLinear.from_packed(found[0], self.bias(name), **found[1])
        weight = self.float(name + ".weight")
        layer = layers.Linear(weight.shape[1], weight.shape[0], False, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        bias = self.bias(name)
        layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        return layer

    def embedding(self, name, module):
        found = self.packed(name)
        if found:
            return layers.QuantizedEmbedding.from_packed(found[0], dtype=self.dtype, **found[1])
        return layers.Embedding.from_pretrained(
            self.float(name + ".weight"), padding_idx=module.padding_idx
        )

    def switch(self, name):
        found = self.packed(name)
        if found:
            return layers.QuantizedSwitchLinear.from_packed(found[0], self.bias(name), **found[1])
        return layers.SwitchLinear.from_tensors(self.float(name + ".weight"), self.bias(name))

    def blocks(self, name):
        """gpt-oss as Hugging Face has it: blocks (E, N, K/32, 16) of mxfp4, used where they lie."""
        codes = self.files.take(name + "_blocks").flatten(-2)
        scales = self.files.take(name + "_scales")
        return layers.QuantizedSwitchLinear.from_packed(
            (codes, scales), self.float(name + "_bias"), mode="mxfp4"
        )

    def experts(self, name, mlx, module):
        gate = gating(module)
        if f"{name}.gate_up_proj_blocks" in self.files:
            return layers.SwitchGLU.from_layers(
                self.blocks(f"{name}.down_proj"),
                gate_up_proj=self.blocks(f"{name}.gate_up_proj"),
                **gate,
            )
        gate.pop("glu_layout")
        parts = {
            f"{part}_proj": self.switch(f"{mlx}.{part}_proj") for part in ("gate", "up", "down")
        }
        return layers.SwitchGLU.from_layers(**parts, **gate)


@torch.no_grad()
def load_mlx_checkpoint(
    folder: str | PathLike[str],
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> PreTrainedModel:
    """A model of transformers on the tensors of an MLX checkpoint, as they are stored: nothing is
    dequantized or repacked, and on the CPU packed weights stay views of the mapped files.

    dtype: of activations, norms and floating weights; config.json's if None. The folder may also be
    Hugging Face's of gpt-oss. A missing or an unknown tensor is a ValueError with its name."""
    folder = Path(folder)
    raw = json.loads((folder / "config.json").read_text())
    config = AutoConfig.from_pretrained(folder)
    for key in ("quantization", "quantization_config"):
        if hasattr(config, key):
            delattr(config, key)
    family(config)
    dtype = dtype or config.dtype or torch.float32
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)

    files = _Files(folder, torch.device(device))
    quantization = raw.get("quantization") or raw.get("quantization_config") or {}
    reader = _Reader(folder, files, quantization, dtype)
    tied = config.tie_word_embeddings
    for name, module in list(model.named_modules()):
        mlx = mlx_name(config, name)
        if is_experts(module):
            path = mlx_name(config, f"{name}.switch_mlp")
            attach_experts(module, reader.experts(name, path, module))
        elif is_router(module):
            attach_router(module, config, reader.linear(mlx))
        elif type(module) is nn.Embedding:
            set_module(model, name, reader.embedding(mlx, module))
        elif type(module) is nn.Linear and not (tied and module is model.get_output_embeddings()):
            set_module(model, name, reader.linear(mlx))
    if tied:
        head = next(n for n, m in model.named_modules() if m is model.get_output_embeddings())
        set_module(model, head, TiedHead(model.get_input_embeddings()))
    _materialize(model, config, reader)
    if files.where:
        raise ValueError(f"{folder}: {sorted(files.where)[0]} is not a tensor of this model")
    model.generation_config = _generation_config(folder, model)
    return attach_model(model).eval()


def _generation_config(folder, model):
    from transformers import GenerationConfig

    if (folder / "generation_config.json").exists():
        return GenerationConfig.from_pretrained(folder)
    return GenerationConfig.from_model_config(model.config)


def _materialize(model, config, reader):
    """Norms and the like from the files; what is computed (rotary frequencies) is computed anew."""
    for name, module in list(model.named_modules()):
        computed = [
            b
            for k, b in module.named_buffers(recurse=False)
            if k in module._non_persistent_buffers_set and b.is_meta
        ]
        if computed:
            with torch.device(reader.files.device):
                set_module(model, name, type(module)(config))
            continue
        for kind in (module._parameters, module._buffers):
            for key, tensor in list(kind.items()):
                if tensor is None or not tensor.is_meta:
                    continue
                loaded = reader.float(f"{mlx_name(config, name)}.{key}")
                if loaded.shape != tensor.shape:
                    raise ValueError(
                        f"{name}.{key} has shape {tuple(loaded.shape)}, expected "
                        f"{tuple(tensor.shape)}"
                    )
                kind[key] = loaded
                if kind is module._parameters:
                    kind[key] = nn.Parameter(loaded, requires_grad=False)
