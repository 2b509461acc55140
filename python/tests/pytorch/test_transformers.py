"""Hugging Face models on moeblas: tiny random ones of each family, and the model of this repository."""

import copy
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", minversion="5")
from safetensors.torch import save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen3MoeConfig,
)

import moeblas.nn as mnn
import moeblas.torch as mt
import torch_reference as ref
from moeblas.integrations.transformers import load_mlx_checkpoint, quantize_model
from moeblas.integrations.transformers._families import is_concatenated, is_experts, is_router
from moeblas.nn._packed import PackedModule

ROOT = Path(__file__).resolve().parents[3]
# No activation has the shape of a weight: 7 tokens, and sizes that differ.
SIZES = dict(vocab_size=256, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
             num_hidden_layers=2, max_position_embeddings=128, num_experts_per_tok=3,
             tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None)  # fmt: skip
CONFIGS = {
    "olmoe": lambda: OlmoeConfig(**SIZES, intermediate_size=32, num_experts=9, norm_topk_prob=False),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SIZES, head_dim=24, intermediate_size=96, num_experts=9,
                                        moe_intermediate_size=32, norm_topk_prob=True,
                                        mlp_only_layers=[1]),
    "mixtral": lambda: MixtralConfig(**SIZES, intermediate_size=32, num_local_experts=9),
    "gpt_oss": lambda: GptOssConfig(**SIZES, head_dim=16, intermediate_size=32, num_local_experts=9,
                                    sliding_window=4),
    "deepseek_v3": lambda: DeepseekV3Config(
        **(SIZES | dict(num_key_value_heads=4)), intermediate_size=96, moe_intermediate_size=32,
        n_routed_experts=8, n_group=4, topk_group=2, n_shared_experts=1, first_k_dense_replace=1,
        q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16),
}  # fmt: skip
by_family = pytest.mark.parametrize("family", CONFIGS)
MODES = {"affine": dict(mode="affine", bits=4, group_size=32), "mxfp4": dict(mode="mxfp4")}


def random_model(family, **changes):
    config = CONFIGS[family]()
    for key, value in changes.items():
        setattr(config, key, value)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            # Products keep the size of what they are given; routers and heads decide clearly.
            decides = any(word in name for word in ("mlp.gate.", "router", "lm_head", "embed"))
            p.copy_(torch.randn_like(p) / (1 if decides else 8) + ("norm" in name))
        for name, b in model.named_buffers():
            if "correction" in name:
                b.copy_(torch.rand_like(b) / 4)
    return model


def dequantized(plain, ours, dtype):
    """transformers' own model with the values of our packed weights."""
    plain = copy.deepcopy(plain).to(dtype)
    plain.set_experts_implementation("eager")
    modules = dict(ours.named_modules())

    def values(layer):
        if not isinstance(layer, PackedModule):
            return layer.weight.detach().to(dtype)
        codes = (
            t if t is None else t.detach().cpu() for t in (layer.weight, layer.scales, layer.biases)
        )
        return ref.values(*codes, layer.mode, layer.bits, layer.group_size).to(dtype)

    with torch.no_grad():
        for name, module in plain.named_modules():
            if is_experts(module):
                switch = modules[name].switch_mlp
                if "gate_up_proj" in switch._modules:
                    first, bias = values(switch.gate_up_proj), switch.gate_up_proj.bias
                else:
                    order = 2 if not is_concatenated(module) else 1
                    pair = [values(m) for m in (switch.gate_proj, switch.up_proj)]
                    first = torch.cat(pair, 1) if order == 1 else torch.stack(pair, 2).flatten(1, 2)
                    bias = None
                down = values(switch.down_proj)
                if module.is_transposed:
                    first, down = first.mT, down.mT
                module.gate_up_proj.copy_(first)
                module.down_proj.copy_(down)
                if bias is not None:
                    module.gate_up_proj_bias.copy_(bias)
                    module.down_proj_bias.copy_(switch.down_proj.bias)
            elif is_router(module):
                module.weight.copy_(values(modules[name].linear))
            elif isinstance(module, (nn.Linear, nn.Embedding)):
                layer = modules[name]
                if hasattr(layer, "weight"):
                    module.weight.copy_(values(layer))
    return plain


