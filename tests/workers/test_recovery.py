"""Recovery at start-up: the engine cleans up after crashed processes and leaves the work of live ones alone."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.limits import BOUND

from treadle import ApprovalRequest, AwaitingApproval, Context, Engine
from treadle.engine.machine import SystemMachine, kernel_identity, process_identity
from treadle.kernel.effects.decide import Begin, Effect
from treadle.kernel.queue.service import Queue
from treadle.kernel.recovery import RecoveringServer
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.units import Unit
from treadle.kernel.telemetry.events import Recovered, TelemetryEvent
from treadle.model.states import SCHEDULE
from treadle.model.tasks import Server, Task
from treadle.settings import Settings

HOST = socket.gethostname()
KERNEL = kernel_identity(HOST) or ""
BOOT, *SPACES, _ = KERNEL.split("/")


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def dead_pid() -> int:
    """The pid of a process that has been here and is gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def server(engine: Engine, name: str = "billing-1", pid: int | None = None, **fields: Any) -> Server:
    pid = dead_pid() if pid is None else pid
    known = {"id": engine.kernel.ids.new_id(), "name": name, "host": HOST, "pid": pid, "process": f"{KERNEL} {pid}:1"}
    return Server(**known | {"version": "1", "state": "running"} | fields)


async def held_by(engine: Engine, owner: Server, lease_for: int = 60_000) -> Task:
    """A task that the server has taken."""
    await engine.kernel.store.servers.save(owner)
    task = await engine.enqueue("work")
    queue_id = (await engine.kernel.reads.get_task(task)).queue_id
    (taken,) = await engine.kernel.store.tasks.claim([queue_id], owner.id, lease_for, 1)
    return taken


def place(name: str = "billing-1") -> RecoveringServer:
    return RecoveringServer(name, HOST, SystemMachine().has_ended)


@pytest.mark.postgres
async def test_tasks_of_an_earlier_process_of_this_server_are_ready_immediately(url: str) -> None:
    async with make_engine(url) as engine:
        dead = server(engine)
        task = await held_by(engine, dead)
        before = await engine.kernel.recovery.recover(place(), dry_run=True)
        assert (before.own_servers, before.own_tasks, before.expired_leases) == ([dead.id], 1, 0)
        assert (await engine.kernel.reads.get_task(task.id)).owner_id == dead.id
        done = await engine.kernel.recovery.recover(place())
        assert (done.own_servers, done.own_tasks) == ([dead.id], 1)
        free = await engine.kernel.reads.get_task(task.id)
        assert (free.owner_id, free.attempt, free.takeovers) == (None, 2, 1)
        again = await engine.kernel.recovery.recover(place())
        assert (again.own_servers, again.own_tasks, again.did) == ([], 0, False)
        assert (await engine.kernel.verify()).holds


GONE = "1073741824:1"
"""A process with a pid that no process can have."""
OWN = process_identity(KERNEL, os.getpid())
UNKNOWN = {
    "none": None,
    "another boot": f"{BOOT[::-1]}/{'/'.join(SPACES)}/{HOST} {GONE}",
    "another pid namespace": f"{BOOT}/pid:[1]/{'/'.join(SPACES[1:])}/{HOST} {GONE}",
    "another host with the boot id of a copied machine": f"{BOOT}/{'/'.join(SPACES)}/elsewhere {GONE}",
    "without a host, of another version": f"{BOOT}/{'/'.join(SPACES)} {GONE}",
    "without a process": KERNEL,
    "not a process": f"{KERNEL} one:two",
    "empty": "",
}
"""Identities of processes that cannot be seen from here."""


@pytest.mark.parametrize(
    "fields",
    [{}, {"name": "billing-2"}, {"host": "elsewhere"}, {"pid": 1}, {"pid": os.getpid()}],
    ids=["same", "name", "host", "pid 1", "own pid"],
)
async def test_a_process_that_is_seen_to_have_ended_is_dead_under_any_name(url: str, fields: dict[str, Any]) -> None:
    async with make_engine(url) as engine:
        task = await held_by(engine, server(engine, **fields | {"process": f"{KERNEL} {GONE}"}))
        assert (await engine.kernel.recovery.recover(place())).own_tasks == 1
        assert (await engine.kernel.reads.get_task(task.id)).owner_id is None


