"""A store that encrypts texts beside the values: errors, checkpoints, progress, data of moves, log lines, bodies and items
of records, messages, and responses of effects.

The `ValueStore` seals values (payloads, results, inputs, outputs, steps, flows) where it packs them. This store seals the
other texts on their way into the database and opens them on their way out, so that nothing users wrote is readable
there. Names, keys, error codes, fingerprints, actors, trace ids, instants and counters stay plain, because the store
searches by them. Texts that were stored before there was a codec are read unchanged.

A text that this process cannot open (another codec, or none) is replaced by an error that states this; nothing is lost. So is a
damaged text for display (an error, progress, data of a move, details of a log line): only that text is unreadable then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, assert_never, cast

import msgspec
from msgspec.structs import replace

from treadle.kernel.store.committer import uninterrupted
from treadle.kernel.store.operator_ports import LeaseConnection, ServerStore
from treadle.kernel.store.ports import DeadLetterStore, LogStore, RecordStore, RunStore, Store, StreamStore, TaskStore, TraceStore
from treadle.kernel.store.queries import (
    LATEST_FAILURE,
    DeadLetterFilter,
    Event,
    Extension,
    FailedRun,
    History,
    OpenWork,
    Renewal,
    RunFilter,
    TaskFilter,
)
from treadle.kernel.store.records import (
    AppendStream,
    Await,
    ChangeRecord,
    EffectFilter,
    PutItems,
    PutMessage,
    PutOutcome,
    PutRecord,
    RecordFilter,
    TakeMessages,
)
from treadle.kernel.store.units import (
    Amend,
    Answer,
    CancelRunTasks,
    ClearInbox,
    Dismiss,
    Finish,
    HoldRun,
    Keep,
    LimitTask,
    MoveRun,
    Park,
    PutBlob,
    PutFlow,
    PutInbox,
    PutRun,
    PutSteps,
    PutTags,
    Revive,
    Row,
    Settlement,
    Unit,
    returned,
)
from treadle.kernel.store.value_store import PLAIN, Codec, ValueStore, seal
from treadle.model.errors import UnreadableValue
from treadle.model.records import EffectOutcome, Message, Record, StreamChunk
from treadle.model.runs import Run
from treadle.model.tasks import LogLine, Move, Task
from treadle.model.values import decode_object, encode

S = TypeVar("S")


def sealed_store(store: Store, codec: Codec | None) -> Store:
    """Wrap the store with the codec; without a codec it seals nothing, but still reports texts that it cannot open."""
    return SealedStore(store, codec)


class Texts:
    """Seals and opens the texts of records."""

    def __init__(self, store: Store, codec: Codec | None) -> None:
        self._codec = codec
        self._value_store = ValueStore(store, codec)

    def seal(self, text: S) -> S:
        """Return the sealed text, with a codec."""
        if self._codec is None or not isinstance(text, str) or text.startswith("@code:"):
            return text
        return cast("S", seal(text, self._codec))

    def seal_message(self, text: str) -> str:
        """Seal a log message, which is not JSON: even without a codec, one that looks like a sealed text needs a mark."""
        if self._codec is not None:
            return seal(text, self._codec)
        return f"{PLAIN}{text}" if text.startswith("@code:") else text

    def unit(self, unit: Unit) -> Unit:
        also = tuple((claim, cast("Finish", self.settlement(finish))) for claim, finish in unit.also)
        return msgspec.structs.replace(
            unit, settlement=self.settlement(unit.settlement), also=also, rows=tuple(self.row(row) for row in unit.rows)
        )

    def settlement(self, what: Settlement | None) -> Settlement | None:
        match what:
            case Finish():
                return msgspec.structs.replace(what, error=self.seal(what.error))
            case Park():
                return msgspec.structs.replace(
                    what, error=self.seal(what.error), data=self.seal(what.data), checkpoint=self.seal(what.checkpoint)
                )
            case Keep():
                return replace(what, checkpoint=self.seal(what.checkpoint), data=self.seal(what.data))
            case Revive() | Amend() | None:
                return what
            case _:
                assert_never(what)

    def row(self, row: Row) -> Row:
        match row:
            case MoveRun():
                return replace(row, error=self.seal(row.error), data=self.seal(row.data))
            case CancelRunTasks():
                return replace(row, error=self.seal(row.error))
            case PutRecord(record):
                return PutRecord(msgspec.structs.replace(record, body=self.seal(record.body)))
            case ChangeRecord():
                return replace(row, body=self.seal(row.body), data=self.seal(row.data))
            case PutItems(items=items):
                return replace(row, items=tuple((key, self.seal(value)) for key, value in items))
            case PutMessage(message):
                return PutMessage(msgspec.structs.replace(message, body=self.seal(message.body)))
            case PutOutcome(outcome):
                sealed = {"response": self.seal(outcome.response), "details": self.seal(outcome.details)}
                return replace(row, outcome=msgspec.structs.replace(outcome, **sealed))
            case AppendStream(entries=entries):
                return replace(row, entries=self.seal(entries))
            case (
                PutRun()
                | PutSteps()
                | PutInbox()
                | ClearInbox()
                | PutFlow()
                | PutBlob()
                | HoldRun()
                | Dismiss()
                | LimitTask()
                | PutTags()
            ):
                return row  # without texts, or with values that the `ValueStore` sealed
            case TakeMessages() | Await():
                return row
            case _:
                assert_never(row)

    def line(self, line: LogLine) -> LogLine:
        return msgspec.structs.replace(line, message=self.open(line.message, _words), details=self.object(line.details))

    def open_outcome(self, outcome: EffectOutcome) -> EffectOutcome:
        opened = {"response": self.open(outcome.response), "details": self.open(outcome.details)}
        return msgspec.structs.replace(outcome, **opened)

    def record(self, record: Record) -> Record:
        return msgspec.structs.replace(record, body=self.open(record.body))

    def task(self, task: Task) -> Task:
        if task.error is not None or task.progress is not None:
            task.error, task.progress = self.error(task.error), self.object(task.progress)
        if task.checkpoint is not None:
            task.checkpoint = self.open(task.checkpoint, lambda error: task.checkpoint or "")
        return task

    def move(self, move: Move) -> Move:
        return move if move.data is None else msgspec.structs.replace(move, data=self.object(move.data))

    def run(self, run: Run) -> Run:
        return run if run.error is None else msgspec.structs.replace(run, error=self.error(run.error))

    def error(self, text: str | None) -> str | None:
        """Return the plain text of an error, whose code and message are text; see `_object`."""
        return self.object(text, ("code", "message"))

    def object(self, text: str | None, texts: tuple[str, ...] = ()) -> str | None:
        """Return the plain text of a JSON object, or an error in its place if it cannot be opened or is damaged."""
        if text is None:
            return None
        opened = self.open(text)
        try:
            found = decode_object(opened)
        except UnreadableValue as error:
            return _as_error(error)
        if any(not isinstance(found.get(name), str | None) for name in texts):
            return _as_error(UnreadableValue("A stored error cannot be read: its code or message is not text. It is damaged."))
        return opened

    def open(self, text: S, otherwise: Callable[[UnreadableValue], str] | None = None) -> S:
        """Return the plain text, or `otherwise` (by default an error) for a text that cannot be opened."""
        if not isinstance(text, str) or not text.startswith("@code:"):
            return text
        try:
            return cast("S", self._value_store.plain(text))
        except UnreadableValue as error:
            return cast("S", (otherwise or _as_error)(error))


class _Part:
    """A port that seals and opens texts; it passes all other methods to the inner one."""

    def __init__(self, inner: Any, texts: Texts) -> None:
        self._inner, self._texts = inner, texts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _SealedLogs(_Part):
    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        """Store log lines, sealed."""
        sealed = [
            msgspec.structs.replace(line, message=self._texts.seal_message(line.message), details=self._texts.seal(line.details))
            for line in lines
        ]
        await self._inner.append_lines(sealed)

    async def list_moves(self, entity_id: str) -> list[Move]:
        """Return moves, opened."""
        return [self._texts.move(move) for move in await self._inner.list_moves(entity_id)]

    async def list_moves_of(self, entity_ids: Sequence[str]) -> list[Move]:
        """Return moves, opened."""
        return [self._texts.move(move) for move in await self._inner.list_moves_of(entity_ids)]

    async def list_histories(self, after_id: str | None, limit: int) -> list[History]:
        """Return histories, opened."""
        found = await self._inner.list_histories(after_id, limit)
        return [replace(history, moves=tuple(map(self._texts.move, history.moves))) for history in found]

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        """Return events, opened."""
        return [
            replace(event, move=self._texts.move(event.move))
            for event in await self._inner.list_events(after_seq, until_seq, limit)
        ]

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        """Return log lines, opened."""
        return [self._texts.line(line) for line in await self._inner.list_lines(task_id, limit)]

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """Return numbered log lines, opened."""
        found = await self._inner.page_run_lines(run_id, limit, before, after)
        return [(number, self._texts.line(line)) for number, line in found]


class _SealedTasks(_Part):
    def __init__(self, store: Store, texts: Texts) -> None:
        super().__init__(store.tasks, texts)
        self._store = store

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
        """Extend claims, with sealed progress."""
        sealed = [replace(renewal, progress=self._texts.seal(renewal.progress)) for renewal in renewals]
        return cast("dict[str, Extension]", await self._inner.extend(sealed, lease_for))

    async def claim(self, *given: Any, **more: Any) -> list[Task]:
        """Claim tasks, opened; they are released if the caller is canceled before it receives them."""
        found: list[Task] = await uninterrupted(self._inner.claim(*given, **more), self._release)
        return [self._texts.task(task) for task in found]

    async def _release(self, tasks: list[Task]) -> None:
        parks = [(task, returned(task, "the caller that claimed it was canceled")) for task in tasks]
        units = [Unit(task.claim, msgspec.structs.replace(park, data=self._texts.seal(park.data))) for task, park in parks]
        if units:
            await self._store.commit(units)
            await self._store.notify(sorted({task.lane_id for task in tasks}))

    async def find(self, task_id: str) -> Task | None:
        """Return the task, opened."""
        task = await self._inner.find(task_id)
        return None if task is None else self._texts.task(task)

    async def find_many(self, task_ids: Sequence[str]) -> list[Task]:
        """Return tasks, opened."""
        return [self._texts.task(task) for task in await self._inner.find_many(task_ids)]

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        """Return finished tasks, opened."""
        return [self._texts.task(task) for task in await self._inner.find_finished(task_ids)]

    async def list_matching(self, which: TaskFilter, limit: int) -> list[Task]:
        """Return tasks, opened."""
        return [self._texts.task(task) for task in await self._inner.list_matching(which, limit)]


class _SealedServers(_Part):
    def lease_connection(self) -> LeaseConnection:
        """Return a lease connection that seals progress."""
        return cast("LeaseConnection", _SealedLeaseConnection(self._inner.lease_connection(), self._texts.seal))


class _SealedDeadLetters(_Part):
    async def list_newest(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        """Return dead letters, opened."""
        return [self._texts.task(task) for task in await self._inner.list_newest(which, limit)]


class _SealedRuns(_Part):
    async def find(self, run_id: str) -> Run | None:
        """Return the run, opened."""
        run = await self._inner.find(run_id)
        return None if run is None else self._texts.run(run)

    async def find_last_link(self, chain_id: str) -> Run | None:
        """Return the last run of the chain, opened."""
        run = await self._inner.find_last_link(chain_id)
        return None if run is None else self._texts.run(run)

    async def find_finished(self, run_ids: Sequence[str]) -> list[Run]:
        """Return finished runs, opened."""
        return [self._texts.run(run) for run in await self._inner.find_finished(run_ids)]

    async def list_matching(self, which: RunFilter, limit: int) -> list[Run]:
        """Return runs, opened."""
        return [self._texts.run(run) for run in await self._inner.list_matching(which, limit)]

    async def list_failed(self, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE) -> list[FailedRun]:
        """Return failed runs, opened."""
        found = await self._inner.list_failed(namespace, after, limit, before)
        return [run._replace(error=self._texts.error(run.error)) for run in found]

    async def find_many(self, run_ids: Sequence[str], states: Sequence[str] = ()) -> list[Run]:
        """Return runs, opened."""
        return [self._texts.run(run) for run in await self._inner.find_many(run_ids, states)]

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        """Return the live tasks of runs by activity, opened."""
        return [replace(work, task=self._texts.task(work.task)) for work in await self._inner.list_open_work(run_ids)]


class _SealedTraces(_Part):
    async def list_runs(self, root_ids: Sequence[str], limit: int) -> list[Run]:
        """Return the runs of trees, opened."""
        return [self._texts.run(run) for run in await self._inner.list_runs(root_ids, limit)]

    async def list_records(self, root_ids: Sequence[str], limit: int) -> list[Record]:
        """Return the records of trees, opened."""
        return [self._texts.record(record) for record in await self._inner.list_records(root_ids, limit)]


class _SealedRecords(_Part):
    async def find(self, record_id: str) -> Record | None:
        """Return the record, opened."""
        record = await self._inner.find(record_id)
        return None if record is None else self._texts.record(record)

    async def find_named(self, namespace: str, entity: str, name: str) -> Record | None:
        """Return the live record with that name, opened."""
        record = await self._inner.find_named(namespace, entity, name)
        return None if record is None else self._texts.record(record)

    async def list_matching(self, which: RecordFilter, limit: int) -> list[Record]:
        """Return records, opened."""
        return [self._texts.record(record) for record in await self._inner.list_matching(which, limit)]

    async def list_items(self, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        """Return items, opened."""
        return [(key, self._texts.open(value)) for key, value in await self._inner.list_items(record_id, after_key, limit)]

    async def find_items(self, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        """Return items by key, opened."""
        return {key: self._texts.open(value) for key, value in (await self._inner.find_items(record_id, keys)).items()}

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        """Return messages, opened."""
        found = await self._inner.list_messages(run_id, limit, after_seq)
        return [msgspec.structs.replace(message, body=self._texts.open(message.body)) for message in found]

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        """Return outcomes, opened."""
        return [self._texts.open_outcome(each) for each in await self._inner.find_outcomes(keys)]

    async def list_outcomes(self, root_ids: Sequence[str], after_key: str | None, limit: int) -> list[EffectOutcome]:
        """Return outcomes, opened."""
        return [self._texts.open_outcome(each) for each in await self._inner.list_outcomes(root_ids, after_key, limit)]

    async def list_unknown(self, which: EffectFilter, limit: int) -> list[EffectOutcome]:
        """Return outcomes, opened."""
        return [self._texts.open_outcome(each) for each in await self._inner.list_unknown(which, limit)]


class _SealedStreams(_Part):
    async def list_chunks(self, owner_id: str, name: str, offset: int, limit: int) -> list[StreamChunk]:
        """Return chunks of a stream, opened."""
        found = await self._inner.list_chunks(owner_id, name, offset, limit)
        return [msgspec.structs.replace(chunk, entries=self._texts.open(chunk.entries)) for chunk in found]


class SealedStore(Store):
    """A store whose ports seal and open texts."""

    def __init__(self, store: Store, codec: Codec | None) -> None:
        self._inner = store
        self._codec = codec
        self._texts = texts = Texts(store, codec)
        self.url, self.parallel_commits = store.url, store.parallel_commits
        self.tasks = cast("TaskStore", _SealedTasks(store, texts))
        self.dead_letters = cast("DeadLetterStore", _SealedDeadLetters(store.dead_letters, texts))
        self.runs = cast("RunStore", _SealedRuns(store.runs, texts))
        self.search = store.search
        self.records = cast("RecordStore", _SealedRecords(store.records, texts))
        self.log = cast("LogStore", _SealedLogs(store.log, texts))
        self.servers = cast("ServerStore", _SealedServers(store.servers, texts))
        self.operators = store.operators
        self.usage = store.usage
        self.traces = cast("TraceStore", _SealedTraces(store.traces, texts))
        self.streams = cast("StreamStore", _SealedStreams(store.streams, texts))
        self.retention = store.retention
        self.namespaces = store.namespaces
        self.health = store.health

    async def open(self, *, migrate: bool = True) -> None:
        await self._inner.open(migrate=migrate)

    async def close(self) -> None:
        await self._inner.close()

    async def migrate_to(self, version: int) -> None:
        await self._inner.migrate_to(version)

    async def now(self) -> int:
        return await self._inner.now()

    async def commit(self, units: Sequence[Unit]) -> list[Answer]:
        """Commit the units, sealed."""
        return await self._inner.commit(units if self._codec is None else [self._texts.unit(unit) for unit in units])

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        return await self._inner.subscribe(heard)

    async def notify(self, lane_ids: Sequence[int]) -> None:
        await self._inner.notify(lane_ids)


class _SealedLeaseConnection:
    """A lease connection that seals progress."""

    def __init__(self, inner: LeaseConnection, seal: Callable[[str | None], str | None]) -> None:
        self._inner, self._seal = inner, seal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        """Extend claims, with sealed progress."""
        return self._inner.renew([replace(renewal, progress=self._seal(renewal.progress)) for renewal in renewals], lease_for)


def _as_error(error: UnreadableValue) -> str:
    return encode({"code": error.code, "message": str(error)})


def _words(error: UnreadableValue) -> str:
    return f"({error})"
