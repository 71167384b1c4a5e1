"""The PostgreSQL store: connects, keeps the lanes in memory, and hands each promise to the file that keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from treadle.kernel.store.queries import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterGroup,
    Event,
    Extension,
    Health,
    History,
    LaneDepth,
    Pruned,
    PrunePage,
    Renewal,
    Rules,
    RunFilter,
    Tally,
    TaskFilter,
    Touch,
    Woken,
)
from treadle.kernel.store.units import Answer, Unit
from treadle.model.clock import Clock
from treadle.model.errors import StoreUnavailable, Unsupported
from treadle.model.handlers import HandlerRegistration
from treadle.model.lists import LaneRule, Limit, TaskList
from treadle.model.names import Lane
from treadle.model.runs import Flow, FlowVersion, Run, Step
from treadle.model.tasks import LogLine, Move, Server, Task
from treadle.stores.postgres import dead_letters, events, handlers, health, lease, limits, lists, prune, queue, reads, runs, schema
from treadle.stores.postgres.address import parse_address
from treadle.stores.postgres.commit import commit, make_way
from treadle.stores.postgres.connect import HOT, LONGEST_STATEMENT_FOR, READS, Connection, Connector, Pool
from treadle.stores.postgres.entities import EntityMethods
from treadle.stores.postgres.lease import PostgresLeaseLine
from treadle.stores.postgres.places import Places
from treadle.stores.postgres.problems import REPEATABLE, translated
from treadle.stores.postgres.signals import Ear, Voice
from treadle.stores.postgres.usage import UsageMethods

LONGEST_COMMIT = LONGEST_STATEMENT_FOR / 1000
"""Seconds after which a commit is given up, to be sent again: who follows events waits no longer for a number (D9)."""

_REPEATS = 3


class PostgresStore(UsageMethods, EntityMethods):
    """A `Store` on a schema of a PostgreSQL database (13 or newer).

    Uses up to `pool_size` connections for work, two for lists, one each to hear and to say that there is work, and one
    for each lease line. `url` is without the password.
    """

    parallel_commits = 2
    seqs_in_order = False

    def __init__(self, url: str, *, clock: Clock, pool_size: int = 4) -> None:
        self._address = parse_address(url)
        self.url = self._address.shown
        self._clock = clock
        self._pool_size = pool_size
        self._connector = Connector(self._address)
        self._hot: Pool | None = None
        self._reads: Pool | None = None
        self._ear: Ear | None = None
        self._voice: Voice | None = None
        self._places = Places(clock)
        self._lanes: dict[int, Lane] = {}
        self._lane_ids: dict[Lane, int] = {}
        self._slowed: set[int] = set()
        """Lanes that had a rate or were paused when they were last listed; a hint only."""
        self._fed = ("", "")
        """The limit key up to which wakes have looked for room."""

    async def open(self, *, migrate: bool = True) -> None:
        """Connect and check the schema, or bring it up to date."""
        with translated(self.url):
            await schema.check_schema(self._connector, READS, migrate=migrate)
        self._hot = Pool(self._connector, HOT, self._pool_size)
        self._reads = Pool(self._connector, READS, 2)
        self._ear = Ear(self._connector, self._clock)
        self._voice = Voice(self._connector, self._clock)
        await self.list_lanes()

    async def close(self) -> None:
        """Release all connections; idempotent."""
        for part in (self._ear, self._voice, self._hot, self._reads):
            if part is not None:
                await part.close()
        self._ear = self._voice = self._hot = self._reads = None

    async def migrate_to(self, version: int) -> None:
        """Bring the schema to exactly that version, up or down; on a store that is not open."""
        with translated(self.url):
            await schema.migrate_to(self._connector, READS, version)

    async def set_clock_offset(self, ms: int) -> None:
        """For tests: let the database's clock, as this store and its lease lines see it, be ahead by so much."""
        self._connector.clock_offset_for = ms

    async def now(self) -> int:
        """The database's clock."""
        async with self._working() as connection:
            return await queue.now(connection)

    # lanes

    async def lane_ids(self, lanes: Sequence[Lane]) -> dict[Lane, int]:
        """The ids of the lanes, made where they are missing."""
        missing = {lane for lane in lanes if lane not in self._lane_ids}
        if missing:
            await self.list_lanes()
            missing = {lane for lane in missing if lane not in self._lane_ids}
        if missing:
            async with self._working() as connection:
                await lists.insert_lanes(connection, missing)
            await self.list_lanes()
        return {lane: self._lane_ids[lane] for lane in lanes}

    async def list_lanes(self) -> dict[int, Lane]:
        """All lanes that there are."""
        async with self._working() as connection:
            self._lanes, self._slowed = await queue.list_lanes(connection)
        self._lane_ids = {lane: lane_id for lane_id, lane in self._lanes.items()}
        return dict(self._lanes)

    # the queue

    async def claim(self, lane_ids: Sequence[int], owner_id: str, lease_for: int, limit: int) -> list[Task]:
        """Take up to `limit` ready tasks; see the port."""
        if not lane_ids or limit <= 0:
            return []
        if any(lane_id not in self._lanes for lane_id in lane_ids):
            await self.list_lanes()
        async with self._working() as connection:
            slowed = bool(self._slowed) and not self._slowed.isdisjoint(lane_ids)
            after = await self._places.after(connection, lane_ids)
            tasks = await queue.claim(connection, self._lanes, lane_ids, owner_id, lease_for, limit, slowed=slowed, after=after)
        self._places.took(tasks)
        return tasks

    async def wake(self, limit: int, *, expire_leases: bool = True) -> Woken:
        """Make tasks ready whose time has come; see the port."""
        async with self._working() as connection:
            woken, self._fed = await queue.wake(connection, limit, expire_leases=expire_leases, fed=self._fed)
        return woken

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
        """Extend the claims that are still held; until when."""
        if not renewals:
            return {}
        async with self._working() as connection:
            return await lease.extend(connection, renewals, lease_for)

    async def commit(self, units: Sequence[Unit]) -> list[Answer]:
        """Do the units in one transaction; see the port."""
        if not units:
            return []
        lanes = {task.lane for unit in units for task in unit.tasks}
        if lanes:
            await self.lane_ids(list(lanes))
        with translated(self.url):
            for _ in range(_REPEATS):
                try:
                    async with self._pool(self._hot).connection() as connection, asyncio.timeout(LONGEST_COMMIT):
                        return await commit(connection, self._lane_ids, units)
                except REPEATABLE as error:
                    async with self._pool(self._hot).connection() as connection:
                        await make_way(connection, units, error)
            async with self._pool(self._hot).connection() as connection, asyncio.timeout(LONGEST_COMMIT):
                return await commit(connection, self._lane_ids, units)

    async def next_token_for(self, lane_ids: Sequence[int]) -> int | None:
        """When a lane with a rate may be looked at again; nothing is asked where none is known to have one."""
        if self._slowed.isdisjoint(lane_ids):
            return None
        async with self._working() as connection:
            return await lists.next_token_for(connection, lane_ids)

    # task lists, rates and limits

    async def list_lists(self) -> list[TaskList]:
        """The lists that something was said about."""
        async with self._reading() as connection:
            return await lists.list_lists(connection)

    async def set_list(
        self,
        namespace: str,
        task_list: str,
        *,
        paused: bool | None = None,
        accepting: bool | None = None,
        no_handler: str | None = None,
    ) -> tuple[int, ...]:
        """Change what is not None, for the list and its lanes."""
        async with self._reading() as connection:
            return await lists.set_list(connection, namespace, task_list, paused, accepting, no_handler)

    async def list_lane_rules(self) -> list[LaneRule]:
        """All lanes, and what was said about them."""
        async with self._reading() as connection:
            return await lists.list_lane_rules(connection)

    async def set_rate(self, lane_id: int, rate: float | None, burst: int | None) -> None:
        """A lane's rate."""
        async with self._working() as connection:
            await lists.set_rate(connection, lane_id, rate, burst)
        await self.list_lanes()

    async def set_backlog_limit(self, lane_id: int, backlog_limit: int | None) -> None:
        """A lane's cap on ready tasks."""
        async with self._working() as connection:
            await lists.set_backlog_limit(connection, lane_id, backlog_limit)

    async def list_limits(self, namespace: str) -> list[Limit]:
        """All limits of the namespace."""
        async with self._reading() as connection:
            return await limits.list_limits(connection, namespace)

    async def list_admitted(self, namespace: str, key: str, limit: int) -> list[str]:
        """Admitted tasks of the key."""
        async with self._reading() as connection:
            return await limits.list_admitted(connection, namespace, key, limit)

    async def set_limit(self, namespace: str, key: str, max_running: int | None) -> tuple[int, ...]:
        """An operator's limit of the key."""
        async with self._reading() as connection:
            return tuple(sorted(await limits.set_limit(connection, namespace, key, max_running)))

    # reads

    async def find_task(self, task_id: str) -> Task | None:
        """The task, live or finished."""
        async with self._reading() as connection:
            return await reads.find_task(connection, task_id)

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        """Those of the tasks that are finished."""
        async with self._working() as connection:
            return await reads.find_finished(connection, task_ids)

    async def list_tasks(self, which: TaskFilter, limit: int) -> list[Task]:
        """Up to `limit` tasks, newest first."""
        async with self._reading() as connection:
            return await reads.list_tasks(connection, which, limit)

    async def list_depths(self) -> list[LaneDepth]:
        """The depth of every lane that has a live task."""
        async with self._reading() as connection:
            return await reads.list_depths(connection)

    async def count_finished(self) -> dict[str, int]:
        """Finished tasks by state."""
        async with self._reading() as connection:
            return await reads.count_finished(connection)

    async def list_moves(self, entity_id: str) -> list[Move]:
        """The entity's moves in order."""
        async with self._reading() as connection:
            return await reads.list_moves(connection, entity_id)

    async def list_histories(self, after_id: str | None, limit: int) -> list[History]:
        """A page of entities with their moves."""
        async with self._reading() as connection:
            return await reads.list_histories(connection, after_id, limit)

    # events

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        """Moves in the order of seq."""
        async with self._working() as connection:
            return await events.list_events(connection, after_seq, until_seq, limit)

    async def find_last_seq(self) -> int:
        """The last number given."""
        async with self._working() as connection:
            return await events.find_last_seq(connection)

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        """Moves of tasks by minute."""
        async with self._working() as connection:
            return await events.tally(connection, after_seq, until_seq)

    # dead letters

    async def list_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        """Failed tasks, the last to fail first."""
        async with self._reading() as connection:
            return await dead_letters.list_dead_letters(connection, which, limit)

    async def walk_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[DeadLetter]:
        """Failed tasks without their values, the first to fail first."""
        async with self._reading() as connection:
            return await dead_letters.walk_dead_letters(connection, which, limit)

    async def group_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
        """Groups of failed tasks, the biggest first."""
        async with self._reading() as connection:
            return await dead_letters.group_dead_letters(connection, which, limit)

    async def count_dead_letters(self, which: DeadLetterFilter) -> tuple[int, int, int]:
        """How many, of runs, and the greatest seq."""
        async with self._reading() as connection:
            return await dead_letters.count_dead_letters(connection, which)

    # runs

    async def find_run(self, run_id: str) -> Run | None:
        """The run."""
        async with self._working() as connection:
            return await runs.find_run(connection, run_id)

    async def find_finished_runs(self, run_ids: Sequence[str]) -> list[Run]:
        """Those of the runs that are finished."""
        async with self._working() as connection:
            return await runs.find_finished_runs(connection, run_ids)

    async def list_runs(self, which: RunFilter, limit: int) -> list[Run]:
        """Runs, newest first."""
        async with self._reading() as connection:
            return await runs.list_runs(connection, which, limit)

    async def count_runs(self, namespace: str) -> dict[str, int]:
        """Runs by state."""
        async with self._reading() as connection:
            return await runs.count_runs(connection, namespace)

    async def count_matching_runs(self, which: RunFilter) -> dict[str, int]:
        """See `Store.count_matching_runs`."""
        async with self._reading() as connection:
            return await runs.count_matching_runs(connection, which)

    async def load_steps(
        self, run_id: str, near: Sequence[str] = (), rows: Sequence[str] = (), children_of: Sequence[str] = ()
    ) -> list[Step]:
        """Steps near others, by id, and below others."""
        async with self._working() as connection:
            return await runs.load_steps(connection, run_id, near, rows, children_of)

    async def list_inbox(self, run_id: str, limit: int) -> list[Step]:
        """Steps with something in their inbox."""
        async with self._working() as connection:
            return await runs.list_inbox(connection, run_id, limit)

    async def list_steps(self, run_id: str, after_id: str | None, limit: int) -> list[Step]:
        """A page of the run's steps."""
        async with self._reading() as connection:
            return await runs.list_steps(connection, run_id, after_id, limit)

    async def find_flow(self, flow_id: str) -> Flow | None:
        """The flow of that digest."""
        async with self._working() as connection:
            return await runs.find_flow(connection, flow_id)

    async def publish_flow(self, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        """Give the flow the next version of the name."""
        async with self._reading() as connection:
            return await runs.publish_flow(connection, namespace, name, flow_id, actor)

    async def find_flow_version(self, namespace: str, name: str, version: int | None = None) -> FlowVersion | None:
        """A version of a published flow."""
        async with self._reading() as connection:
            return await runs.find_flow_version(connection, namespace, name, version)

    async def list_flow_versions(self, namespace: str, name: str | None = None) -> list[FlowVersion]:
        """All versions of one name, or the newest of each."""
        async with self._reading() as connection:
            return await runs.list_flow_versions(connection, namespace, name)

    async def find_blobs(self, digests: Sequence[str]) -> dict[str, str]:
        """Big values by digest."""
        async with self._working() as connection:
            return await runs.find_blobs(connection, digests)

    # retention

    async def find_prunable(self, rules: Rules, cursor: str | None, limit: int, *, count: bool = False) -> PrunePage:
        """The next trees of the walk that may be pruned."""
        async with self._working() as connection:
            return await prune.find_prunable(connection, rules, cursor, limit, count=count)

    async def prune_trees(self, rules: Rules, roots: Sequence[str], limit: int) -> Pruned:
        """Remove the trees, up to about `limit` rows."""
        async with self._working() as connection:
            return await prune.prune_trees(connection, rules, list(roots), limit)

    async def set_keep(self, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None) -> None:
        """A list's own rules."""
        async with self._working() as connection:
            await prune.set_keep(connection, namespace, task_list, completed_for, failed_for)

    async def prune_rest(self, limit: int, keep_servers_for: int, keep_records_for: int) -> tuple[int, int, int]:
        """Remove old keys, servers and records of no tree."""
        async with self._working() as connection:
            return await prune.prune_rest(connection, limit, keep_servers_for, keep_records_for)

    async def compact(self, *, whole: bool = False) -> int:
        """Nothing: autovacuum does it."""
        if whole:
            raise Unsupported(f"{self.url} gives space back by itself (autovacuum). To write a table anew: `vacuum full finished`.")
        return 0

    # agents

    async def find_step(self, step_id: str) -> Step | None:
        """The step of that id."""
        async with self._reading() as connection:
            return await handlers.find_step(connection, step_id)

    async def list_handlers(self, namespace: str) -> list[HandlerRegistration]:
        """Handler registrations by name."""
        async with self._reading() as connection:
            return await handlers.list_handlers(connection, namespace)

    async def save_handler(self, namespace: str, registration: HandlerRegistration) -> None:
        """Insert or replace a registration."""
        async with self._working() as connection:
            await handlers.save_handler(connection, namespace, registration)

    async def delete_handler(self, namespace: str, facet_name: str) -> bool:
        """Remove a registration."""
        async with self._working() as connection:
            return await handlers.delete_handler(connection, namespace, facet_name)

    # servers and lines

    async def list_servers(self) -> list[Server]:
        """All servers, newest first."""
        async with self._reading() as connection:
            return await reads.list_servers(connection)

    async def save_server(self, server: Server) -> None:
        """Insert or update the server's row."""
        async with self._working() as connection:
            await lease.beat(connection, server)

    async def touch_servers(self, touches: Sequence[Touch]) -> list[Server]:
        """Note that servers are alive; the rows of those that have not stopped."""
        if not touches:
            return []
        async with self._working() as connection:
            return await lease.touch_servers(connection, touches)

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        """Store what handlers wrote."""
        if lines:
            async with self._working() as connection:
                await reads.append_lines(connection, lines)

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        """The task's last lines, oldest first."""
        async with self._reading() as connection:
            return await reads.list_lines(connection, task_id, limit)

    async def list_run_lines(self, run_id: str, limit: int) -> list[LogLine]:
        """The run's last lines, oldest first."""
        async with self._reading() as connection:
            return await reads.list_run_lines(connection, run_id, limit)

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """See `Store.page_run_lines`."""
        async with self._reading() as connection:
            return await reads.page_run_lines(connection, run_id, limit, before, after)

    # signals

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Call `heard` when tasks became ready; see the port."""
        if self._ear is None:
            raise _not_open(self.url)
        return await self._ear.subscribe(heard)

    async def notify(self, lane_ids: Sequence[int]) -> None:
        """Tell all subscribers of this schema; may be lost."""
        if self._voice is None:
            raise _not_open(self.url)
        await self._voice.notify(lane_ids)

    def lease_connection(self) -> PostgresLeaseLine:
        """A new way to renew leases, for one thread."""
        return PostgresLeaseLine(self._connector)

    # health

    async def describe(self) -> dict[str, object]:
        """What the store is."""
        async with self._reading() as connection:
            version = await schema.read_version(connection)
            found = await reads.describe(connection)
        return {"kind": "postgresql", "url": self.url, "schema": self._address.schema, "schema_version": version} | found

    async def overdue_for(self) -> int:
        """For how long the first due `wake_at` has been due."""
        async with self._reading() as connection:
            return await health.overdue_for(connection)

    async def health(self) -> Health:
        """Sizes, dead rows, old snapshots, and what is overdue."""
        async with self._reading() as connection:
            return await health.health(connection)

    async def backup(self, path: str) -> int:
        """Not here: PostgreSQL has its own tools."""
        raise Unsupported(
            f"Back {self.url} up with PostgreSQL's own tools: `pg_dump --format=custom --schema={self._address.schema} "
            f"--file={path} URL` for this schema (back with pg_restore), or base backups of the whole server."
        )

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[Connection]:
        with translated(self.url):
            async with self._pool(self._hot).connection() as connection:
                yield connection

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Connection]:
        with translated(self.url):
            async with self._pool(self._reads).connection() as connection:
                yield connection

    def _pool(self, pool: Pool | None) -> Pool:
        if pool is None:
            raise _not_open(self.url)
        return pool


def _not_open(shown: str) -> StoreUnavailable:
    return StoreUnavailable(f"The store {shown} is not open: call open() first.")
