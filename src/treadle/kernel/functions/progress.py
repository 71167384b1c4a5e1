"""Steps in progress of a function, noted in the progress of its task while they last longer than a second. Pure.

The note is valid for one claim: a later claim, and a task without an owner, execute none of these steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.kernel.functions.steps import Recorded
from treadle.model.names import FUNCTION
from treadle.model.states import StepState
from treadle.model.stored import Stored, convert, plain
from treadle.model.tasks import Task
from treadle.model.values import Json, decode, encode

_STEPS, _CLAIM = "_steps", "_claim"


class StepInProgress(Stored, frozen=True, kw_only=False):
    """A step with executing code."""

    id: str
    place: str
    kind: str
    name: str
    ordinal: int
    began_at: int
    attempt: int
    about: str | None = None

    def as_recorded(self) -> Recorded:
        """The step as its row would show it."""
        return Recorded(
            id=self.id,
            place=self.place,
            kind=self.kind,
            name=self.name,
            ordinal=self.ordinal,
            state=StepState.RUNNING,
            began_at=self.began_at,
            about=self.about,
        )


def note_steps(progress: str | None, claim_version: int, steps: Sequence[StepInProgress]) -> str:
    """The progress of a task, with the steps that its function executes; null if there is neither."""
    said: dict[str, Any] = without_steps(decode(progress)) or {}
    if steps:
        said |= {_STEPS: [plain(step) for step in steps], _CLAIM: claim_version}
    return encode(said or None)


def read_steps(task: Task) -> list[StepInProgress]:
    """The steps that the function of this task executes now."""
    if task.kind != FUNCTION or task.owner_id is None or task.progress is None:
        return []
    said: dict[str, Any] = decode(task.progress) or {}
    if said.get(_CLAIM) != task.claim_version:
        return []
    return [convert(StepInProgress, each) for each in said.get(_STEPS, ())]


def without_steps(progress: Json) -> Json:
    """The progress that user code reported."""
    if not isinstance(progress, dict) or _STEPS not in progress:
        return progress
    return {name: value for name, value in progress.items() if name not in (_STEPS, _CLAIM)} or None
