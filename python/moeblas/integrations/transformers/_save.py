"""MLX's checkpoint layout, written."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from ... import nn as layers
from ...nn._packed import PackedModule
from ._families import halves, mlx_name
from ._modules import TiedHead

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any

    from transformers import PreTrainedModel

_SHARD_BYTES = 5 << 30  # as mlx-lm cuts its files


def _form(module):
    return {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}


def _entries(model):
    """MLX's modules of a model: (name, format or None, tensors)."""
    config = model.config
    inside = set()
    for name, module in model.named_modules():
        if isinstance(module, layers.SwitchGLU):
            for child_name, child in module.named_children():
                inside.add(child)
                yield from _switch_entries(config, name, module.glu_layout, child_name, child)
        elif isinstance(module, PackedModule) and module not in inside:
            yield mlx_name(config, name), _form(module), dict(module.state_dict())
        elif module not in inside and not isinstance(module, TiedHead):
            own = dict(module.named_parameters(recurse=False))
            saved = {
                k: b
                for k, b in module.named_buffers(recurse=False)
                if k not in module._non_persistent_buffers_set
            }
            if own or saved:
                yield mlx_name(config, name), None, own | saved


def _switch_entries(config, name, layout, child_name, child):
    form = _form(child) if isinstance(child, PackedModule) else None
    tensors = dict(child.state_dict())
    if child_name != "gate_up_proj":
        yield mlx_name(config, f"{name}.{child_name}"), form, tensors
        return
    for i, half in enumerate(("gate_proj", "up_proj")):
        part = {key: halves(tensor, layout)[i] for key, tensor in tensors.items()}
        yield mlx_name(config, f"{name}.{half}"), form, part


def _stored(tensor, form, key):
    """A tensor as a file has it: in one piece, codes as uint32."""
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.uint32) if form and key == "weight" else tensor


def save_mlx_checkpoint(
    model: PreTrainedModel, folder: str | PathLike[str], **ignored: Any
) -> None:
    """Writes a converted model in MLX's layout: safetensors files, their index, config.json and
    generation_config.json. It is what model.save_pretrained is after quantize_model."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors, forms = {}, {}
    for name, form, own in _entries(model):
        if form:
            forms[name] = form
        for key, tensor in own.items():
            tensors[f"{name}.{key}" if name else key] = _stored(tensor, form, key)

    shards, size = [{}], 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > _SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    files = ["model.safetensors"]
    if len(shards) > 1:
        files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    where = {}
    for file, shard in zip(files, shards):
        save_file({n: t.cpu() for n, t in shard.items()}, folder / file, {"format": "mlx"})
        where |= dict.fromkeys(shard, file)
    total = sum(t.nbytes for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=4))

    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(folder)
    # Last: a folder without it is no checkpoint.
    (folder / "config.json").write_text(json.dumps(_config(model, forms), indent=2, sort_keys=True))


def _config(model, forms):
    config = json.loads(model.config.to_json_string(use_diff=False))
    config.pop("quantization_config", None)
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope:  # for readers that know only the older place
        config["rope_theta"] = rope["rope_theta"]
    if forms:
        # The format of most modules; those of another have an entry of their own.
        counted = [json.dumps(form) for form in forms.values()]
        most = json.loads(max(set(counted), key=counted.count))
        rest = {name: form for name, form in forms.items() if form != most}
        config["quantization"] = config["quantization_config"] = most | rest
    return config
