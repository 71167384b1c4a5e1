"""A store that encrypts texts beside the values: errors, checkpoints, progress, data of transitions, log lines, documents and items
of records, messages, and responses of effects.

The `ValueStore` encodes values (payloads, results, inputs, outputs, steps, flows) where it packs them. This store encodes the
other texts on their way into the database and decodes them on their way out, so that nothing users wrote is readable
there. Names, keys, error codes, fingerprints, actors, trace ids, instants and counters stay plain, because the store
searches by them. Texts that were stored before there was a codec are read unchanged.

`ENCODED_FIELDS` and `DECODED_FIELDS` name the texts of each record, wherever in the arguments and results of a port it is. A text
that this process cannot decode (another codec) is replaced by an error that states this; nothing is lost. Without a codec nothing
is wrapped: `decode` refuses an encoded text with such an error, and log messages are shown as they are stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from inspect import isawaitable
from typing import Any

from msgspec.structs import replace

from treadle.kernel.store.database import DeadLetterStore, LogStore, RecordStore, RunStore, StreamStore, TraceStore
from treadle.kernel.store.operator_ports import ServerStore
from treadle.kernel.store.ports import Store, TaskStore
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
    BlockRun,
    CancelRunTasks,
    ClearInbox,
    Discard,
    Dismiss,
    Finish,
    Keep,
    LimitTask,
    PutBlob,
    PutFlow,
    PutInbox,
    PutMetrics,
    PutPayload,
    PutRun,
    PutSteps,
    PutTags,
    Redrive,
    ReleaseKey,
    Requeue,
    RunTransition,
    Unit,
    UnitAnswer,
)
from treadle.kernel.store.value_store import Codec, ValueStore, encode_text
from treadle.model.errors import UnreadableValue
from treadle.model.records import EffectOutcome, Message, Record, RecordItem, StreamChunk
from treadle.model.runs import Run
from treadle.model.tasks import LogLine, Task, Transition
from treadle.model.values import CODEC_MARK, encode


def encoded_store(store: Store, codec: Codec | None) -> Store:
    """Return the store behind the codec; without a codec, the store itself."""
    return store if codec is None else EncodedStore(store, codec)


class Texts:
    """Encodes and decodes the texts of records."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._codec = codec
        self._value_store = ValueStore(store, codec)

    def encode_text(self, text: str) -> str:
        """Return the encoded text; one that is encoded already stays as it is."""
        return text if text.startswith(CODEC_MARK) else encode_text(text, self._codec)

    def encode_message(self, text: str) -> str:
        """Encode a log message, which is not JSON and may begin like an encoded text."""
        return encode_text(text, self._codec)

    def encode_items(self, items: tuple[tuple[str, str | None], ...]) -> tuple[tuple[str, str | None], ...]:
        """Encode the values of items."""
        return tuple((key, None if value is None else self.encode_text(value)) for key, value in items)

    def encoded(self, value: Any) -> Any:
        """Return the record, or records, with encoded texts."""
        if type(value) in (list, tuple):
            return type(value)(map(self.encoded, value))
        return _changed(self, value, ENCODED_FIELDS.get(type(value)))

    def encoded_row(self, row: Any) -> Any:
        """Return the row of a unit, or its settlement, with encoded texts; a kind that is not known is an error."""
        if row is not None and type(row) not in ENCODED_FIELDS and type(row) not in WITHOUT_TEXTS:
            raise AssertionError(f"It is not known which texts of {row!r} to encode.")
        return self.encoded(row)

    def encoded_unit(self, unit: Unit) -> Unit:
        """Return the unit with encoded texts."""
        also = tuple((claim, self.encoded_row(finish)) for claim, finish in unit.also)
        rows = tuple(map(self.encoded_row, unit.rows))
        return replace(unit, settlement=self.encoded_row(unit.settlement), also=also, rows=rows)

    def decoded(self, value: Any) -> Any:
        """Return the record, or records, with plain texts."""
        if type(value) in (list, tuple):
            return type(value)(map(self.decoded, value))
        return _changed(self, value, DECODED_FIELDS.get(type(value)))

    def decode_text(self, text: str) -> str:
        """Return the plain text, or an error in place of one that cannot be decoded."""
        try:
            return self._value_store.plain(text)
        except UnreadableValue as error:
            return encode({"code": error.code, "message": str(error)})

    def decode_message(self, text: str) -> str:
        """Return the plain message of a log line."""
        try:
            return self._value_store.plain(text)
        except UnreadableValue as error:
            return f"({error})"

    def decode_checkpoint(self, text: str) -> str:
        """Return the plain checkpoint; one that cannot be decoded stays as it is."""
        try:
            return self._value_store.plain(text)
        except UnreadableValue:
            return text


