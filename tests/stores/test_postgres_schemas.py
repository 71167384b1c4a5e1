"""Schemas that tests use one after another: as new whatever the test before did, or not used again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.contract.databases import Postgres
from tests.schemas import Schemas, schema_url, shape

import treadle.stores.postgres
from treadle_conformance.task_steps import claim_one, put_and_claim, put_one, settle, succeed

AROUND_THE_STORE = (
    # a value that is kept outside of its row, and a row that refers to it
    "insert into blobs (digest, value) select 'd', string_agg(md5(n::text), '') from generate_series(1, 10000) as n",
    "insert into blob_uses (root_id, digest) values (gen_random_uuid(), 'd')",
    # a number that is used and a row that is dead, in a table without rows
    "insert into lines (task_id, at, level, message) values (gen_random_uuid(), 0, 'info', 'gone')",
    "delete from lines",
)


@pytest.fixture
def own(postgres_admin: psycopg.Connection[Any], postgres_server: str) -> Iterator[Schemas]:
    """Schemas that no other test uses."""
    made = Schemas(postgres_admin, postgres_server)
    yield made
    made.close()


def leave(admin: psycopg.Connection[Any], name: str) -> None:
    """Return when nobody is connected any more: a connection that was closed is there for another moment."""
    admin.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = %s", [name])


async def test_a_reused_schema_is_empty(own, request, tmp_path, postgres_admin):
    used, new = own.take(), own.take()
    as_new = shape(postgres_admin, new)
    assert shape(postgres_admin, used) == as_new

    database = Postgres(request, tmp_path, schema=used)
    store = await database.open_store()
    taken = await put_and_claim(store)
    await settle(store, taken.claim, succeed('{"a":1}'))
    await put_one(store)
    await claim_one(store)
    await database.clock.advance(1000)
    await database.close()
    for statement in AROUND_THE_STORE:
        database.execute(statement)
    changed = {(kind, name) for kind, name, _ in set(shape(postgres_admin, used)) - set(as_new)}
    assert {("relation", table) for table in ("tasks", "finished_rest", "queues", "blobs", "blob_uses", "lines")} <= changed
    assert {("sequence", "treadle_seq"), ("sequence", "queues_id_seq"), ("sequence", "lines_id_seq")} <= changed
    assert ("function", "*.treadle_now()") in changed

    leave(postgres_admin, used)
    own.give_back(used)
    assert own.take() == used
    assert shape(postgres_admin, used) == as_new
    assert not any(database.rows(table) for table in ("tasks", "finished", "queues", "log", "blobs", "blob_uses", "lines"))
    clocks = postgres_admin.execute("select from public.treadle_test_clocks where schema = %s", [used]).fetchall()
    assert clocks == []
    own.give_back(used)
    own.give_back(new)


CHANGES = (
    "alter table tasks rename to away",
    "alter table tasks add column more text",
    "alter table tasks drop column payload",
    "alter table tasks alter column payload set default 'x'",
    "alter table tasks alter column payload drop not null",
    "alter table tasks set (autovacuum_enabled = false)",
    "alter table tasks add check (attempt < 1000)",
    "alter table runs disable trigger all",
    "alter sequence treadle_seq increment by 2",
    "grant select on tasks to public",
    "create table more (id integer)",
    "create view more as select id from tasks",
    "create index more on tasks (attempt)",
    "drop index tasks_ready",
    "drop trigger runs_make_legal_transitions on runs",
    "drop table lines",
    "create function more() returns integer language sql as $$ select 1 $$",
    "create or replace function treadle_new_id() returns uuid language sql as $$ select gen_random_uuid() $$",
    "create type more as enum ('a')",
    "analyze tasks",
    "update treadle_schema set version = 99",
    "update legal_transitions set to_state = 'x' where from_state = 'live'",
    "delete from legal_transitions where from_state = 'live'",
    "drop table treadle_schema",
    'drop schema "{name}" cascade',
)


def test_a_schema_with_changed_tables_is_not_reused(own, postgres_admin):
    used = own.take()
    for change in CHANGES:
        with postgres_admin.transaction():
            postgres_admin.execute(f'set local search_path to "{used}"')
            postgres_admin.execute(change.format(name=used))
        leave(postgres_admin, used)
        own.give_back(used)
        other = own.take()
        assert other != used, change
        assert postgres_admin.execute("select from pg_namespace where nspname = %s", [used]).fetchall() == [], change
        used = other
    own.give_back(used)


def test_a_schema_with_open_connections_is_not_reused(own, postgres_admin, postgres_server):
    used = own.take()
    leave(postgres_admin, used)
    with psycopg.connect(postgres_server, application_name=used):
        own.give_back(used)
        other = own.take()
        assert other != used
    leave(postgres_admin, used)
    assert own.take() == used
    own.give_back(used)
    own.give_back(other)


async def test_a_store_is_connected_under_the_name_of_its_schema(own, request, tmp_path, postgres_admin, postgres_server):
    name = own.take()
    assert schema_url(postgres_server, name).endswith(f"schema={name}&application_name={name}")
    leave(postgres_admin, name)
    database = Postgres(request, tmp_path, schema=name)
    await database.open_store()
    assert own._is_used(name)
    await database.close()
    own.give_back(name)


def test_no_migration_builds_a_large_index_while_it_locks_out_claims_and_renewals() -> None:
    folder = Path(treadle.stores.postgres.__file__).parent / "migrations"
    for path in sorted(folder.glob("*.up.sql"))[16:]:
        statements = [" ".join(each.split()) for each in re.sub(r"--.*", "", path.read_text()).split(";")]
        locks = [re.match(r"(create (unique )?index \w+ on|alter table) tasks\b", each) is not None for each in statements]
        large = [re.match(r"create (unique )?index \w+ on (finished|runs|log|steps)\b", each) is not None for each in statements]
        first = locks.index(True) if True in locks else len(locks)
        assert not any(large[first:]), path.name
