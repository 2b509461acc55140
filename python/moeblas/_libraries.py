"""What other array libraries are called: where the extension cannot do without their own functions.

A library is told by the module of an array's class or of one of its bases, so that torch's parameters
and classes derived from tensors count as torch's. Nothing here imports a library that is not loaded.
"""

from __future__ import annotations

import sys


def _is_of(array, library):
    return any(c.__module__.partition(".")[0] == library for c in type(array).__mro__)


def is_mutable(array):
    """Whether memory of this array, exported without saying so, may be written."""
    return not any(_is_of(array, library) for library in ("jax", "jaxlib", "mlx"))


def empty(like, shape, dtype, device_type, device_id):
    """A new array of the library of `like` on its device; None where only the library writes one."""
    if _is_of(like, "torch"):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if _is_of(like, "cupy"):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device_id):
            return cupy.empty(shape, dtype)
    return None


def adopt(like, memory):
    """An array of the library of `like` in memory that is handed over through DLPack."""
    if _is_of(like, "jaxlib") or _is_of(like, "jax"):
        return sys.modules["jax"].dlpack.from_dlpack(memory)
    if _is_of(like, "mlx"):
        return sys.modules["mlx.core"].from_dlpack(memory)
    return like.__array_namespace__().from_dlpack(memory)


def current_stream(array, device_id):
    """The address of the stream that the array's library works on: 0 is the legacy default."""
    if _is_of(array, "torch"):
        return sys.modules["torch"].cuda.current_stream(device_id).cuda_stream
    if _is_of(array, "cupy"):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device_id):
            return cupy.cuda.get_current_stream().ptr
    return 0


def stream_pointer(op, stream):
    """The address of a stream given by a user: a number, or a stream of torch, cupy or CUDA's."""
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return (protocol() if callable(protocol) else protocol)[1]
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            return getattr(stream, attribute)
    raise TypeError(
        f"[{op}] stream is a {type(stream).__name__}, expected an address or a CUDA stream"
    )


def dtype_name(dtype):
    """The name of a dtype of any library: "bfloat16", numpy.float16, torch.float32, mlx.core.bfloat16."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return name.rpartition(".")[2]
