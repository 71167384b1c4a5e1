"""Conversion between artifacts of the goal pipeline and rows of the records table.

Every document is checked against its schema before it is written. The record of an objective belongs to no tree and stays;
everything that followed from it forms one tree with its tasks (`root_id` is the objective's id) and is pruned with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

from msgspec import convert, to_builtins

from treadle.api.objectives import ContextSnapshot, Objective, OutputBundle, PauseState, ReadinessEvent, RunRecord, Workorder
from treadle.api.wire import Instant
from treadle.goals.decide import Changed, Decision, Document, ReadRecord
from treadle.goals.kinds import GOAL_ROLE
from treadle.goals.records import InvalidArtifact, artifact_of, with_unknown
from treadle.goals.schemas import check_document
from treadle.goals.topology import Role
from treadle.kernel.core import STORE_TIMEOUT, Service
from treadle.kernel.store.lookups import PAGE_LIMIT
from treadle.kernel.store.records import ChangeRecord, PutItems, PutRecord, RecordFilter, unreadable
from treadle.kernel.store.units import PutBlob, Row, Unit
from treadle.model.errors import UnreadableValue
from treadle.model.ids import uuid7
from treadle.model.records import UNREADABLE, Record
from treadle.model.states import (
    CONTEXT_SNAPSHOT,
    DECLARATIONS,
    OBJECTIVE,
    OUTPUT_BUNDLE,
    PAUSE_STATE,
    READINESS_EVENT,
    RUN_RECORD,
    WORKORDER,
    StateMachine,
)
from treadle.model.values import decode, encode

_KINDS: dict[type[Document], tuple[StateMachine, str]] = {
    Objective: (OBJECTIVE, "objective_id"),
    ReadinessEvent: (READINESS_EVENT, "event_id"),
    ContextSnapshot: (CONTEXT_SNAPSHOT, "snapshot_id"),
    Workorder: (WORKORDER, "work_order_id"),
    OutputBundle: (OUTPUT_BUNDLE, "bundle_id"),
    RunRecord: (RUN_RECORD, "run_record_id"),
    PauseState: (PAUSE_STATE, "pause_state_id"),
}
"""The machine of each kind of document, and the field with its id."""

_SCHEMAS = {READINESS_EVENT.entity: "event"}
"""Schemas with a name other than that of their entity."""

_LIMIT = 2**31

D = TypeVar("D", Objective, ReadinessEvent, ContextSnapshot, Workorder, OutputBundle, RunRecord, PauseState)


class Artifacts(Service):
    """The artifacts of one namespace."""

    async def find(self, kind: type[D], record_id: str) -> D | None:
        """Return the artifact with that id."""
        stored = await self.find_with_record(kind, record_id)
        return None if stored is None else stored[1]

    async def find_with_record(self, kind: type[D], record_id: str) -> tuple[Record, D] | None:
        """Return the artifact and the record that it was read from."""
        record = await self._find_record(kind, record_id)
        return None if record is None else (record, await self._open(kind, record))

    async def _find_record(self, kind: type[Document], record_id: str) -> Record | None:
        record = await self._store.records.find(record_id)
        matches = record is not None and record.namespace == self._namespace and record.entity == _KINDS[kind][0].entity
        return record if matches else None

    async def find_objective(self, objective_id: str) -> ReadRecord | None:
        """Return the objective in its current state."""
        stored = await self.find_with_record(Objective, objective_id)
        return None if stored is None else ReadRecord(*stored)

    async def list_objectives(
        self, states: tuple[str, ...], before_id: str | None, limit: int, live: bool | None = None
    ) -> list[ReadRecord]:
        """Return a page of objectives, newest first."""
        which = RecordFilter(OBJECTIVE.entity, self._namespace, states=states, live=live, before_id=before_id)
        return [await self._any_objective(record) for record in await self._store.records.list_matching(which, limit)]

    async def find_any_objective(self, objective_id: str) -> ReadRecord | None:
        """Return the objective, even if it cannot be read: then it has the reason as its title, so that it can be edited."""
        record = await self._find_record(Objective, objective_id)
        return None if record is None else await self._any_objective(record)

    async def _any_objective(self, record: Record) -> ReadRecord:
        try:
            return ReadRecord(record, await self._open(Objective, record))
        except UnreadableValue as error:
            created_at, updated_at = Instant.of(record.created_at), Instant.of(record.updated_at)
            placeholder = Objective(
                objective_id=record.id,
                title=f"({UNREADABLE}) {error}",
                status=record.state,
                key=record.name,
                status_version=record.transitions,
                created_by=UNREADABLE,
                created_at=created_at,
                updated_at=updated_at,
            )
            return ReadRecord(record, placeholder)

    async def _open(self, kind: type[D], record: Record) -> D:
        try:
            artifact = artifact_of(kind, await self._value_store.unpack(record.document))
            if _id(artifact) != record.id:
                raise UnreadableValue("It has the id of another one.")
            return artifact
        except (UnreadableValue, InvalidArtifact) as error:
            raise unreadable(record, error) from None

    # additional roles, which every process must know that ends a built-in role's task

    async def list_roles(self) -> dict[str, Role]:
        """Return the additional roles that workers have declared."""
        items = await self._store.records.list_items(self._roles_id, None, PAGE_LIMIT)
        return {name: convert(decode(text), Role) for name, text in items}

    async def put_roles(self, roles: Mapping[str, Role | None]) -> None:
        """Declare roles; None withdraws one."""
        items = tuple((name, None if role is None else encode(to_builtins(role), "role")) for name, role in roles.items())
        record = Record(id=self._roles_id, namespace=self._namespace, entity=DECLARATIONS.entity, state=DECLARATIONS.initial)
        rows: tuple[Row, ...] = (PutItems(record.id, items),)
        if await self._store.records.find(record.id) is None:
            rows = (PutRecord(record), *rows)
        await self._committer.submit(Unit(rows=rows), STORE_TIMEOUT)

    @property
    def _roles_id(self) -> str:
        return uuid7(0, hashlib.sha256(f"{GOAL_ROLE}\0{self._namespace}".encode()).digest())

    def rows(self, decision: Decision) -> tuple[Row, ...]:
        """Return the rows that a decision writes; raise `InvalidArtifact` for a document that does not fit its schema."""
        rows: list[Row] = []
        for document in decision.new:
            rows += self._put(document)
        for changed in decision.changed:
            rows += self._change(changed)
        return tuple(rows)

    def _put(self, document: Document) -> Iterable[Row]:
        root_id = _objective_id(document)
        text, blobs = self._pack(document, root_id)
        machine = _KINDS[type(document)][0]
        record = Record(
            id=_id(document),
            namespace=self._namespace,
            entity=machine.entity,
            name=document.key if isinstance(document, Objective) else None,
            state=machine.initial,
            document=text,
            root_id=None if isinstance(document, Objective) else root_id,
        )
        return (*blobs, PutRecord(record))

    def _change(self, changed: Changed) -> Iterable[Row]:
        record, document = changed.record, changed.document
        text, blobs = self._pack(document, _objective_id(document), record.document)
        if changed.transition is None:
            return (*blobs, ChangeRecord(record.id, record.version, text))
        state = _state(document)
        change = ChangeRecord(
            record.id,
            record.version,
            text,
            transition=changed.transition,
            from_state=record.state,
            to_state=state,
            ended=state in _KINDS[type(document)][0].final,
            actor=changed.actor,
            data=None if changed.data is None else encode(changed.data, "data"),
        )
        return (*blobs, change)

    def _pack(self, document: Document, root_id: str, before: str | None = None) -> tuple[str, tuple[PutBlob, ...]]:
        content = document.as_json()
        entity = _KINDS[type(document)][0].entity
        check_document(_SCHEMAS.get(entity, entity), content)
        with suppress(UnreadableValue):  # it is repaired
            content = with_unknown(type(document), self._value_store.unfold(before), content)
        if isinstance(document, Objective):  # it outlives its tree, so its values must not be stored with the tree
            return self._value_store.encode_text(encode(content, "objective", _LIMIT)), ()
        return self._value_store.pack(content, root_id, entity, _LIMIT)


def _id(document: Document) -> str:
    return str(getattr(document, _KINDS[type(document)][1]))


def _objective_id(document: Document) -> str:
    return document.resource_id if isinstance(document, ReadinessEvent) else document.objective_id


def _state(document: Document) -> str:
    if isinstance(document, ReadinessEvent):
        return "processed" if document.processed else "unprocessed"
    return str(getattr(document, "status", "written"))