@pytest.mark.parametrize("pid", [1, os.getpid(), 1073741824], ids=["pid 1", "own pid", "no pid"])
@pytest.mark.parametrize("process", UNKNOWN.values(), ids=UNKNOWN)
async def test_a_process_that_cannot_be_seen_is_alive_under_any_name_and_pid(url: str, process: str | None, pid: int) -> None:
    """Workers that are each pid 1 of a container of their own may share the host name, and so the name of the server."""
    async with make_engine(url) as engine:
        other = server(engine, pid=pid, process=process)
        task = await held_by(engine, other)
        report = await engine.kernel.recovery.recover(place())
        assert (report.own_tasks, report.expired_leases, report.did) == (0, 0, False)
        assert (await engine.kernel.reads.get_task(task.id)).owner_id == other.id


@pytest.mark.parametrize("fields", [{"process": OWN}, {"state": "stopped"}, {"state": "error"}], ids=["alive", "stopped", "error"])
async def test_tasks_of_live_and_of_ended_servers_are_left_alone(url: str, fields: dict[str, Any]) -> None:
    async with make_engine(url) as engine:
        other = server(engine, **fields)
        task = await held_by(engine, other)
        assert not (await engine.kernel.recovery.recover(place())).did
        assert (await engine.kernel.reads.get_task(task.id)).owner_id == other.id


async def test_workers_without_a_name_have_different_names(tmp_path: Path) -> None:
    async with make_engine(f"sqlite:///{tmp_path / 'treadle.db'}") as engine, engine.worker(), engine.worker():
        names = [each.name for each in await engine.kernel.store.servers.list_all()]
    assert len({*names}) == 2
    assert all(str(name).startswith(f"{HOST}-{os.getpid()}-") for name in names)


async def test_an_expired_lease_of_any_server_is_taken_over(url: str) -> None:
    async with make_engine(url) as engine:
        task = await held_by(engine, server(engine, name="other"), lease_for=1)
        async with asyncio.timeout(BOUND):
            while await engine.kernel.store.now() <= (task.wake_at or 0):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert (await engine.kernel.recovery.recover(dry_run=True)).expired_leases == 1
        assert (await engine.kernel.reads.get_task(task.id)).owner_id is not None
        assert (await engine.kernel.recovery.recover()).expired_leases == 1
        assert (await engine.kernel.reads.get_task(task.id)).owner_id is None


async def test_recovery_counts_effects_of_unknown_outcome(url: str) -> None:
    async with make_engine(url) as engine:
        task = await held_by(engine, server(engine))
        begun = [Begin(Effect.of(task.id, None, task.root_id, action), 1).rows[0] for action in ("charge", "mail")]
        await engine.kernel.committer.submit(Unit(task.claim, rows=tuple(begun)))
        await engine.kernel.committer.submit(Unit(task.claim, rows=(replace(begun[0], outcome=_done(begun[0].outcome)),)))
        assert (await engine.kernel.recovery.recover(place(), dry_run=True)).unknown_effects == 1
        assert (await engine.kernel.recovery.recover(place())).unknown_effects == 1


def _done(outcome: Any) -> Any:
    return msgspec.structs.replace(outcome, status="succeeded")


async def test_two_live_workers_do_not_take_over_each_others_tasks(shared_url: str) -> None:
    """The second one has the name of the first, as if it were its successor, and starts while the first is at work."""
    events: list[TelemetryEvent] = []
    started, go = asyncio.Event(), asyncio.Event()
    first, second = make_engine(shared_url), Engine(shared_url, settings=Settings(), emit=events.append)
    ran: list[int] = []
    for engine in (first, second):

        @engine.handler("work")
        async def work(payload: Any, ctx: Context) -> dict[str, Any]:
            ran.append(ctx.fencing_token)
            started.set()
            await go.wait()
            return {"attempt": ctx.attempt}

    async with first, second, first.worker(name="billing-1"):
        task = await first.enqueue("work")
        await asyncio.wait_for(started.wait(), BOUND)
        async with second.worker(name="billing-1"):
            assert (await second.kernel.recovery.recover(place())).did is False
            go.set()
            assert await first.result(task, timeout=BOUND) == {"attempt": 1}
    assert ran == [1]
    assert [event for event in events if isinstance(event, Recovered)] == []


