#!/usr/bin/env python3
"""Quantize the demo model: Hugging Face OLMoE in bf16 -> affine codes in MLX's layout.

    python3 scripts/quantize_demo_model.py models/kjv-olmoe-8m models/kjv-olmoe-8m-4bit

Needs numpy alone. Every matrix is quantized, the embedding, the router and the output head too;
the norms' weights stay as they are. The experts of a layer are stacked on axis 0 under
`mlp.switch_mlp`. A matrix P becomes `P.weight` (codes, packed into uint32 words), `P.scales` and
`P.biases` (bf16, one a group): value = code * scale + bias.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np

DTYPES = {"BF16": np.dtype("<u2"), "U32": np.dtype("<u4"), "F32": np.dtype("<f4")}
EXPERT = re.compile(r"(.*\.mlp)\.experts\.([0-9]+)\.(gate_proj|up_proj|down_proj)\.weight")
SMALLEST_SCALE = np.float32(1e-7)


def read_safetensors(path):
    """{name: (dtype name, array)}; bf16 comes as its 16 bits."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        array = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
        tensors[name] = entry["dtype"], array.reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors, metadata):
    """Every tensor starts at a multiple of 8 bytes in the file; readers may map it."""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, array) in tensors.items():
        if array.nbytes % 8:
            raise SystemExit(f"{name}: {array.nbytes} bytes would misalign the next tensor")
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for dtype, array in tensors.values():
            file.write(array.astype(DTYPES[dtype], copy=False).tobytes())


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    """Round finite float32 values to bf16, half to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def pack(codes, bits):
    """Codes of `bits` bits along the last axis, lowest bit first, into little-endian uint32."""
    planes = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    stream = planes.reshape(*codes.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").view("<u4")


def unpack(words, bits):
    stream = np.unpackbits(words.astype("<u4").view(np.uint8), axis=-1, bitorder="little")
    planes = stream.reshape(*words.shape[:-1], -1, bits)
    return np.packbits(planes, axis=-1, bitorder="little")[..., 0]


def quantize(weight, bits, group_size):
    """Codes, scales and biases of the last axis's groups, all arithmetic in float32.

    Of a group's two ends, the one of larger magnitude is represented exactly (by the bias), and
    the scale is adjusted so that zero falls on a code; scales are negative as often as not.
    The codes follow the float32 scale and bias, not their later rounding to bf16.
    """
    groups = weight.reshape(*weight.shape[:-1], -1, group_size)
    high, low = groups.max(axis=-1), groups.min(axis=-1)
    levels = np.float32(2**bits - 1)
    scale = np.maximum((high - low) / levels, SMALLEST_SCALE)
    from_top = np.abs(low) <= np.abs(high)
    scale = np.where(from_top, -scale, scale)
    edge = np.where(from_top, high, low)
    steps = np.rint(edge / scale)
    has_bias = steps != 0
    scale = np.where(has_bias, edge / np.where(has_bias, steps, 1), scale)
    bias = np.where(has_bias, edge, np.float32(0))
    codes = np.clip(np.rint((groups - bias[..., None]) / scale[..., None]), 0, levels)
    return codes.astype(np.uint8).reshape(weight.shape), scale, bias


def dequantize(words, scales, biases, bits):
    """The float32 weights of a packed matrix whose scales and biases are bf16."""
    codes = unpack(words, bits).astype(np.float32)
    groups = codes.reshape(*scales.shape, -1)
    values = groups * from_bf16(scales)[..., None] + from_bf16(biases)[..., None]
    return values.reshape(codes.shape)


def stack_experts(tensors):
    """Replace each layer's experts.E.P.weight by one switch_mlp.P.weight of E matrices."""
    stacked, experts = {}, {}
    for name, tensor in tensors.items():
        match = EXPERT.fullmatch(name)
        if match:
            module = f"{match[1]}.switch_mlp.{match[3]}.weight"
            experts.setdefault(module, {})[int(match[2])] = tensor
        else:
            stacked[name] = tensor
    for name, parts in experts.items():
        arrays = [parts[index][1] for index in range(len(parts))]
        stacked[name] = parts[0][0], np.stack(arrays)
    return stacked


def quantize_model(tensors, bits_of, group_size):
    result = {}
    for name, (dtype, array) in sorted(stack_experts(tensors).items()):
        if dtype != "BF16":
            raise SystemExit(f"{name}: {dtype}, but bf16 is expected")
        if array.ndim == 1:
            result[name] = dtype, array
            continue
        weight = from_bf16(array)
        if not np.isfinite(weight).all():
            raise SystemExit(f"{name}: has values that are not finite")
        module = name.removesuffix(".weight")
        codes, scales, biases = quantize(weight, bits_of(module), group_size)
        result[f"{module}.weight"] = "U32", pack(codes, bits_of(module))
        result[f"{module}.scales"] = "BF16", to_bf16(scales)
        result[f"{module}.biases"] = "BF16", to_bf16(biases)
    return result


def quantized_config(config, quantization):
    """The same settings under both names that readers look for, and the flat `rope_theta`."""
    config = dict(config, quantization=quantization, quantization_config=quantization)
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    return dict(sorted(config.items()))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bits", type=int, default=4, choices=(2, 3, 4, 5, 6, 8))
    parser.add_argument("--group-size", type=int, default=64, choices=(32, 64, 128))
    parser.add_argument("--router-bits", type=int, choices=(2, 3, 4, 5, 6, 8))
    args = parser.parse_args()

    tensors = read_safetensors(args.source / "model.safetensors")
    config = json.loads((args.source / "config.json").read_text())
    router_bits = args.router_bits or args.bits
    quantization = {"group_size": args.group_size, "bits": args.bits, "mode": "affine"}
    if router_bits != args.bits:
        for layer in range(config["num_hidden_layers"]):
            own = {"group_size": args.group_size, "bits": router_bits}
            quantization[f"model.layers.{layer}.mlp.gate"] = own

    result = quantize_model(
        tensors,
        lambda module: router_bits if module.endswith("mlp.gate") else args.bits,
        args.group_size,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    write_safetensors(args.out / "model.safetensors", result, {"format": "mlx"})
    text = json.dumps(quantized_config(config, quantization), indent=2)
    (args.out / "config.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
