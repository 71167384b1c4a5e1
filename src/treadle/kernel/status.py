"""System status from a few indexed reads, and the troubles among them.

The cost depends on the backlog and the dead letters, never on history: finished tasks are not counted and the store is not
measured. A trouble is a condition that needs an operator; waiting or paused work is not one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treadle.api.system import ScheduleFiring
from treadle.api.wire import Instant
from treadle.kernel.queue.interpreter_holds import find_hold
from treadle.kernel.queue.why import LIVE_SERVER_STATES, OPEN_SERVICE, is_own, serves, shown_server_state
from treadle.kernel.reads.service import ShownServer
from treadle.kernel.store.health import LATE_FOR
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import DeadLetterFilter, LaneDepth
from treadle.kernel.store.records import RecordFilter
from treadle.model.clock import Clock
from treadle.model.errors import UnreadableValue
from treadle.model.external import RAISES_IN_ROW, ExternalProductionRecord
from treadle.model.records import UNREADABLE
from treadle.model.states import APPROVAL, EXTERNAL, OBJECTIVE
from treadle.model.stored import read

if TYPE_CHECKING:
    from treadle.kernel.schedules.service import Schedules
    from treadle.kernel.watchers.service import Watchers

SLOW_FOR = 1_000
"""Milliseconds after which a store response counts as slow."""

RECENTLY_FOR = 3_600_000
"""A server lost longer ago than this is listed but is no longer a trouble."""

FIRINGS = 5
_SCHEDULES = 1000
_JOBS = 200
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Status:
    """The system at `now`; durations are milliseconds."""

    now: int
    latency_for: int
    """Duration of a small read from the store."""
    overdue_for: int
    """Age of the oldest due task."""
    depths: tuple[LaneDepth, ...]
    runs: dict[str, int]
    dead_letters: int
    approvals: int
    """Approvals that wait for a decision."""
    blocked_objectives: int
    failing_jobs: tuple[str, ...]
    """External jobs whose last polls raised, or lost their workers."""
    servers: tuple[ShownServer, ...]
    next_firings: list[ScheduleFiring]
    unreadable: tuple[str, ...] = ()
    """Schedules and watchers whose records cannot be read."""

    @property
    def users_depths(self) -> list[LaneDepth]:
        """Depths of lanes with user work (not the engine's own)."""
        return [depth for depth in self.depths if not is_own(depth.lane)]

    @property
    def engine_tasks(self) -> int:
        """Number of live tasks of the engine itself."""
        return sum(each.ready + each.running + each.waiting + each.held for each in self.depths if is_own(each.lane))

    @property
    def server_states(self) -> dict[str, int]:
        """Number of servers by displayed state."""
        return dict(sorted(Counter(shown.state for shown in self.servers).items()))

    @property
    def live_servers(self) -> int:
        """Number of live servers that work; an open HTTP server is listed only to show that it is open."""
        return sum(shown.state in LIVE_SERVER_STATES and shown.server.service_name != OPEN_SERVICE for shown in self.servers)

    @property
    def open_servers(self) -> list[str]:
        """Names of live HTTP servers whose callers need no token."""
        live = [shown.server for shown in self.servers if shown.state in LIVE_SERVER_STATES]
        return sorted(f"{server.name} on {server.host}" for server in live if server.service_name == OPEN_SERVICE)


async def read_status(store: Store, clock: Clock, schedules: Schedules, watchers: Watchers, namespace: str) -> Status:
    """Read the current status."""
    asked_at = clock.monotonic()
    await store.find_last_seq()
    latency_for = round((clock.monotonic() - asked_at) * 1000)
    now = await store.now()
    dead, _, _ = await store.count_dead_letters(DeadLetterFilter(namespace=namespace))
    known, watched = await schedules.list_schedules(limit=_SCHEDULES), await watchers.list_watchers(limit=_SCHEDULES)
    fires = [each for each in known if each.state == "active" and each.next_at is not None]
    firing = [ScheduleFiring(each.name, Instant.of(each.next_at or 0)) for each in fires]
    unreadable = [f"schedule {each.name}" for each in known if each.state == UNREADABLE]
    unreadable += [f"watcher {each.name}" for each in watched if each.state == UNREADABLE]
    return Status(
        now=now,
        latency_for=latency_for,
        overdue_for=await store.overdue_for(),
        depths=tuple(depth for depth in await store.list_depths() if depth.lane.namespace == namespace),
        runs=await store.count_runs(namespace),
        dead_letters=dead,
        approvals=(await store.count_records(namespace, APPROVAL.entity)).get("pending", 0),
        blocked_objectives=(await store.count_records(namespace, OBJECTIVE.entity)).get("BLOCKED", 0),
        failing_jobs=tuple(await _failing_jobs(store, namespace)),
        servers=tuple(ShownServer(each, shown_server_state(each, now)) for each in await store.list_servers()),
        next_firings=sorted(firing, key=lambda each: (each.at, each.schedule))[:FIRINGS],
        unreadable=tuple(unreadable),
    )


async def _failing_jobs(store: Store, namespace: str) -> list[str]:
    found = []
    for stored in await store.list_records(RecordFilter(EXTERNAL.entity, namespace, live=True), _JOBS):
        try:
            record = read(ExternalProductionRecord, stored.body)
        except UnreadableValue:  # it is listed as unreadable
            continue
        if record.raised_in_row >= RAISES_IN_ROW or record.backs_off:
            found.append(record.external_job_id)
    return found


def troubles(status: Status) -> Iterator[str]:
    """Yield one line per trouble; nothing if all is well. Pure."""
    if status.latency_for > SLOW_FOR:
        yield f"the store took {status.latency_for / 1000:.1f} s to respond"
    if status.overdue_for > LATE_FOR:
        yield f"a task has been due for {status.overdue_for / 1000:.0f} s and no worker has woken it"
    for state, label in (("lost", "lost"), ("error", "ended with an error")):
        bad = [each.server for each in status.servers if each.state == state]
        recent = [server.name for server in bad if status.now - server.heartbeat_at <= RECENTLY_FOR]
        if recent:
            yield f"{_count(len(recent), 'server')} {label}: {_some(recent)}"
    if status.unreadable:
        yield f"{_count(len(status.unreadable), 'record')} cannot be read: {_some(status.unreadable)}; edit or remove them"
    live = [each.server for each in status.servers if each.state in ("starting", "running")]
    alone = [depth for depth in status.depths if depth.ready and not any(serves(server, depth.lane) for server in live)]
    if alone:
        names = [f"{depth.lane.name} in list {depth.lane.task_list}" for depth in alone]
        yield f"no live worker for {_count(sum(depth.ready for depth in alone), 'ready task')}: {_some(names)}"
    for server in live:
        if (hold := find_hold(server, status.now)) is not None:
            yield f"{server.name}: {hold.message}"
    if status.failing_jobs:
        yield f"polls of {_count(len(status.failing_jobs), 'external job')} fail: {_some(status.failing_jobs)}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    """Join the first few names and the number of the rest."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
