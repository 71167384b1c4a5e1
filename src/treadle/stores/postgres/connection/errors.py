"""Translate errors of PostgreSQL and asyncpg into `treadle.model.errors`, never with a password in them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ssl import SSLCertVerificationError

import asyncpg

from treadle.model.errors import (
    InvalidInput,
    InvalidStoreUrl,
    SchemaBehind,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    TreadleError,
)

REPEATABLE = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
    asyncpg.ForeignKeyViolationError,  # a large value was pruned between its insert and its use
)
"""Errors after which a commit may be repeated immediately: nothing was written, and the conflicting transaction has ended."""


_LOCKED = "another session holds a lock for long (`select pid, pg_blocking_pids(pid), query from pg_stat_activity` names it)"


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Translate errors raised in the block; `shown` is the database's URL without its password."""
    handled = sys.exc_info()[1]
    try:
        yield
    except TreadleError:
        raise
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        if hides_cancellation(error, handled):
            raise asyncio.CancelledError from error
        meant = meaning(error, shown)
        if meant is None:
            raise
        raise meant from error


def hides_cancellation(error: BaseException, handled: BaseException | None) -> bool:
    """Whether the error took the place of a cancellation of this task: a rollback fails on a connection that one has ended.

    A loop that retries after errors would then never end. `handled` is the exception that was being handled before.
    """
    before = error.__context__
    while before is not None and before is not handled:
        if isinstance(before, asyncio.CancelledError):
            task = asyncio.current_task()
            return task is not None and task.cancelling() > 0  # not if a timeout was the reason, which has ended
        before = before.__context__
    return False


def meaning(error: Exception, shown: str) -> TreadleError | None:
    """Return the translated error, or None for one that only a bug in this code can cause."""
    match error:
        case asyncpg.ReadOnlySQLTransactionError():
            return StoreReadOnly(f"{shown} takes no writes now: it is a standby, or set to read only. Use the primary's URL.")
        case asyncpg.DiskFullError():
            return StoreFull(f"The disk of {shown} is full: free some space; nothing was written.")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.UndefinedFunctionError():
            return SchemaBehind(f"{shown} lacks Treadle's tables ({_first_line(error)}): run `treadle store migrate`.")
        case asyncpg.InsufficientPrivilegeError():
            return StoreReadOnly(f"The database user may not do this in {shown} ({_first_line(error)}): grant it.")
        case asyncpg.InvalidAuthorizationSpecificationError():
            return StoreUnavailable(f"{shown} refuses this user or password: check both ({type(error).__name__}).", rejected=True)
        case SSLCertVerificationError():
            return StoreUnavailable(
                f"The certificate of {shown} is not accepted ({error.verify_message}): check sslrootcert, and that the host "
                "name is one of the certificate's.",
                rejected=True,
            )
        case asyncpg.InvalidCatalogNameError():
            return StoreUnavailable(
                f"The database of {shown} does not exist: create it (createdb), or correct the URL.", rejected=True
            )
        case asyncpg.DuplicatePreparedStatementError() | asyncpg.InvalidSQLStatementNameError():
            return _needs_pgbouncer(shown)
        case asyncpg.ProtocolViolationError() if "startup parameter" in str(error):
            return _needs_pgbouncer(shown)
        case asyncpg.TooManyConnectionsError():
            return StoreUnavailable(f"{shown} has no connection left: raise max_connections, or run fewer processes.")
        case asyncpg.QueryCanceledError() | asyncpg.IdleInTransactionSessionTimeoutError():
            return StoreTimeout(f"{shown} took too long and was interrupted: it is overloaded, or {_LOCKED}.")
        case TimeoutError() if error.errno is None:  # the driver's limit, or ours
            return StoreTimeout(f"{shown} has not answered in time: it is overloaded, {_LOCKED}, or the network is interrupted.")
        case asyncpg.TransactionRollbackError() | asyncpg.LockNotAvailableError():
            return StoreBusy(f"Others kept changing the same rows of {shown}: nothing was written, try again.")
        case asyncpg.ClientConfigurationError():
            return InvalidStoreUrl("The store URL cannot be used; it looks like postgresql://user:password@host:5432/database.")
        case asyncpg.IntegrityConstraintViolationError():
            return InvalidInput(f"{shown} refuses these rows, and nothing was written: {_first_line(error)}.")
        case asyncpg.DataError() | ValueError():
            return InvalidInput(f"PostgreSQL cannot store this value: {_first_line(error)}.")
        case asyncpg.PostgresError() if not _is_connection_trouble(error):
            return StoreError(f"{shown} refused: {_first_line(error)} ({error.sqlstate}).") if _is_operational(error) else None
        case _:
            return StoreUnavailable(f"{shown} cannot be reached ({type(error).__name__}: {_first_line(error)}). Is it running?")


def _needs_pgbouncer(shown: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{shown} leads to a connection pooler such as PgBouncer in transaction mode: add `pgbouncer=1` to the URL, "
        "and `direct_url=` with the address of the database itself.",
        rejected=True,
    )


def _is_connection_trouble(error: asyncpg.PostgresError) -> bool:
    """Whether the connection, not the statement, failed: classes 08 and 57, and errors without a class."""
    return (error.sqlstate or "08")[:2] in ("08", "57")


def _is_operational(error: asyncpg.PostgresError) -> bool:
    """Whether the server's state (resources, limits, I/O, internal errors) is the cause, not our SQL."""
    return (error.sqlstate or "")[:2] in ("53", "54", "55", "58", "XX")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
