"""Synchronisation of declared limits and triggers with the store.

Each attempt first stores the values to apply in the record, guarded by its version; then it applies them; then it stores that they
were applied. A crash in between leaves items marked as uncertain, which the next start applies. Of two programs or releases that
start at the same time, one finds a changed record and decides again; a value that it wrote over the other's is undone then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from treadle.kernel.core import Core, Service
from treadle.kernel.declarations.decide import (
    ADDED,
    CHANGED,
    OVERRIDDEN,
    REMOVED,
    SKIPPED,
    UNCHANGED,
    Change,
    decide,
    definition,
    document_of,
    is_over,
)
from treadle.kernel.declarations.records import (
    SCHEDULE,
    TRIGGERS,
    ProgramDeclarations,
)
from treadle.kernel.lists import Lists
from treadle.kernel.reads.service import Reads
from treadle.kernel.schedules.options import begin
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.records import ChangeRecord, PutRecord
from treadle.kernel.store.units import Unit
from treadle.kernel.telemetry.events import DeclarationSynced
from treadle.kernel.triggers import Triggers
from treadle.model.declarations import MAX, RATE, DeclarationsDocument, Value, declarations_id
from treadle.model.errors import IllegalTransition, InvalidInput, NotFound, Refused, UnreadableValue
from treadle.model.records import Record
from treadle.model.states import DECLARATIONS as MACHINE
from treadle.model.stored import plain, read
from treadle.model.values import encode


@dataclass(frozen=True, slots=True)
class Synced:
    """The result for one program."""

    program: str
    release: str
    changes: tuple[Change, ...]


class Declarations(Service):
    """The declarations of all programs in one namespace."""

    def __init__(
        self,
        core: Core,
        reads: Reads,
        triggers: Mapping[str, Triggers[Any, Any]],
    ) -> None:
        super().__init__(core)
        self._lists = Lists(replace(core, emit=lambda _: None), reads)  # this service reports the changes
        self._triggers = triggers
        self._record_id = declarations_id(core.namespace)

    async def sync(self, declared: ProgramDeclarations, *, dry_run: bool = False, overwrite: bool = False) -> Synced:
        """Make the store follow the declarations, and report each difference; with `dry_run`, only return them."""
        program, release = declared.program or declared.default_program(), declared.release
        wanted: dict[str, Value] = dict(declared.items)
        await self._check(declared)
        written: dict[str, Value] = {}
        done: dict[str, Change] = {}

        async def attempt() -> tuple[Change, ...]:
            record = await self._find_record(create=not dry_run)
            document = self._load(record, overwrite)
            mine = document.programs.get(program)
            stored = await self._read({*wanted, *(mine.items if mine is not None else ()), *written})
            plan = decide(program, release, wanted, document, stored, await self._store.now(), written=written, overwrite=overwrite)
            if dry_run or record is None:
                return plan.changes
            version = record.version
            if plan.document != document:
                version = await self._save(version, plan.document, program)
            verdicts = {change.item: change for change in plan.changes}
            for item, value in plan.writes.items():
                await self._check_version(version)
                await self._apply(item, value, f"program:{program}")
                written[item] = value
                if item in verdicts:
                    done.setdefault(item, verdicts[item])
            if plan.after != plan.document:
                await self._save(version, plan.after, program)
            elif plan.writes or any(change.verdict == OVERRIDDEN for change in plan.changes):
                await self._check_version(version)  # else they were read while another start applied its own
                if plan.writes:
                    raise Stale
            if any(change.verdict == SKIPPED for change in plan.changes):
                return plan.changes
            return tuple((verdicts | done).values())

        changes = await self._committer.transact(attempt, f"synchronise the declarations of {program}")
        if not dry_run:
            for change in changes:
                if change.verdict != UNCHANGED:
                    unchanged = change.verdict not in (ADDED, CHANGED, REMOVED)
                    self._emit(DeclarationSynced(program, release, change.text, unchanged))
        return Synced(program, release, changes)

    async def _check(self, declared: ProgramDeclarations) -> None:
        """Raise the error of an invalid declaration before anything is changed."""
        if declared.incomplete:
            raise InvalidInput(
                f"The declared {min(declared.incomplete)} starts nothing: give task=, workflow= or function=, or use it as "
                "the decorator of a handler or function."
            )
        now = await self._store.now()
        for item, value in declared.items.items():
            kind = item.partition(" ")[0]
            if kind in TRIGGERS and not is_over(item, value, now):
                document = document_of(kind, value)
                self._triggers[kind].check(begin(document, now) if kind == SCHEDULE else document)

    async def _find_record(self, *, create: bool) -> Record | None:
        record = await self._store.records.find(self._record_id)
        if record is None and create:
            new = Record(id=self._record_id, namespace=self._namespace, entity=MACHINE.entity, state=MACHINE.initial)
            await self._committer.submit(Unit(rows=(PutRecord(new),)), self._patience)
            record = await self._store.records.find(self._record_id)
            if record is None:
                raise Stale
        return record

    async def _check_version(self, version: int) -> None:
        """Raise `Stale` if the record has changed."""
        record = await self._find_record(create=False)
        if record is None or record.version != version:
            raise Stale

    def _load(self, record: Record | None, overwrite: bool) -> DeclarationsDocument:
        if record is None:
            return DeclarationsDocument()
        try:
            return read(DeclarationsDocument, record.document)
        except UnreadableValue as error:
            if overwrite:
                return DeclarationsDocument()
            raise UnreadableValue(
                f"The stored declarations cannot be read. {error} If no version and codec can read them, replace them with "
                "`treadle declare --handlers MODULE --overwrite`."
            ) from None

    async def _save(self, version: int, document: DeclarationsDocument, program: str) -> int:
        """Store the record if it is still at that version, else raise `Stale`; return its new version."""
        state, text = MACHINE.initial, encode(plain(document), "declarations")
        data = encode({"program": program, "release": document.programs[program].release})
        change = ChangeRecord(self._record_id, version, text, "sync", state, state, actor=f"program:{program}", data=data)
        await self._committer.commit(Unit(rows=(change,)), self._patience)
        return version + 1

    async def _read(self, items: Iterable[str]) -> dict[str, Value]:
        """Return the values of the items in the store."""
        parts = {item: item.partition(" ")[::2] for item in items}
        limits = {}
        if any(kind not in TRIGGERS for kind, _ in parts.values()):
            limits = {limit.key: limit for limit in (await self._lists.limits()).limits}
        values: dict[str, Value] = {}
        for item, (kind, name) in parts.items():
            if kind in TRIGGERS:
                existing = await self._triggers[kind].find_document(name)
                values[item] = None if existing is None else definition(kind, existing[1])
                continue
            limit, value = limits.get(name), None
            if limit is not None and kind == RATE and limit.rate is not None:
                value = {"rate": limit.rate, "burst": limit.burst}
            if limit is not None and kind == MAX and limit.by_operator and limit.max_running is not None:
                value = {"max": limit.max_running}
            values[item] = value
        return values

    async def _apply(self, item: str, value: Value, actor: str) -> None:
        kind, _, name = item.partition(" ")
        if kind == RATE:
            rate, burst = (None, None) if value is None else (value["rate"], value["burst"])
            await self._lists.limit_key_rate(name, rate, burst, actor=actor)
        elif kind == MAX:
            await self._lists.limit_key(name, None if value is None else value["max"], actor=actor)
        elif value is not None:
            try:
                await self._triggers[kind].define(name, document_of(kind, value), actor=actor)
            except Refused as error:
                if error.code != f"{self._triggers[kind].machine.entity}_exists":
                    raise
                raise Stale from None  # another start has just created it
        else:
            existing = await self._triggers[kind].find_document(name)
            if existing is not None:
                try:
                    await self._triggers[kind].remove(existing[0], actor=actor)
                except (NotFound, IllegalTransition):
                    pass
