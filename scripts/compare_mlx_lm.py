#!/usr/bin/env python3
"""Hold `moeblas quantize` to mlx-lm: the same small models through both, compared byte for byte.

    pip install "mlx[cpu]" mlx-lm
    python3 scripts/compare_mlx_lm.py build/release/cli/moeblas

OLMoE and Qwen3-MoE (a dense layer among sparse ones) in bf16, f16 and f32, every mode and width:
names, dtypes, shapes and bytes of all tensors, config.json and the index. The files that MLX writes
here have headers of odd lengths, so that data which is not aligned is read too. mxfp4 and nvfp4
codes are not compared: MLX's CPU has no negative zero and breaks ties toward zero.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

HIDDEN, EXPERT, DENSE, EXPERTS, LAYERS, VOCAB = 128, 64, 96, 6, 3, 40
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
DTYPES = {"bf16": mx.bfloat16, "f16": mx.float16, "f32": mx.float32}
FORMATS = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
FORMATS += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


def config_of(model_type):
    config = {
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    }
    if model_type == "olmoe":
        return dict(config, intermediate_size=EXPERT)
    return dict(
        config,
        head_dim=HEAD_DIM,
        intermediate_size=DENSE,
        moe_intermediate_size=EXPERT,
        decoder_sparse_step=1,
        mlp_only_layers=[1],
    )


def shapes_of(config):
    each_head = config["model_type"] == "qwen3_moe"
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "model.embed_tokens": (VOCAB, HIDDEN),
        "model.norm": (HIDDEN,),
        "lm_head": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        path = f"model.layers.{layer}"
        shapes[f"{path}.input_layernorm"] = shapes[f"{path}.post_attention_layernorm"] = (HIDDEN,)
        shapes[f"{path}.self_attn.q_proj"] = (queries, HIDDEN)
        shapes[f"{path}.self_attn.k_proj"] = shapes[f"{path}.self_attn.v_proj"] = (keys, HIDDEN)
        shapes[f"{path}.self_attn.o_proj"] = (HIDDEN, queries)
        shapes[f"{path}.self_attn.q_norm"] = (HEAD_DIM if each_head else queries,)
        shapes[f"{path}.self_attn.k_norm"] = (HEAD_DIM if each_head else keys,)
        dense = layer in config.get("mlp_only_layers", [])
        if not dense:
            shapes[f"{path}.mlp.gate"] = (EXPERTS, HIDDEN)
        for prefix in [""] if dense else [f"experts.{e}." for e in range(EXPERTS)]:
            inner = DENSE if dense else EXPERT
            shapes[f"{path}.mlp.{prefix}gate_proj"] = (inner, HIDDEN)
            shapes[f"{path}.mlp.{prefix}up_proj"] = (inner, HIDDEN)
            shapes[f"{path}.mlp.{prefix}down_proj"] = (HIDDEN, inner)
    return shapes


def write_model(folder, model_type, dtype):
    config = config_of(model_type)
    weights = {
        f"{path}.weight": (0.1 * mx.random.normal(shape)).astype(dtype)
        for path, shape in shapes_of(config).items()
    }
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))


def contents(folder, without_codes):
    tensors = {}
    for name, array in mx.load(str(folder / "model.safetensors")).items():
        tensors[name] = str(array.dtype), array.shape, bytes(memoryview(array.view(mx.uint8)))
        if without_codes and array.dtype == mx.uint32:
            tensors[name] = tensors[name][:2]
    texts = [
        (folder / name).read_text().strip()
        for name in ("config.json", "model.safetensors.index.json")
    ]
    return tensors, texts


def compare(moeblas, source, folder, mode, bits, group_size):
    """What differs, in words."""
    model, config = load_model(source)
    model, config = quantize_model(model, config, group_size, bits, mode=mode)
    save_model(folder / "mlx", model)
    save_config(config, folder / "mlx" / "config.json")
    command = [moeblas, "quantize", source, folder / "moeblas", "--mode", mode]
    command += ["--bits", str(bits), "--group-size", str(group_size)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    # A router keeps 8-bit affine codes in every mode, but dtype and shape do not tell them apart.
    theirs, their_texts = contents(folder / "mlx", mode in ("mxfp4", "nvfp4"))
    ours, our_texts = contents(folder / "moeblas", mode in ("mxfp4", "nvfp4"))
    differing = sorted(n for n in theirs.keys() | ours.keys() if theirs.get(n) != ours.get(n))
    if differing:
        return f"{len(differing)} tensors differ, {differing[0]} first"
    return "" if their_texts == our_texts else "config.json or the index differs"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("moeblas", help="the command line tool")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    failures = 0
    for model_type in ("olmoe", "qwen3_moe"):
        for dtype_name, dtype in DTYPES.items():
            with tempfile.TemporaryDirectory() as work:
                source = Path(work) / "source"
                write_model(source, model_type, dtype)
                for number, form in enumerate(FORMATS):
                    what = compare(args.moeblas, source, Path(work) / str(number), *form)
                    if what:
                        failures += 1
                        print(model_type, dtype_name, *form, what)
    total = 2 * len(DTYPES) * len(FORMATS)
    print(f"{total - failures} of {total} conversions equal mlx-lm's")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
