"""The request and the response of the adapters: arguments checked as in `Engine.enqueue`, database errors as Treadle errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from treadle.kernel.queue.service import Enqueued, check_priority
from treadle.kernel.store.process import SystemIds
from treadle.kernel.store.value_store import Codec, ValueStore, encode_text
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import (
    BacklogFull,
    IdempotencyKeyReused,
    InvalidInput,
    ListDraining,
    SchemaBehind,
    StoreBusy,
    StoreError,
    Unsupported,
)
from treadle.model.ids import parse_id
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE, check_key, check_name
from treadle.model.retry import RetryPolicy, as_policy
from treadle.model.stored import plain
from treadle.model.values import PAYLOAD_LIMIT, Json, encode
from treadle.stores.statements import load_statements

DEFAULT_SCHEMA = "treadle"

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_SQL = load_statements(__package__, "enqueue.sql")
_PARAMETERS = {"asyncpg": "$1", "psycopg": "%s", "sqlalchemy": ":given"}
_ids = SystemIds()
_no_store: Any = None

Row = Sequence[Any] | None
Talk = Generator[tuple[str, str], Row, Enqueued]
"""Statements with their parameter, each of which is answered with its first row."""


@dataclass(frozen=True, slots=True)
class EnqueueRequest:
    """A task as the database function takes it: `text` is the argument, `task_id` the id of the task if it is new."""

    task_id: str
    text: str
    name: str
    task_list: str
    payload: str
    unique_key: str | None
    idempotency_key: str | None
    codec: Codec | None

    def talk(self, sql: Mapping[str, str]) -> Talk:
        """Enqueue, and return the new task or the existing one with a key of this one; `IdempotencyKeyReused` if they differ."""
        row = yield sql["enqueue"], self.text
        if row is None:
            raise StoreError("treadle_enqueue_v1 returned nothing.")
        enqueued = Enqueued(row[0], row[0] == self.task_id)
        if not enqueued.created and self.idempotency_key is not None:
            stored = yield sql["stored"], enqueued.id
            if stored is not None and not self._repeats(stored):
                is_revived = (*stored,)[:2] == (self.name, self.task_list) and (yield sql["is_revived"], enqueued.id)
                if not is_revived or not is_revived[0]:
                    raise IdempotencyKeyReused(self.idempotency_key, "task", enqueued.id)
        return enqueued

    def _repeats(self, stored: Sequence[Any]) -> bool:
        name, task_list, unique_key, payload = stored
        if self.unique_key is not None and unique_key == self.unique_key:
            return True
        same = ValueStore(_no_store, self.codec).same(payload, self.payload)
        return (name, task_list) == (self.name, self.task_list) and same

    def ask(self, sql: Mapping[str, str], ask: Callable[[str, str], Row]) -> Enqueued:
        """Enqueue with `statements` and the driver's `ask`, which executes a statement and returns its first row."""
        talk, row = self.talk(sql), None
        with self.translated():
            while True:
                try:
                    row = ask(*talk.send(row))
                except StopIteration as done:
                    enqueued: Enqueued = done.value
                    return enqueued

    async def ask_async(self, sql: Mapping[str, str], ask: Callable[[str, str], Awaitable[Row]]) -> Enqueued:
        """Do the same as `ask` with an async driver."""
        talk, row = self.talk(sql), None
        with self.translated():
            while True:
                try:
                    row = await ask(*talk.send(row))
                except StopIteration as done:
                    enqueued: Enqueued = done.value
                    return enqueued

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the function's errors as Treadle errors; pass the driver's own errors through."""
        try:
            yield
        except Exception as error:
            state = _sqlstate(error)
            message = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            match state:
                case "22023" if re.search("'(compare|notify|created_by)' is not known", message):
                    older = "This database has an older treadle_enqueue_v1: run `treadle store migrate`."
                    raise SchemaBehind(f"{older} {message}") from error
                case "22023" if "treadle_enqueue_v1" in message:
                    raise InvalidInput(message) from error
                case "TR001":
                    raise ListDraining(self.task_list) from error
                case "TR002":
                    cap = re.search(r"\d+", message.partition(":")[2])
                    raise BacklogFull(self.task_list, self.name, int(cap[0]) if cap else 0) from error
                case "40001" if "treadle_enqueue_v1" in message:
                    raise StoreBusy(f"{message} (the whole transaction).") from error
                case "42883" | "3F000":
                    raise SchemaBehind(
                        f"This database or schema has no treadle_enqueue_v1: run `treadle store migrate`. {message}"
                    ) from error
            raise


def _sqlstate(error: Exception) -> str | None:
    """Return the SQLSTATE from the attribute that the driver uses."""
    sqlstate = getattr(error, "sqlstate", None) or getattr(getattr(error, "orig", None), "sqlstate", None)
    return None if sqlstate is None else str(sqlstate)


def statements(driver: str, schema: str) -> dict[str, str]:
    """Return the statements, with the driver's parameter style."""
    if not _SCHEMA.fullmatch(schema):
        raise InvalidInput(f"{schema!r} is not a schema name that Treadle uses: lower case letters, digits, underscores.")
    placeholder = _PARAMETERS[driver]
    return {name: text.replace("{schema}", schema).replace("{argument}", placeholder) for name, text in _SQL.items()}


