"""Test support for Treadle and for programs built on it: a manual clock, deterministic ids, workflows without a store,
specialists without a service, and crashes at every write."""

from treadle.testing.clock import ManualClock
from treadle.testing.crash import CrashCase, CrashReport, CrashTestFailed, crash_test
from treadle.testing.ids import SeededIds
from treadle.testing.specialists import StubExternalRenderSpecialist, StubExternalSpecialist
from treadle.testing.workflows import CompilationFailed, WorkflowFailed, run_workflow

__all__ = [
    "CompilationFailed",
    "CrashCase",
    "CrashReport",
    "CrashTestFailed",
    "ManualClock",
    "SeededIds",
    "StubExternalRenderSpecialist",
    "StubExternalSpecialist",
    "WorkflowFailed",
    "crash_test",
    "run_workflow",
]
