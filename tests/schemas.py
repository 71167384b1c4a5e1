"""Schemas of PostgreSQL that tests use one after another: emptied in between, and dropped when they are not as new.

Making the tables costs more than most tests do. So the schema of a finished test is reused, but only when nobody is connected
to it any more and when, emptied, it is exactly what the migrations make: definitions, settings, sizes on disk, statistics,
sequences, and the rows that the migrations put in. `tests/stores/test_postgres_schemas.py` holds it to that.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from treadle.stores.postgres import PostgresStore
from treadle.testing import ManualClock

FILLED_BY_MIGRATIONS = ("treadle_schema", "legal_transitions")
"""Tables that are never emptied; a test that changes them has its schema dropped."""

_SHAPE = """
select 'relation' as kind, relname::text as name, concat_ws(' ', relkind, relpersistence, reloptions, relacl, relrowsecurity,
    relhastriggers, pg_relation_size(pg_class.oid), pg_relation_size(nullif(reltoastrelid, 0)),
    case relkind when 'r' then reltuples end) as what
  from pg_class where relnamespace = {schema} and relkind <> 'S'
union all select 'sequence', relname, concat_ws(' ', seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax, seqcache,
    seqcycle, coalesce(pg_sequence_last_value(oid), 0))
  from pg_class join pg_sequence on seqrelid = oid where relnamespace = {schema}
union all select 'column', relname || '.' || attname, concat_ws(' ', attnum, format_type(atttypid, atttypmod), attnotnull,
    attidentity, attgenerated, attstorage, attoptions, pg_get_expr(adbin, adrelid))
  from pg_class join pg_attribute on attrelid = pg_class.oid left join pg_attrdef on adrelid = attrelid and adnum = attnum
  where relnamespace = {schema} and relkind <> 'i' and attnum > 0
union all select 'index', relname, concat_ws(' ', pg_get_indexdef(indexrelid), indisvalid, indisready, indisclustered)
  from pg_class join pg_index on indexrelid = oid where relnamespace = {schema}
union all select 'constraint', conname, concat_ws(' ', conrelid::regclass, pg_get_constraintdef(oid), convalidated)
  from pg_constraint where connamespace = {schema}
union all select 'function', oid::regprocedure::text, pg_get_functiondef(oid) from pg_proc where pronamespace = {schema}
union all select 'trigger', tgname, concat_ws(' ', tgenabled, pg_get_triggerdef(pg_trigger.oid))
  from pg_trigger join pg_class on tgrelid = pg_class.oid where relnamespace = {schema} and not tgisinternal
union all select 'statistics', starelid::regclass::text, staattnum::text
  from pg_statistic join pg_class on starelid = pg_class.oid where relnamespace = {schema}
union all select 'type', typname, typtype::text from pg_type where typnamespace = {schema}
union all select 'version', '', version::text from "{name}".treadle_schema
union all select 'legal transition', '', to_jsonb(m)::text from "{name}".legal_transitions as m
"""

_STAMP = """
with relations as (select * from pg_class where relnamespace = {schema}),
stamps as (
  select 'columns' as what, xmin from pg_attribute where attrelid in (select oid from relations)
  union all select 'defaults', xmin from pg_attrdef where adrelid in (select oid from relations)
  union all select 'indexes', xmin from pg_index where indexrelid in (select oid from relations)
  union all select 'triggers', xmin from pg_trigger where tgrelid in (select oid from relations)
  union all select 'statistics', xmin from pg_statistic where starelid in (select oid from relations)
  union all select 'sequences', xmin from pg_sequence where seqrelid in (select oid from relations)
  union all select 'constraints', xmin from pg_constraint where connamespace = {schema}
  union all select 'functions', xmin from pg_proc where pronamespace = {schema} and proname <> 'treadle_now'
  union all select 'types', xmin from pg_type where typnamespace = {schema}
  union all select 'version', xmin from "{name}".treadle_schema
  union all select 'legal transitions', xmin from "{name}".legal_transitions
)
select what, count(*)::text || ' ' || max(xmin::text::bigint) from stamps group by what
union all
select 'relations', string_agg(concat_ws(' ', oid, relname, relkind, relpersistence, reloptions, relacl, relrowsecurity,
  relhastriggers, pg_relation_size(oid), pg_relation_size(nullif(reltoastrelid, 0)), case relkind when 'r' then reltuples end),
  e'\\n' order by oid) from relations