def refuse_sqlite(dialect: str) -> None:
    """Raise `Unsupported` for a connection to anything but PostgreSQL."""
    if dialect != "postgresql":
        raise Unsupported(
            f"Enqueueing inside your own transaction needs PostgreSQL, not {dialect}: a SQLite file has one writer, which another "
            "connection cannot join. Commit first, then call engine.enqueue with an idempotency_key."
        )


def make_request(
    name: str,
    payload: Mapping[str, Json] | None = None,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    task_list: str = DEFAULT_LIST,
    delay: Duration | None = None,
    priority: int = 0,
    unique_key: str | None = None,
    idempotency_key: str | None = None,
    idempotency_for: Duration = 7 * 86_400,
    limit_key: str | None = None,
    retry: RetryPolicy | int | None = None,
    timeout: Duration | None = None,
    progress_every: Duration | None = None,
    deadline: Duration | None = None,
    trace_id: str | None = None,
    root_id: str | None = None,
    actor: str | None = None,
    notify: bool = False,
    codec: Codec | None = None,
    payload_limit: int = PAYLOAD_LIMIT,
) -> EnqueueRequest:
    """Check the arguments, which are those of `Engine.enqueue`; `codec` is the engine's, if it has one.

    The task shows the `actor` as its creator; without one, the database's user, as in `sql:ada`. `notify` wakes waiting workers
    at the commit, which PostgreSQL serialises with other such commits.
    """
    check_priority(priority)
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidInput(f"A payload is a dict (a JSON object), not {type(payload).__name__}.")
    text = encode(dict(payload or {}), "payload", payload_limit)
    policy = as_policy(retry)
    task_id = _ids.new_id()
    keys = {"unique key": unique_key, "idempotency key": idempotency_key, "limit key": limit_key, "trace id": trace_id}
    for what, key in (keys | {"actor": actor}).items():
        if key is not None:
            check_key(key, what)
    spec: dict[str, Any] = {
        "id": task_id,
        "name": check_name(name),
        "namespace": check_name(namespace, "namespace"),
        "task_list": check_name(task_list, "task list"),
        "priority": priority,
        "delay_for": None if delay is None else milliseconds(delay, "delay"),
        "unique_key": unique_key,
        "idempotency_key": idempotency_key,
        "idempotency_for": milliseconds(idempotency_for, "idempotency_for", positive=True),
        "limit_key": limit_key,
        "policy": None if policy is None else plain(policy),
        "timeout_for": None if timeout is None else milliseconds(timeout, "timeout", positive=True),
        "progress_for": None if progress_every is None else milliseconds(progress_every, "progress_every", positive=True),
        "deadline_for": None if deadline is None else milliseconds(deadline, "deadline", positive=True),
        "trace_id": trace_id,
        "root_id": None if root_id is None else parse_id(root_id, "root id"),
        "created_by": actor,
        "notify": True if notify else None,
        "compare": None if idempotency_key is None else False,  # `talk` compares, which leaves the transaction usable
    }
    if codec is not None:
        spec["encoded"] = encode_text(text, codec)
    fields = {key: value for key, value in spec.items() if value is not None}
    body = encode(fields, "task", 4 * payload_limit)
    if codec is None:
        body = f'{body[:-1]},"payload":{text}}}'  # exactly as it was encoded
    return EnqueueRequest(task_id, body, name, task_list, text, unique_key, idempotency_key, codec)
