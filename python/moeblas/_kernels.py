"""What there is to ask of the library: kernels, plans, devices, threads."""

from __future__ import annotations

from collections import namedtuple

from . import _core

_OPERATIONS = ("moeblas._quantization", "moeblas._products", "moeblas._layers")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NamedTuple

    class Kernel(NamedTuple):
        """One row of the dispatch table: what it takes. The first that takes a problem runs."""

        name: str
        backend: str
        problem: str
        arch: str
        formats: str
        dtypes: str
        grouping: str
        rows: str
        summary: str

    class Plan(NamedTuple):
        """What a call would do: see ``explain``."""

        kernel: str | None
        workspace_bytes: int
        reasons: list[str]

else:
    Kernel = namedtuple("Kernel", "name backend problem arch formats dtypes grouping rows summary")
    Kernel.__doc__ = (
        "One row of the dispatch table: what it takes. The first that takes a problem runs."
    )
    Plan = namedtuple("Plan", "kernel workspace_bytes reasons")
    Plan.__doc__ = "What a call would do: see ``explain``."


def kernels() -> list[Kernel]:
    """Every kernel of every backend, in the order in which they are tried."""
    return [Kernel(*row) for row in _core.kernels()]


def explain(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Plan:
    """What ``operation(*args, **kwargs)`` would do: arguments are checked and a kernel is selected, but
    nothing runs.

    Returns:
        kernel: which would run; None where the result is empty.
        workspace_bytes: the memory it would take on the arrays' device.
        reasons: every kernel in front of it, and why it would not take the call.
    """
    if getattr(operation, "__module__", None) not in _OPERATIONS:
        raise TypeError(
            f"[explain] operation is {operation!r}, expected a function such as moeblas.gather_qmm"
        )
    plan = _core.Plan()
    operation(*args, plan=plan, **kwargs)
    return Plan(plan.kernel, plan.workspace_bytes, plan.reasons.splitlines())


def info() -> str:
    """The library's version, then what was found on this machine, a line for each backend: whether
    it is usable, and why not."""
    return _core.info()


def set_num_threads(n: int | None) -> None:
    """How many threads the CPU's kernels use, the caller's included.

    None: the default, the CPUs of the process's affinity mask or MOEBLAS_NUM_THREADS. Results do
    not depend on it.
    """
    _core.set_num_threads(n)


def get_num_threads() -> int:
    """How many threads the CPU's kernels use."""
    return _core.get_num_threads()
