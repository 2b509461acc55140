"""Bad arguments: ValueError or TypeError, in the core's words, and nothing written."""

import contextlib
import datetime
import inspect
import re
import weakref

import numpy as np
import pytest

import moeblas as mb
from dlpack import Exporter

rng = np.random.default_rng(0)
X = rng.standard_normal((4, 64)).astype(np.float32)
STACK = rng.standard_normal((3, 8, 64)).astype(np.float32)
W, SCALES, BIASES = mb.quantize(STACK)
IDS = np.array([0, 2, 1, 1], np.int32)
PAIRS = np.array([[0, 1], [2, 0], [1, 1], [2, 2]], np.int32)
SHARES = np.full((4, 2), 0.5, np.float32)
ENDS = np.array([1, 2, 4], np.int32)
GATE_UP = rng.standard_normal((3, 32, 64)).astype(np.float32)
DOWN = rng.standard_normal((3, 64, 16)).astype(np.float32)

# A valid call of every operation, every argument by name.
CALLS = {
    mb.quantize: {"w": STACK, "group_size": 32, "bits": 4, "mode": "affine"},
    mb.quantize_dual: {"w": rng.standard_normal((64, 64)).astype(np.float32), "mode": "nvfp4", "tensor_scale": 2.0},
    mb.dequantize: {"w_q": W, "scales": SCALES, "biases": BIASES, "group_size": 64, "bits": 4, "mode": "affine", "dtype": "float32"},
    mb.to_fp8: {"x": X},
    mb.from_fp8: {"x": np.arange(100, dtype=np.uint8), "dtype": "float32"},
    mb.quantized_matmul: {"x": X, "w": W[0], "scales": SCALES[0], "biases": BIASES[0], "transpose": True, "group_size": 64, "bits": 4, "mode": "affine"},
    mb.gather_mm: {"a": X[:, None], "b": np.swapaxes(STACK, 1, 2), "lhs_indices": IDS, "rhs_indices": IDS, "sorted_indices": False},
    mb.gather_qmm: {"x": X[:, None], "w": W, "scales": SCALES, "biases": BIASES, "lhs_indices": IDS, "rhs_indices": IDS, "transpose": True, "group_size": 64, "bits": 4, "mode": "affine", "sorted_indices": False},
    mb.gather_qmv: {"x": X, "w": W, "scales": SCALES, "biases": BIASES, "expert_indices": IDS, "group_size": 64, "bits": 4, "mode": "affine"},
    mb.segmented_mm: {"a": X, "b": X.T, "segments": PAIRS},
    mb.grouped_mm: {"x": X, "w": np.swapaxes(STACK, 1, 2), "offsets": ENDS},
    mb.grouped_qmm: {"x": X, "w": W, "scales": SCALES, "biases": BIASES, "offsets": ENDS, "transpose": True, "group_size": 64, "bits": 4, "mode": "affine"},
    mb.qqmm: {"x": X, "w": STACK[0], "scales": None, "group_size": 16, "bits": 4, "mode": "nvfp4", "bias": np.zeros(8, np.float32), "alpha": 1.0, "beta": 0.5, "c": np.zeros((4, 8), np.float32), "tensor_scale_x": 1.0, "tensor_scale_w": 1.0},
    mb.gather_qqmm: {"x": X[:, None], "w": STACK, "lhs_indices": IDS, "rhs_indices": IDS, "mode": "mxfp8", "sorted_indices": False},
    mb.grouped_qqmm: {"x": X, "w": STACK, "scales": None, "offsets": ENDS, "mode": "mxfp4", "scale_layout": "rows"},
    mb.moe_route: {"logits": X, "k": 4, "score": "sigmoid", "normalize": True, "bias": np.zeros(64, np.float32), "n_group": 4, "topk_group": 2, "scaling_factor": 1.0},
    mb.moe_permute: {"x": X, "ids": PAIRS, "experts": 3, "expert_map": np.arange(3)},
    mb.moe_unpermute: {"y": X, "inverse": PAIRS, "weights": SHARES},
    mb.moe_ffn: {"x": X, "gate_up": GATE_UP, "down": DOWN, "ids": PAIRS, "weights": SHARES, "activation": "silu", "glu_layout": "gate_up", "expert_map": np.arange(3), "gate_up_bias": np.zeros((3, 32), np.float32), "down_bias": np.zeros((3, 64), np.float32), "alpha": 1.0, "limit": 1.0},
}  # fmt: skip
# Every argument that a call has besides its own.
OPTIONS = {
    "precision": "native",
    "deterministic": False,
    "check_ids": False,
    "kernel": None,
    "stream": None,
}


class Odd:
    __dlpack__ = 3

    def __dlpack_device__(self):
        raise RuntimeError("no device")


