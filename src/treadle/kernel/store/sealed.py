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

from treadle.kernel.store.interruption import uninterrupted
from treadle.kernel.store.ports import LeaseConnection, Store
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
from treadle.model.records import EffectOutcome, Message, Record
from treadle.model.runs import Run
from treadle.model.streams import StreamChunk
from treadle.model.tasks import LogLine, Move, Task
from treadle.model.values import decode_object, encode

S = TypeVar("S")


def sealed_store(store: Store, codec: Codec | None) -> Store:
    """Wrap the store with the codec; without a codec it seals nothing, but still reports texts that it cannot open."""
    return cast("Store", SealedStore(store, codec))


class SealedStore:
    """Seals and opens texts; passes all other methods to the inner store."""

    def __init__(self, store: Store, codec: Codec | None) -> None:
        self._inner = store
        self._codec = codec
        self._value_store = ValueStore(store, codec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    # in

    async def commit(self, units: Sequence[Unit]) -> list[Answer]:
        """Commit the units, sealed."""
        return await self._inner.commit(units if self._codec is None else [self._unit(unit) for unit in units])

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        """Store log lines, sealed."""
        sealed = [
            msgspec.structs.replace(line, message=self._seal_message(line.message), details=self._seal(line.details))
            for line in lines
        ]
        await self._inner.append_lines(sealed)

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
        """Extend claims, with sealed progress."""
        sealed = [replace(renewal, progress=self._seal(renewal.progress)) for renewal in renewals]
        return await self._inner.extend(sealed, lease_for)

    def lease_connection(self) -> LeaseConnection:
        """Return a lease connection that seals progress."""
        return cast("LeaseConnection", _SealedLeaseConnection(self._inner.lease_connection(), self._seal))

    def _seal(self, text: S) -> S:
        if self._codec is None or not isinstance(text, str) or text.startswith("@code:"):
            return text
        return cast("S", seal(text, self._codec))

    def _seal_message(self, text: str) -> str:
        """Seal a log message, which is not JSON: even without a codec, one that looks like a sealed text needs a mark."""
        if self._codec is not None:
            return seal(text, self._codec)
        return f"{PLAIN}{text}" if text.startswith("@code:") else text

    def _unit(self, unit: Unit) -> Unit:
        also = tuple((claim, cast("Finish", self._settlement(finish))) for claim, finish in unit.also)
        return msgspec.structs.replace(
            unit, settlement=self._settlement(unit.settlement), also=also, rows=tuple(self._row(row) for row in unit.rows)
        )

    def _settlement(self, what: Settlement | None) -> Settlement | None:
        match what:
            case Finish():
                return msgspec.structs.replace(what, error=self._seal(what.error))
            case Park():
                return msgspec.structs.replace(
                    what, error=self._seal(what.error), data=self._seal(what.data), checkpoint=self._seal(what.checkpoint)
                )
            case Keep():
                return replace(what, checkpoint=self._seal(what.checkpoint), data=self._seal(what.data))
            case Revive() | Amend() | None:
                return what
            case _:
                assert_never(what)

    def _row(self, row: Row) -> Row:
        match row:
            case MoveRun():
                return replace(row, error=self._seal(row.error), data=self._seal(row.data))
            case CancelRunTasks():
                return replace(row, error=self._seal(row.error))
            case PutRecord(record):
                return PutRecord(msgspec.structs.replace(record, body=self._seal(record.body)))
            case ChangeRecord():
                return replace(row, body=self._seal(row.body), data=self._seal(row.data))
            case PutItems(items=items):
                return replace(row, items=tuple((key, self._seal(value)) for key, value in items))
            case PutMessage(message):
                return PutMessage(msgspec.structs.replace(message, body=self._seal(message.body)))
            case PutOutcome(outcome):
                sealed = {"response": self._seal(outcome.response), "details": self._seal(outcome.details)}
                return replace(row, outcome=msgspec.structs.replace(outcome, **sealed))
            case AppendStream(entries=entries):
                return replace(row, entries=self._seal(entries))
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

    # out

    async def claim(self, *given: Any, **more: Any) -> list[Task]:
        """Claim tasks, opened; they are released if the caller is canceled before it receives them."""
        found: list[Task] = await uninterrupted(self._inner.claim(*given, **more), self._release)
        return [self._task(task) for task in found]

    async def _release(self, tasks: list[Task]) -> None:
        parks = [(task, returned(task, "the caller that claimed it was canceled")) for task in tasks]
        units = [Unit(task.claim, msgspec.structs.replace(park, data=self._seal(park.data))) for task, park in parks]
        if units:
            await self._inner.commit(units)
            await self._inner.notify(sorted({task.lane_id for task in tasks}))

    async def find_task(self, task_id: str) -> Task | None:
        """Return the task, opened."""
        task = await self._inner.find_task(task_id)
        return None if task is None else self._task(task)

    async def find_tasks(self, task_ids: Sequence[str]) -> list[Task]:
        """Return tasks, opened."""
        return [self._task(task) for task in await self._inner.find_tasks(task_ids)]

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        """Return finished tasks, opened."""
        return [self._task(task) for task in await self._inner.find_finished(task_ids)]

    async def list_tasks(self, which: TaskFilter, limit: int) -> list[Task]:
        """Return tasks, opened."""
        return [self._task(task) for task in await self._inner.list_tasks(which, limit)]

    async def list_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        """Return dead letters, opened."""
        return [self._task(task) for task in await self._inner.list_dead_letters(which, limit)]

    async def list_moves(self, entity_id: str) -> list[Move]:
        """Return moves, opened."""
        return [self._move(move) for move in await self._inner.list_moves(entity_id)]

    async def list_moves_of(self, entity_ids: Sequence[str]) -> list[Move]:
        """Return moves, opened."""
        return [self._move(move) for move in await self._inner.list_moves_of(entity_ids)]

    async def list_histories(self, after_id: str | None, limit: int) -> list[History]:
        """Return histories, opened."""
        found = await self._inner.list_histories(after_id, limit)
        return [replace(history, moves=tuple(map(self._move, history.moves))) for history in found]

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        """Return events, opened."""
        return [replace(event, move=self._move(event.move)) for event in await self._inner.list_events(after_seq, until_seq, limit)]

    async def find_run(self, run_id: str) -> Run | None:
        """Return the run, opened."""
        run = await self._inner.find_run(run_id)
        return None if run is None else self._run(run)

    async def find_last_link(self, chain_id: str) -> Run | None:
        """Return the last run of the chain, opened."""
        run = await self._inner.find_last_link(chain_id)
        return None if run is None else self._run(run)

    async def find_finished_runs(self, run_ids: Sequence[str]) -> list[Run]:
        """Return finished runs, opened."""
        return [self._run(run) for run in await self._inner.find_finished_runs(run_ids)]

    async def list_runs(self, which: RunFilter, limit: int) -> list[Run]:
        """Return runs, opened."""
        return [self._run(run) for run in await self._inner.list_runs(which, limit)]

    async def list_failed_runs(self, namespace: str, after: int, limit: int, before: FailedRun = LATEST_FAILURE) -> list[FailedRun]:
        """Return failed runs, opened."""
        found = await self._inner.list_failed_runs(namespace, after, limit, before)
        return [run._replace(error=self._error(run.error)) for run in found]

    async def find_runs(self, run_ids: Sequence[str], states: Sequence[str] = ()) -> list[Run]:
        """Return runs, opened."""
        return [self._run(run) for run in await self._inner.find_runs(run_ids, states)]

    async def list_tree_runs(self, root_ids: Sequence[str], limit: int) -> list[Run]:
        """Return the runs of trees, opened."""
        return [self._run(run) for run in await self._inner.list_tree_runs(root_ids, limit)]

    async def list_tree_records(self, root_ids: Sequence[str], limit: int) -> list[Record]:
        """Return the records of trees, opened."""
        return [self._record(record) for record in await self._inner.list_tree_records(root_ids, limit)]

    async def list_open_work(self, run_ids: Sequence[str]) -> list[OpenWork]:
        """Return the live tasks of runs by activity, opened."""
        return [replace(work, task=self._task(work.task)) for work in await self._inner.list_open_work(run_ids)]

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        """Return log lines, opened."""
        return [self._line(line) for line in await self._inner.list_lines(task_id, limit)]

    async def list_run_lines(self, run_id: str, limit: int) -> list[LogLine]:
        """Return log lines, opened."""
        return [self._line(line) for line in await self._inner.list_run_lines(run_id, limit)]

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """Return numbered log lines, opened."""
        found = await self._inner.page_run_lines(run_id, limit, before, after)
        return [(number, self._line(line)) for number, line in found]

    def _line(self, line: LogLine) -> LogLine:
        return msgspec.structs.replace(line, message=self._open(line.message, _words), details=self._object(line.details))

    async def find_record(self, record_id: str) -> Record | None:
        """Return the record, opened."""
        record = await self._inner.find_record(record_id)
        return None if record is None else self._record(record)

    async def find_record_named(self, namespace: str, entity: str, name: str) -> Record | None:
        """Return the live record with that name, opened."""
        record = await self._inner.find_record_named(namespace, entity, name)
        return None if record is None else self._record(record)

    async def list_records(self, which: RecordFilter, limit: int) -> list[Record]:
        """Return records, opened."""
        return [self._record(record) for record in await self._inner.list_records(which, limit)]

    async def list_items(self, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        """Return items, opened."""
        return [(key, self._open(value)) for key, value in await self._inner.list_items(record_id, after_key, limit)]

    async def find_items(self, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        """Return items by key, opened."""
        return {key: self._open(value) for key, value in (await self._inner.find_items(record_id, keys)).items()}

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        """Return messages, opened."""
        found = await self._inner.list_messages(run_id, limit, after_seq)
        return [msgspec.structs.replace(message, body=self._open(message.body)) for message in found]

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        """Return outcomes, opened."""
        return [self._open_outcome(each) for each in await self._inner.find_outcomes(keys)]

    async def list_outcomes(self, root_ids: Sequence[str], after_key: str | None, limit: int) -> list[EffectOutcome]:
        """Return outcomes, opened."""
        return [self._open_outcome(each) for each in await self._inner.list_outcomes(root_ids, after_key, limit)]

    async def list_unknown(self, which: EffectFilter, limit: int) -> list[EffectOutcome]:
        """Return outcomes, opened."""
        return [self._open_outcome(each) for each in await self._inner.list_unknown(which, limit)]

    async def list_chunks(self, owner_id: str, name: str, offset: int, limit: int) -> list[StreamChunk]:
        """Return chunks of a stream, opened."""
        found = await self._inner.list_chunks(owner_id, name, offset, limit)
        return [msgspec.structs.replace(chunk, entries=self._open(chunk.entries)) for chunk in found]

    def _open_outcome(self, outcome: EffectOutcome) -> EffectOutcome:
        opened = {"response": self._open(outcome.response), "details": self._open(outcome.details)}
        return msgspec.structs.replace(outcome, **opened)

    def _record(self, record: Record) -> Record:
        return msgspec.structs.replace(record, body=self._open(record.body))

    def _task(self, task: Task) -> Task:
        if task.error is not None or task.progress is not None:
            task.error, task.progress = self._error(task.error), self._object(task.progress)
        if task.checkpoint is not None:
            task.checkpoint = self._open(task.checkpoint, lambda error: task.checkpoint or "")
        return task

    def _move(self, move: Move) -> Move:
        return move if move.data is None else msgspec.structs.replace(move, data=self._object(move.data))

    def _run(self, run: Run) -> Run:
        return run if run.error is None else msgspec.structs.replace(run, error=self._error(run.error))

    def _error(self, text: str | None) -> str | None:
        """Return the plain text of an error, whose code and message are text; see `_object`."""
        return self._object(text, ("code", "message"))

    def _object(self, text: str | None, texts: tuple[str, ...] = ()) -> str | None:
        """Return the plain text of a JSON object, or an error in its place if it cannot be opened or is damaged."""
        if text is None:
            return None
        opened = self._open(text)
        try:
            found = decode_object(opened)
        except UnreadableValue as error:
            return _as_error(error)
        if any(not isinstance(found.get(name), str | None) for name in texts):
            return _as_error(UnreadableValue("A stored error cannot be read: its code or message is not text. It is damaged."))
        return opened

    def _open(self, text: S, otherwise: Callable[[UnreadableValue], str] | None = None) -> S:
        """Return the plain text, or `otherwise` (by default an error) for a text that cannot be opened."""
        if not isinstance(text, str) or not text.startswith("@code:"):
            return text
        try:
            return cast("S", self._value_store.plain(text))
        except UnreadableValue as error:
            return cast("S", (otherwise or _as_error)(error))


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
