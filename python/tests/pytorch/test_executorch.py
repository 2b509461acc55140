"""A module that AOTInductor compiled calls the C functions, and answers as it did."""

import functools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import moeblas.torch as mt
import torch_reference as ref
from moeblas.integrations import executorch as integration

pytestmark = pytest.mark.skipif(mt.registration != "c++", reason="without libmoeblas_torch")


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    """An expert layer, compiled for a device once: the package's path, the module and its weights."""
    folder = str(integration.library().parent)

    @functools.cache
    def make(device):
        weights = [
            mt.quantize(torch.randn(5, n, k).to(device), 32) for n, k in ((192, 96), (96, 96))
        ]
        module = integration.Experts(*weights, 32)
        x, ids = torch.randn(7, 96).to(device), torch.randint(0, 5, (7,), device=device)
        program = torch.export.export(module, (x, ids))
        calls = [str(n.target) for n in program.graph.nodes if "moeblas" in str(n.target)]
        assert calls == ["moeblas.gather_qmm.default", "moeblas.gather_qmv.default"]
        package = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path_factory.mktemp(device) / "experts.pt2"),
            # Headers that are compiled once beforehand, and fast code around the calls, are no gain
            # for one model.
            inductor_configs=integration.inductor_configs(device)
            | {
                "aot_inductor.precompile_headers": False,
                "aot_inductor.compile_wrapper_opt_level": "O0",
            },
        )
        return package, module

    with pytest.MonkeyPatch.context() as patch:
        libraries = (folder, os.environ.get("LIBRARY_PATH"))
        patch.setenv("LIBRARY_PATH", os.pathsep.join(filter(None, libraries)))
        yield make


def test_exported_packaged_loaded_and_run(packaged, device):
    package, module = packaged(device)
    with zipfile.ZipFile(package) as files:
        code = [files.read(name) for name in files.namelist() if name.endswith(".so")]
    for name in integration.NAMES:
        assert any(integration.shim_name(name, device).encode() in text for text in code)

    loaded = torch._inductor.aoti_load_package(package)
    first, second = (
        [module.get_buffer(f"{part}_{key}") for key in ("w", "scales", "biases")]
        for part in ("gate_up", "down")
    )
    down = mt.dequantize(*second, 32).cpu().double().abs()
    for _ in range(2):
        x = torch.randn(7, 96).to(device)
        ids = torch.randint(-1, 5, (7,), device=device)
        both = mt.gather_qmm(x.unsqueeze(1), *first, rhs_indices=ids, group_size=32)
        gate, up = both.squeeze(1).cpu().double().chunk(2, -1)
        h = (torch.nn.functional.silu(gate) * up).abs()
        size = torch.einsum("pni,pi->pn", down[ids.cpu().clamp_min(0)], h)
        # The products are the same calls; a compiler may round silu and its product 16 times elsewhere.
        ref.assert_within(loaded(x, ids), module(x, ids).cpu().double(), size * 16 * 2.0**-24)


def test_the_current_stream_is_used(packaged, cuda):
    """x is written late, on a stream of which no other stream knows."""
    loaded = torch._inductor.aoti_load_package(packaged("cuda")[0])
    x = torch.randn(7, 96, device="cuda")
    ids = torch.randint(-1, 5, (7,), device="cuda")
    expected, late = loaded(x, ids), torch.zeros_like(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # cycles: about 10 ms
        late.copy_(x)
        y = loaded(late, ids)
    stream.synchronize()
    assert torch.equal(y, expected)


def test_runs_without_python(packaged, device, tmp_path):
    """A C++ program loads the package, linked with libmoeblas_torch and libtorch alone."""
    package, _module = packaged(device)
    torch_folder, ours = Path(torch.__file__).parent, integration.library().parent
    program = tmp_path / "run_package"
    libraries = ["torch", "torch_cpu", "c10"] + ["torch_cuda", "c10_cuda"] * (device == "cuda")
    subprocess.run(
        ["c++", "-std=c++20", "-O0", Path(__file__).with_name("run_package.cpp"), "-o", program,
         "-isystem", torch_folder / "include",
         "-isystem", torch_folder / "include/torch/csrc/api/include", "-Wl,--no-as-needed",
         integration.library(), *[torch_folder / f"lib/lib{n}.so" for n in libraries],
         f"-Wl,-rpath,{torch_folder / 'lib'}", f"-Wl,-rpath,{ours}", "-Wl,--allow-shlib-undefined",
         f"-Wl,-rpath-link,{torch_folder / 'lib'}"], check=True)  # fmt: skip
    x, ids = torch.randn(7, 96), torch.randint(-1, 5, (7,))
    files = [tmp_path / name for name in ("x", "ids", "y")]
    for file, t in zip(files, (x, ids)):
        file.write_bytes(t.numpy().tobytes())
    subprocess.run([program, device, package, *files[:2], "7", files[2]], check=True)
    y = torch.frombuffer(bytearray(files[2].read_bytes()), dtype=torch.float32).view(7, 96)
    loaded = torch._inductor.aoti_load_package(package)
    assert torch.equal(y, loaded(x.to(device), ids.to(device)).cpu())


def test_declarations_are_those_of_the_library():
    import ctypes

    library = ctypes.CDLL(str(integration.library()))
    for name in integration.NAMES:
        for device in ("cpu", "cuda"):
            assert getattr(library, integration.shim_name(name, device))
        assert integration.SCHEMAS[f"moeblas::{name}"].startswith(name + "(Tensor x, Tensor w")


@pytest.mark.skipif(sys.platform != "linux", reason="the C++ runtime of Linux")
@pytest.mark.parametrize(
    ("answer", "more"),
    [("/usr/lib/gcc/libstdc++.so", []), ("libstdc++.so", [":libstdc++.so.6"])],
    ids=["shared", "archive"],
)
def test_models_have_the_runtime_of_the_process(answer, more, tmp_path):
    """A compiler answers with the bare name where it has no such file."""
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\necho {answer}\n")
    compiler.chmod(0o755)
    with torch._inductor.config.patch({"cpp.cxx": (str(compiler),)}):
        libraries = integration.inductor_configs()["aot_inductor.custom_op_libs"]
    assert libraries == ["moeblas_torch", *more]