"""
"""The same information as `_SHAPE`, from the transaction ids that wrote the catalog rows: ten times faster."""

_RESTART = """
select setval(oid::regclass, seqstart, false) from pg_class join pg_sequence on seqrelid = oid where relnamespace = {schema}
"""

Connection = psycopg.Connection[Any]


def shape(admin: Connection, name: str) -> list[tuple[str, str, str]]:
    """All that can be told apart of a schema, its name aside."""
    found = admin.execute(_of(name, _SHAPE)).fetchall()
    return sorted((kind, each.replace(name, "*"), what.replace(name, "*")) for kind, each, what in found)


def _of(name: str, statement: str) -> str:
    return statement.format(name=name, schema=f"'{name}'::regnamespace")


class Schemas:
    """The schemas of one test process."""

    def __init__(self, admin: Connection, server: str) -> None:
        self._admin, self._server = admin, server
        self._resting: deque[str] = deque()
        self._new: dict[str, tuple[str, Any]] = {}
        """The clock and the stamp of each as it was made."""
        admin.execute("set client_min_messages = warning")

    def take(self) -> str:
        """A schema with the tables of the newest version, as new, that nobody else uses."""
        for _ in range(len(self._resting)):
            name = self._resting.popleft()
            if self._is_used(name):
                self._resting.append(name)
            elif self._renew(name):
                return name
            else:
                self.drop(name)
        return self._make()

    def give_back(self, name: str) -> None:
        """Take back the schema of a finished test."""
        self._resting.append(name)

    def drop(self, name: str) -> None:
        self._admin.execute(f'drop schema if exists "{name}" cascade')
        self._admin.execute("delete from public.treadle_test_clocks where schema = %s", [name])

    def close(self) -> None:
        while self._resting:
            self.drop(self._resting.pop())

    def _make(self) -> str:
        name = new_name()

        async def migrate() -> None:
            store = PostgresStore(schema_url(self._server, name), clock=ManualClock())
            await store.open()
            await store.close()

        with ThreadPoolExecutor(1) as thread:  # in this one, the loop of a test may be running
            thread.submit(lambda: asyncio.run(migrate())).result()
        clock = self._admin.execute(_of(name, "select pg_get_functiondef('{name}.treadle_now'::regproc)")).fetchall()
        self._new[name] = (clock[0][0], self._stamp(name))
        return name

    def _is_used(self, name: str) -> bool:
        connected = "select from pg_stat_activity where application_name = %s"
        return bool(self._admin.execute(connected, [name]).fetchall())

    def _renew(self, name: str) -> bool:
        """Remove all rows, also dead ones, and start the sequences and the clock again; whether it is as new then."""
        clock, stamp = self._new[name]
        written = self._admin.execute(
            "select format('%%I.%%I', nspname, relname) from pg_class join pg_namespace n on n.oid = relnamespace "
            "where nspname = %s and relkind = 'r' and relname <> all(%s) "
            "and (pg_relation_size(pg_class.oid) > 0 or pg_relation_size(nullif(reltoastrelid, 0)) > 0)",
            [name, list(FILLED_BY_MIGRATIONS)],
        ).fetchall()
        try:
            if written:
                self._admin.execute(f"truncate {', '.join(table for (table,) in written)} cascade")
            self._admin.execute(_of(name, _RESTART))
            self._admin.execute(clock)
            self._admin.execute("delete from public.treadle_test_clocks where schema = %s", [name])
            return bool(self._stamp(name) == stamp)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return False

    def _stamp(self, name: str) -> Any:
        return sorted(self._admin.execute(_of(name, _STAMP)).fetchall())


def new_name() -> str:
    """The name of a schema that is not there yet."""
    return f"t_{secrets.token_hex(6)}"


def schema_url(server: str, schema: str) -> str:
    """The URL of a schema on that server; the application name of its connections identifies it."""
    return f"{server}{'&' if '?' in server else '?'}schema={schema}&application_name={schema}"
