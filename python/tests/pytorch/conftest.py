"""Fresh random data on every run; a failure says which seed brings it back."""

import os
import random

import pytest

torch = pytest.importorskip("torch")

SEED = int(os.environ.get("MOEBLAS_TEST_SEED", random.randrange(10**6)))
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def pytest_report_header():
    import moeblas.torch

    return (f"moeblas.torch registered from {moeblas.torch.registration}, "
            f"rerun these numbers with MOEBLAS_TEST_SEED={SEED}")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param