def oddities():
    structured = np.zeros(4, [("a", "i1"), ("f", "f4")])
    return {
        "list": [1.0, 2.0],
        "dict": {},
        "object": object(),
        "class": np.ndarray,
        "word": "florp",
        "bytes": b"1234",
        "float": 1.5,
        "huge": 2**70,
        "negative": -3,
        "complex": 1j,
        "date": datetime.date(2026, 1, 1),
        "nested": (((),),),
        "float64": np.zeros((4, 64)),
        "complex array": np.zeros((4, 64), np.complex64),
        "objects": np.array([None, object()]),
        "words": np.array(["a", "b"]),
        "dates": np.array(["2026-01-01"], "datetime64[D]"),
        "voids": np.zeros(3, "V7"),
        "structured": structured,
        "misaligned field": structured["f"],
        "foreign": np.zeros((4, 64), ">f4"),
        "no dimensions": np.float32(3)[...],
        "nine dimensions": np.zeros((1,) * 9, np.float32),
        "empty": np.zeros((0, 0), np.float32),
        "scalar": np.float32(1),
        "odd": Odd(),
    }


def positional(operation, arguments):
    """What cannot be passed by name, and the rest."""
    kinds = inspect.signature(operation).parameters
    before = [
        v
        for k, v in arguments.items()
        if kinds.get(k, None) and kinds[k].kind == inspect.Parameter.POSITIONAL_ONLY
    ]
    rest = {
        k: v
        for k, v in arguments.items()
        if not (k in kinds and kinds[k].kind == inspect.Parameter.POSITIONAL_ONLY)
    }
    return before, rest


def call(operation, arguments):
    before, rest = positional(operation, arguments)
    return operation(*before, **rest)


def arrays(result):
    return [a for part in result for a in arrays(part)] if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("operation", CALLS, ids=lambda f: f.__name__)
