"""Test support for Treadle and for programs built on it: engines in memory with a clock that tests advance, workflows without a
store, specialists without a service, crashes at every write, replays of recorded runs, and the conformance suite of stores (which
needs pytest)."""

from typing import TYPE_CHECKING

from treadle.testing.clock import ManualClock
from treadle.testing.crash import CrashCase, CrashReport, CrashTestFailed, crash_test
from treadle.testing.environment import BlockingEnvironment, EnqueuedTask, Environment, Stalled
from treadle.testing.ids import SeededIds
from treadle.testing.recordings import Recording, ReplayFailed, record, replay, replay_async
from treadle.testing.specialists import StubExternalRenderSpecialist, StubExternalSpecialist
from treadle.testing.workflows import CompilationFailed, WorkflowFailed, run_workflow

if TYPE_CHECKING:
    from treadle.testing.store_contract import StoreContract, StoreHarness

__all__ = [
    "BlockingEnvironment",
    "CompilationFailed",
    "CrashCase",
    "CrashReport",
    "CrashTestFailed",
    "EnqueuedTask",
    "Environment",
    "ManualClock",
    "Recording",
    "ReplayFailed",
    "SeededIds",
    "Stalled",
    "StoreContract",
    "StoreHarness",
    "StubExternalRenderSpecialist",
    "StubExternalSpecialist",
    "WorkflowFailed",
    "crash_test",
    "record",
    "replay",
    "replay_async",
    "run_workflow",
]


def __getattr__(name: str) -> object:
    """Import the conformance suite when it is used: only that needs pytest."""
    if name in ("StoreContract", "StoreHarness"):
        from treadle.testing import store_contract

        return getattr(store_contract, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
