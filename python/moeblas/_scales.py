"""tensor_scale and global_scale, two ways to say one number."""

from __future__ import annotations

# The largest magnitude that codes (6) and scales (448) of nvfp4 make together.
_NVFP4_MAX = 6 * 448


def multiplier(op, tensor_scale, global_scale, suffix=""):
    """The multiplier of all values: MLX's global_scale is the absmax that it maps 2688 to."""
    if global_scale is None:
        return tensor_scale
    if tensor_scale is not None:
        raise ValueError(
            f"[{op}] tensor_scale{suffix} and global_scale{suffix} are given, expected one of them"
        )
    return global_scale / _NVFP4_MAX
