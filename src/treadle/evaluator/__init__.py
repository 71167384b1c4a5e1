"""The AFL evaluator: from a program, the loaded rows and the events to the resulting changes.

Pure: no IO, no clock, no randomness; the same call returns the same result. `advance` is the entry point; `fork` begins a run
in the middle of another.
"""

from treadle.evaluator.advance import advance, steps_of
from treadle.evaluator.fork import CannotGive, fork, list_repeated, open_ends, repeat_collected
from treadle.evaluator.records import (
    BlobRef,
    Changes,
    Errored,
    Event,
    Expand,
    Finished,
    Ignored,
    Limits,
    LoadedRows,
    LogEntry,
    Need,
    RequestedTask,
    Resend,
    RetryStep,
    RunRef,
    ScriptRequest,
    Started,
    StepError,
    StepRow,
    Updated,
    Value,
    path_of,
)
from treadle.evaluator.states import State, StepKind

__all__ = [
    "BlobRef",
    "CannotGive",
    "Changes",
    "Errored",
    "Event",
    "Expand",
    "Finished",
    "Ignored",
    "Limits",
    "LoadedRows",
    "LogEntry",
    "Need",
    "RequestedTask",
    "Resend",
    "RetryStep",
    "RunRef",
    "ScriptRequest",
    "Started",
    "State",
    "StepError",
    "StepKind",
    "StepRow",
    "Updated",
    "Value",
    "advance",
    "fork",
    "list_repeated",
    "open_ends",
    "path_of",
    "repeat_collected",
    "steps_of",
]