def roundings(terms):
    """How far a float32 sum of `terms` products may be off, as a share of the sum of their sizes:
    independent roundings add up to 4 * sqrt(n) units but once in 1500 sums (Higham and Mary, 2019,
    doi:10.1137/18M1226312), and 8 more are made around a sum."""
    return 4 * (terms + 8) ** 0.5 * 2.0**-24


def signed(size):
    return size * (torch.rand_like(size) * 2 - 1).sign()


def logits_and_bound(plain, ids):
    """float64 logits of transformers' model, and how far a float32 model may be from them: every
    product, norm and attention is disturbed by the most that its roundings can make, with random
    signs, eight times, and the largest change of a logit counts."""
    noise = []

    def large(w):
        """|scale| * code + |bias| of an affine weight is at most this: biases are ends of groups."""
        return w.abs() + 2 * w.abs().unflatten(-1, (-1, 32)).amax(-1).repeat_interleave(32, -1)

    def linear(module, inputs, y):
        x = inputs[0].abs()
        size = x @ large(module.weight).mT.to(x.dtype)
        # What attention hands over was rounded in its softmax and sums before.
        return y + signed(size * roundings(2 * x.shape[-1] + ids.shape[1]))

    def norm(module, inputs, y):
        return y + signed(y.abs() * roundings(y.shape[-1]))

    def experts(module, inputs, y):
        x, chosen, weights = inputs
        first, down = module.gate_up_proj, module.down_proj
        if module.is_transposed:
            first, down = first.mT, down.mT
        parts = first.chunk(2, 1) if is_concatenated(module) else (first[:, ::2], first[:, 1::2])
        chosen_parts = [w[chosen] for w in (*parts, down)]
        g, u = (torch.einsum("tjnk,tk->tjn", w, x) for w in chosen_parts[:2])
        # What the sums of gate and up may be off passes through the activation, a(g) * u or, in
        # gpt-oss, a(g) * (u + 1), with |a(g)| <= |g| and a slope below 1.1; its own result and the
        # sum after it are rounded on top.
        dg, du = (
            roundings(x.shape[-1]) * torch.einsum("tjnk,tk->tjn", large(w), x.abs())
            for w in chosen_parts[:2]
        )
        u = u + 1 if hasattr(module, "limit") else u
        h = (g * u).abs()
        dh = 1.1 * dg * u.abs() + g.abs() * du + roundings(8) * h
        scale = weights.abs().to(x.dtype)
        size = torch.einsum(
            "tjni,tji,tj->tn", large(chosen_parts[2]), dh + roundings(down.shape[-1]) * h, scale
        )
        return y + signed(size)

    def router(module, inputs, y):
        return (y[0], y[1] + signed(y[1] * roundings(16 * module.weight.shape[-1])), y[2])

    with torch.no_grad():
        exact = plain(ids).logits
        for module in plain.modules():
            hook = (
                experts
                if is_experts(module)
                else router
                if is_router(module)
                else linear
                if isinstance(module, nn.Linear)
                else norm
                if "norm" in type(module).__name__.lower()
                else None
            )
            if hook:
                noise.append(module.register_forward_hook(hook))
        largest = max((plain(ids).logits - exact).abs().max() for _ in range(8))
        for hook in noise:
            hook.remove()
    return exact, largest


PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "_grouped_mm", "einsum",
            "matmul", "convolution", "_scaled_mm", "_weight_int4pack_mm")  # fmt: skip


