"""A long history for a benchmark: rows as the engine could have written them, by set-based statements; and sizes of tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.benchmark import say
from bench.servers import connect
from treadle.stores.postgres.connection.address import parse_address

CHUNK = 200_000

_FILL_POSTGRES = """
with made as materialized (
  select n, at, (lpad(to_hex(at), 12, '0') || '7' || substr(hex, 1, 3) || '8' || substr(hex, 4, 15))::uuid as id,
    n % 20 = 7 as retried, n % 100 = 50 as of_run,
    case when n % 100 in (13, 46, 79) then 'failed' when n % 100 = 60 then 'canceled' else 'completed' end as state
  from (select n, $3::bigint + (n - $1::bigint) * $4::bigint / $2::bigint as at, md5(n::text) as hex
        from generate_series($1::bigint, $1::bigint + $2::bigint - 1) as n) as numbered
), roots as (
  select made.*, case when of_run then overlay(id::text placing '9' from 20 for 1)::uuid else id end as root_id from made
), logged as (
  insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, root_id, data)
  select nextval('treadle_seq'), at + 100, 'task', id, 1, 'retry', 'pending', 'pending', 'worker-1', 1, root_id,
    '{"code":"handler_error","message":"Connection reset"}'
  from roots where retried
), runs_made as (
  insert into runs (id, namespace, kind, flow_id, workflow, state, version, transitions, steps, task_list, priority, inputs,
  outputs,
    root_id, created_at, finished_at)
  select root_id, 'default', 'function', 'f', 'bench.ten', 'completed', 3, 2, 3, 'default', 0, '{}', '{}', root_id, at, at + 300
  from roots where of_run
), runs_logged as (
  insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, run_id, root_id)
  select nextval('treadle_seq'), at + 100 * v, 'run', root_id, v, case v when 1 then 'start' else 'succeed' end,
    case v when 1 then 'pending' else 'running' end, case v when 1 then 'running' else 'completed' end, 'worker-1', root_id, root_id
  from roots cross join generate_series(1, 2) as v where of_run
), steps_made as (
  insert into steps (id, run_id, ordinal, kind, name, state, document, created_at, updated_at)
  select (left(root_id::text, 14) || '7' || substr(md5(n || '/' || s), 1, 3) || '-8' || substr(md5(n || '/' || s), 4, 3) || '-'
      || right(root_id::text, 12))::uuid, root_id, s, 'step', 'step' || s, 'completed', '{"result":1}', at, at + 200
  from roots cross join generate_series(1, 3) as s where of_run
)
insert into finished (id, seq, queue_id, namespace, state, transition, from_state, actor, owner_id, claim_version, version, attempt,
  failures, takeovers, priority, created_at, due_at, claimed_at, finished_at, run_id, root_id, payload, result, error, error_code,
  fingerprint)
select id, nextval('treadle_seq'), $5::integer, 'default', state,
  case state when 'completed' then 'succeed' when 'failed' then 'fail' else 'cancel' end, 'pending', 'worker-1', 'worker-1',
  1 + retried::integer, 1 + retried::integer, 1 + retried::integer, retried::integer + (state = 'failed')::integer, 0, 0, at, at,
  at + 50, at + 300, case when of_run then root_id end, root_id, '{"order":' || n || '}', case state when 'completed' then '{}' end,
  case when state <> 'completed' then json_build_object('code', 'handler_error', 'message',
    case when n % 2 = 0 then 'Disk full at host' else 'Connection timeout to host' end || n % 100 || ' for order' || n)::text end,
  case when state <> 'completed' then 'handler_error' end, case when state = 'failed' then 'print' || n % 10 end
from roots
"""

_FILL_SQLITE = (
    """
create temp table made as
with recursive numbered (n) as (select :first union all select n + 1 from numbered where n + 1 < :first + :count)
select n, at, printf('%08x-%04x-7%03x-8%03x-%012x', at >> 16, at & 65535, n * 7919 & 4095, n & 4095, n) as id,
  printf('%08x-%04x-7%03x-9%03x-%012x', at >> 16, at & 65535, n * 7919 & 4095, n & 4095, n) as run_id, n % 20 = 7 as retried,
  n % 100 = 50 as of_run,
  case when n % 100 in (13, 46, 79) then 'failed' when n % 100 = 60 then 'canceled' else 'completed' end as state
from (select n, :start + (n - :first) * :span / :count as at from numbered)
""",
    """
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, root_id, data)
select :seq + n * 4, at + 100, 'task', id, 1, 'retry', 'pending', 'pending', 'worker-1', 1, id,
  '{"code":"handler_error","message":"Connection reset"}'
from made where retried
""",
    """
insert into runs (id, namespace, kind, flow_id, workflow, state, version, transitions, steps, task_list, priority, inputs, outputs,
  root_id, created_at, finished_at)
