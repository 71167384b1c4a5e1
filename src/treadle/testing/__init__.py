"""Test support for Treadle and for programs built on it: a manual clock, deterministic ids, workflows without a store,
specialists without a service, crashes at every write, and the conformance suite of stores (which needs pytest)."""

from typing import TYPE_CHECKING

from treadle.testing.clock import ManualClock
from treadle.testing.crash import CrashCase, CrashReport, CrashTestFailed, crash_test
from treadle.testing.ids import SeededIds
from treadle.testing.specialists import StubExternalRenderSpecialist, StubExternalSpecialist
from treadle.testing.workflows import CompilationFailed, WorkflowFailed, run_workflow

if TYPE_CHECKING:
    from treadle.testing.store_contract import StoreContract, StoreHarness

__all__ = [
    "CompilationFailed",
    "CrashCase",
    "CrashReport",
    "CrashTestFailed",
    "ManualClock",
    "SeededIds",
    "StoreContract",
    "StoreHarness",
    "StubExternalRenderSpecialist",
    "StubExternalSpecialist",
    "WorkflowFailed",
    "crash_test",
    "run_workflow",
]


def __getattr__(name: str) -> object:
    """Import the conformance suite when it is used: only that needs pytest."""
    if name in ("StoreContract", "StoreHarness"):
        from treadle.testing import store_contract

        return getattr(store_contract, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
