"""Conversion of the evaluator's step rows to and from their stored form; large attribute values are stored separately."""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.evaluator.records import StepError, StepRow, status_of
from treadle.evaluator.states import State, StepKind
from treadle.kernel.functions.reads import shown_row
from treadle.kernel.functions.steps import read_step
from treadle.kernel.store.units import PutBlob
from treadle.kernel.store.value_store import ValueStore, ref_json, small_text, unwrapped, wrapped
from treadle.model.errors import UnreadableValue
from treadle.model.runs import Step
from treadle.model.states import StepState
from treadle.model.stored import convert, plain
from treadle.model.values import BlobRef, decode_object, encode

_ROW_LIMIT = 64 * 1024 * 1024
_ATTRIBUTES = ("params", "returns", "loop")
_STATES: dict[str, State] = {
    **{state.value: state for state in State},
    StepState.COMPLETED: State.STATEMENT_COMPLETE,
    StepState.FAILED: State.STATEMENT_ERROR,
}


def store_step(row: StepRow, value_store: ValueStore, root_id: str) -> tuple[Step, StepRow, list[PutBlob]]:
    """The stored form, the row as it will be read back (large values replaced by references), and the large values."""
    body = small_text(row)
    if body is not None:
        return _stored(row, value_store.seal(body)), row, []
    blobs: list[PutBlob] = []
    parts: dict[str, Any] = plain(_without_attributes(row))
    replaced: dict[str, dict[str, Any]] = {}
    for name in _ATTRIBUTES:
        attributes: dict[str, Any] = getattr(row, name)
        if not attributes:
            continue
        kept, stored = _split(attributes, value_store, root_id, blobs)
        parts[name] = stored
        if kept is not attributes:
            replaced[name] = kept
    slim = msgspec.structs.replace(row, **replaced) if replaced else row
    return _stored(row, value_store.seal(encode(parts, "step", _ROW_LIMIT))), slim, blobs


def _stored(row: StepRow, body: str) -> Step:
    return Step(
        id=row.id,
        run_id=row.run_id,
        parent_id=row.parent_id,
        ordinal=row.ordinal,
        kind=row.kind,
        name=row.name,
        facet=row.facet,
        state=row.state,
        body=body,
    )


def load_step(step: Step, value_store: ValueStore) -> StepRow:
    """Decode a stored row; large values are `BlobRef`s. A step of a function becomes a `FunctionStepRow`."""
    try:
        return _load(step, value_store)
    except UnreadableValue as error:
        raise UnreadableValue(f"The step {step.name} ({step.id}) cannot be read. {error}") from None


def _load(step: Step, value_store: ValueStore) -> StepRow:
    parts = decode_object(value_store.plain(step.body))
    if "statement_id" not in parts:
        return shown_row(read_step(step, value_store), step.run_id)
    for name in _ATTRIBUTES:
        if isinstance(attributes := parts.get(name), dict):
            parts[name] = {key: unwrapped(value) for key, value in attributes.items()}
    attributes = {name: parts.pop(name) for name in _ATTRIBUTES if isinstance(parts.get(name), dict)}
    row = convert(StepRow, parts)
    return msgspec.structs.replace(row, **attributes) if attributes else row


class _Head(msgspec.Struct):
    statement_id: str
    state: State


_read_head = msgspec.json.Decoder(_Head).decode


def statement_of(step: Step, value_store: ValueStore) -> tuple[str, StepState]:
    """The program node and status of a row, without decoding the rest."""
    try:
        head = _read_head(value_store.plain(step.body))
    except (UnreadableValue, msgspec.MsgspecError, UnicodeError):
        row = show_step(step, value_store)
        return row.statement_id, row.status
    return head.statement_id, status_of(head.state)


def show_step(step: Step, value_store: ValueStore) -> StepRow:
    """Decode a stored row for display; an unreadable row shows its known columns and an error."""
    try:
        return load_step(step, value_store)
    except UnreadableValue as error:
        known = step.kind in frozenset(StepKind)
        return StepRow(
            id=step.id,
            run_id=step.run_id,
            parent_id=step.parent_id,
            place=step.name,
            statement_id="",
            name=step.name,
            kind=StepKind(step.kind) if known else StepKind.STEP,
            facet=step.facet if known else step.kind,
            state=_STATES.get(step.state, State.EVENT_TRANSMIT),
            ordinal=step.ordinal,
            error=StepError(message=str(error), type=error.code, path=step.name, step_id=step.id),
        )


def _without_attributes(row: StepRow) -> StepRow:
    return msgspec.structs.replace(row, params={}, returns={}, loop={})


def _split(
    attributes: dict[str, Any], value_store: ValueStore, root_id: str, blobs: list[PutBlob]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes with references for large values, and the same as JSON."""
    folded = value_store.fold(attributes, root_id)
    blobs += folded.blobs
    stored = {key: ref_json(value) if isinstance(value, BlobRef) else wrapped(value) for key, value in folded.attributes.items()}
    return folded.attributes, stored
