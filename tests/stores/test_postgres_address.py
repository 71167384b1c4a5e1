"""Store URLs of PostgreSQL: what is taken out of them, what is refused, and that no password is ever shown."""

from __future__ import annotations

import errno

import asyncpg
import pytest

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
)
from treadle.stores.postgres.connection.address import parse_address, redacted
from treadle.stores.postgres.connection.errors import translated
from treadle.stores.rules.encoding import format_queues, parse_queues


def test_our_parameters_are_taken_out_of_the_url() -> None:
    address = parse_address("postgresql://ann:s3cret@db:5433/work?sslmode=require&schema=mine&pgbouncer=1")
    assert address.dsn == "postgresql://ann:s3cret@db:5433/work?application_name=treadle&sslmode=require"
    assert (address.schema, address.pgbouncer, address.channel) == ("mine", True, "treadle_mine")
    assert address.direct_dsn == address.dsn


def test_a_url_without_parameters_means_the_schema_treadle() -> None:
    address = parse_address("postgres://db/work")
    assert (address.dsn, address.schema, address.pgbouncer) == ("postgres://db/work?application_name=treadle", "treadle", False)


def test_a_name_for_the_server_s_lists_can_be_chosen() -> None:
    assert parse_address("postgres://db/work?application_name=mine").dsn == "postgres://db/work?application_name=mine"


def test_a_socket_directory_survives() -> None:
    address = parse_address("postgresql://postgres:@/postgres?host=/tmp/some where&schema=a")
    assert address.dsn == "postgresql://postgres:@/postgres?application_name=treadle&host=/tmp/some%20where"


def test_a_direct_url_is_for_listening_only() -> None:
    address = parse_address("postgresql://ann:one@pool/work?pgbouncer=1&direct_url=postgresql%3A%2F%2Fann%3Atwo%40db%2Fwork")
    assert address.dsn.startswith("postgresql://ann:one@pool/work?")
    assert address.direct_dsn.startswith("postgresql://ann:two@db/work?")
    assert "one" not in address.shown
    assert "two" not in address.shown


def test_each_host_of_a_url_is_a_separate_server() -> None:
    address = parse_address("postgresql://ann:s3cret@a:5432,b,[::1]:5434/work?schema=mine&sslmode=require")
    assert [server.name for server in address.servers] == ["a:5432", "b", "[::1]:5434"]
    assert [server.dsn for server in address.servers] == [
        f"postgresql://ann:s3cret@{host}/work?application_name=treadle&sslmode=require" for host in ("a:5432", "b", "[::1]:5434")
    ]
    assert address.target == "read-write"
    assert address.direct_servers == address.servers
    assert "s3cret" not in repr(address) + repr(address.servers)


def test_hosts_may_be_parameters() -> None:
    address = parse_address("postgresql:///work?host=/tmp/a,b&port=5433,5434&target_session_attrs=primary")
    assert [server.name for server in address.servers] == ["/tmp/a:5433", "b:5434"]
    assert [server.dsn for server in address.servers] == [
        "postgresql:///work?application_name=treadle&host=/tmp/a&port=5433",
        "postgresql:///work?application_name=treadle&host=b&port=5434",
    ]
    assert address.target == "primary"


def test_one_host_is_used_unless_it_is_a_standby() -> None:
    assert parse_address("postgresql://db/work").target == "primary"
    assert parse_address("postgresql://db/work?target_session_attrs=any").target == "any"
    assert "target_session_attrs" not in parse_address("postgresql://db/work?target_session_attrs=any").dsn


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3cret@db/work",
        "postgresql://ann:s3cret%40x@db:5433/work?sslmode=require",
        "postgresql://ann@db/work?password=s3cret",
        "postgresql://ann:s3cret@one:5432,two:5433/work",
        "postgresql://ann:s3cret@[::1]:5432/work",
        "postgresql://ann:s3cret@one:5432,[::1]:5433/work",
        "postgresql://db:5432/work?user=ann@x&password=s3cret",
        "postgresql:///work?host=/tmp&user=ann&password=s3cret&schema=mine",
    ],
)
def test_passwords_are_masked(url: str) -> None:
    address = parse_address(url)
    for shown in (redacted(url), address.shown, repr(address)):
        assert "s3cret" not in shown
        assert "ann" in shown or "db" in shown


