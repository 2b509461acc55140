"""What the families of models differ in: how a router chooses, and where MLX's files keep things."""

import torch
from transformers.integrations.moe import _default_apply_gate


class Family:
    """A router as moe_route takes it, and MLX's names for parts of a module's path."""

    def __init__(self, route, names, router_format="same", router_in_float32=False):
        self.route = route  # the router module -> keywords of moe_route
        self.names = names  # (transformers', MLX's), in order; the first that fits is exchanged
        self.router_format = (
            router_format  # "same" as the rest, "float", or (mode, bits, group_size)
        )
        self.router_in_float32 = router_in_float32


_SWITCH = (".mlp.experts.switch_mlp.", ".mlp.switch_mlp.")


def _softmax(normalize):
    return lambda router: {"score": "softmax", "normalize": normalize(router)}


def _deepseek(router):
    return {
        "score": "sigmoid", "normalize": router.norm_topk_prob,
        "bias": router.e_score_correction_bias.float(), "n_group": router.num_group,
        "topk_group": router.topk_group, "scaling_factor": router.routed_scaling_factor,
    }  # fmt: skip


FAMILIES = {
    "olmoe": Family(_softmax(lambda router: router.norm_topk_prob), [_SWITCH]),
    # As mlx-lm has it, whatever the rest is.
    "qwen3_moe": Family(_softmax(lambda router: router.norm_topk_prob), [_SWITCH],
                        router_format=("affine", 8, 64)),
    "mixtral": Family(_softmax(lambda router: True), [
        (".mlp.experts.switch_mlp.", ".block_sparse_moe.switch_mlp."),
        (".mlp.", ".block_sparse_moe."),
    ]),
    "gpt_oss": Family(_softmax(lambda router: True),
                      [(".mlp.experts.switch_mlp.", ".mlp.experts.")]),
    "deepseek_v3": Family(_deepseek, [_SWITCH], router_format="float", router_in_float32=True),
}  # fmt: skip


def family(config):
    found = FAMILIES.get(config.model_type)
    if found is None:
        raise ValueError(
            f"model_type is {config.model_type!r}, expected one of {', '.join(FAMILIES)}"
        )
    return found


def mlx_name(config, name):
    """MLX's name of a module or tensor of ours."""
    name = name.replace(".linear.", ".") if ".linear." in name else name.removesuffix(".linear")
    for ours, theirs in family(config).names:
        if ours in name + ".":
            return (name + ".").replace(ours, theirs).removesuffix(".")
    return name


def is_experts(module):
    """Whether a module runs what transformers' registry of experts names."""
    return hasattr(module, "is_transposed") and hasattr(module, "_apply_gate")


def is_concatenated(experts):
    """Whether all of gate's rows stand before up's. (transformers 5.0 does not say so yet.)"""
    return getattr(experts, "is_concatenated", not hasattr(experts, "alpha"))


def is_router(module):
    """transformers has a class of its own in each family."""
    return type(module).__name__.lower().endswith("topkrouter")


_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu_erf", "relu": "relu",
                "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}  # fmt: skip


def gating(experts):
    """The activation of an experts module, as keywords of SwitchGLU."""
    if not getattr(experts, "has_gate", True) or getattr(experts, "has_post_expert_norm", False):
        raise ValueError(
            f"{type(experts).__name__} has no gate, or a norm of its own: not supported"
        )
    layout = "gate_up" if is_concatenated(experts) else "interleaved"
    if type(experts)._apply_gate is _default_apply_gate:
        name = experts.config.hidden_act
        if name not in _ACTIVATIONS:
            raise ValueError(f"hidden_act is {name!r}, expected one of {', '.join(_ACTIVATIONS)}")
        return {"activation": _ACTIVATIONS[name], "glu_layout": layout}
    if hasattr(experts, "alpha") and hasattr(experts, "limit"):
        return {
            "activation": "clamped_swiglu",
            "alpha": experts.alpha,
            "limit": experts.limit,
            "glu_layout": layout,
        }
    raise ValueError(f"{type(experts).__name__} has a gate of its own: not supported")


def halves(tensor, layout):
    """Gate's rows and up's of a joint (E, 2I, ...), as views."""
    if layout == "interleaved":
        return tensor[:, ::2], tensor[:, 1::2]
    inner = tensor.shape[1] // 2
    gate, up = tensor[:, :inner], tensor[:, inner:]
    return (up, gate) if layout == "up_gate" else (gate, up)


def floating(tensor):
    return tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)
