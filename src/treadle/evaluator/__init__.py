"""The AFL evaluator: a program, the rows it needs to see and what finished, to the changes that follow.

Pure: no IO, no clock, no randomness; the same call gives the same answer. `advance` is the way in; `fork` begins a run in
the middle of another.
"""

from treadle.evaluator.advance import advance
from treadle.evaluator.fork import fork
from treadle.evaluator.records import (
    BlobRef,
    Changes,
    Errored,
    Event,
    Expand,
    Finished,
    Ignored,
    Limits,
    LogEntry,
    Need,
    Resend,
    RetryStep,
    RunRef,
    ScriptWish,
    Started,
    StepError,
    StepRow,
    TaskWish,
    Updated,
    Value,
    View,
    path_of,
)
from treadle.evaluator.repair import open_ends
from treadle.evaluator.states import State, StepKind

__all__ = [
    "BlobRef",
    "Changes",
    "Errored",
    "Event",
    "Expand",
    "Finished",
    "Ignored",
    "Limits",
    "LogEntry",
    "Need",
    "Resend",
    "RetryStep",
    "RunRef",
    "ScriptWish",
    "Started",
    "State",
    "StepError",
    "StepKind",
    "StepRow",
    "TaskWish",
    "Updated",
    "Value",
    "View",
    "advance",
    "fork",
    "open_ends",
    "path_of",
]
