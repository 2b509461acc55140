"""The examples run, and print what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run(name, *arguments):
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_moe_block():
    out = run("torch_moe_block.py")
    assert "compiled as called: True" in out and "finite: True" in out


def test_training():
    losses = [float(line.split()[-1]) for line in run("torch_qqmm_training.py").splitlines()[:3]]
    assert losses[2] < losses[0] / 2


def test_readme():
    pytest.importorskip("transformers", minversion="5")
    pytest.importorskip("mlx.core")  # of which test_package wants to know arguments
    from test_package import ROOT, needs_torch, readme_examples

    blocks = [block for block in readme_examples() if needs_torch(block)]
    assert blocks
    for block in blocks:
        shown = re.findall(r"^#> (.*)$", block, re.MULTILINE)
        done = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT
        )
        assert done.stdout.splitlines() == shown, done.stderr


def test_transformers(tmp_path):
    pytest.importorskip("transformers", minversion="5")
    out = run("transformers_model.py", tmp_path / "quantized")
    assert out.startswith("And it came to pass")
    assert (tmp_path / "quantized/model.safetensors").exists()
