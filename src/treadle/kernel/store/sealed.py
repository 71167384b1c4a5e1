"""A store that encrypts texts beside the values: errors, checkpoints, progress, data of transitions, log lines, bodies and items
of records, messages, and responses of effects.

The `ValueStore` seals values (payloads, results, inputs, outputs, steps, flows) where it packs them. This store seals the
other texts on their way into the database and opens them on their way out, so that nothing users wrote is readable
there. Names, keys, error codes, fingerprints, actors, trace ids, instants and counters stay plain, because the store
searches by them. Texts that were stored before there was a codec are read unchanged.

`SEALED` and `OPENED` name the texts of each record, wherever in the arguments and results of a port it is. A text that this process
cannot open (another codec) is replaced by an error that states this; nothing is lost. Without a codec nothing is wrapped: `decode`
refuses a sealed text with such an error, and log messages are shown as they are stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from inspect import isawaitable
from typing import Any

from msgspec.structs import replace

from treadle.kernel.store.operator_ports import ServerStore
from treadle.kernel.store.ports import DeadLetterStore, LogStore, RecordStore, RunStore, Store, StreamStore, TaskStore, TraceStore
from treadle.kernel.store.queries import EntityHistory, FailedRun, OpenWork, Renewal, TransitionEvent
from treadle.kernel.store.records import (
    AppendStream,
    Await,
    ChangeRecord,
    PutItems,
    PutMessage,
    PutOutcome,
    PutRecord,
    TakeMessages,
)
from treadle.kernel.store.units import (
    Amend,
    CancelRunTasks,
    ClearInbox,
    Dismiss,
    Finish,
    HoldRun,
    Keep,
    LimitTask,
    Park,
    PutBlob,
    PutFlow,
    PutInbox,
    PutRun,
    PutSteps,
    PutTags,
    Revive,
    RunTransition,
    Unit,
    UnitAnswer,
)
from treadle.kernel.store.value_store import Codec, ValueStore, seal
from treadle.model.errors import UnreadableValue
from treadle.model.records import EffectOutcome, Message, Record, RecordItem, StreamChunk
from treadle.model.runs import Run
from treadle.model.tasks import LogLine, Task, Transition
from treadle.model.values import SEALED_MARK, encode


def sealed_store(store: Store, codec: Codec | None) -> Store:
    """Return the store behind the codec; without a codec, the store itself."""
    return store if codec is None else SealedStore(store, codec)


class Texts:
    """Seals and opens the texts of records."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._codec = codec
        self._value_store = ValueStore(store, codec)

    def seal(self, text: str) -> str:
        """Return the sealed text; one that is sealed already stays as it is."""
        return text if text.startswith(SEALED_MARK) else seal(text, self._codec)

    def seal_message(self, text: str) -> str:
        """Seal a log message, which is not JSON and may begin like a sealed text."""
        return seal(text, self._codec)

    def seal_items(self, items: tuple[tuple[str, str | None], ...]) -> tuple[tuple[str, str | None], ...]:
        """Seal the values of items."""
        return tuple((key, None if value is None else self.seal(value)) for key, value in items)

    def sealed(self, value: Any) -> Any:
        """Return the record, or records, with sealed texts."""
        if type(value) in (list, tuple):
            return type(value)(map(self.sealed, value))
        return _changed(self, value, SEALED.get(type(value)))

    def sealed_row(self, row: Any) -> Any:
        """Return the row of a unit, or its settlement, with sealed texts; a kind that is not known is an error."""
        if row is not None and type(row) not in SEALED and type(row) not in WITHOUT_TEXTS:
            raise AssertionError(f"It is not known which texts of {row!r} to seal.")
        return self.sealed(row)

    def sealed_unit(self, unit: Unit) -> Unit:
        """Return the unit with sealed texts."""
        also = tuple((claim, self.sealed_row(finish)) for claim, finish in unit.also)
        rows = tuple(map(self.sealed_row, unit.rows))
        return replace(unit, settlement=self.sealed_row(unit.settlement), also=also, rows=rows)

    def opened(self, value: Any) -> Any:
        """Return the record, or records, with plain texts."""
        if type(value) in (list, tuple):
            return type(value)(map(self.opened, value))
        return _changed(self, value, OPENED.get(type(value)))

    def open(self, text: str) -> str:
        """Return the plain text, or an error in place of one that cannot be opened."""
        try:
            return self._value_store.plain(text)
        except UnreadableValue as error:
            return encode({"code": error.code, "message": str(error)})

    def open_message(self, text: str) -> str:
        """Return the plain message of a log line."""
        try:
            return self._value_store.plain(text)
        except UnreadableValue as error:
            return f"({error})"

    def open_checkpoint(self, text: str) -> str:
        """Return the plain checkpoint; one that cannot be opened stays as it is."""
        try:
            return self._value_store.plain(text)
        except UnreadableValue:
            return text