async def test_a_worker_recovers_at_start_and_reports_it(url: str) -> None:
    events: list[TelemetryEvent] = []
    engine = Engine(url, settings=Settings(), emit=events.append)

    @engine.handler("work")
    async def work(payload: Any, ctx: Context) -> dict[str, Any]:
        return {"attempt": ctx.attempt}

    async with engine:
        task = await held_by(engine, server(engine))
        async with engine.worker(name="billing-1"):
            # Well before the lease of a minute runs out.
            assert await engine.result(task.id, timeout=BOUND) == {"attempt": 2}
    assert Recovered(0, 1, 0, 0) in events


class SkippingClock(SystemClock):
    """The machine's clock, and the milliseconds that a test skips."""

    skipped = 0

    def now(self) -> int:
        return super().now() + self.skipped


async def test_pending_approvals_are_checked_and_orphans_canceled(url: str) -> None:
    clock = SkippingClock()
    engine = Engine(url, settings=Settings(), clock=clock)

    @engine.handler("ask")
    async def ask(payload: Any, ctx: Context) -> Any:
        return AwaitingApproval(ApprovalRequest.of("Go?", expires=payload["expires"]))

    async with engine:
        async with engine.worker():
            tasks = [await engine.enqueue("ask", {"expires": expires}) for expires in (3600, 3600, 1800)]
            async with asyncio.timeout(BOUND):
                while len(pending := (await engine.approvals.list()).approvals) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        kernel = engine.kernel
        await Queue(kernel.core).cancel(tasks[0].id)  # approvals stay open
        (orphan,) = [each.id for each in pending if each.task_id == tasks[0].id]
        clock.skipped = 2_000_000
        if url.startswith("postgresql"):
            await engine.kernel.store.set_clock_offset(clock.skipped)  # type: ignore[attr-defined]
        before = await engine.kernel.recovery.recover(dry_run=True)
        assert (before.pending_approvals, before.overdue_approvals, before.orphaned_approvals) == (2, 1, [orphan])
        assert (await engine.approvals.get(orphan)).state == "pending"
        done = await engine.kernel.recovery.recover()
        assert (done.pending_approvals, done.orphaned_approvals) == (2, [orphan])
        assert (await engine.approvals.get(orphan)).state == "canceled"
        assert (await engine.kernel.recovery.recover()).orphaned_approvals == []


@dataclass
class Missed:
    name: str
    text: str


class Service:
    """A service that missed something."""

    def __init__(self) -> None:
        self.repairs = 0

    async def describe_recovery(self) -> list[Missed]:
        return [Missed("nightly", "3 ticks are due; 1 will fire")]

    async def repair(self) -> list[str]:
        self.repairs += 1
        return ["nightly"]


async def test_a_recovery_dry_run_queries_services_without_repairing(url: str) -> None:
    events: list[TelemetryEvent] = []
    engine = Engine(url, settings=Settings(), emit=events.append)
    service = Service()
    engine.kernel.recoverers.clear()
    engine.kernel.recoverers["schedules"] = (SCHEDULE, lambda: service)
    async with engine:
        await engine.schedules.create("nightly", every=3600, task="report")
        report = await engine.kernel.recovery.recover(dry_run=True)
        assert [(each.name, each.text) for each in report.others["schedules"]] == [("nightly", "3 ticks are due; 1 will fire")]
        assert service.repairs == 0
        async with engine.worker():
            assert service.repairs == 1
    told = ("schedules nightly: 3 ticks are due; 1 will fire", "schedules nightly: its task was restored")
    assert Recovered(0, 0, 0, 0, told) in events
