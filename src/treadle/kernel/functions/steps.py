"""Steps of functions as rows: queue names, places, ids and documents.

A step has a *place*: positions and branches from the root of the function, such as `4`, or `4.2.0` for the first step of the
third branch of the gather at position 4. Its id is derived from the run and the place, so repeating it yields the same step. A
step that an operator's retry repeats leaves its row as `void`; the new row's id includes a repeat number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from treadle.kernel.store.units import PutBlob
from treadle.kernel.store.value_store import BIG, ValueStore, ref_json, small_text, unwrapped, wrapped
from treadle.model.errors import InvalidInput, UnreadableValue, not_found
from treadle.model.ids import derived_id
from treadle.model.runs import Step
from treadle.model.states import StepState
from treadle.model.stored import MORE, StoredRow, convert
from treadle.model.values import BlobRef, Json, decode, encode, shown

STEP, SLEEP, CALL, START, RESULT, WAIT, ASK, NOW, PATCH, EFFECT, TAG, FIRST = (
    "step",
    "sleep",
    "call",
    "start",
    "result",
    "wait",
    "approval",
    "now",
    "patch",
    "effect",
    "tag",
    "first",
)
"""Kinds of steps of functions."""
VOID = "void"
"""The kind of a row replaced by a retry."""
SIGNAL = "signal"
"""The kind of a row that records a signal or an update with an idempotency key; it has no place."""
UPDATE, REPLY, PUBLISH, READ = "update", "reply", "publish", "read"
"""Kinds of steps: waiting for an update, answering it, publishing a value, reading entries of a stream."""
ANSWER, PUBLISHED = "answer", "published"
"""Kinds of rows without a place: the answer to an update, and the published values of a run."""
HIDDEN = (VOID, SIGNAL, ANSWER, PUBLISHED)
"""Kinds of rows that are not steps of the function."""
UPDATE_PREFIX = "update "
"""Distinguishes the messages of updates from signals, whose names have no spaces."""

VALUE_LIMIT = 64 * 1024 * 1024


def queue_name(name: str, version: int) -> str:
    """The queue name of a function's tasks."""
    return f"{name}@{version}"


def parse_queue_name(text: str) -> tuple[str, int]:
    """Name and version of a queue name, or of a flow id without its prefix."""
    name, _, version = text.rpartition("@")
    if not name or not version.isdecimal():
        raise not_found("function", text)
    return name, int(version)


def check_version(version: int) -> int:
    """Return the version, or raise `InvalidInput`: a whole number from 1."""
    if type(version) is not int or not 0 < version < 1_000_000_000:
        raise InvalidInput(f"The version of a function is a whole number from 1, not {shown(version)}.")
    return version


# --- places ---


def step_id(run_id: str, place: str, redo: int = 0) -> str:
    """The id of the step at a place, after `redo` repeats by operators."""
    return derived_id(run_id, f"{place}~{redo}" if redo else place)


_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


class StepIds:
    """The ids of a run's steps by place: `step_id`, with the shared part computed once."""

    __slots__ = ("_begun", "_time")

    def __init__(self, run_id: str) -> None:
        self._begun = hashlib.sha256(f"{run_id}/".encode())
        self._time = run_id[:13]

    def at(self, place: str) -> str:
        """The id of a step that was never repeated."""
        digest = self._begun.copy()
        digest.update(place.encode())
        text = digest.hexdigest()
        return f"{self._time}-7{text[1:4]}-{_VARIANT[text[4]]}{text[5:8]}-{text[8:20]}"


def question_place(place: str, attempt: int) -> str:
    """The place of the approval that an effect with an unknown outcome requests after that attempt."""
    return f"{place}.{attempt}.0"


def answer_id(update_id: str) -> str:
    """The id of the row with the answer to an update."""
    return derived_id(update_id, "answer")


def published_id(run_id: str) -> str:
    """The id of the row with the published values of a run."""
    return derived_id(run_id, "published")


def is_after(place: str, chosen: str) -> bool:
    """Whether a place is reached only after `chosen`: later in the same branch, in an enclosing one, or below it.

    Sibling branches are neither before nor after.
    """
    parts, marks = place.split("."), chosen.split(".")
    for index, mark in enumerate(marks):
        if index >= len(parts):
            return False
        if parts[index] == mark:
            continue
        return index % 2 == 0 and _number(parts[index]) > _number(mark)
    return len(parts) > len(marks)


def place_key(place: str) -> tuple[int, ...]:
    """Sort key of places in program order."""
    return tuple(_number(part) for part in place.split("."))


def _number(part: str) -> int:
    """The number of a part of a place; 0 for one that is damaged or that a newer version wrote."""
    return int(part) if part.isdecimal() else 0


# --- steps ---


