"""The cases that numpy's tests draw - every format, shapes with every kind of tail, strided views, ids that
select nothing - through the torch operators, held to the same float64."""

import ml_dtypes
import numpy as np
import pytest
import torch

import moeblas as mb
import moeblas.torch as mt
import test_block_products
import test_expert_layers
import test_products
import test_quantization
from test_block_products import test_epilogue, test_gather_and_grouped_qqmm, test_qqmm  # noqa: F401
from test_expert_layers import test_ffn, test_permute_and_back, test_route  # noqa: F401
from test_products import (  # noqa: F401
    test_gather_mm,
    test_gather_qmm,
    test_gather_qmv,
    test_grouped,
    test_quantized_matmul,
    test_segmented_mm,
)
from test_quantization import test_dequantize, test_quantize  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")


def to_torch(array, device):
    """The array's values with the array's strides; backwards, which torch does not have, without."""
    if any(s < 0 for s in array.strides):
        array = array.copy()
    if array.dtype == ml_dtypes.bfloat16:
        t = torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    elif array.dtype.kind == "V" or "float8" in array.dtype.name:
        t = torch.from_numpy(array.view(np.uint8))
    else:
        t = torch.from_numpy(array)
    if device == "cpu":
        return t
    once = [slice(0, 1) if s == 0 else slice(None) for s in t.stride()]
    part = t[tuple(once)]
    copy = torch.empty_strided(part.shape, part.stride(), dtype=t.dtype, device=device)
    return copy.copy_(part).expand(t.shape)


def to_numpy(t):
    t = t.cpu()
    if t.dtype == torch.bfloat16:
        return t.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return t.numpy()


def convert(value, device):
    if isinstance(value, np.ndarray):
        return to_torch(value, device)
    if isinstance(value, mb.Quantized):
        fields = {name: convert(getattr(value, name), device) for name in mb.Quantized.__slots__}
        return mt.Quantized(**fields)
    if isinstance(value, tuple):
        return tuple(convert(v, device) for v in value)
    return value


def to_dtype(dtype):
    if dtype is None:
        return None
    return getattr(torch, dtype if isinstance(dtype, str) else np.dtype(dtype).name)


class Through:
    """moeblas, as far as those tests call it, by the torch operators."""

    Quantized = mb.Quantized

    def __init__(self, device):
        self.device = device

    def __getattr__(self, name):
        def call(*args, **keywords):
            keywords = {
                k: to_dtype(v) if k.endswith("dtype") else convert(v, self.device)
                for k, v in keywords.items()
            }
            out = getattr(mt, name)(*(convert(a, self.device) for a in args), **keywords)
            return tuple(map(to_numpy, out)) if isinstance(out, tuple) else to_numpy(out)

        return call


@pytest.fixture(autouse=True)
def through_torch(monkeypatch, device):
    for module in (test_products, test_block_products, test_expert_layers, test_quantization):
        monkeypatch.setattr(module, "mb", Through(device))
