"""For tests of Treadle and of what is built on it: a clock that one moves, ids that repeat, workflows without a store,
specialists without a service."""

from treadle.testing.clock import ManualClock
from treadle.testing.ids import SeededIds
from treadle.testing.specialists import StubExternalRenderSpecialist, StubExternalSpecialist
from treadle.testing.workflows import CompilationFailed, WorkflowFailed, run_workflow

__all__ = [
    "CompilationFailed",
    "ManualClock",
    "SeededIds",
    "StubExternalRenderSpecialist",
    "StubExternalSpecialist",
    "WorkflowFailed",
    "run_workflow",
]
