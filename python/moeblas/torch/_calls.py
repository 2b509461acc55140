"""How each function here makes its call: past torch's dispatcher where nothing needs it, through the
operator otherwise."""

import contextlib
import math

import torch

from .. import _core
from . import _autograd, _register

library, registration = _register.register()
ops = torch.ops.moeblas
_autograd.register(_register.names, library)


def _judged(op, name, number, least):
    """A number as it is; refused as the library refuses one that it gets no tensor for."""
    if least <= number < math.inf:
        return number
    expected = (
        "a finite number, 0 or above" if least == 0 else f"{least:.5g} or more to quantize by"
    )
    raise ValueError(f"[{op}] {name} is {number}, expected {expected}")


def tensor_scale_of(op, like, global_scale, tensor_scale, suffix="", encoded=None):
    """The multiplier of either of two ways to say it, as a tensor beside `like`; None: there is none.
    encoded: what is quantized by it, if it is floating."""
    if global_scale is None and tensor_scale is None:
        return None
    if global_scale is not None and tensor_scale is not None:
        raise ValueError(
            f"[{op}] global_scale{suffix} and tensor_scale{suffix} are both given, expected one"
        )
    least = 2.0**-126 if isinstance(encoded, torch.Tensor) and encoded.is_floating_point() else 0.0
    if tensor_scale is None:
        # In float32, as the multiplier is: a Python number is rounded before it is divided.
        if isinstance(global_scale, torch.Tensor):
            return global_scale.to(torch.float32) / 2688
        number = _judged(op, "global_scale" + suffix, global_scale, least * 2688)
        return torch.full((), number, dtype=torch.float32, device=like.device) / 2688
    if isinstance(tensor_scale, torch.Tensor):
        return tensor_scale
    number = _judged(op, "tensor_scale" + suffix, tensor_scale, least)
    return torch.full((), number, dtype=torch.float32, device=like.device)


def options_of(precision, sorted_indices=None):
    """Keywords of a product that are not its defaults: torch takes time over each that it reads."""
    if precision == "native" and not sorted_indices:
        return {}
    more = {} if sorted_indices is None else {"sorted_indices": sorted_indices}
    return {"precision": precision, **more}


# A call that nobody records, differentiates, transforms or traces need not go through torch's
# dispatcher, which takes longer than the library over small products: the extension reads the same
# tensors and makes the same call. Each of these is false then. A torch that lacks one of them, or
# DLPack's C functions, has every call go through the operators.
with contextlib.suppress(AttributeError):
    _core.set_between(
        (
            torch.is_grad_enabled,
            torch._C._len_torch_dispatch_stack,
            torch._C._is_torch_function_mode_enabled,
            torch._C._are_functorch_transforms_active,
            torch._C._get_tracing_state,
            torch._C._autograd._profiler_enabled,
        )
    )


class _Direct(dict):
    """By precision, the options of a call in an operator's place. The extension returns None where the
    operator is to be called: one of the above is true, or a tensor is not a plain one."""

    def __missing__(self, precision):
        return {"direct": True, "precision": precision}


DIRECT = _Direct(native={"direct": True})
