"""The C interface (moeblas.h) as ctypes sees it, fed with torch tensors."""

import contextlib
import ctypes
import functools
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
)

import torch

from .. import _core

MAX_NDIM = 8


class Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class DType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Spec(Structure):
    _fields_ = [("dtype", DType), ("ndim", c_int32), ("shape", c_int64 * MAX_NDIM)]


class _Sized(Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Quantized(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("mode", c_int32),
        ("bits", c_int32),
        ("group_size", c_int32),
        ("codes", POINTER(Tensor)),
        ("scales", POINTER(Tensor)),
        ("biases", POINTER(Tensor)),
        ("tensor_scale", POINTER(Tensor)),
        ("host_tensor_scale", POINTER(c_float)),
        ("scale_layout", c_int32),
    ]


class Query(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kernel", c_char_p),
        ("workspace_bytes", c_size_t),
        ("text", c_char_p),
        ("text_bytes", c_size_t),
    ]


ALLOCATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t)


class Options(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("precision", c_int32),
        ("deterministic", c_int32),
        ("check_ids", c_int32),
        ("kernel", c_char_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
        ("query", POINTER(Query)),
        ("allocate", ALLOCATE),
        ("allocate_context", c_void_p),
    ]


class Epilogue(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("alpha", c_float),
        ("beta", c_float),
        ("c", POINTER(Tensor)),
        ("bias", POINTER(Tensor)),
    ]


class Router(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("top_k", c_int32),
        ("score", c_int32),
        ("normalize", c_int32),
        ("n_group", c_int32),
        ("topk_group", c_int32),
        ("scaling_factor", c_float),
    ]


class Ffn(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("gate_up", POINTER(Quantized)),
        ("gate", POINTER(Quantized)),
        ("up", POINTER(Quantized)),
        ("down", POINTER(Quantized)),
        ("gate_up_bias", POINTER(Tensor)),
        ("gate_bias", POINTER(Tensor)),
        ("up_bias", POINTER(Tensor)),
        ("down_bias", POINTER(Tensor)),
        ("expert_map", POINTER(Tensor)),
        ("activation", c_int32),
        ("glu_layout", c_int32),
        ("alpha", c_float),
        ("limit", c_float),
    ]


MODES = {"affine": 0, "mxfp4": 1, "mxfp8": 2, "nvfp4": 3}
DENSE = 4
PRECISIONS = {"native": 0, "exact": 1, "fast": 2}
SCALE_LAYOUTS = {"rows": 0, "swizzled_128x4": 1}
SCORES = {"softmax": 0, "sigmoid": 1}
ACTIVATIONS = {"silu": 0, "gelu_erf": 1, "gelu_tanh": 2, "relu": 3, "clamped_swiglu": 4}
GLU_LAYOUTS = {"gate_up": 0, "up_gate": 1, "interleaved": 2}

_DTYPES = {
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.uint16: (1, 16),
    torch.uint32: (1, 32),
    torch.uint64: (1, 64),
    torch.bool: (6, 8),
}
_TORCH_DTYPES = {pair: dtype for dtype, pair in _DTYPES.items()}


def torch_dtype(dtype):
    return _TORCH_DTYPES[dtype.code, dtype.bits]


def dtype_of(op, argument, dtype):
    pair = _DTYPES.get(dtype)
    if pair is None:
        raise ValueError(f"[{op}] {argument} has dtype {dtype}, which no operation takes")
    return DType(*pair, 1)


def word(op, argument, words, value):
    """The number of a word in one of the tables above."""
    if value not in words:
        raise ValueError(f"[{op}] {argument} is {value!r}, expected one of {', '.join(words)}")
    return words[value]


@functools.cache
def library():
    """The library that the base package's extension has loaded: a symbol that the extension does not
    define is looked up in what it was linked with."""
    lib = ctypes.CDLL(_core.__file__)
    lib.moeblas_last_error.restype = c_char_p
    return lib


_OUT_OF_MEMORY = 3


def check(status):
    """Raises what a status means: ValueError for arguments, MemoryError, RuntimeError."""
    if status == 0:
        return
    message = library().moeblas_last_error().decode()
    error = {1: ValueError, _OUT_OF_MEMORY: MemoryError}.get(status, RuntimeError)
    raise error(message)


class Call:
    """One call of an operation: the structs for its arguments, alive as long as the call."""

    def __init__(self, op, data):
        """data: whether tensors have addresses; without, shapes and strides are all that counts."""
        self.op = op
        self.data = data
        self.alive = []

    def keep(self, struct):
        self.alive.append(struct)
        return ctypes.pointer(struct)

    def tensor(self, argument, t):
        if t is None:
            return None
        if t.dim() > MAX_NDIM:
            raise ValueError(
                f"[{self.op}] {argument} has {t.dim()} dimensions, expected at most {MAX_NDIM}"
            )
        index = c_int64 * max(t.dim(), 1)
        shape, strides = index(*t.shape), index(*t.stride())
        self.alive += [shape, strides, t]
        cuda = self.data and t.device.type == "cuda"
        return self.keep(
            Tensor(
                data=t.data_ptr() if self.data else None,
                device=Device(2, t.device.index) if cuda else Device(1, 0),
                ndim=t.dim(),
                dtype=dtype_of(self.op, argument, t.dtype),
                shape=shape,
                strides=strides,
            )
        )

    def quantized(
        self,
        argument,
        codes,
        scales,
        biases,
        group_size,
        bits,
        mode,
        tensor_scale=None,
        scale_layout="rows",
    ):
        if codes is None:
            return None
        if mode == "dense":
            if not (scales is biases is tensor_scale is None):
                raise ValueError(
                    f"[{self.op}] scales, biases and tensor_scale are expected to be absent for mode "
                    "'dense'"
                )
            return self.keep(Quantized(mode=DENSE, codes=self.tensor(argument, codes)))
        number = word(self.op, "mode", MODES, mode)
        return self.packed(
            argument, codes, scales, biases, group_size, bits, number, tensor_scale, scale_layout
        )

    def packed(
        self, argument, codes, scales, biases, group_size, bits, number, tensor_scale, scale_layout
    ):
        return self.keep(
            Quantized(
                mode=number,
                bits=bits or 0,
                group_size=group_size or 0,
                codes=self.tensor(argument, codes),
                scales=self.tensor("scales", scales),
                biases=self.tensor("biases", biases),
                tensor_scale=self.tensor("tensor_scale", tensor_scale),
                scale_layout=word(self.op, "scale_layout", SCALE_LAYOUTS, scale_layout),
            )
        )

    def dtype(self, argument, dtype):
        return None if dtype is None else self.keep(dtype_of(self.op, argument, dtype))

    def infer(self, count, *arguments):
        """moeblas_infer_<op>: (shape, dtype) of each output, None for one that there is not."""
        specs = (Spec * count)()
        check(getattr(library(), f"moeblas_infer_{self.op}")(*arguments, specs))
        return [
            None if s.ndim < 0 else (tuple(s.shape[: s.ndim]), torch_dtype(s.dtype)) for s in specs
        ]

    def run(self, device, precision, *arguments):
        """moeblas_<op> on the device's current stream, its workspace from torch's allocator: torch
        keeps that memory for as long as a captured graph or enqueued work may use it."""
        function = getattr(library(), f"moeblas_{self.op}")
        options = Options(precision=word(self.op, "precision", PRECISIONS, precision))
        if device.type == "cuda":
            options.stream = torch.cuda.current_stream(device).cuda_stream
            workspace = []

            @ALLOCATE
            def allocate(_, size):
                # An exception would end here: none is an error of the call's.
                with contextlib.suppress(RuntimeError):
                    workspace.append(torch.empty(size, dtype=torch.uint8, device=device))
                return workspace[0].data_ptr() if workspace else None

            options.allocate = allocate
        check(function(*arguments, byref(options)))
