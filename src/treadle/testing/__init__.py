"""Test support for Treadle and for programs built on it: engines in memory with a clock that tests advance, workflows without a
store, specialists without a service, crashes at every write, and replays of recorded runs."""

from treadle.testing.clock import ManualClock, SeededIds
from treadle.testing.crash import CrashCase, CrashReport, CrashTestFailed, crash_test
from treadle.testing.environment import (
    BlockingEnvironment,
    EnqueuedTask,
    Environment,
    Stalled,
    StubExternalRenderSpecialist,
    StubExternalSpecialist,
)
from treadle.testing.recordings import Recording, ReplayFailed, record, replay, replay_async
from treadle.testing.workflows import CompilationFailed, WorkflowFailed, run_workflow

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
    "StubExternalRenderSpecialist",
    "StubExternalSpecialist",
    "WorkflowFailed",
    "crash_test",
    "record",
    "replay",
    "replay_async",
    "run_workflow",
]