class Recorded(StoredRow, kw_only=True, omit_defaults=True):
    """The decoded row of a step: its document and columns."""

    place: str = ""
    value: Any = None
    error: dict[str, Any] | None = None
    failures: int = 0
    wake_at: int | None = None
    task_id: str | None = None
    """The task or run that it waits for."""
    of: str | None = None
    """The step that started the awaited child run; for an effect, the step of the unknown effect that it repeats."""
    timed_out: bool = False
    redo: int = 0
    attempt: int = 0
    """For an effect: the number of attempts begun."""
    in_doubt: bool = False
    """For a failed effect: whether it may have happened anyway."""
    version: int | None = None
    """For a child run: the version of its function."""
    on_parent_close: str | None = None
    """For a child run: its policy."""
    began_at: int | None = None
    """When its last attempt began; None: when its row was created."""
    ended_at: int | None = None
    """When its wait or last attempt ended; None: when its row was last changed."""
    about: str | None = None
    """Its arguments in one line."""
    id: str = ""
    kind: str = ""
    name: str = ""
    state: str = ""
    ordinal: int = 0


def child_run_id(start_id: str) -> str:
    """The id of the child run that a step starts."""
    return derived_id(start_id, "run")


_COLUMNS = {"value": None, "id": "", "kind": "", "name": "", "state": "", "ordinal": 0}
"""Fields without those in columns of the row; the value is encoded apart, because it may be a reference."""


def make_step(run_id: str, recorded: Recorded, value_store: ValueStore) -> Step:
    """The stored form; a `BlobRef` value is stored separately."""
    return _stored(run_id, recorded, value_store, encode(_parts(recorded), "step", 2 * VALUE_LIMIT))


def _parts(recorded: Recorded) -> dict[str, Json]:
    """The parts of the document."""
    parts: dict[str, Json] = to_builtins(replace(recorded, **_COLUMNS))
    parts = parts.pop(MORE, {}) | parts
    if recorded.value is not None:
        ref = isinstance(recorded.value, BlobRef)
        parts["value"] = ref_json(recorded.value) if ref else wrapped(recorded.value)
    return parts


def _stored(run_id: str, recorded: Recorded, value_store: ValueStore, document: str) -> Step:
    return Step(
        id=recorded.id,
        run_id=run_id,
        parent_id=None,
        ordinal=recorded.ordinal,
        kind=recorded.kind,
        name=recorded.name,
        facet=None,
        state=recorded.state,
        document=value_store.encode_text(document),
    )


def read_step(step: Step, value_store: ValueStore) -> Recorded:
    """Decode a stored step; a large value is a `BlobRef`."""
    if step.state not in frozenset(StepState):
        raise UnreadableValue(f"The step {step.name} has an unknown state ({step.state!r}): a newer version may have written it.")
    recorded = convert(Recorded, decode(value_store.plain(step.document)))
    recorded.value = unwrapped(recorded.value)
    recorded.id, recorded.kind, recorded.name = step.id, step.kind, step.name
    recorded.state, recorded.ordinal = step.state, step.ordinal
    return recorded


def find_readable(step: Step, value_store: ValueStore) -> Recorded | None:
    """Decode a stored step; None if it is damaged, so that its run can still be explained and ended."""
    try:
        return read_step(step, value_store)
    except UnreadableValue:
        return None


def fold_text(text: str, value: Json, root_id: str, value_store: ValueStore) -> tuple[str, tuple[PutBlob, ...]]:
    """A value's JSON for a step document, and its separately stored parts."""
    if len(text) > BIG:
        blob = value_store.pack_blob(text, root_id)
        return encode(ref_json(BlobRef(blob.digest, len(text), isinstance(value, list)))), (blob,)
    if type(value) is dict and ("@blob" in value or "@value" in value):
        return f'{{"@value":{text}}}', ()
    return text, ()


def folded(
    run_id: str, recorded: Recorded, root_id: str, value_store: ValueStore, *, checked: bool = False
) -> tuple[Step, tuple[PutBlob, ...]]:
    """The stored form of a step with a value of any size, and its separately stored parts.

    A `checked` value was read from the store, so that it is known to be JSON.
    """
    value = recorded.value
    blobs: tuple[PutBlob, ...] = ()
    if (checked or value is None) and (document := small_text(_parts(recorded))) is not None:
        return _stored(run_id, recorded, value_store, document), blobs
    if value is not None and isinstance(value, dict | list | str):
        text = encode(value, "value", 2**31)
        _, blobs = fold_text(text, value, root_id, value_store)
        if blobs:
            recorded.value = BlobRef(blobs[0].digest, len(text), isinstance(value, list))
    step = make_step(run_id, recorded, value_store)
    recorded.value = value
    return step, blobs


def failed_beside(failed: Sequence[Recorded], recorded: Sequence[Recorded]) -> list[Recorded]:
    """The further failed steps that a retry repeats: those that ended other branches of the same gathers; all if none is blamed."""
    steps = [step for step in recorded if step.kind not in HIDDEN]
    others = [step for step in steps if step.state == StepState.FAILED and step not in failed]
    if not failed:
        return others
    gathers = {gather for step in failed if (gather := _gather_of(step.place))}
    within = [step for step in steps if _gather_of(step.place) in gathers]
    return [step for step in others if step in within and not any(is_after(other.place, step.place) for other in within)]


def _gather_of(place: str) -> str:
    """The place of the outermost gather around a step, which may have others in its branches; empty: the step is in none."""
    return place.partition(".")[0] if place.count(".") > 1 else ""


def is_finished(recorded: Recorded) -> bool:
    """Whether a step has ended with a result or an error."""
    return recorded.state in (StepState.COMPLETED, StepState.FAILED)
