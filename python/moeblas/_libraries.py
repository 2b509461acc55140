"""What other array libraries are called: where the extension cannot do without their own functions.

A library is told by the module of an array's class or of one of its bases, so that torch's parameters
and classes derived from tensors count as torch's. Nothing here imports a library that is not loaded.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CPU, _CUDA = 1, 2  # DLPack's numbers


def _is_of(array: Any, library: str) -> bool:
    return any(c.__module__.partition(".")[0] == library for c in type(array).__mro__)


def _is_jax(array: Any) -> bool:
    return _is_of(array, "jax") or _is_of(array, "jaxlib")


def is_mutable(array: Any) -> bool:
    """Whether memory of this array, exported without saying so, may be written."""
    return not (_is_jax(array) or _is_of(array, "mlx"))


def exchange(cls: type) -> Any:
    """Of a class with DLPack's C functions: what makes its arrays, (sizes, strides, dtype=, device=),
    and its library's dtypes by name. None where the functions cannot be relied on: classes derived
    from torch's may mean something else by their memory, and others have none that is known."""
    torch = sys.modules.get("torch")
    if torch is None or cls not in (torch.Tensor, torch.nn.Parameter):
        return None
    return torch.empty_strided, {n: d for n, d in vars(torch).items() if isinstance(d, torch.dtype)}


def empty(
    op: str, like: Any, shape: tuple[int, ...], dtype: str, device_type: int, device_id: int
) -> Any:
    """A new array of the library of `like` on its device; None where `adopt` is to make it."""
    if _is_of(like, "torch"):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if _is_of(like, "cupy"):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device_id):
            return cupy.empty(shape, dtype)
    takes = (_CPU, _CUDA) if _is_jax(like) else (_CPU,)
    if _adopter(like) is None or device_type not in takes:
        where = "" if device_type == _CPU else " on a device"
        raise TypeError(
            f"[{op}] no way is known to make a {type(like).__name__}{where}, expected out= to write"
        )
    return None


def adopt(like: Any, memory: Any) -> Any:
    """An array of the library of `like` from memory that DLPack hands over."""
    adopter = _adopter(like)
    assert adopter is not None
    return adopter(memory)


def _adopter(like: Any) -> Any:
    if _is_jax(like):
        return sys.modules["jax"].dlpack.from_dlpack
    if _is_of(like, "mlx"):
        return sys.modules["mlx.core"].from_dlpack
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().from_dlpack
    return None


def current_stream(array: Any, device_id: int) -> int:
    """The address of the stream that the array's library works on: 0 is the legacy default."""
    if _is_of(array, "torch"):
        return sys.modules["torch"].cuda.current_stream(device_id).cuda_stream
    if _is_of(array, "cupy"):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device_id):
            return cupy.cuda.get_current_stream().ptr
    if _is_jax(array):
        # The one that from_dlpack will ask the result to be ready on.
        (device,) = array.devices()
        return device.get_stream_for_external_ready_events()
    return 0


def stream_pointer(op: str, stream: Any) -> int:
    """The address of a stream given by a user: a number, or a stream of torch, cupy or CUDA's."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        address = (protocol() if callable(protocol) else protocol)[1]
    else:
        address = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if not isinstance(address, int):
        raise TypeError(
            f"[{op}] stream is a {type(stream).__name__}, expected an address or a CUDA stream"
        )
    if not 0 <= address < 2**64:
        raise ValueError(f"[{op}] stream is {address}, expected an address or a CUDA stream")
    return address


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of any library: "bfloat16", numpy.float16, torch.float32, mlx.core.bfloat16."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return name.rpartition(".")[2]