class OnlyOurProducts(TorchDispatchMode):
    """Fails on a product outside moeblas, attention's aside, and on a tensor as large as a weight that
    only a dequantization could have made."""

    def __init__(self, model):
        super().__init__()
        self.calls = {}
        self.weights = {tuple(m.shape) for m in model.modules() if isinstance(m, PackedModule)}
        self.weights |= {s[:-2] + (s[-1], s[-2]) for s in self.weights}
        self.head_dims = {1}
        for key in ("head_dim", "qk_head_dim", "v_head_dim", "qk_rope_head_dim"):
            self.head_dims.add(getattr(model.config, key, None))
        c = model.config
        self.head_dims |= {c.hidden_size // c.num_attention_heads}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        self.calls[name] = self.calls.get(name, 0) + 1
        if name.partition("::")[0] == "aten" and name.partition("::")[2] in PRODUCTS:
            # Queries with keys, probabilities with values, positions with frequencies.
            assert name == "aten::bmm", f"{name} runs outside moeblas"
            a, b = args[:2]
            assert {a.shape[-1], b.shape[-1]} & self.head_dims, f"{name} of {a.shape}, {b.shape}"
        out = function(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.is_floating_point():
                assert tuple(t.shape) not in self.weights, f"{name} made a whole weight, {t.shape}"
        return out


def prompt(device="cpu"):
    return torch.randint(0, 256, (1, 7), device=device)


def moe_layers(model):
    return sum(is_experts(m) for m in model.modules())


@by_family
@pytest.mark.parametrize("mode", MODES)
def test_logits_are_those_of_the_dequantized_weights(family, mode, device):
    plain = random_model(family)
    ours = quantize_model(copy.deepcopy(plain), **MODES[mode]).to(device)
    theirs = dequantized(plain, ours, torch.float64)
    # Where roundings could turn a router's choice the bound is as large as quantization's own change
    # and tells nothing: another prompt is drawn.
    for _ in range(8):
        ids = prompt()
        expected, limit = logits_and_bound(theirs, ids)
        with torch.no_grad():
            change = (plain(ids).logits - expected).abs().max()
        if limit < 0.2 * change:
            break
    linears = sum(isinstance(m, (mnn.QuantizedLinear, mnn.Linear)) for m in ours.modules())
    with torch.no_grad(), OnlyOurProducts(ours) as seen:
        got = ours(ids.to(device)).logits
    error = (got.cpu().double() - expected).abs().max()
    assert error <= limit, f"{float(error):.3g}, the bound is {float(limit):.3g}"
    assert limit < 0.2 * change
    assert seen.calls["moeblas::moe_ffn"] == seen.calls["moeblas::moe_route"] == moe_layers(ours)
    assert seen.calls["moeblas::quantized_matmul"] == linears


@by_family
def test_greedy_tokens_are_equal(family, device):
    plain = random_model(family)
    ours = quantize_model(copy.deepcopy(plain), **MODES["affine"]).to(device)
    theirs = dequantized(plain, ours, torch.float32).to(device)
    ids = prompt(device)
    words = dict(max_new_tokens=20, do_sample=False, use_cache=True)
    assert torch.equal(ours.generate(ids, **words), theirs.generate(ids, **words))


def same_values(a, b):
    others = dict(b.named_modules())
    for name, x in a.named_modules():
        if isinstance(x, mnn.QuantizedLinear | mnn.QuantizedEmbedding):
            assert torch.equal(x.dequantize(), others[name].dequantize()), name


@by_family
def test_checkpoints_round_trip(family, tmp_path):
    plain = random_model(family)
    ours = quantize_model(copy.deepcopy(plain), **MODES["affine"])
    ours.save_pretrained(tmp_path)
    again = load_mlx_checkpoint(tmp_path)
    same_values(ours, again)
    ids = prompt()
    _, limit = logits_and_bound(dequantized(plain, ours, torch.float64), ids)
    with torch.no_grad():
        assert (again(ids).logits - ours(ids).logits).abs().max() <= 2 * limit
    again.save_pretrained(tmp_path / "second")
    first, second = (p / "model.safetensors" for p in (tmp_path, tmp_path / "second"))
    assert first.read_bytes() == second.read_bytes()
    assert json.loads((tmp_path / "config.json").read_text())["quantization"]["group_size"] == 32


@pytest.mark.parametrize("mode", MODES)
def test_mlx_reads_them(mode, tmp_path):
    """MLX's own reader and dequantize give the values of our layers."""
    mx = pytest.importorskip("mlx.core")
    ours = quantize_model(random_model("olmoe"), **MODES[mode])
    ours.save_pretrained(tmp_path)
    arrays = mx.load(str(tmp_path / "model.safetensors"))
    switch = ours.model.layers[1].mlp.experts.switch_mlp
    gate, up = switch.gate_up_proj.dequantize().chunk(2, 1)
    for name, expected in {
        "lm_head": ours.lm_head.dequantize(),
        "model.layers.0.self_attn.q_proj": ours.model.layers[0].self_attn.q_proj.dequantize(),
        "model.layers.1.mlp.switch_mlp.gate_proj": gate,
        "model.layers.1.mlp.switch_mlp.up_proj": up,
        "model.layers.1.mlp.switch_mlp.down_proj": switch.down_proj.dequantize(),
    }.items():
        got = mx.dequantize(
            arrays[name + ".weight"],
            arrays[name + ".scales"],
            arrays.get(name + ".biases"),
            **{"group_size": 32, "bits": 4, **MODES[mode]},
            dtype=mx.float32,
        )
        assert torch.equal(torch.tensor(got.tolist()).view(expected.shape), expected), name


def command():
    found = os.environ.get("MOEBLAS_CLI") or shutil.which("moeblas")
    built = ROOT / "build/release/cli/moeblas"
    return found or (built if built.exists() else None)


@pytest.mark.skipif(command() is None, reason="no moeblas command (MOEBLAS_CLI names it)")
@pytest.mark.parametrize("family", ["olmoe", "qwen3_moe"])
def test_the_command_line_reads_them(family, tmp_path):
    changes = {"mlp_only_layers": []} if family == "qwen3_moe" else {}
    ours = quantize_model(random_model(family, **changes), **MODES["affine"])
    ours.save_pretrained(tmp_path)
    text = b"In the beginning"
    out = subprocess.run(
        [command(), "generate", "--model", tmp_path, "--prompt", text, "--max-tokens", "12"],
        check=True,
        capture_output=True,
    ).stdout
    ids = torch.tensor([list(text)])
    expected = ours.generate(ids, max_new_tokens=12, do_sample=False)[0].tolist()
    assert out[: len(expected)] == bytes(expected)


def test_skipped_modules_stay_floating_and_ours():
    plain = random_model("qwen3_moe")
    ours = quantize_model(copy.deepcopy(plain), mode="mxfp8", skip=["lm_head", "*.q_proj"])
    assert type(ours.lm_head) is mnn.Linear
    assert ours.lm_head.weight.data_ptr() != plain.lm_head.weight.data_ptr()
    layer = ours.model.layers[0]
    assert type(layer.self_attn.q_proj) is mnn.Linear
    assert layer.self_attn.k_proj.mode == "mxfp8"
    assert (layer.mlp.gate.linear.mode, layer.mlp.gate.linear.bits) == ("affine", 8)
    ids = prompt()
    expected, limit = logits_and_bound(dequantized(plain, ours, torch.float64), ids)
    with torch.no_grad(), OnlyOurProducts(ours):
        assert (ours(ids).logits.double() - expected).abs().max() <= limit


def test_tied_heads_use_the_table(tmp_path):
    plain = random_model("qwen3_moe", tie_word_embeddings=True)
    plain.tie_weights()
    ours = quantize_model(copy.deepcopy(plain), **MODES["affine"])
    reference = copy.deepcopy(plain).double()
    reference = dequantized(plain, ours, torch.float64)
    reference.lm_head.weight = reference.model.embed_tokens.weight
    ids = prompt()
    expected, limit = logits_and_bound(reference, ids)
    with torch.no_grad(), OnlyOurProducts(ours):
        assert (ours(ids).logits.double() - expected).abs().max() <= limit
    ours.save_pretrained(tmp_path)
    again = load_mlx_checkpoint(tmp_path)
    with torch.no_grad():
        assert (again(ids).logits.double() - expected).abs().max() <= limit


def test_gpt_oss_blocks_are_used_as_they_are(tmp_path):
    """A folder as OpenAI published it: experts in mxfp4 blocks (E, N, K / 32, 16), the rest floating."""
    plain = random_model("gpt_oss")
    tensors = {}
    for name, t in plain.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            codes, scales = mt.quantize(t.mT.contiguous(), mode="mxfp4")
            tensors[name + "_blocks"] = codes.view(torch.uint8).unflatten(-1, (-1, 16)).contiguous()
            tensors[name + "_scales"] = scales
        else:
            tensors[name] = t.contiguous()
    plain.config.save_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    ours = load_mlx_checkpoint(tmp_path, dtype=torch.float32)
    switch = ours.model.layers[0].mlp.experts.switch_mlp
    assert switch.gate_up_proj.weight.dtype == torch.uint8 and switch.glu_layout == "interleaved"
    ids = prompt()
    expected, limit = logits_and_bound(dequantized(plain, ours, torch.float64), ids)
    with torch.no_grad(), OnlyOurProducts(ours):
        assert (ours(ids).logits.double() - expected).abs().max() <= limit


def test_the_model_of_this_repository(device):
    """The shipped 4-bit OLMoE: loading makes no floating weight, and 100 greedy bytes are those of
    transformers on the dequantized weights."""
    folder = ROOT / "models/kjv-olmoe-8m-4bit"
    ours = load_mlx_checkpoint(folder, dtype=torch.float32, device=device)
    shape = torch.Size([12, 128, 256])
    assert ours.model.layers[0].mlp.experts.switch_mlp.gate_proj.shape == shape
    assert not any(p.shape == shape for p in ours.parameters())
    config = copy.deepcopy(ours.config)
    config._experts_implementation = "eager"
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    theirs = dequantized(plain, ours, torch.float32).to(device)
    _copy_rest(theirs, ours)
    ids = torch.tensor([list(b"And it came to pass")], device=device)
    words = dict(max_new_tokens=100, do_sample=False, use_cache=True)
    with OnlyOurProducts(ours):
        got = ours.generate(ids, **words)
    assert torch.equal(got, theirs.generate(ids, **words))


def test_a_gpu_writes_the_same_text(cuda):
    """The shipped model in float32, packed and packed anew from its floats: the CPU's bytes."""

    def write(device):
        floats = AutoModelForCausalLM.from_pretrained(
            ROOT / "models/kjv-olmoe-8m", dtype=torch.float32
        )
        models = {
            "4-bit": load_mlx_checkpoint(
                ROOT / "models/kjv-olmoe-8m-4bit", dtype=torch.float32, device=device
            ),
            "mxfp4": quantize_model(floats, mode="mxfp4").to(device),
        }
        ids = torch.tensor([list(b"And it came to pass")], device=device)
        words = dict(max_new_tokens=100, do_sample=False, use_cache=True)
        return {
            name: bytes(m.generate(ids, **words)[0].tolist()).decode() for name, m in models.items()
        }

    assert write("cuda") == write("cpu")


def _copy_rest(theirs, ours):
    """Norms and other tensors that are no weights of products."""
    own = ours.state_dict()
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            if "norm" in name:
                p.copy_(own[name])


def test_what_is_refused(tmp_path):
    plain = random_model("olmoe")
    ours = quantize_model(copy.deepcopy(plain), **MODES["affine"])
    ours.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"model\.layers\.2\.\S+ is missing"):
        load_mlx_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(ValueError, match=r"model\.layers\.1\.\S+ is not a tensor of this model"):
        load_mlx_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    with pytest.raises(ValueError, match="model_type is 'llama'"):
        load_mlx_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="mode is 'int4'"):
        quantize_model(copy.deepcopy(plain), mode="int4")


def test_the_check_of_products_sees_one():
    """The net must catch what it is for: a torch Linear, and a weight that was dequantized."""
    ours = quantize_model(random_model("olmoe"), **MODES["affine"])
    layer = ours.model.layers[0].self_attn.o_proj
    x = torch.randn(7, 64)
    with torch.no_grad(), OnlyOurProducts(ours):
        with pytest.raises(AssertionError, match="outside moeblas"):
            nn.functional.linear(x, torch.randn(5, 64))
        with pytest.raises(AssertionError, match="made a whole weight"):
            layer.dequantize()
