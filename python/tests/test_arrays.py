"""How arrays come in and results go out."""

import contextlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moeblas as mb
from dlpack import COPIED, READ_ONLY, Exporter, Namespaced
from reference import FLOATS, check, product


@st.composite
def views(draw, shape, dtype, packed=False):
    """Arrays of this shape with any strides: steps, gaps, axes in another order, backwards."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    order = draw(st.permutations(range(len(shape))))
    steps, starts, room = [], [], []
    for axis, size in enumerate(shape):
        last = packed and axis == len(shape) - 1
        step = 1 if last else draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        start = draw(st.integers(0, 2))
        steps.append(step)
        starts.append(start)
        room.append(start + max(size - 1, 0) * abs(step) + 1 + draw(st.integers(0, 2)))
    if packed:  # the last axis stays in one piece
        order = [axis for axis in order if axis != len(shape) - 1] + [len(shape) - 1]
    memory = rng.standard_normal([room[axis] for axis in order]).astype(dtype)
    whole = memory.transpose(np.argsort(order))
    at = []
    for size, step, start in zip(shape, steps, starts, strict=True):
        end = start + max(size - 1, 0) * abs(step)
        at.append(
            slice(start, end + 1, step)
            if step > 0
            else slice(end, start - 1 if start else None, step)
        )
    view = whole[tuple(at)]
    return view if all(shape) else view[tuple(slice(0, s) for s in shape)]


WAYS = [
    lambda a: a,
    Namespaced,
    lambda a: Namespaced(a, version=None),
    lambda a: Namespaced(a, version=(1, 0), flags=READ_ONLY),
    lambda a: Namespaced(a, offset=a.itemsize * 3),
]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_strided_views(data):
    m, n, groups = (data.draw(st.integers(1, high)) for high in (9, 9, 3))
    k, dtype = 64 * groups, data.draw(st.sampled_from(list(FLOATS.values())))
    x = data.draw(views((2, m, k), dtype))
    w = data.draw(views((n, k), np.float32))
    dense = data.draw(views((k, n), dtype))
    ways = [data.draw(st.sampled_from(WAYS)) for _ in range(5)]
    if dtype == ml_dtypes.bfloat16:  # which numpy takes from nobody: results could not be its own
        ways[0] = ways[4] = WAYS[0]
    packed = mb.quantize(w)
    for got, expected in zip(packed, mb.quantize(np.ascontiguousarray(w)), strict=True):
        np.testing.assert_array_equal(got, expected)
    rows = [np.repeat(part, 2, 0)[::2] for part in packed]  # every other row of something larger
    args = [way(part) for way, part in zip(ways[1:4], rows, strict=True)]
    values = mb.dequantize(*packed).astype(np.float64).T
    spread = np.abs(values) + 2 * np.repeat(np.abs(packed[2].astype(np.float64)), 64, -1).T
    x64 = x.astype(np.float64)
    check(mb.quantized_matmul(ways[0](x), *args), product(x64, values, spread, dtype, True))
    d64 = dense.astype(np.float64)
    y = mb.gather_mm(ways[0](x), ways[4](dense))
    check(y, product(x64, d64, np.abs(d64), dtype, False))


def operands():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    return x, mb.quantize(rng.standard_normal((5, 64)).astype(np.float32))


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1), (1, 9)])
def test_capsules_are_given_back_once(version):
    x, packed = operands()
    exported = [Namespaced(a, version=version) for a in (x, *packed)]
    want = mb.quantized_matmul(x, *packed)
    for calls in (1, 2):
        np.testing.assert_array_equal(mb.quantized_matmul(*exported), want)
        assert [e.deleted for e in exported] == [calls] * 4
    with pytest.raises(ValueError):
        mb.quantized_matmul(exported[0], exported[1], exported[1], exported[3])
    assert [e.deleted for e in exported] == [3, 4, 2, 3]


def test_versions_are_asked_for():
    x, _ = operands()
    e = Namespaced(x)
    mb.to_fp8(e)
    assert e.asked == [{"max_version": (1, 1)}]


def test_an_unknown_version_is_refused_and_left_in_its_capsule():
    x, _ = operands()
    e = Namespaced(x, version=(2, 0))
    with pytest.raises(ValueError, match=r"\[to_fp8\] x comes in an unknown version of DLPack"):
        mb.to_fp8(e)
    assert e.deleted == 0


def test_no_strides_means_row_major():
    x, packed = operands()
    e = Namespaced(x, strides=False)
    np.testing.assert_array_equal(mb.quantized_matmul(e, *packed), mb.quantized_matmul(x, *packed))


def test_out_through_dlpack():
    x, packed = operands()
    want, out = mb.quantized_matmul(x, *packed), np.zeros((3, 5), np.float32)
    writable = Exporter(out)
    assert mb.quantized_matmul(Exporter(x), *packed, out=writable) is writable
    np.testing.assert_array_equal(out, want)
    for flags in (READ_ONLY, COPIED):
        with pytest.raises(ValueError, match=r"\[quantized_matmul\] out is read-only"):
            mb.quantized_matmul(x, *packed, out=Exporter(out, flags=flags))


def test_read_only_numpy_is_read_and_never_written():
    x, packed = operands()
    want = mb.quantized_matmul(x, *packed)
    for a in (x, *packed):
        a.flags.writeable = False
    np.testing.assert_array_equal(mb.quantized_matmul(x, *packed), want)
    want.flags.writeable = False
    with pytest.raises(ValueError, match=r"\[quantized_matmul\] out is read-only"):
        mb.quantized_matmul(x, *packed, out=want)


def test_an_array_whose_library_is_unknown_needs_out():
    x, packed = operands()
    with pytest.raises(TypeError, match="no way is known to make a Exporter, expected out="):
        mb.quantized_matmul(Exporter(x), *packed)


class Stream:
    cuda_stream = 0x5EED0


class ProtocolStream:
    def __cuda_stream__(self):
        return (0, 0x5EED0)


@pytest.mark.parametrize(
    "stream, asked",
    [(None, 1), (0, 1), (1, 1), (2, 2), (Stream(), 0x5EED0), (ProtocolStream(), 0x5EED0)],
)
def test_the_producer_hears_the_stream(stream, asked):
    """0, the legacy default stream of CUDA and of torch, is written as 1."""
    x, _ = operands()
    e, out = Exporter(x, device=(2, 0)), Exporter(np.zeros(x.shape, np.uint8), device=(2, 0))
    with contextlib.suppress(RuntimeError):  # in builds without CUDA
        mb.explain(mb.to_fp8, e, out=out, stream=stream)
    assert e.asked == [{"stream": asked, "max_version": (1, 1)}] == out.asked


def test_a_stream_that_is_none_is_refused():
    x, _ = operands()
    with pytest.raises(TypeError, match=r"\[to_fp8\] stream is a list"):
        mb.to_fp8(x, stream=[1])


def test_results_are_of_the_first_arrays_library():
    x, packed = operands()
    assert type(mb.quantized_matmul(x, *[Namespaced(a) for a in packed])) is np.ndarray
    bf = x.astype(ml_dtypes.bfloat16)
    y = mb.quantized_matmul(bf, *packed)
    assert type(y) is np.ndarray and y.dtype == ml_dtypes.bfloat16
    assert mb.dequantize(*mb.quantize(x, mode="mxfp8"), mode="mxfp8").dtype == ml_dtypes.bfloat16
    # Memory that was handed over lives as long as the array.
    adopted = mb.quantized_matmul(Namespaced(x), *packed)
    copies = [mb.quantized_matmul(Namespaced(x), *packed) for _ in range(50)]
    np.testing.assert_array_equal(adopted, mb.quantized_matmul(x, *packed))
    assert all(np.array_equal(c, adopted) for c in copies)


def test_subclasses_and_scalars_of_numpy():
    x, packed = operands()
    mapped = x.view(type("Mine", (np.ndarray,), {}))
    np.testing.assert_array_equal(
        mb.quantized_matmul(mapped, *packed), mb.quantized_matmul(x, *packed)
    )
    y = mb.quantize(x, mode="nvfp4", tensor_scale=np.float32(2))
    np.testing.assert_array_equal(y[0], mb.quantize(x, mode="nvfp4", tensor_scale=2)[0])


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_dtypes_by_any_name(name):
    import mlx.core as mx

    codes = np.arange(127, dtype=np.uint8)
    for dtype in (name, FLOATS[name], np.dtype(FLOATS[name]), getattr(mx, name)):
        assert mb.from_fp8(codes, dtype).dtype == FLOATS[name]