select run_id, 'default', 'function', 'f', 'bench.ten', 'completed', 3, 2, 3, 'default', 0, '{}', '{}', run_id, at, at + 300
from made where of_run
""",
    """
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, run_id, root_id)
select :seq + n * 4 + v, at + 100 * v, 'run', run_id, v, iif(v = 1, 'start', 'succeed'), iif(v = 1, 'pending', 'running'),
  iif(v = 1, 'running', 'completed'), 'worker-1', run_id, run_id
from made cross join (select 1 as v union all select 2) where of_run
""",
    """
insert into steps (id, run_id, ordinal, kind, name, state, document, created_at, updated_at)
select substr(run_id, 1, 14) || '700' || s || substr(run_id, 19), run_id, s, 'step', 'step' || s, 'completed',
  '{"result":1}', at, at
from made cross join (select 1 as s union all select 2 union all select 3) where of_run
""",
    """
insert into finished (id, seq, queue_id, namespace, state, transition, from_state, actor, owner_id, claim_version, version, attempt,
  failures, takeovers, priority, created_at, due_at, claimed_at, finished_at, run_id, root_id, payload, result, error, error_code,
  fingerprint)
select id, :seq + n * 4 + 3, :queue_id, 'default', state,
  case state when 'completed' then 'succeed' when 'failed' then 'fail' else 'cancel' end, 'pending', 'worker-1', 'worker-1',
  1 + retried, 1 + retried, 1 + retried, retried + (state = 'failed'), 0, 0, at, at, at + 50, at + 300,
  iif(of_run, run_id, null), iif(of_run, run_id, id), '{"order":' || n || '}', iif(state = 'completed', '{}', null),
  iif(state <> 'completed', json_object('code', 'handler_error', 'message',
    iif(n % 2 = 0, 'Disk full at host', 'Connection timeout to host') || (n % 100) || ' for order' || n), null),
  iif(state <> 'completed', 'handler_error', null), iif(state = 'failed', 'print' || (n % 10), null)
from made
""",
    "drop table made",
)


async def fill(url: str, rows: int, span: int, now: int, *, analyze: bool = True) -> None:
    """Write `rows` finished tasks of the last `span` ms before `now`, oldest first."""
    for first, count, since, length in _chunks(rows, now - span, span):
        await _fill_some(url, first, count, since, length)
        if first and first % 1_000_000 == 0:
            say(f"{first:,} tasks are there")
    if analyze and not url.startswith("sqlite"):
        await execute(url, "vacuum (analyze) finished, log, runs, steps")


def _chunks(rows: int, start: int, span: int) -> Iterator[tuple[int, int, int, int]]:
    """The number of the first task, the number of tasks, the first instant and the time of each chunk."""
    for done in range(0, rows, CHUNK):
        count = min(CHUNK, rows - done)
        since = start + span * done // rows
        yield done, count, since, start + span * (done + count) // rows - since


async def _fill_some(url: str, first: int, count: int, start: int, span: int) -> None:
    if not url.startswith("sqlite"):
        queue_id = (await execute(url, "select min(id) from queues"))[0][0]
        await execute(url, _FILL_POSTGRES, first, count, start, span, queue_id)
        return
    import apsw

    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(60_000)
    connection.execute("pragma cache_size = -1000000; pragma synchronous = off")
    with connection:
        taken = "update seqs set value = value + ? where name = 'transition' returning value"
        (last,) = connection.execute(taken, (4 * count,)).fetchall()[0]
        seq = last - 4 * (first + count) + 1
        values = {"first": first, "count": count, "start": start, "span": span, "queue_id": 1, "seq": seq}
        for statement in _FILL_SQLITE:
            connection.execute(statement, {name: values[name] for name in values if f":{name}" in statement})
    connection.close()


_PARTITIONS = """
select part, lower_id, upper_id, treadle_id_time(lower_id) as starts_at, treadle_id_time(upper_id) as ends_at
from treadle_parts()
where treadle_id_time(lower_id) >= $1 and treadle_id_time(upper_id) <= $2
order by lower_id
"""

_INDEXES = """
select pg_get_indexdef(i.indexrelid) as index, k.conname as name, pg_get_constraintdef(k.oid) as key
from pg_index as i left join pg_constraint as k on k.conindid = i.indexrelid and k.conrelid = i.indrelid
where i.indrelid = $1::text::regclass
order by i.indexrelid
"""

_OPTIONS = "select array_to_string(reloptions, ', ') from pg_class where oid = $1::text::regclass"


async def fill_partitions(url: str, rows: int, span: int, now: int) -> None:
    """Write the same rows into new partitions that take the places of the empty ones, and build their indexes at the end.

    Each partition is one transaction, so that a server with `wal_level = minimal` writes no log for it. The tables are filled
    under their usual names in a schema of their own. The bounds of the partitions must be those of the history.
    """
    connection = await connect(url)
    schema = parse_address(url).schema
    await connection.execute(f"set statement_timeout = 0; set search_path = {schema}; set maintenance_work_mem = '1GB'")
    queue_id = await connection.fetchval("select min(id) from queues")
    parts = await connection.fetch(_PARTITIONS, now - span, now)
    share = rows // len(parts)
    for number, part in enumerate(parts):
        async with connection.transaction():
            await connection.execute(f"create schema filling; set search_path = filling, {schema}")
            for parent in ("finished", "log"):
                like = "including defaults including constraints including storage"
                await connection.execute(f"create table filling.{parent} (like {schema}.{parent} {like})")
            for first, *chunk in _chunks(share, part["starts_at"], part["ends_at"] - part["starts_at"]):
                await connection.execute(_FILL_POSTGRES, number * share + first, *chunk, queue_id, timeout=None)
            await connection.execute(f"set search_path = {schema}")
            for parent, key in (("finished", "id"), ("log", "entity_id")):
                await _replace(connection, schema, parent, key, part)
            await connection.execute("drop schema filling")
        say(f"partition {part['part']} is there")
    await connection.execute("vacuum (analyze) finished, log, runs, steps", timeout=None)
    await connection.execute("checkpoint", timeout=None)
    await connection.close()


async def _replace(connection: Any, schema: str, parent: str, key: str, part: Any) -> None:
    """Put the filled table in the place of an empty partition."""
    name = f"{parent}_{part['part']}"
    indexes, options = await connection.fetch(_INDEXES, name), await connection.fetchval(_OPTIONS, name)
    lower, upper = f"'{part['lower_id']}'", f"'{part['upper_id']}'"
    await connection.execute(f"drop table {name}")
    await connection.execute(f"alter table filling.{parent} rename to {name}")
    await connection.execute(f"alter table filling.{name} set schema {schema}")
    await connection.execute(f"alter table {name} set ({options})")
    for each in indexes:
        if each["key"] is None:
            await connection.execute(each["index"].replace(" ONLY ", " "), timeout=None)
        else:
            await connection.execute(f"alter table {name} add constraint {each['name']} {each['key']}", timeout=None)
    await connection.execute(f"alter table {name} add constraint bounds check ({key} >= {lower} and {key} < {upper})", timeout=None)
    await connection.execute(f"alter table {parent} attach partition {name} for values from ({lower}) to ({upper})", timeout=None)


async def execute(url: str, statement: str, *values: object) -> Any:
    """Run a statement in the store's schema, without a time limit."""
    connection = await connect(url)
    try:
        await connection.execute("set statement_timeout = 0")
        await connection.execute(f"set search_path = {parse_address(url).schema}")
        return await connection.fetch(statement, *values, timeout=None)
    finally:
        await connection.close()


