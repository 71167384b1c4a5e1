"""Results of transactional steps, recorded in the user's own database in the transaction of the step.

The table `treadle_steps` is created on first use. The row of a step is inserted before its code is called: of two concurrent
attempts, one waits for the transaction of the other and then reads its result. Blocking and async drivers share the code below;
with an async driver it runs in a greenlet, and `wait` awaits a value for it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, NamedTuple

from treadle.kernel.store.process import failpoint
from treadle.model.clock import milliseconds
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.stores.statements import load_statements

Execute = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]
Wait = Callable[[Any], Any]

KEEP_FOR = milliseconds(30 * 86_400, "keep")
"""How long a result is kept. A run needs it only until its own store has recorded the step."""
PRUNE_EVERY = 1000
"""Steps of a process from one deletion of old results to the next; the first step deletes, too."""

_SQL = load_statements(__package__, "step_results.sql")
_PARAMETER = re.compile(r":(\w+)")
_uses = count()


class Transaction(NamedTuple):
    """An open transaction: what the code of a step receives, and how statements are executed in it."""

    session: Any
    execute: Execute


class _TableMissing(Exception):
    """The table is not there yet."""


def record_step(source: Any, step: Mapping[str, Any], call: Callable[[Any], str], wait: Wait | None) -> str:
    """Return the recorded result of the step (JSON), or call its code and record what it returns, in one transaction.

    `source` is a connection or a session, or opens one; without `wait`, its driver blocks. `step` has the values of a new row.
    """
    if next(_uses) % PRUNE_EVERY == 0:
        with suppress(Exception), _transaction(source, wait) as (_, execute):  # a later step deletes them
            execute("prune", {"before": step["at"] - KEEP_FOR})
    try:
        return _record(source, step, call, wait)
    except _TableMissing:
        failure: Exception | None = None
        try:
            with _transaction(source, wait) as (_, execute):
                execute("create_table", {})
                execute("create_index", {})
        except Exception as error:  # another process may have created it meanwhile
            failure = error
        try:
            return _record(source, step, call, wait)
        except _TableMissing as error:
            raise failure or error from None


def _record(source: Any, step: Mapping[str, Any], call: Callable[[Any], str], wait: Wait | None) -> str:
    with _transaction(source, wait) as (session, execute):
        identity = {"step_id": step["step_id"]}
        try:
            is_new = execute("begin", step)
        except Exception as error:
            if _is_missing(error):
                raise _TableMissing from error
            raise
        if not is_new:
            [(name, recorded)] = execute("find", identity)
            if name != step["name"]:
                different = f"treadle_steps has the result of the step {name} at the place of {step['name']}."
                raise NonRetryable(different, "nondeterministic")
            if recorded is None:
                raise NonRetryable(f"treadle_steps has no result of {name}: was the connection in autocommit?", "step_error")
            return str(recorded)
        result = call(session)
        execute("finish", {**identity, "result": result})
        failpoint("transaction.before_commit")
    failpoint("transaction.after_commit")
    return result


def _is_missing(error: BaseException | None) -> bool:
    states = (getattr(error, "sqlstate", None), getattr(error, "pgcode", None))
    if "42P01" in states or "no such table: treadle_steps" in str(error):
        return True
    cause = getattr(error, "orig", None) or (error and error.__cause__)
    return cause is not None and _is_missing(cause)


# drivers


@contextmanager
def _transaction(source: Any, wait: Wait | None) -> Iterator[Transaction]:
    """Run the block in a transaction of the source, which commits unless the block raises."""
    import sqlite3

    if hasattr(source, "ensure_connection"):
        opened = _on_django
    elif isinstance(source, sqlite3.Connection):
        opened = _on_sqlite
    elif callable(source):
        opened = _on_new_connection
    elif hasattr(source, "acquire"):  # a pool of asyncpg
        opened = _on_pool
    else:
        drivers = {"sqlalchemy": _on_sqlalchemy, "asyncpg": _on_asyncpg, "psycopg": _on_psycopg, "psycopg_pool": _on_psycopg_pool}
        package = type(source).__module__.partition(".")[0]
        if package not in drivers:
            raise InvalidInput(
                f"A {type(source).__qualname__} is no database of a transactional step: pass a connection, an engine, a pool or "
                "a session of SQLAlchemy, Django, asyncpg, psycopg or sqlite3, or a function that opens a connection."
            )
        opened = drivers[package]
    with opened(source, wait) as transaction:
        yield transaction


@contextmanager
def _on_new_connection(source: Any, wait: Wait | None) -> Iterator[Transaction]:
    connection = _resolved(source(), wait)
    try:
        with _transaction(connection, wait) as transaction:
            yield transaction
    finally:
        _resolved(connection.close(), wait)


@contextmanager
def _on_pool(source: Any, wait: Wait | None) -> Iterator[Transaction]:
    with _entered(source.acquire(), wait) as connection, _transaction(connection, wait) as transaction:
        yield transaction


@contextmanager
def _on_psycopg_pool(source: Any, wait: Wait | None) -> Iterator[Transaction]:
    with _entered(source.connection(), wait) as connection, _transaction(connection, wait) as transaction:
        yield transaction


@contextmanager
def _on_asyncpg(source: Any, wait: Wait | None) -> Iterator[Transaction]:
    _check_idle(source.is_in_transaction())
    with _entered(source.transaction(), wait):

        def execute(name: str, values: Mapping[str, Any]) -> Any:
            numbers = {value: f"${number}" for number, value in enumerate(values, 1)}
            statement = _PARAMETER.sub(lambda match: numbers[match[1]], _SQL[name])
            return _resolved(source.fetch(statement, *values.values()), wait)

        yield Transaction(source, execute)


@contextmanager
def _on_psycopg(source: Any, wait: Wait | None) -> Iterator[Transaction]:
    from psycopg.pq import TransactionStatus
    from psycopg.rows import tuple_row

    _check_idle(source.info.transaction_status != TransactionStatus.IDLE)
    with _entered(source.transaction(), wait):

        def execute(name: str, values: Mapping[str, Any]) -> Any:
            cursor = source.cursor(row_factory=tuple_row)
            _resolved(cursor.execute(_formatted(name), values), wait)
            return _resolved(cursor.fetchall(), wait) if cursor.description else []

        yield Transaction(source, execute)


@contextmanager
def _on_sqlalchemy(source: Any, wait: Wait | None) -> Iterator[Transaction]:
    from sqlalchemy import text

    _check_idle(hasattr(source, "in_transaction") and source.in_transaction())
    with _entered(source.begin(), wait) as begun:
        session = begun if hasattr(begun, "execute") else source  # an engine begins a transaction on a connection

        def execute(name: str, values: Mapping[str, Any]) -> Any:
            result = _resolved(session.execute(text(_SQL[name]), values), wait)
            return result.all() if result.returns_rows else []

        yield Transaction(session, execute)


@contextmanager
def _on_sqlite(source: Any, wait: Wait | None) -> Iterator[Transaction]:
    _check_kind(True, wait)
    manual = getattr(source, "autocommit", None) is False  # a transaction is always open (Python 3.12)
    if not manual:
        _check_idle(source.in_transaction)
        source.execute("begin immediate")

    def execute(name: str, values: Mapping[str, Any]) -> Any:
        cursor = source.cursor()
        cursor.row_factory = None
        return cursor.execute(_SQL[name], values).fetchall()

    try:
        yield Transaction(source, execute)
        source.commit()
    except BaseException:
        source.rollback()
        raise


@contextmanager
def _on_django(source: Any, wait: Wait | None) -> Iterator[Transaction]:
    from django.db import close_old_connections, connections, transaction

    _check_kind(True, wait)
    close_old_connections()
    connection = connections[source.alias]  # of this thread

    def execute(name: str, values: Mapping[str, Any]) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(_formatted(name), values or None)
            return cursor.fetchall() if cursor.description else []

    try:
        with transaction.atomic(source.alias, durable=True):
            yield Transaction(connection, execute)
    finally:
        close_old_connections()


def _formatted(name: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", _SQL[name])


def _resolved(value: Any, wait: Wait | None) -> Any:
    if not inspect.isawaitable(value):
        return value
    if wait is None and inspect.iscoroutine(value):
        value.close()
    _check_kind(False, wait)
    assert wait is not None
    return wait(value)


@contextmanager
def _entered(manager: Any, wait: Wait | None) -> Iterator[Any]:
    """Run the block in a context manager, which may be an async one."""
    is_blocking = hasattr(manager, "__enter__")
    _check_kind(is_blocking, wait)
    if is_blocking or wait is None:
        with manager as value:
            yield value
        return
    value = wait(manager.__aenter__())
    try:
        yield value
    except BaseException as error:
        if not wait(manager.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        wait(manager.__aexit__(None, None, None))


def _check_kind(is_blocking: bool, wait: Wait | None) -> None:
    if is_blocking != (wait is None):
        raise InvalidInput(
            "The function of a transactional step must be async exactly if the driver of its connection is: a blocking driver "
            "needs a plain `def`, which runs in a thread."
        )


def _check_idle(is_open: bool) -> None:
    if is_open:
        raise InvalidInput("The connection has an open transaction: a transactional step begins and commits one of its own.")
