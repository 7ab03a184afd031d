"""The conformance kit: what every log promises, as tests that any log can be put through.

A log's whole test file:

    from runstate.conformance import DurableLogConformance, LogConformance, MultiProcessLogConformance, Opener

    class TestSqliteLog(LogConformance, DurableLogConformance, MultiProcessLogConformance):
        @pytest.fixture
        def opener(self, tmp_path: Path) -> Opener:
            return Opener(f"sqlite:{tmp_path}/log.db")

`LogConformance` is for every log; the other two are for logs that declare DURABLE and MULTI_PROCESS, and a log
that declares them without running them fails. What a log does not declare must be refused: the tests of an
optional capability then expect `Unsupported`. The kit never asks which log it is talking to.

It needs pytest and hypothesis, and the marker `slow`. `RUNSTATE_KILL_ROUNDS` says how often a writer is killed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runstate.conformance.durable import DurableLogConformance
    from runstate.conformance.every_log import LogConformance
    from runstate.conformance.opener import Opener
    from runstate.conformance.processes import MultiProcessLogConformance

__all__ = ["DurableLogConformance", "LogConformance", "MultiProcessLogConformance", "Opener"]

_homes = {
    "DurableLogConformance": "runstate.conformance.durable",
    "LogConformance": "runstate.conformance.every_log",
    "MultiProcessLogConformance": "runstate.conformance.processes",
    "Opener": "runstate.conformance.opener",
}

if "pytest" in sys.modules:
    # Before any of them is imported: without it, a failing test of the kit says AssertionError and nothing more.
    _with_asserts = ("claims", "durable", "every_log", "history", "processes", "workers")
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{module}" for module in _with_asserts))


def __getattr__(name: str) -> Any:
    """Import on first use: the writer processes of this package start without pytest and hypothesis."""
    if name not in _homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_homes[name]), name)