@pytest.mark.parametrize(
    "url",
    [
        "mysql://ann:s3cret@db/work",
        "postgresql://ann:s3cret@[db/work",
        "postgresql://ann:s3cret@[::1],[db]/work",
        "postgresql://ann:[s3cret]@db/work",
        "postgresql://ann:s3cret@db:not-a-port/work",
        "postgresql://ann:1/s3cret@db/work",
        "postgresql://ann:1#s3cret@db/work",
        "postgresql://ann:1?s3cret@db/work",
        "postgresql://ann:1?schema=s3cret@db/work",
        "postgresql://ann:a/b?s3cret@db/work",
        "postgresql://ann:s3cret@db/work?schema=Mine",
        "postgresql://ann:s3cret@db/work?schema=1a",
        "postgresql://ann:s3cret@db/work?schema=a;drop",
        "postgresql://ann:s3cret@db/work?schema=",
        "postgresql://ann:s3cret@db/work?schema=pg_mine",
        f"postgresql://ann:s3cret@db/work?schema={'a' * 60}",
        "postgresql://ann:s3cret@db/work?pgbouncer=perhaps",
        "postgresql://ann:s3cret@db/work?direct_url=http://x",
        "postgresql://ann:s3cret@db/work?target_session_attrs=standby",
        "postgresql:///work?host=a,b,c&port=1,2&password=s3cret",
    ],
)
def test_an_invalid_store_url_is_refused_without_revealing_its_password(url: str) -> None:
    with pytest.raises(InvalidStoreUrl) as caught:
        parse_address(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (asyncpg.ReadOnlySQLTransactionError("no"), StoreReadOnly),
        (asyncpg.InsufficientPrivilegeError("permission denied for table tasks"), StoreReadOnly),
        (asyncpg.DiskFullError("no space"), StoreFull),
        (asyncpg.UndefinedTableError('relation "tasks" does not exist'), SchemaBehind),
        (asyncpg.InvalidPasswordError("password authentication failed"), StoreUnavailable),
        (asyncpg.InvalidCatalogNameError("no such database"), StoreUnavailable),
        (asyncpg.TooManyConnectionsError("too many"), StoreUnavailable),
        (asyncpg.QueryCanceledError("statement timeout"), StoreTimeout),
        (asyncpg.AdminShutdownError("terminating"), StoreUnavailable),
        (asyncpg.CannotConnectNowError("starting up"), StoreUnavailable),
        (asyncpg.ConnectionDoesNotExistError("closed in the middle"), StoreUnavailable),
        (asyncpg.InterfaceError("connection is closed"), StoreUnavailable),
        (ConnectionRefusedError("refused"), StoreUnavailable),
        (TimeoutError(), StoreTimeout),
        (TimeoutError(errno.ETIMEDOUT, "Connection timed out"), StoreUnavailable),
        (asyncpg.LockNotAvailableError("lock timeout"), StoreBusy),
        (asyncpg.CharacterNotInRepertoireError("invalid byte sequence"), InvalidInput),
        (asyncpg.exceptions._base.DataError("invalid input for query argument"), InvalidInput),
        (asyncpg.OutOfMemoryError("out of memory"), StoreError),
    ],
)
def test_the_driver_s_errors_have_our_codes(error: Exception, meaning: type[Exception]) -> None:
    with pytest.raises(meaning), translated("postgresql://ann:***@db/work"):
        raise error


def test_an_sql_syntax_error_is_not_translated() -> None:
    with pytest.raises(asyncpg.PostgresSyntaxError), translated("postgresql://db"):
        raise asyncpg.PostgresSyntaxError("syntax error")


def test_a_signal_names_its_queues_or_means_all() -> None:
    assert parse_queues(format_queues([3, 14])) == (3, 14)
    assert parse_queues(format_queues([])) == ()
    assert format_queues(range(10_000)) == ""
    assert parse_queues("what?") == ()
