"""Work that is started in the caller's transaction: it exists exactly when that transaction commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from treadle.engine.engine import Engine
from treadle.engine.handles import Handle
from treadle.engine.kernel import make_extensions
from treadle.engine.sync import blocking
from treadle.kernel.store.ports import Store, TransactionStore
from treadle.model.clock import Clock
from treadle.model.errors import Unsupported

if TYPE_CHECKING:
    from treadle.api.approvals import Approval
    from treadle.stores.postgres.caller_transaction.store import PostgresCallerTransaction
    from treadle.stores.sqlite.caller_transaction.store import SqliteCallerTransaction

P = ParamSpec("P")
T = TypeVar("T")


def inside(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the version of a method of `Engine` that runs in the transaction."""

    @wraps(method)
    async def call(self: Within, /, *arguments: P.args, **options: P.kwargs) -> T:
        return await self._transact(lambda: getattr(self._inner, method.__name__)(*arguments, **options))

    return call


class Within:
    """Methods of `Engine` in a transaction; each writes completely or, if it raises, not at all.

    They apply the same rules as those of the engine: checks, idempotency keys, limits of lists. The engine need not be open.
    """

    def __init__(self, engine: Engine, store_of: Callable[..., TransactionStore]) -> None:
        stores: list[TransactionStore] = []

        def make(*arguments: Any) -> TransactionStore:
            stores.append(store_of(*arguments))
            return stores[0]

        self._engine = engine
        self._inner = inner = copy(engine)
        extensions = make_extensions()
        vars(inner).update(extensions)
        inner.kernel = engine._make_kernel(
            engine._url, engine.kernel.settings, store_of=make, extensions=tuple(extensions.values())
        )
        self._store = stores[0]

    enqueue = inside(Engine.enqueue)
    enqueue_many = inside(Engine.enqueue_many)
    start = inside(Engine.start)
    start_run = inside(Engine.start_run)
    start_function = inside(Engine.start_function)
    start_plan = inside(Engine.start_plan)
    signal = inside(Engine.signal)
    cancel = inside(Engine.cancel)

    async def decide_approval(self, /, approval_id: str, decision: str, **options: Any) -> Approval:
        """Decide an approval; options as for `Approvals.decide`."""
        return await self._transact(lambda: self._inner.approvals.decide(approval_id, decision, **options))

    async def _transact(self, operate: Callable[[], Coroutine[Any, Any, T]]) -> T:
        committer = self._inner.kernel.committer

        async def whole() -> T:
            try:
                result = await operate()
                await committer.drain()
            except BaseException:
                await committer.close()
                raise
            return result

        result = await self._store.transact(whole)
        if isinstance(result, Handle):
            result._engine = self._engine  # whoever waits for it does so outside the transaction
        return result


class Transaction(Within):
    """`Within` on a transaction of a SQLite file, which also executes statements of the caller."""

    def __init__(self, engine: Engine, transaction: SqliteCallerTransaction) -> None:
        super().__init__(engine, lambda *_: transaction)
        self._transaction = transaction

    async def execute(self, /, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement on your own tables and return its rows; parameters are `?` or `:name`.

        Raises `Refused` for a statement that would change Treadle's tables, the transaction or settings of the database.
        """
        return await self._transaction.execute(statement, values)


class BlockingWithin:
    """`Within` for code without an event loop, on a blocking driver."""

    def __init__(self, within: Within) -> None:
        self._inner = within

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine to its end in this thread, or in another one if this thread has an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(coroutine)
        with ThreadPoolExecutor(1, "treadle-within") as pool:
            return pool.submit(asyncio.run, coroutine).result()

    enqueue = blocking(Within.enqueue)
    enqueue_many = blocking(Within.enqueue_many)
    start = blocking(Within.start)
    start_run = blocking(Within.start_run)
    start_function = blocking(Within.start_function)
    start_plan = blocking(Within.start_plan)
    signal = blocking(Within.signal)
    cancel = blocking(Within.cancel)
    decide_approval = blocking(Within.decide_approval)


class BlockingTransaction(BlockingWithin):
    """`Transaction` for code without an event loop; `run` executes on the engine's."""

    def __init__(self, transaction: Transaction, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        super().__init__(transaction)
        self._run = run

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the engine's event loop."""
        result: T = self._run(coroutine)
        return result

    execute = blocking(Transaction.execute)


def postgres_transaction_store(url: str, connection: Any, clock: Clock, *, notify: bool) -> PostgresCallerTransaction:
    """Return a store on the caller's connection to the PostgreSQL database of the URL."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise Unsupported(
            "A SQLite file has one writer, which another connection cannot join: use `async with engine.transaction() as tx`, "
            "which runs your statements in Treadle's transaction."
        )
    from treadle.stores.postgres.caller_transaction.store import PostgresCallerTransaction

    return PostgresCallerTransaction(url, connection, clock=clock, notify=notify)


def sqlite_transaction_store(store: Store, clock: Clock) -> AbstractAsyncContextManager[SqliteCallerTransaction]:
    """Hold one transaction of an open SQLite store."""
    from treadle.stores.sqlite import SqliteStore

    if not isinstance(store, SqliteStore):
        raise Unsupported(
            "On PostgreSQL, write in a transaction of your own connection: `engine.within(connection)`. `engine.transaction()` is "
            "for a SQLite file."
        )
    from treadle.stores.sqlite.caller_transaction.store import open_caller_transaction

    return open_caller_transaction(store, clock)