_BYTES = """
select sum(pg_total_relation_size(oid))::bigint from pg_class
where relkind = 'r' and relnamespace = $1::text::regnamespace and (relname = 'tasks') = $2::boolean
"""


async def table_bytes(url: str) -> int:
    """The bytes of all tables with their indexes, without the live tasks on PostgreSQL."""
    if url.startswith("sqlite"):
        return _file_bytes(url)
    return int((await execute(url, _BYTES, parse_address(url).schema, False))[0][0])


async def live_bytes(url: str) -> int:
    """The bytes of the live tasks with their indexes, on PostgreSQL."""
    return int((await execute(url, _BYTES, parse_address(url).schema, True))[0][0])


INDEXES = {
    "rows": "rows of finished tasks",
    "id": "their index by id",
    "seq": "by seq",
    "created": "by time of creation",
    "others": "other indexes (errors, words, runs, trees, traces)",
    "log": "the log with its indexes",
}
"""The parts of the space of a history on PostgreSQL."""

_PARTS = """
select case
    when t.relname like 'log%' then 'log'
    when i.indexrelid is null then 'rows'
    when i.indisprimary then 'id'
    when pg_get_indexdef(i.indexrelid) like '%(seq)' then 'seq'
    when pg_get_indexdef(i.indexrelid) like '%(created_at, id)' then 'created'
    else 'others' end as part,
  sum(case when i.indexrelid is null then pg_table_size(t.oid) else pg_relation_size(i.indexrelid) end)::bigint as bytes
from pg_inherits as h
join pg_class as t on t.oid = h.inhrelid
join lateral (
  select null::oid as indexrelid, null::boolean as indisprimary
  union all
  select x.indexrelid, x.indisprimary from pg_index as x where x.indrelid = t.oid
) as i on true
where h.inhparent in ('finished'::regclass, 'log'::regclass)
group by 1
"""


async def finished_bytes(url: str) -> dict[str, int]:
    """The bytes of finished tasks and of the log by cause; nothing on SQLite."""
    return {} if url.startswith("sqlite") else {row["part"]: row["bytes"] for row in await execute(url, _PARTS)}


async def log_position(url: str) -> int:
    """The position in the server's write-ahead log; 0 on SQLite."""
    if url.startswith("sqlite"):
        return 0
    return int((await execute(url, "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"))[0][0])


def _file_bytes(url: str) -> int:
    import apsw

    file = apsw.Connection(url.removeprefix("sqlite:///"))
    try:
        return int((file.pragma("page_count") - file.pragma("freelist_count")) * file.pragma("page_size"))
    finally:
        file.close()