Fields = Mapping[str, Callable[[Texts, Any], Any]]
"""The fields of a record with texts, and the function for each."""

SEALED: dict[type, Fields] = {
    Finish: {"error": Texts.seal},
    Park: {"error": Texts.seal, "data": Texts.seal, "checkpoint": Texts.seal},
    Keep: {"checkpoint": Texts.seal, "data": Texts.seal},
    RunTransition: {"error": Texts.seal, "data": Texts.seal},
    CancelRunTasks: {"error": Texts.seal},
    PutRecord: {"record": Texts.sealed},
    Record: {"body": Texts.seal},
    ChangeRecord: {"body": Texts.seal, "data": Texts.seal},
    PutItems: {"items": Texts.seal_items},
    PutMessage: {"message": Texts.sealed},
    Message: {"body": Texts.seal},
    PutOutcome: {"outcome": Texts.sealed},
    EffectOutcome: {"response": Texts.seal, "details": Texts.seal},
    AppendStream: {"entries": Texts.seal},
    LogLine: {"message": Texts.seal_message, "details": Texts.seal},
    Renewal: {"progress": Texts.seal},
}

WITHOUT_TEXTS = frozenset(
    {
        *(Revive, Amend, PutRun, PutSteps, PutInbox, ClearInbox, PutFlow, PutBlob, HoldRun, Dismiss, LimitTask, PutTags),
        *(TakeMessages, Await),
    }
)
"""Settlements and rows without texts, or with values that the `ValueStore` sealed."""

OPENED: dict[type, Fields] = {
    Task: {"error": Texts.open, "progress": Texts.open, "checkpoint": Texts.open_checkpoint},
    Run: {"error": Texts.open},
    FailedRun: {"error": Texts.open},
    Transition: {"data": Texts.open},
    TransitionEvent: {"transition": Texts.opened},
    EntityHistory: {"transitions": Texts.opened},
    OpenWork: {"task": Texts.opened},
    LogLine: {"message": Texts.open_message, "details": Texts.open},
    Record: {"body": Texts.open},
    RecordItem: {"value": Texts.open},
    Message: {"body": Texts.open},
    EffectOutcome: {"response": Texts.open, "details": Texts.open},
    StreamChunk: {"entries": Texts.open},
}


def _changed(texts: Texts, record: Any, fields: Fields | None) -> Any:
    """Return the record with the fields that the functions change."""
    changes = {}
    for name, change in (fields or {}).items():
        if (before := getattr(record, name)) is not None and (after := change(texts, before)) is not before:
            changes[name] = after
    if not changes:
        return record
    return record._replace(**changes) if hasattr(record, "_replace") else replace(record, **changes)


class SealedPort:
    """A port, or a lease connection, whose methods seal the texts in their arguments and open those in their results."""

    def __init__(self, inner: Any, texts: Texts) -> None:
        self._inner, self._texts = inner, texts

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if not callable(inner):
            return inner

        @wraps(inner)
        def call(*arguments: Any, **options: Any) -> Any:
            result = inner(*map(self._texts.sealed, arguments), **options)
            return self._open(result) if isawaitable(result) else result

        setattr(self, name, call)
        return call

    async def _open(self, result: Awaitable[Any]) -> Any:
        return self._texts.opened(await result)


class SealedStore:
    """A store whose ports seal and open texts; everything else is that of the store."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._inner = store
        self._texts = texts = Texts(store, codec)
        self.url, self.parallel_commits = store.url, store.parallel_commits
        self.tasks: TaskStore = _sealed_port(store.tasks, texts)
        self.dead_letters: DeadLetterStore = _sealed_port(store.dead_letters, texts)
        self.runs: RunStore = _sealed_port(store.runs, texts)
        self.records: RecordStore = _sealed_port(store.records, texts)
        self.log: LogStore = _sealed_port(store.log, texts)
        self.servers: ServerStore = _sealed_port(store.servers, texts)
        self.traces: TraceStore = _sealed_port(store.traces, texts)
        self.streams: StreamStore = _sealed_port(store.streams, texts)
        self.search, self.operators, self.usage = store.search, store.operators, store.usage
        self.retention, self.namespaces, self.health = store.retention, store.namespaces, store.health
        self.open, self.close, self.migrate_to = store.open, store.close, store.migrate_to
        self.now, self.subscribe, self.notify = store.now, store.subscribe, store.notify
        vars(self.servers)["lease_connection"] = lambda: SealedPort(store.servers.lease_connection(), texts)

    async def commit(self, units: Sequence[Unit]) -> list[UnitAnswer]:
        """Commit the units, sealed."""
        return await self._inner.commit([self._texts.sealed_unit(unit) for unit in units])


def _sealed_port(port: object, texts: Texts) -> Any:
    """Return the port behind the codec; it has the methods of the port."""
    return SealedPort(port, texts)
