"""tensor_scale and global_scale, two ways to say one number."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The largest magnitude that codes (6) and scales (448) of nvfp4 make together.
_NVFP4_MAX = 6 * 448


def multiplier(op: str, tensor_scale: Any, global_scale: Any, suffix: str = "") -> Any:
    """The multiplier of all values: MLX's global_scale is the absmax that it maps 2688 to."""
    if global_scale is None:
        return tensor_scale
    if tensor_scale is not None:
        raise ValueError(
            f"[{op}] tensor_scale{suffix} and global_scale{suffix} are given, expected one of them"
        )
    try:
        return global_scale / _NVFP4_MAX
    except TypeError:
        kind = type(global_scale).__name__
        raise TypeError(
            f"[{op}] global_scale{suffix} is a {kind}, expected a number or an array"
        ) from None
