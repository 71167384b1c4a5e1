"""Failovers of a real cluster under load: the primary is killed or cut off, a standby is promoted, and the old primary comes back.

A standby is promoted by hand, or by Patroni. With synchronous replication every promise must hold. With asynchronous
replication the last commits are lost: the workers, which remember what is gone, are started again, as docs/how-to/postgresql.md
says; the judge counts what was acknowledged and is gone, and the rows that are left must agree with each other and come to an end.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.results import table
from tests.chaos.client import read_acks
from tests.chaos.cluster import Cluster, Node, cluster
from tests.chaos.patroni import LOOP_WAIT, TTL, PatroniCluster, PatroniNode, patroni_cluster
from tests.chaos.play import LOOK_EVERY, Played, Run, play_on
from tests.chaos.stage import Plan, Stage
from tests.chaos.storms import RESTARTED
from tests.simulation.auditor import LIVE

from treadle import Engine
from treadle.model.errors import StoreError
from treadle.model.names import UPKEEP

KILLED, ISOLATED = "killed", "cut off from clients and standbys"
SUSPENDED = "left running while its Patroni was stopped"
FROZEN = "frozen with its Patroni"
BY_PATRONI = (KILLED, ISOLATED, SUSPENDED, FROZEN)

NOTICED_AFTER = 1.0
"""Seconds from the fault to the promotion: those that who promotes takes to notice."""

LAGS_FOR = 1.0
"""Seconds for which no standby receives anything before the fault, with asynchronous replication."""

SOON = 3_600_000
"""Milliseconds: all timers of the work end much earlier, and waits for messages much later."""

FINISHED = "select array_agg(id::text) from treadle.finished"
ROWS = "select (select count(*) from treadle.finished) + (select coalesce(max(seq), 0) from treadle.log)"


@dataclass(slots=True)
class Failover:
    """One failover; instants in milliseconds."""

    way: str
    at: int
    promoted_at: int
    first: float | None = None
    """Seconds from the promotion until the first task was settled."""
    all: float | None = None
    """Seconds from the promotion until each worker had started a task."""


class FailoverRun(Run):
    """A run whose only faults are failovers, each after its share of the work was sent."""

    def __init__(self, stage: Stage, say: Callable[[str], None], ways: Sequence[str]) -> None:
        super().__init__(stage, say)
        self._ways = ways
        self.failovers: list[Failover] = []

    async def _rage(self, engine: Engine) -> None:
        for number, way in enumerate(self._ways, 1):
            await self._until_sent(engine, self._plan.tasks * number // (len(self._ways) + 1))
            await self._suffer(engine, way, self._plan.tasks * (2 * number + 1) // (2 * (len(self._ways) + 1)))

    async def _suffer(self, engine: Engine, way: str, count: int) -> None:
        """One failover: the old primary is as it was until that many submissions were acknowledged, then a standby."""
        raise NotImplementedError

    async def _until_sent(self, engine: Engine, count: int) -> None:
        """Wait until so many submissions were acknowledged."""
        while len(read_acks(self._stage.acks)) < count and not await self._is_done(engine):
            self._check_client()
            await asyncio.sleep(LOOK_EVERY)

    async def play(self) -> Played:
        played = await super().play()
        ends = [*(later.at for later in self.failovers[1:]), self._clock.now()]
        for failover, end in zip(self.failovers, ends, strict=True):
            settled = [task.finished_at for task in played.evidence.tasks.values() if task.finished_at]
            failover.first = _seconds(failover, [at for at in settled if at >= failover.promoted_at])
            begun = [_seconds(failover, _begun(path, failover.promoted_at, end)) for path in self._stage.folder.glob("*.diary")]
            failover.all = max((each for each in begun if each is not None), default=None)
        return played


class ByHand(FailoverRun):
    """Failovers by the one who runs the test; the old primary comes back as such, for all who ask it."""

    def __init__(self, stage: Stage, say: Callable[[str], None], ways: Sequence[str], machines: Cluster) -> None:
        super().__init__(stage, say, ways)
        self._machines = machines

    async def _suffer(self, engine: Engine, way: str, count: int) -> None:
        old = await self._fail_over(way)
        before = await asyncio.to_thread(old.ask, ROWS)
        await self._until_sent(engine, count)
        if await asyncio.to_thread(old.ask, ROWS) != before:
            self._problems.append(f"{old.name} was written to after the failover")
        await asyncio.to_thread(self._rebuild, old)

    async def _is_done(self, engine: Engine) -> bool:
        """With asynchronous replication also if runs are left that wait for a message which is lost: they would wait for days."""
        return await super()._is_done(engine) or (not self._machines.synchronous and await self._only_waits(engine))

    async def _only_waits(self, engine: Engine) -> bool:
        """Whether everything was sent, and nothing that is left is ready, runs, or has a timer that ends soon."""
        if self._stage.client is None or self._stage.client.exit_code != 0:
            return False
        with suppress(StoreError):
            tasks = await engine.kernel.reads.list_tasks(states=LIVE, kind=None, limit=1000)
            soon = await engine.kernel.store.now() + SOON
            return all(task.kind in UPKEEP or (task.wake_at is not None and task.wake_at > soon) for task in tasks)
        return False

    async def _fail_over(self, way: str) -> Node:
        """Returns the old primary, which takes writes again for all who ask it."""
        machines = self._machines
        if not machines.synchronous:
            await asyncio.to_thread(machines.let_lag)
            await asyncio.sleep(LAGS_FOR)
        at = self._clock.now()
        self._tell(f"{self._now()} the primary {machines.primary.name} is {way}")
        if way == KILLED:
            await asyncio.to_thread(machines.primary.kill)
        else:
            machines.primary.isolate()
        await asyncio.sleep(NOTICED_AFTER)
        if not machines.synchronous:
            await asyncio.gather(*(self._storms.kill(worker, RESTARTED) for worker in self._stage.workers))
        old = await asyncio.to_thread(machines.fail_over)
        self.failovers.append(Failover(way, at, self._clock.now()))
        self._tell(f"{self._now()} {machines.primary.name} is the primary")
        if not machines.synchronous:
            for worker in self._stage.workers:
                await self._storms.start(worker, worker.name)
        if way == KILLED:
            await asyncio.to_thread(old.start)
        else:
            old.reconnect()
        return old

    def _rebuild(self, old: Node) -> None:
        """Make the old primary a standby of the new one."""
        old.stop("immediate")
        self._machines.rejoin(old)
        self._machines.await_standbys(2)


class ByPatroni(FailoverRun):
    """Failovers by Patroni, which also makes the old primary a standby as soon as it can."""

    def __init__(self, stage: Stage, say: Callable[[str], None], ways: Sequence[str], machines: PatroniCluster) -> None:
        super().__init__(stage, say, ways)
        self._machines = machines

    async def _suffer(self, engine: Engine, way: str, count: int) -> None:
        old, at = self._machines.primary, self._clock.now()
        self._tell(f"{self._now()} the primary {old.name} is {way}")
        acts = {KILLED: old.kill, ISOLATED: old.isolate, SUSPENDED: old.suspend_patroni, FROZEN: old.freeze}
        await asyncio.to_thread(acts[way])
        if way == SUSPENDED:  # work is kept for the time when there are two primaries
            self._signal_client(signal.SIGSTOP)
        await asyncio.to_thread(self._machines.await_promotion)
        self._signal_client(signal.SIGCONT)
        self.failovers.append(Failover(way, at, self._clock.now()))
        self._tell(f"{self._now()} {self._machines.primary.name} is the primary")
        await self._until_sent(engine, count)
        self._signal_client(signal.SIGSTOP)  # so that there is work for the next failover
        if way == SUSPENDED:
            await asyncio.to_thread(self._compare, old)
        heal = {KILLED: old.start, ISOLATED: old.reconnect, SUSPENDED: old.resume, FROZEN: old.resume}
        await asyncio.to_thread(heal[way])
        await asyncio.to_thread(self._machines.await_standbys, 2)
        self._tell(f"{self._now()} {old.name} is a standby")
        self._signal_client(signal.SIGCONT)

    def _signal_client(self, number: signal.Signals) -> None:
        if self._stage.client is not None:
            self._stage.client.send(number)

    def _compare(self, old: PatroniNode) -> None:
        """The old primary still takes writes; all that it shows must exist on the new one."""
        if old.ask("select pg_is_in_recovery()"):
            self._problems.append(f"{old.name} was demoted although its Patroni was stopped: nothing was tested")
        alone = set(old.ask(FINISHED) or ()) - set(self._machines.primary.ask(FINISHED) or ())
        self._problems.extend(f"task {task_id} is finished on {old.name} only" for task_id in sorted(alone))


def _begun(diary: Path, after: int, before: int) -> list[int]:
    """The instants between these at which the worker started tasks."""
    lines = (line.split() for line in diary.read_text().splitlines())
    return [int(at) for sign, at, _ in lines if sign == "+" and after <= int(at) < before]


def _seconds(failover: Failover, instants: Sequence[int]) -> float | None:
    return (min(instants) - failover.promoted_at) / 1000 if instants else None


@dataclass(slots=True)
class FailedOver:
    """The result of a run with failovers."""

    synchronous: bool
    version: str
    played: Played
    failovers: list[Failover]
    by_patroni: bool = False

    @property
    def lost(self) -> list[str]:
        """The acknowledged work that is gone, and the runs that wait for a signal or a decision that is gone."""
        gone = [problem for problem in self.played.verdict.problems if "is lost" in problem]
        return gone + [f"run {run_id} waits for a message that is lost" for run_id in self._waiting()]

    @property
    def broken(self) -> list[str]:
        """The promises that were broken: with asynchronous replication, only those about the rows that are left."""
        problems, inconsistent = self.played.verdict.problems, self.played.verdict.inconsistent
        if self.synchronous:
            return problems
        excused = {each for pair in self._waiting().items() for each in (pair[0], *pair[1])}
        return [problem for problem in problems[len(problems) - inconsistent :] if not any(each in problem for each in excused)]

    def _waiting(self) -> dict[str, list[str]]:
        """The runs that wait although the client was told that they have their signal or decision, with their tasks."""
        found = self.played.evidence
        sent = [run_id for each in found.submissions if each.told or each.asks for run_id in found.acks.get(each.key, ())]
        runs = [run_id for run_id in sent if run_id in found.runs and not found.runs[run_id].finished]
        return {run_id: [task.id for task in found.tasks.values() if task.run_id == run_id] for run_id in runs}


async def fail_over(plan: Plan, say: Callable[[str], None], *, synchronous: bool, ways: Sequence[str]) -> FailedOver:
    """Do it; no process is left."""
    with cluster(synchronous=synchronous) as machines:
        runs: list[ByHand] = []

        def run(stage: Stage, tell: Callable[[str], None]) -> Run:
            runs.append(ByHand(stage, tell, ways, machines))
            return runs[-1]

        version = str(machines.primary.ask("show server_version"))
        played = await play_on(plan, say, lambda folder: machines.url, run)
        return FailedOver(synchronous, version, played, runs[-1].failovers)


async def fail_over_by_patroni(plan: Plan, say: Callable[[str], None], ways: Sequence[str]) -> FailedOver:
    """Do it with Patroni; no process is left."""
    with patroni_cluster() as machines:
        runs: list[ByPatroni] = []

        def run(stage: Stage, tell: Callable[[str], None]) -> Run:
            runs.append(ByPatroni(stage, tell, ways, machines))
            return runs[-1]

        version = str(machines.primary.ask("show server_version"))
        played = await play_on(plan, say, lambda folder: machines.url, run)
        return FailedOver(True, version, played, runs[-1].failovers, by_patroni=True)


def as_text(done: FailedOver) -> str:
    """The report of one run."""
    kind = "synchronous" if done.synchronous else "asynchronous"
    plan, verdict = done.played.plan, done.played.verdict
    lines = [
        f"failover of PostgreSQL {done.version} by {'Patroni' if done.by_patroni else 'hand'}, {kind} replication: "
        f"{plan.tasks:,} items of work, {plan.workers} workers, "
        f"leases of {plan.lease:g} s, {done.played.seconds:.0f} s",
        *(
            f"  {each.way}: promoted after {(each.promoted_at - each.at) / 1000:.1f} s; work resumed {each.first} s after that, "
            f"in all workers after {each.all} s"
            for each in done.failovers
        ),
        f"  acknowledged and lost: {len(done.lost)}",
        f"  effects: {verdict.effects:,}, {verdict.effects_again} requested again, {verdict.unknown} x tool_call.unknown",
        f"  jobs:    {verdict.jobs:,}, {verdict.submits_again} submitted again; {verdict.bodies_again} bodies repeated",
        f"  verify:  {verdict.verified:,} histories; {verdict.inconsistent} contradictions or rows without an end",
        f"  broken:  {len(done.broken) or 'nothing'}",
        *(f"    - {problem}" for problem in done.broken[:20]),
    ]
    return "\n".join(lines)


def as_json(done: FailedOver) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "synchronous": done.synchronous,
        "by_patroni": done.by_patroni,
        "postgresql": done.version,
        "tasks": done.played.plan.tasks,
        "failovers": [
            {"way": each.way, "promoted_after": (each.promoted_at - each.at) / 1000, "first": each.first, "all": each.all}
            for each in done.failovers
        ],
        "lost": len(done.lost),
        "broken": done.broken,
    }


def server(done: FailedOver) -> str:
    """The database of the run, for the description of the machine."""
    return f"PostgreSQL {done.version} (private cluster, fsync off)"


def as_markdown(runs: Sequence[FailedOver]) -> str:
    """The section of RESULTS.md."""
    rows = [
        (
            "synchronous" if each.synchronous else "asynchronous",
            failover.way,
            each.played.plan.tasks,
            f"{(failover.promoted_at - failover.at) / 1000:.1f} s",
            f"{failover.first} s",
            f"{failover.all} s",
            len(each.lost),
            len(each.broken),
        )
        for each in runs
        for failover in each.failovers
    ]
    head = [
        "replication",
        "the primary was",
        "work items",
        "promoted after",
        "then first task settled after",
        "then all workers at work after",
        "acknowledged and lost (run)",
        "**promises broken** (run)",
    ]
    plan = runs[0].played.plan
    waits_for = "the memory of a standby, not for a disk" if runs[0].synchronous else "no standby and no disk"
    about = (
        f"A primary and two standbys of PostgreSQL {runs[0].version} on one machine, all with fsync off: a commit waits for "
        f"{waits_for}. {plan.workers} workers with leases of {plan.lease:g} s. "
    )
    by_hand = (
        f"A standby is promoted {NOTICED_AFTER:g} s after the fault; the old primary then comes back and takes writes, until it is "
        "rebuilt as a standby."
    )
    by_patroni = (
        f"Debian's Patroni with one etcd promotes, with `synchronous_mode`, a `ttl` of {TTL} s (default 30) and a `loop_wait` of "
        f"{LOOP_WAIT} s (default 10): the time until the promotion is Patroni's. It makes the old primary a standby by itself."
    )
    return f"{about}{by_patroni if runs[0].by_patroni else by_hand}\n\n{table(head, rows)}"
