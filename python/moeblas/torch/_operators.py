"""The operators over the C interface: from the arguments of a schema to a call and its outputs.

One function per operator serves CPU, CUDA and Meta: a call without data ends after the inference.
"""

import torch

from . import _capi


class Call(_capi.Call):
    """An operation on torch tensors: outputs from its inference, then the run."""

    def __init__(self, op, like, data):
        super().__init__(op, data)
        self.device = like.device

    def outputs(self, count, *arguments):
        return [self.empty(spec) for spec in self.infer(count, *arguments)]

    def empty(self, spec):
        shape, dtype = spec or ((0,), torch.float32)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def run(self, precision, *arguments):
        if self.data:
            super().run(self.device, precision, *arguments)

    def named(self, tensors, names):
        return [self.tensor(name, t) for name, t in zip(names.split(), tensors)]


def _quantized_outputs(op, data, w, group_size, bits, mode, scale_dtype, scale_layout, count):
    """A call of quantize or quantize_dual, the number of its mode, w, and its outputs."""
    call = Call(op, w, data)
    number = _capi.word(op, "mode", _capi.MODES, mode)
    layout = _capi.word(op, "scale_layout", _capi.SCALE_LAYOUTS, scale_layout)
    argument = call.tensor("w", w)
    outputs = call.outputs(
        count,
        argument,
        number,
        bits or 0,
        group_size or 0,
        call.dtype("scale_dtype", scale_dtype),
        layout,
    )
    return call, number, argument, outputs


def _packed(call, argument, outputs, group_size, bits, number, tensor_scale, scale_layout):
    codes, scales, biases = outputs
    return call.packed(
        argument,
        codes,
        scales,
        biases if number == 0 else None,
        group_size,
        bits,
        number,
        tensor_scale,
        scale_layout,
    )


def quantize(data, w, group_size, bits, mode, tensor_scale, scale_dtype, scale_layout):
    call, number, argument, outputs = _quantized_outputs(
        "quantize", data, w, group_size, bits, mode, scale_dtype, scale_layout, 3
    )
    form = (group_size, bits, number, tensor_scale, scale_layout)
    call.run("native", argument, _packed(call, "codes", outputs, *form))
    return tuple(outputs)


def quantize_dual(data, w, group_size, bits, mode, tensor_scale, scale_dtype, scale_layout):
    call, number, argument, outputs = _quantized_outputs(
        "quantize_dual", data, w, group_size, bits, mode, scale_dtype, scale_layout, 6
    )
    form = (group_size, bits, number)
    call.run(
        "native",
        argument,
        _packed(call, "rows", outputs[:3], *form, tensor_scale, scale_layout),
        _packed(call, "columns", outputs[3:], *form, None, scale_layout),
    )
    return tuple(outputs)


def dequantize(data, w, scales, biases, group_size, bits, mode, tensor_scale, dtype, scale_layout):
    call = Call("dequantize", w, data)
    number = _capi.word(call.op, "mode", _capi.MODES, mode)
    packed = call.packed(
        "w", w, scales, biases, group_size, bits, number, tensor_scale, scale_layout
    )
    (out,) = call.outputs(1, packed, call.dtype("dtype", dtype))
    call.run("native", packed, call.tensor("out", out))
    return out


def to_fp8(data, x):
    call = Call("to_fp8", x, data)
    argument = call.tensor("x", x)
    (out,) = call.outputs(1, argument)
    call.run("native", argument, call.tensor("out", out))
    return out


def from_fp8(data, x, dtype):
    call = Call("from_fp8", x, data)
    argument = call.tensor("x", x)
    number = _capi.dtype_of(call.op, "dtype", torch.bfloat16 if dtype is None else dtype)
    (out,) = call.outputs(1, argument, number)
    call.run("native", argument, call.tensor("out", out))
    return out


