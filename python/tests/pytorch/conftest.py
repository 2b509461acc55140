"""Fresh random data on every run; a failure says which seed brings it back."""

import os
import random

import pytest

torch = pytest.importorskip("torch")

SEED = int(os.environ.get("MOEBLAS_TEST_SEED", random.randrange(10**6)))
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")


def pytest_report_header():
    import moeblas.torch

    return (
        f"moeblas.torch registered from {moeblas.torch.registration}, "
        f"rerun these numbers with MOEBLAS_TEST_SEED={SEED}"
    )


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def device(request):
    return request.param


@pytest.fixture
def cuda():
    """For tests of what only a GPU has."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no NVIDIA GPU")
