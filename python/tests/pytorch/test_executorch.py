"""A module that AOTInductor compiled calls the C functions, and answers as it did."""

import os
import zipfile

import pytest
import torch
import torch_reference as ref

import moeblas.torch as mt
from moeblas.integrations import executorch as integration

pytestmark = pytest.mark.skipif(mt.registration != "c++", reason="without libmoeblas_torch")


def test_exported_packaged_loaded_and_run(device, tmp_path, monkeypatch):
    folder = str(integration.library().parent)
    monkeypatch.setenv("LIBRARY_PATH", os.pathsep.join(
        filter(None, (folder, os.environ.get("LIBRARY_PATH")))))
    weights = [mt.quantize(torch.randn(5, n, k).to(device), 32) for n, k in ((128, 96), (96, 64))]
    module = integration.Experts(*weights, 32)
    x, ids = torch.randn(7, 96).to(device), torch.randint(0, 5, (7,), device=device)
    program = torch.export.export(module, (x, ids))
    calls = [str(n.target) for n in program.graph.nodes if "moeblas" in str(n.target)]
    assert calls == ["moeblas.gather_qmm.default", "moeblas.gather_qmv.default"]
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "experts.pt2"),
        inductor_configs=integration.inductor_configs(device))
    with zipfile.ZipFile(package) as files:
        code = [files.read(name) for name in files.namelist() if name.endswith(".so")]
    for name in integration.NAMES:
        assert any(integration.shim_name(name, device).encode() in text for text in code)

    loaded = torch._inductor.aoti_load_package(package)
    down = mt.dequantize(*weights[1], 32).cpu().double().abs()
    for _ in range(2):
        x, ids = torch.randn_like(x), torch.randint(-1, 5, (7,), device=device)
        both = mt.gather_qmm(x.unsqueeze(1), *weights[0], rhs_indices=ids, group_size=32)
        gate, up = both.squeeze(1).cpu().double().chunk(2, -1)
        h = (torch.nn.functional.silu(gate) * up).abs()
        size = torch.einsum("pni,pi->pn", down[ids.cpu().clamp_min(0)], h)
        # The products are the same calls; a compiler may round silu and its product 16 times elsewhere.
        ref.assert_within(loaded(x, ids), module(x, ids).cpu().double(), size * 16 * 2.0**-24)


def test_declarations_are_those_of_the_library():
    import ctypes

    library = ctypes.CDLL(str(integration.library()))
    for name in integration.NAMES:
        for device in ("cpu", "cuda"):
            assert getattr(library, integration.shim_name(name, device))
        assert integration.SCHEMAS[f"moeblas::{name}"].startswith(name + "(Tensor x, Tensor w")