def quantized_matmul(
    data, x, w, scales, biases, transpose, group_size, bits, mode, tensor_scale, precision
):
    call = Call("quantized_matmul", x, data)
    arguments = (
        call.tensor("x", x),
        call.quantized("w", w, scales, biases, group_size, bits, mode, tensor_scale),
        int(transpose),
    )
    (out,) = call.outputs(1, *arguments)
    call.run(precision, *arguments, call.tensor("out", out))
    return out


def gather_mm(data, a, b, lhs_indices, rhs_indices, sorted_indices, precision):
    call = Call("gather_mm", a, data)
    arguments = call.named((a, b, lhs_indices, rhs_indices), "a b lhs_indices rhs_indices")
    (out,) = call.outputs(1, *arguments)
    call.run(precision, *arguments, int(sorted_indices), call.tensor("out", out))
    return out


def gather_qmm(
    data,
    x,
    w,
    scales,
    biases,
    lhs_indices,
    rhs_indices,
    transpose,
    group_size,
    bits,
    mode,
    tensor_scale,
    sorted_indices,
    precision,
):
    call = Call("gather_qmm", x, data)
    arguments = (
        call.tensor("x", x),
        call.quantized("w", w, scales, biases, group_size, bits, mode, tensor_scale),
        *call.named((lhs_indices, rhs_indices), "lhs_indices rhs_indices"),
        int(transpose),
    )
    (out,) = call.outputs(1, *arguments)
    call.run(precision, *arguments, int(sorted_indices), call.tensor("out", out))
    return out


def gather_qmv(
    data, x, w, scales, biases, expert_indices, group_size, bits, mode, tensor_scale, precision
):
    call = Call("gather_qmv", x, data)
    arguments = (
        call.tensor("x", x),
        call.quantized("w", w, scales, biases, group_size, bits, mode, tensor_scale),
        call.tensor("expert_indices", expert_indices),
    )
    (out,) = call.outputs(1, *arguments)
    call.run(precision, *arguments, call.tensor("out", out))
    return out


def segmented_mm(data, a, b, segments, precision):
    call = Call("segmented_mm", a, data)
    arguments = call.named((a, b, segments), "a b segments")
    (out,) = call.outputs(1, *arguments)
    call.run(precision, *arguments, call.tensor("out", out))
    return out


def grouped_mm(data, x, w, offsets, precision):
    call = Call("grouped_mm", x, data)
    arguments = call.named((x, w, offsets), "x w offsets")
    (out,) = call.outputs(1, *arguments)
    call.run(precision, *arguments, call.tensor("out", out))
    return out


def grouped_qmm(
    data, x, w, scales, biases, offsets, transpose, group_size, bits, mode, tensor_scale, precision
):
    call = Call("grouped_qmm", x, data)
    arguments = (
        call.tensor("x", x),
        call.quantized("w", w, scales, biases, group_size, bits, mode, tensor_scale),
        call.tensor("offsets", offsets),
        int(transpose),
    )
    (out,) = call.outputs(1, *arguments)
    call.run(precision, *arguments, call.tensor("out", out))
    return out


def _block_quantized(
    op,
    data,
    x,
    w,
    scales,
    group_size,
    bits,
    mode,
    tensor_scale_x,
    tensor_scale_w,
    bias,
    c,
    x_scales,
    scale_layout,
    x_scale_layout,
    alpha,
    beta,
    dtype,
    precision,
    between=lambda call: (),
    flags=(),
):
    """qqmm and its forms: `between` are the indices or offsets after w, `flags` what only the run
    takes."""
    call = Call(op, x, data)
    number = _capi.word(op, "mode", _capi.MODES, mode)
    arguments = (
        call.packed(
            "x", x, x_scales, None, group_size, bits, number, tensor_scale_x, x_scale_layout
        ),
        call.packed("w", w, scales, None, group_size, bits, number, tensor_scale_w, scale_layout),
        *between(call),
    )
    # x's own dtype is the output's; asking for another is an error that the inference words.
    (out,) = call.outputs(1, *arguments, call.dtype("dtype", dtype))
    epilogue = call.keep(
        _capi.Epilogue(
            alpha=alpha,
            beta=beta if c is not None else 0.0,
            c=call.tensor("c", c),
            bias=call.tensor("bias", bias),
        )
    )
    call.run(precision, *arguments, *flags, epilogue, call.tensor("out", out))
    return out