def test_every_argument_made_odd(operation):
    valid = {**CALLS[operation], **OPTIONS}
    want = call(operation, valid)
    refused = 0
    for name in [*valid, "out"]:
        for kind, oddity in oddities().items():
            try:
                call(operation, {**valid, name: oddity})
            except (ValueError, TypeError) as error:
                text = str(error)
                assert text.startswith((f"[{operation.__name__}] ", f"{operation.__name__}() ")), (
                    name,
                    kind,
                    text,
                )
                refused += 1
            except RuntimeError as error:  # a valid argument that no kernel takes
                assert "no kernel" in str(error) or "takes" in str(error), (name, kind, error)
        if name in CALLS[operation]:
            missing = {k: v for k, v in valid.items() if k != name}
            with contextlib.suppress(ValueError, TypeError):
                call(operation, missing)
    assert refused > 15 * len(CALLS[operation])
    # The next valid call works as before.
    for got, expected in zip(arrays(call(operation, valid)), arrays(want), strict=True):
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize("operation", CALLS, ids=lambda f: f.__name__)
def test_out_is_judged_and_left_alone(operation):
    want = arrays(call(operation, CALLS[operation]))
    nested = call(operation, CALLS[operation])

    def like(result, make):
        return tuple(like(r, make) for r in result) if isinstance(result, tuple) else make(result)

    for make in (
        lambda a: np.zeros(a.shape + (1,), a.dtype),
        lambda a: np.zeros(a.shape, np.int16),
        lambda a: np.zeros(a.shape, np.float64),
        lambda a: np.broadcast_to(np.zeros((), a.dtype), a.shape),
    ):
        out = like(nested, make)
        with pytest.raises((ValueError, TypeError), match=rf"\[{operation.__name__}\] "):
            call(operation, {**CALLS[operation], "out": out})
        assert all(not a.any() for a in arrays(out))
    given = like(nested, lambda a: np.zeros(a.shape, a.dtype))
    for got, expected in zip(
        arrays(call(operation, {**CALLS[operation], "out": given})), want, strict=True
    ):
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize(
    "bad, kind, text",
    [
        (
            lambda: mb.gather_qmm(X[:, None], W, SCALES[:, :, :0], BIASES, IDS, IDS),
            ValueError,
            "[gather_qmm] scales has shape (3, 8, 0), expected (3, 8, 1) for affine 4-bit, group_size 64, K = 64",
        ),
        (
            lambda: mb.quantize(X, bits=7),
            ValueError,
            "[quantize] bits is 7 with group_size 64, expected bits 2, 3, 4, 5, 6 or 8 with group_size 16, 32, 64 or 128",
        ),
        (
            lambda: mb.quantized_matmul(X.astype(np.float64), W[0], SCALES[0], BIASES[0]),
            ValueError,
            "[quantized_matmul] x has dtype float64, expected float32, float16 or bfloat16",
        ),
        (
            lambda: mb.quantize(X, mode="q4_0"),
            ValueError,
            "[quantize] mode is 'q4_0', expected affine, mxfp4, mxfp8, nvfp4 or dense",
        ),
        (
            lambda: mb.to_fp8([1.0]),
            TypeError,
            "[to_fp8] x is a list, expected an array (of numpy, or one that speaks DLPack)",
        ),
        (
            lambda: mb.to_fp8(X, precision="sloppy"),
            ValueError,
            "[to_fp8] precision is 'sloppy', expected native, exact or fast",
        ),
        (
            lambda: mb.to_fp8(X, group=3),
            TypeError,
            "to_fp8() got an unexpected keyword argument 'group'",
        ),
        (
            lambda: mb.to_fp8(X, **{"\ud800": 3}),
            UnicodeEncodeError,
            "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
        ),
        (
            lambda: mb.quantize(X, global_scale="1", mode="nvfp4"),
            TypeError,
            "[quantize] global_scale is a str, expected a number or an array",
        ),
        (
            lambda: mb.moe_ffn(X, (GATE_UP,), DOWN, PAIRS, SHARES),
            ValueError,
            "[moe_ffn] gate_up is a tuple of 1, expected (gate, up)",
        ),
        (
            lambda: mb.quantize(X, mode=4),
            TypeError,
            "[quantize] mode is an int, expected a word",
        ),
        (
            lambda: mb.gather_mm(X[:, None], STACK, rhs_indices=IDS),
            ValueError,
            "[gather_mm] a has shape (4, 1, 64), expected rows of 8 values, b's K",
        ),
        (
            lambda: mb.qqmm(X, STACK[0], dtype="float16"),
            ValueError,
            "[qqmm] dtype is float16, expected float32 as x, which is not packed",
        ),
        (
            lambda: mb.quantize(X[0, 0][...]),
            ValueError,
            "[quantize] w has shape (), expected at least 1 dimension",
        ),
        (
            lambda: mb.moe_ffn(X, GATE_UP, (W, SCALES, BIASES), PAIRS, SHARES),
            TypeError,
            "[moe_ffn] down is a tuple, expected a Quantized(*quantize(...), mode=...) or a dense array",
        ),
        (
            # Zeros, quantized by their absmax.
            lambda: mb.quantize(X[0] * 0, mode="nvfp4", global_scale=np.abs(X[0] * 0).max()),
            ValueError,
            "[quantize] tensor_scale is 0, expected at least 2^-126 to quantize by (a tensor of zeros: 1)",
        ),
        (
            lambda: mb.to_fp8(np.ma.masked_array(X, X > 0)),
            ValueError,
            "[to_fp8] x has a mask, which no operation heeds; expected filled() of it",
        ),
        (
            lambda: mb.to_fp8(np.broadcast_to(X[0], (2**46, 64))),
            MemoryError,
            "[to_fp8] out of shape (70368744177664, 64) and dtype uint8 cannot be allocated",
        ),
        (
            lambda: mb.explain("gather_qmm", X),
            TypeError,
            "[explain] operation is 'gather_qmm', expected a function such as moeblas.gather_qmm",
        ),
        (
            lambda: mb.explain(len, X),
            TypeError,
            "[explain] operation is <built-in function len>, expected a function such as moeblas.gather_qmm",
        ),
        (
            lambda: mb.quantized_matmul(X, W[0], SCALES[0], BIASES[0], out=X[:, :8]),
            ValueError,
            "[quantized_matmul] out overlaps x",
        ),
    ],
)
def test_messages(bad, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        bad()


def test_what_no_backend_takes_is_a_runtime_error():
    elsewhere = [Exporter(a, device=(77, 0)) for a in (X, np.zeros(X.shape, np.uint8))]
    with pytest.raises(RuntimeError, match=r"\[to_fp8\] the tensors are on .*; this build has: "):
        mb.to_fp8(elsewhere[0], out=elsewhere[1])
    with pytest.raises(
        ValueError,
        match=r"\[to_fp8\] kernel is 'florp', expected one of cpu's table .*: quantize_.*fp8_portable",
    ):
        mb.to_fp8(X, kernel="florp")


def test_an_array_that_is_refused_is_let_go():
    x = np.zeros(8, "f4,u2")["f0"]
    alive = weakref.ref(x)
    with pytest.raises(ValueError, match=r"\[to_fp8\] x has a stride of 6 bytes"):
        mb.to_fp8(x)
    del x
    assert alive() is None


def test_misaligned_memory():
    memory = np.zeros(4 * 64 * 4 + 1, np.uint8)
    misaligned = memory[1:].view(np.float32).reshape(4, 64)
    with pytest.raises(ValueError, match=r"\[to_fp8\] x"):
        mb.to_fp8(misaligned)
