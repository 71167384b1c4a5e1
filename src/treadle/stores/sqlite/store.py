"""The store itself: each promise of `treadle.kernel.store.ports` handed to the connection that keeps it.

In a file, one thread writes and one reads, each with its own connection; leases are renewed by the writing thread too,
in its turn, which no event loop can block. In memory or inline there are no threads at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import apsw

from treadle.kernel.store.ports import LeaseConnection
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
from treadle.model.handlers import HandlerRegistration
from treadle.model.lists import LaneRule, Limit, TaskList
from treadle.model.names import Lane
from treadle.model.runs import Flow, FlowVersion, Run, Step
from treadle.model.tasks import Claim, LogLine, Move, Server, Task
from treadle.stores.dedupe import has_keys
from treadle.stores.sqlite import dead_letters, dedupe, events, handlers, health, limits, lists, prune, queue, reads, runs, servers
from treadle.stores.sqlite.channel import Channel, ClosedChannel, InlineChannel, ThreadChannel
from treadle.stores.sqlite.commit import commit
from treadle.stores.sqlite.connection import add_shapes, connect, make_durable, make_shrinkable, refuse_writes, writing
from treadle.stores.sqlite.describe import describe
from treadle.stores.sqlite.entities import EntityMethods
from treadle.stores.sqlite.lanes import list_lanes, make_lanes
from treadle.stores.sqlite.place import check_place
from treadle.stores.sqlite.schema import IN_MEMORY, NEWEST, check_version, migrate_to, read_version
from treadle.stores.sqlite.signals import Subscribers
from treadle.stores.sqlite.usage import UsageMethods
from treadle.stores.sqlite.wal import Checkpointer


class SqliteStore(UsageMethods, EntityMethods):
    """One SQLite database: a file that several processes of one machine may share, or memory that only this store sees."""

    parallel_commits = 1
    seqs_in_order = True

    def __init__(self, path: str | None, *, clock: Clock, inline: bool = False) -> None:
        self.url = "memory://" if path is None else f"sqlite:///{path}"
        self._path = path
        self._shown = path or IN_MEMORY
        self._clock = clock
        self._inline = inline or path is None
        self._create = True
        self._lanes: Mapping[Lane, int] = {}
        self._subscribers = Subscribers()
        self._writer: Channel = ClosedChannel()
        self._reader: Channel = self._writer

    # opening and closing

    async def open(self, *, migrate: bool = True) -> None:
        """Connect and check the schema, as the port says."""
        if self._path is not None:
            check_place(Path(self._path), create=migrate)
        self._create = migrate
        if self._inline:
            self._writer = self._reader = InlineChannel(self._connect_writer, self._shown)
        else:
            self._writer = ThreadChannel(self._connect_writer, self._shown, "treadle-sqlite-writer")
            self._reader = ThreadChannel(self._connect_reader, self._shown, "treadle-sqlite-reader")
        try:
            await self._writer.call(partial(self._prepare, migrate=migrate))
        except BaseException:
            await self.close()
            raise

    def beside(self, clock: Clock) -> SqliteStore:
        """The same database, open as this one is, as another process with its own clock sees it; for stores without threads.

        The one that was opened closes it for all.
        """
        other = SqliteStore(self._path, clock=clock, inline=True)
        other._writer = other._reader = self._writer
        other._lanes = dict(self._lanes)
        return other

    def _connect_writer(self) -> apsw.Connection:
        return connect(self._path, create=self._create)

    def _connect_reader(self) -> apsw.Connection:
        connection = connect(self._path, create=False)
        add_shapes(connection)
        refuse_writes(connection)
        return connection

    def _prepare(self, connection: apsw.Connection, *, migrate: bool) -> None:
        version = read_version(connection)
        check_version(version, self._shown, migrate=migrate)
        if self._path is not None:
            make_shrinkable(connection)
            make_durable(connection)
            self._writer.after = Checkpointer(connection).tidy
        if version < NEWEST:
            migrate_to(connection, NEWEST, self._shown)
        if self._inline:
            add_shapes(connection)
        self._lanes = {lane: lane_id for lane_id, lane in list_lanes(connection).items()}

    async def close(self) -> None:
        """Release everything; idempotent."""
        self._subscribers.clear()
        self._writer.on_change = None
        await self._reader.close()
        await self._writer.close()

    async def migrate_to(self, version: int) -> None:
        """Bring the schema to that version, up or down; 0 removes everything. Only for an open store that nobody uses."""

        def work(connection: apsw.Connection) -> None:
            migrate_to(connection, version, self._shown)
            self._lanes = {}

        await self._writer.call(work)

    async def now(self) -> int:
        """The clock that this store was given."""
        return self._clock.now()

    # lanes

    async def lane_ids(self, lanes: Sequence[Lane]) -> dict[Lane, int]:
        """The ids of the lanes, made where they are missing."""
        if any(lane not in self._lanes for lane in lanes):

            def work(connection: apsw.Connection) -> None:
                with writing(connection):
                    known = make_lanes(connection, lanes)
                self._lanes = known

            await self._writer.call(work)
        return {lane: self._lanes[lane] for lane in lanes}

    async def list_lanes(self) -> dict[int, Lane]:
        """All lanes that there are."""
        return await self._reader.call(list_lanes)

    # the queue

    async def claim(self, lane_ids: Sequence[int], owner_id: str, lease_for: int, limit: int) -> list[Task]:
        """Take ready tasks."""
        return await self._writer.call(
            lambda connection: queue.claim(connection, self._clock, lane_ids, owner_id, lease_for, limit)
        )

    async def wake(self, limit: int, *, expire_leases: bool = True) -> Woken:
        """Make tasks ready whose time has come."""
        return await self._writer.call(lambda connection: queue.wake(connection, self._clock, limit, expire_leases))

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
        """Extend the claims that are still held; until when."""
        if not renewals:
            return {}
        return await self._writer.call(lambda connection: queue.extend(connection, self._clock, renewals, lease_for))

    async def commit(self, units: Sequence[Unit]) -> list[Answer]:
        """Do the units, each as a whole or not at all, in one transaction."""
        if not units:
            return []

        def work(connection: apsw.Connection) -> list[Answer]:
            with writing(connection):
                now = self._clock.now()
                if not has_keys(units):
                    answers, known = commit(connection, units, self._lanes, now)
                else:
                    deduped = dedupe.take_keys(connection, units, now)
                    answers, known = commit(connection, deduped.units, self._lanes, now)
                    answers = dedupe.settle_keys(connection, deduped, units, answers)
            self._lanes = known
            return answers

        return await self._writer.call(work)

    async def next_token_for(self, lane_ids: Sequence[int]) -> int | None:
        """When a lane with a rate may be looked at again."""
        return await self._reader.call(lambda connection: lists.next_token_for(connection, lane_ids, self._clock.now()))

    # task lists, rates and limits

    async def list_lists(self) -> list[TaskList]:
        """The lists that something was said about."""
        return await self._reader.call(lists.list_lists)

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
        said = {"paused": paused, "accepting": accepting, "no_handler": no_handler}
        return await self._writer.call(lambda connection: lists.set_list(connection, namespace, task_list, **said))

    async def list_lane_rules(self) -> list[LaneRule]:
        """All lanes, and what was said about them."""
        return await self._reader.call(lists.list_lane_rules)

    async def set_rate(self, lane_id: int, rate: float | None, burst: int | None) -> None:
        """A lane's rate."""
        await self._writer.call(lambda connection: lists.set_rate(connection, self._clock, lane_id, rate, burst))

    async def set_backlog_limit(self, lane_id: int, backlog_limit: int | None) -> None:
        """A lane's cap on ready tasks."""
        await self._writer.call(lambda connection: lists.set_backlog_limit(connection, lane_id, backlog_limit))

    async def list_limits(self, namespace: str) -> list[Limit]:
        """All limits of the namespace."""
        return await self._reader.call(lambda connection: limits.list_limits(connection, namespace))

    async def list_admitted(self, namespace: str, key: str, limit: int) -> list[str]:
        """Admitted tasks of the key."""
        return await self._reader.call(lambda connection: limits.list_admitted(connection, namespace, key, limit))

    async def set_limit(self, namespace: str, key: str, max_running: int | None) -> tuple[int, ...]:
        """An operator's limit of the key."""
        lanes = await self._writer.call(lambda connection: limits.set_limit(connection, namespace, key, max_running))
        return tuple(sorted(lanes))

    # reads

    async def find_task(self, task_id: str) -> Task | None:
        """The task, live or finished."""
        return await self._reader.call(lambda connection: reads.find_task(connection, task_id))

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        """Those of the tasks that are finished."""
        return await self._reader.call(lambda connection: reads.find_finished(connection, task_ids))

    async def list_tasks(self, which: TaskFilter, limit: int) -> list[Task]:
        """Tasks, newest first."""
        return await self._reader.call(lambda connection: reads.list_tasks(connection, which, limit))

    async def list_depths(self) -> list[LaneDepth]:
        """The depth of every lane that has a live task."""
        return await self._reader.call(reads.list_depths)

    async def count_finished(self) -> dict[str, int]:
        """Finished tasks by state."""
        return await self._reader.call(reads.count_finished)

    async def list_moves(self, entity_id: str) -> list[Move]:
        """The entity's moves in order of version."""
        return await self._reader.call(lambda connection: reads.list_moves(connection, entity_id))

    async def list_histories(self, after_id: str | None, limit: int) -> list[History]:
        """Histories in order of id."""
        return await self._reader.call(lambda connection: reads.list_histories(connection, after_id, limit))

    # events

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        """Moves in the order of their commits."""
        return await self._reader.call(lambda connection: events.list_events(connection, after_seq, until_seq, limit))

    async def find_last_seq(self) -> int:
        """The last number given."""
        return await self._reader.call(events.find_last_seq)

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        """Moves of tasks by minute."""
        return await self._reader.call(lambda connection: events.tally(connection, after_seq, until_seq))

    # dead letters

    async def list_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        """Failed tasks, the last to fail first."""
        return await self._reader.call(lambda connection: dead_letters.list_dead_letters(connection, which, limit))

    async def walk_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[DeadLetter]:
        """Failed tasks without their values, the first to fail first."""
        return await self._reader.call(lambda connection: dead_letters.walk_dead_letters(connection, which, limit))

    async def group_dead_letters(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
        """Groups of failed tasks, the biggest first."""
        return await self._reader.call(lambda connection: dead_letters.group_dead_letters(connection, which, limit))

    async def count_dead_letters(self, which: DeadLetterFilter) -> tuple[int, int, int]:
        """How many, of runs, and the greatest seq."""
        return await self._reader.call(lambda connection: dead_letters.count_dead_letters(connection, which))

    # runs

    async def find_run(self, run_id: str) -> Run | None:
        """The run."""
        return await self._reader.call(lambda connection: runs.find_run(connection, run_id))

    async def find_finished_runs(self, run_ids: Sequence[str]) -> list[Run]:
        """Those of the runs that are finished."""
        return await self._reader.call(lambda connection: runs.find_finished_runs(connection, run_ids))

    async def list_runs(self, which: RunFilter, limit: int) -> list[Run]:
        """Runs, newest first."""
        return await self._reader.call(lambda connection: runs.list_runs(connection, which, limit))

    async def count_runs(self, namespace: str) -> dict[str, int]:
        """Runs by state."""
        return await self._reader.call(lambda connection: runs.count_runs(connection, namespace))

    async def count_matching_runs(self, which: RunFilter) -> dict[str, int]:
        """See `Store.count_matching_runs`."""
        return await self._reader.call(lambda connection: runs.count_matching_runs(connection, which))

    async def load_steps(
        self, run_id: str, near: Sequence[str] = (), rows: Sequence[str] = (), children_of: Sequence[str] = ()
    ) -> list[Step]:
        """Steps near others, by id, and below others."""
        return await self._reader.call(lambda connection: runs.load_steps(connection, run_id, near, rows, children_of))

    async def list_inbox(self, run_id: str, limit: int) -> list[Step]:
        """Steps with something in their inbox."""
        return await self._reader.call(lambda connection: runs.list_inbox(connection, run_id, limit))

    async def list_steps(self, run_id: str, after_id: str | None, limit: int) -> list[Step]:
        """A page of the run's steps."""
        return await self._reader.call(lambda connection: runs.list_steps(connection, run_id, after_id, limit))

    async def find_flow(self, flow_id: str) -> Flow | None:
        """The flow of that digest."""
        return await self._reader.call(lambda connection: runs.find_flow(connection, flow_id))

    async def publish_flow(self, namespace: str, name: str, flow_id: str, actor: str) -> FlowVersion:
        """Give the flow the next version of the name."""
        now = self._clock.now()
        return await self._writer.call(lambda connection: runs.publish_flow(connection, namespace, name, flow_id, actor, now))

    async def find_flow_version(self, namespace: str, name: str, version: int | None = None) -> FlowVersion | None:
        """A version of a published flow."""
        return await self._reader.call(lambda connection: runs.find_flow_version(connection, namespace, name, version))

    async def list_flow_versions(self, namespace: str, name: str | None = None) -> list[FlowVersion]:
        """All versions of one name, or the newest of each."""
        return await self._reader.call(lambda connection: runs.list_flow_versions(connection, namespace, name))

    async def find_blobs(self, digests: Sequence[str]) -> dict[str, str]:
        """Big values by digest."""
        return await self._reader.call(lambda connection: runs.find_blobs(connection, digests))

    # retention

    async def find_prunable(self, rules: Rules, cursor: str | None, limit: int, *, count: bool = False) -> PrunePage:
        """The next trees of the walk that may be pruned."""
        now = self._clock.now()
        return await self._reader.call(lambda connection: prune.find_prunable(connection, rules, cursor, limit, now, count=count))

    async def prune_trees(self, rules: Rules, roots: Sequence[str], limit: int) -> Pruned:
        """Remove the trees, up to about `limit` rows."""
        return await self._writer.call(lambda connection: prune.prune_trees(connection, rules, roots, limit, self._clock.now()))

    async def set_keep(self, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None) -> None:
        """A list's own rules."""
        await self._writer.call(lambda connection: prune.set_keep(connection, namespace, task_list, completed_for, failed_for))

    async def prune_rest(self, limit: int, keep_servers_for: int, keep_records_for: int) -> tuple[int, int, int]:
        """Remove old keys, servers and records of no tree."""
        now = self._clock.now()
        return await self._writer.call(
            lambda connection: prune.prune_rest(connection, limit, keep_servers_for, keep_records_for, now)
        )

    async def compact(self, *, whole: bool = False) -> int:
        """Give free pages back to the file system."""
        return await self._writer.call(lambda connection: prune.compact(connection, whole=whole))

    # agents

    async def find_step(self, step_id: str) -> Step | None:
        """The step of that id."""
        return await self._reader.call(lambda connection: handlers.find_step(connection, step_id))

    async def list_handlers(self, namespace: str) -> list[HandlerRegistration]:
        """Handler registrations by name."""
        return await self._reader.call(lambda connection: handlers.list_handlers(connection, namespace))

    async def save_handler(self, namespace: str, registration: HandlerRegistration) -> None:
        """Insert or replace a registration."""
        now = self._clock.now()
        await self._writer.call(lambda connection: handlers.save_handler(connection, namespace, registration, now))

    async def delete_handler(self, namespace: str, facet_name: str) -> bool:
        """Remove a registration."""
        return await self._writer.call(lambda connection: handlers.delete_handler(connection, namespace, facet_name))

    # servers and lines

    async def list_servers(self) -> list[Server]:
        """All servers, newest first."""
        return await self._reader.call(servers.list_servers)

    async def save_server(self, server: Server) -> None:
        """Insert or update the server's row."""
        await self._writer.call(lambda connection: servers.save_server(connection, server, self._clock.now()))

    async def touch_servers(self, touches: Sequence[Touch]) -> list[Server]:
        """Note that servers are alive; the rows of those that have not stopped."""
        if not touches:
            return []
        return await self._writer.call(lambda connection: servers.touch_servers(connection, touches, self._clock.now()))

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        """Store what handlers wrote."""
        if lines:
            await self._writer.call(lambda connection: servers.append_lines(connection, lines))

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        """The task's last lines, oldest first."""
        return await self._reader.call(lambda connection: servers.list_lines(connection, task_id, limit))

    async def list_run_lines(self, run_id: str, limit: int) -> list[LogLine]:
        """The run's last lines, oldest first."""
        return await self._reader.call(lambda connection: servers.list_run_lines(connection, run_id, limit))

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """See `Store.page_run_lines`."""
        return await self._reader.call(lambda connection: servers.page_run_lines(connection, run_id, limit, before, after))

    # signals

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Call `heard` on this loop when tasks became ready; other processes are looked at every 25 ms."""
        key = self._subscribers.add(heard)
        if self._path is not None and self._writer.on_change is None:
            self._writer.on_change = partial(self._subscribers.tell, ())
            self._writer.look()

        def stop() -> None:
            self._subscribers.remove(key)
            if not self._subscribers:
                self._writer.on_change = None

        return stop

    async def notify(self, lane_ids: Sequence[int]) -> None:
        """Tell the subscribers of this process; others see the change in the file itself."""
        self._subscribers.tell(tuple(lane_ids))

    def lease_connection(self) -> LeaseConnection:
        """A way to renew leases that does not need the event loop."""
        return SqliteLine(self._writer, self._clock)

    # health

    async def describe(self) -> dict[str, object]:
        """What the store is, and how big."""
        return await self._reader.call(lambda connection: describe(connection, self._path))

    async def overdue_for(self) -> int:
        """For how long the first due `wake_at` has been due."""
        now = self._clock.now()
        return await self._reader.call(lambda connection: health.overdue_for(connection, now))

    async def health(self) -> Health:
        """Sizes, and what is overdue."""
        now = self._clock.now()
        return await self._reader.call(lambda connection: health.health(connection, self._path, now))

    async def backup(self, path: str) -> int:
        """A copy in a new file; others write meanwhile."""
        return await self._reader.call(lambda connection: health.backup(connection, Path(path)))


class SqliteLine:
    """Blocking calls for a thread of its own, done by the writer in its turn."""

    def __init__(self, writer: Channel, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        """Extend the claims that are still held."""
        if not renewals:
            return set()
        return self._writer.call_blocking(lambda connection: queue.renew(connection, self._clock, renewals, lease_for))

    def held(self, claims: Sequence[Claim]) -> set[str]:
        """The ids of those tasks whose claim is still as given."""
        return self._writer.call_blocking(lambda connection: queue.held(connection, claims))

    def beat(self, server: Server) -> None:
        """Insert or update the server's row."""
        self._writer.call_blocking(lambda connection: servers.save_server(connection, server, self._clock.now()))

    def now(self) -> int:
        """The store's clock."""
        return self._clock.now()

    def close(self) -> None:
        """Nothing to give back: the connection is the store's."""
