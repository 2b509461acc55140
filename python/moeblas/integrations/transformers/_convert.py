"""Puts a model's modules on moeblas' products, quantizing their weights."""

from __future__ import annotations

import fnmatch
import types

import torch
import transformers
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ... import nn as layers
from ... import torch as ops
from ...nn._packed import resolved
from ._families import family, gating, is_experts, is_router
from ._modules import TiedHead, set_module
from ._save import save_mlx_checkpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    from ...torch._typing import Mode

    Model = TypeVar("Model", bound=nn.Module)


def experts_forward(self, hidden_states, top_k_index, top_k_weights):
    """What transformers' registry runs for every experts module."""
    return self.switch_mlp(hidden_states, top_k_index, top_k_weights)


ALL_EXPERTS_FUNCTIONS["moeblas"] = experts_forward


def router_forward(self, hidden_states):
    """Logits, weights and ids, as transformers' routers return them."""
    rows = hidden_states.reshape(-1, hidden_states.shape[-1])
    if self.float32:
        rows = rows.float()
    logits = self.linear(rows)
    ids, weights = ops.moe_route(logits, self.top_k, **self.route(self))
    return logits, weights.to(logits.dtype), ids.long()


def attach_experts(module, switch):
    """Gives an experts module its matrices, in place of the parameters that it had."""
    for name, _ in list(module.named_parameters(recurse=False)):
        delattr(module, name)
    module.switch_mlp = switch


def attach_router(module, config, linear):
    """Gives a router its product, in place of the parameters that it had."""
    if not hasattr(module, "top_k"):  # its layer chooses, as DeepSeek-V3's does in older versions
        raise ValueError(
            f"{type(module).__name__} of transformers {transformers.__version__} returns logits "
            "alone, expected a version whose routers choose experts"
        )
    for name in ("weight", "bias"):
        if hasattr(module, name):
            delattr(module, name)
    module.linear = linear
    module.float32 = family(config).router_in_float32
    module.route = family(config).route
    module.forward = types.MethodType(router_forward, module)


def attach_model(model):
    """What a model needs besides its modules: the registry's word, and how it is saved."""
    try:
        model.set_experts_implementation("moeblas")
    except ValueError:  # transformers 5.0 knows its own words alone, but runs what the registry has
        model.config._experts_implementation_internal = "moeblas"
    model.save_pretrained = types.MethodType(save_mlx_checkpoint, model)
    return model


def router_linear(module):
    """A router's product as a torch Linear on its tensors."""
    linear = nn.Linear(1, 1, False, device="meta")
    linear.weight, linear.bias = module.weight, getattr(module, "bias", None)
    linear.out_features, linear.in_features = module.weight.shape
    return linear


@torch.no_grad()
def quantize_model(
    model: Model,
    mode: Mode = "affine",
    group_size: int | None = None,
    bits: int | None = None,
    skip: str | Iterable[str] = (),
) -> Model:
    """Quantizes a model of transformers in place, and returns it.

    mode, group_size, bits: as for moeblas.quantize. skip: module names, with wildcards (`lm_head`,
    `*.mlp.gate`), whose weights stay floating; their products run in moeblas all the same, as those of
    matrices whose K the group does not divide. Routers are quantized with the rest, but Qwen3-MoE's
    are affine 8-bit in groups of 64 and DeepSeek-V3's stay floating, as in mlx-lm. Layers are
    converted one by one: besides the model one layer's packed weights are the peak of memory.
    """
    bits, group_size = resolved(mode, bits, group_size)
    rules = family(model.config)
    skip = [skip] if isinstance(skip, str) else list(skip)

    def form(name, k, given=None):
        """The format of a module, None where it stays floating."""
        if given == "float" or any(fnmatch.fnmatch(name, pattern) for pattern in skip):
            return None
        m, b, g = given or (mode, bits, group_size)
        return None if k % g or k * b % 32 else dict(mode=m, bits=b, group_size=g)

    def linear(name, module, given=None):
        how = form(name, module.in_features, given)
        if how is None:
            return layers.Linear.from_linear(module)
        return layers.QuantizedLinear.from_linear(module, **how)

    tied = model.config.tie_word_embeddings
    for name, module in list(model.named_modules()):
        if is_experts(module):
            attach_experts(module, _experts(name, module, form))
        elif is_router(module):
            given = None if rules.router_format == "same" else rules.router_format
            attach_router(module, model.config, linear(name, router_linear(module), given))
        elif type(module) is nn.Embedding:
            how = form(name, module.embedding_dim)
            table = layers.Embedding.from_pretrained(module.weight, padding_idx=module.padding_idx)
            if how is not None:
                table = layers.QuantizedEmbedding.from_embedding(module, **how)
            set_module(model, name, table)
        elif type(module) is nn.Linear and not (tied and module is model.get_output_embeddings()):
            set_module(model, name, linear(name, module))
    if tied:
        head = next(n for n, m in model.named_modules() if m is model.get_output_embeddings())
        set_module(model, head, TiedHead(model.get_input_embeddings()))
    return attach_model(model)


def _experts(name, module, form):
    """The matrices of an experts module as a SwitchGLU, gate and up as one product."""

    def switch(matrix, bias):
        weight = getattr(module, matrix)
        if module.is_transposed:
            weight = weight.transpose(1, 2)
        layer = layers.SwitchLinear.from_tensors(
            weight.detach(), getattr(module, bias).detach() if module.has_bias else None
        )
        how = form(name, weight.shape[-1])
        return layer if how is None else layer.to_quantized(**how)

    return layers.SwitchGLU.from_layers(
        switch("down_proj", "down_proj_bias"),
        gate_up_proj=switch("gate_up_proj", "gate_up_proj_bias"),
        **gating(module),
    )