Fields = Mapping[str, Callable[[Texts, Any], Any]]
"""The fields of a record with texts, and the function for each."""

ENCODED_FIELDS: dict[type, Fields] = {
    Finish: {"error": Texts.encode_text},
    Requeue: {"error": Texts.encode_text, "data": Texts.encode_text, "checkpoint": Texts.encode_text},
    Keep: {"checkpoint": Texts.encode_text, "data": Texts.encode_text},
    Redrive: {"data": Texts.encode_text},
    RunTransition: {"error": Texts.encode_text, "data": Texts.encode_text},
    CancelRunTasks: {"error": Texts.encode_text},
    PutRecord: {"record": Texts.encoded},
    Record: {"document": Texts.encode_text},
    ChangeRecord: {"document": Texts.encode_text, "data": Texts.encode_text},
    PutItems: {"items": Texts.encode_items},
    PutMessage: {"message": Texts.encoded},
    Message: {"document": Texts.encode_text},
    PutOutcome: {"outcome": Texts.encoded},
    EffectOutcome: {"response": Texts.encode_text, "details": Texts.encode_text},
    AppendStream: {"entries": Texts.encode_text},
    LogLine: {"message": Texts.encode_message, "details": Texts.encode_text},
    Renewal: {"progress": Texts.encode_text},
}

WITHOUT_TEXTS = frozenset(
    {
        *(Discard, PutRun, PutSteps, PutInbox, ClearInbox, PutFlow, PutBlob, BlockRun, Dismiss, LimitTask, PutTags),
        *(TakeMessages, Await, ReleaseKey, PutPayload, PutMetrics),
    }
)
"""Settlements and rows without texts, or with values that the `ValueStore` encoded."""

DECODED_FIELDS: dict[type, Fields] = {
    Task: {"error": Texts.decode_text, "progress": Texts.decode_text, "checkpoint": Texts.decode_checkpoint},
    Run: {"error": Texts.decode_text},
    FailedRun: {"error": Texts.decode_text},
    Transition: {"data": Texts.decode_text},
    TransitionEvent: {"transition": Texts.decoded},
    EntityHistory: {"transitions": Texts.decoded},
    OpenWork: {"task": Texts.decoded},
    LogLine: {"message": Texts.decode_message, "details": Texts.decode_text},
    Record: {"document": Texts.decode_text},
    RecordItem: {"value": Texts.decode_text},
    Message: {"document": Texts.decode_text},
    EffectOutcome: {"response": Texts.decode_text, "details": Texts.decode_text},
    StreamChunk: {"entries": Texts.decode_text},
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


class EncodedPort:
    """A port, or a lease connection, whose methods encode the texts in their arguments and decode those in their results."""

    def __init__(self, inner: Any, texts: Texts) -> None:
        self._inner, self._texts = inner, texts

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._inner, name)
        if not callable(inner):
            return inner

        @wraps(inner)
        def call(*arguments: Any, **options: Any) -> Any:
            result = inner(*map(self._texts.encoded, arguments), **options)
            return self._decode(result) if isawaitable(result) else result

        setattr(self, name, call)
        return call

    async def _decode(self, result: Awaitable[Any]) -> Any:
        return self._texts.decoded(await result)


class EncodedStore:
    """A store whose ports encode and decode texts; everything else is that of the store."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._inner = store
        self._texts = texts = Texts(store, codec)
        self.url, self.parallel_commits = store.url, store.parallel_commits
        self.tasks: TaskStore = _encoded_port(store.tasks, texts)
        self.dead_letters: DeadLetterStore = _encoded_port(store.dead_letters, texts)
        self.runs: RunStore = _encoded_port(store.runs, texts)
        self.records: RecordStore = _encoded_port(store.records, texts)
        self.log: LogStore = _encoded_port(store.log, texts)
        self.servers: ServerStore = _encoded_port(store.servers, texts)
        self.traces: TraceStore = _encoded_port(store.traces, texts)
        self.streams: StreamStore = _encoded_port(store.streams, texts)
        self.search, self.operators, self.usage, self.metrics = store.search, store.operators, store.usage, store.metrics
        self.retention, self.namespaces, self.health = store.retention, store.namespaces, store.health
        self.open, self.close, self.migrate_to = store.open, store.close, store.migrate_to
        self.now, self.subscribe, self.notify = store.now, store.subscribe, store.notify
        vars(self.servers)["lease_connection"] = lambda: EncodedPort(store.servers.lease_connection(), texts)

    async def commit(self, units: Sequence[Unit]) -> list[UnitAnswer]:
        """Commit the units, encoded."""
        return await self._inner.commit([self._texts.encoded_unit(unit) for unit in units])


def _encoded_port(port: object, texts: Texts) -> Any:
    """Return the port behind the codec; it has the methods of the port."""
    return EncodedPort(port, texts)