def qqmm(data, x, w, scales, group_size, bits, mode, tensor_scale_x, tensor_scale_w, *rest):
    return _block_quantized(
        "qqmm", data, x, w, scales, group_size, bits, mode, tensor_scale_x, tensor_scale_w, *rest
    )


def gather_qqmm(
    data,
    x,
    w,
    scales,
    lhs_indices,
    rhs_indices,
    group_size,
    bits,
    mode,
    tensor_scale_x,
    tensor_scale_w,
    bias,
    c,
    x_scales,
    sorted_indices,
    *rest,
):
    return _block_quantized(
        "gather_qqmm",
        data,
        x,
        w,
        scales,
        group_size,
        bits,
        mode,
        tensor_scale_x,
        tensor_scale_w,
        bias,
        c,
        x_scales,
        *rest,
        between=lambda call: call.named((lhs_indices, rhs_indices), "lhs_indices rhs_indices"),
        flags=(int(sorted_indices),),
    )


def grouped_qqmm(data, x, w, scales, offsets, *rest):
    return _block_quantized(
        "grouped_qqmm",
        data,
        x,
        w,
        scales,
        *rest,
        between=lambda call: (call.tensor("offsets", offsets),),
    )


def moe_route(data, logits, k, bias, score, normalize, n_group, topk_group, scaling_factor):
    call = Call("moe_route", logits, data)
    arguments = (
        call.tensor("logits", logits),
        call.tensor("bias", bias),
        call.keep(
            _capi.Router(
                top_k=k,
                score=_capi.word(call.op, "score", _capi.SCORES, score),
                normalize=int(normalize),
                n_group=n_group,
                topk_group=topk_group,
                scaling_factor=scaling_factor,
            )
        ),
    )
    ids, weights = call.outputs(2, *arguments)
    call.run("native", *arguments, call.tensor("ids", ids), call.tensor("weights", weights))
    return ids, weights


def moe_permute(data, x, ids, experts, expert_map):
    call = Call("moe_permute", x, data)
    arguments = (*call.named((x, ids, expert_map), "x ids expert_map"), _capi.c_int64(experts))
    outputs = call.outputs(3, *arguments)
    call.run("native", *arguments, *call.named(outputs, "rows offsets inverse"))
    return tuple(outputs)


def moe_unpermute(data, y, inverse, weights):
    call = Call("moe_unpermute", y, data)
    arguments = call.named((y, inverse, weights), "y inverse weights")
    (out,) = call.outputs(1, *arguments)
    call.run("native", *arguments, call.tensor("out", out))
    return out


def moe_ffn(data, x, ids, weights, *rest):
    call = Call("moe_ffn", x, data)
    fields = {}
    # Four matrices, eight arguments each, as the schema lists them.
    for i, name in enumerate(("gate_up", "gate", "up", "down")):
        codes, scales, biases, tensor_scale, group_size, bits, mode, bias = rest[8 * i : 8 * i + 8]
        fields[name] = call.quantized(
            name, codes, scales, biases, group_size, bits, mode, tensor_scale
        )
        fields[name + "_bias"] = call.tensor(name + "_bias", bias)
    expert_map, activation, glu_layout, alpha, limit, precision = rest[32:]
    layer = call.keep(
        _capi.Ffn(
            **fields,
            expert_map=call.tensor("expert_map", expert_map),
            activation=_capi.word(call.op, "activation", _capi.ACTIVATIONS, activation),
            glu_layout=_capi.word(call.op, "glu_layout", _capi.GLU_LAYOUTS, glu_layout),
            alpha=alpha,
            limit=limit,
        )
    )
    arguments = (call.tensor("x", x), layer, *call.named((ids, weights), "ids weights"))
    (out,) = call.outputs(1, *arguments)
    call.run(precision, *arguments, call.tensor("out", out))
    return out
