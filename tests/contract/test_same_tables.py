"""The same random operations on SQLite and PostgreSQL, at the same times, get the same answers and leave the same tables.

Numbers that a store gives (`seq`, queue ids) are compared by what they stand for: the order of an entity's transitions, the queue.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import asdict
from tests.contract.databases import Database, Postgres, SqliteInline, is_ready
from tests.sizes import left_out

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Renewal, RunFilter, TaskFilter
from treadle.kernel.store.records import (
    Await,
    ChangeRecord,
    PutItems,
    PutMessage,
    PutOutcome,
    PutRecord,
    RecordFilter,
    TakeMessages,
)
from treadle.kernel.store.units import BlockRun, Discard, Keep, PutRun, PutSteps, Redrive, Row, RunGuard, RunTransition, Unit
from treadle.kernel.store.verify import verify
from treadle.model.names import QueueKey
from treadle.model.records import EffectOutcome, Message, Record
from treadle.model.runs import Run
from treadle.model.states import MACHINES
from treadle.model.tasks import NewTask, Task
from treadle.testing import SeededIds
from treadle_conformance.run_steps import new_step
from treadle_conformance.task_steps import MINUTE, OTHER, WORK, Line, cancel, fail, requeue, seen, succeed

QUEUES = [WORK, OTHER, WORK._replace(namespace="elsewhere")]
TABLES = (
    "tasks",
    "finished",
    "log",
    "queues",
    "runs",
    "steps",
    "records",
    "record_items",
    "mail",
    "idempotency_outcomes",
    "streams",
    "stream_chunks",
)
KEYS = ("id", "entity_id", "record_id", "idempotency_key", "key")


class Twins:
    """Two stores that are told the same and must say the same."""

    def __init__(self, databases: list[Database], stores: list[Store]) -> None:
        self.databases, self.stores = databases, stores
        self.queues: list[dict[int, QueueKey]] = [{}, {}]

    async def open(self, threads: list[ThreadPoolExecutor]) -> None:
        self.lines = [Line(store.servers.lease_connection(), thread) for store, thread in zip(self.stores, threads, strict=True)]
        for number, store in enumerate(self.stores):
            found = await store.tasks.queue_ids(QUEUES)
            self.queues[number] = {queue_id: queue for queue, queue_id in found.items()}

    async def advance(self, ms: int) -> None:
        for database in self.databases:
            await database.clock.advance(ms)

    async def claim(self, queues: list[QueueKey], owner: str, lease_for: int, limit: int) -> list[Task]:
        answers = []
        for number, store in enumerate(self.stores):
            queue_ids = [queue_id for queue_id, queue in self.queues[number].items() if queue in queues]
            answers.append(await store.tasks.claim(queue_ids, owner, lease_for, limit))
        plain = [sorted((plain_task(task) for task in answer), key=lambda task: task["id"]) for answer in answers]
        assert plain[0] == plain[1]
        return answers[0]

    async def wake(self, *, expire_leases: bool) -> None:
        first, second = [await store.tasks.wake(10_000, expire_leases=expire_leases) for store in self.stores]
        assert (first.count, first.expired, first.next_for) == (second.count, second.expired, second.next_for)
        named = [{self.queues[n][queue_id] for queue_id in woken.queue_ids} for n, woken in enumerate((first, second))]
        assert named[0] == named[1]

    async def commit(self, units: list[Unit]) -> list[Any]:
        answers = [await store.commit(units) for store in self.stores]
        for first, second in zip(*answers, strict=True):
            assert (first.verdict, first.existing, first.run_paused) == (second.verdict, second.existing, second.run_paused)
            made_ready, reported = [
                {self.queues[n][queue_id] for queue_id in each.queue_ids} for n, each in enumerate((first, second))
            ]
            # Commits to SQLite hold no rows; PostgreSQL also reports queues in which the commit held a ready task.
            assert made_ready <= reported
            if extra := reported - made_ready:
                assert extra <= {
                    task.queue for task in await self.stores[1].tasks.list_matching(TaskFilter(), 1_000) if is_ready(task)
                }
        return answers[0]

    async def renew(self, renewals: list[Renewal], lease_for: int) -> None:
        claims = [renewal.claim for renewal in renewals]
        answers = [(await line.renew(renewals, lease_for), await line.held(claims)) for line in self.lines]
        assert answers[0] == answers[1]

    def compare(self) -> None:
        for table in TABLES:
            first, second = [self.table(number, table) for number in (0, 1)]
            assert len(first) == len(second), table
            for one, other in zip(first, second, strict=True):
                assert one == other, table

    def table(self, number: int, table: str) -> list[dict[str, Any]]:
        queues = {
            row["id"]: (row["namespace"], row["kind"], row["task_list"], row["name"])
            for row in self.databases[number].rows("queues")
        }
        rows = []
        for row in self.databases[number].rows(table):
            plain = {name: str(value) if isinstance(value, UUID) else value for name, value in row.items() if name != "seq"}
            if "queue_id" in plain:
                plain["queue_id"] = queues[plain["queue_id"]]
            if table == "queues":
                plain["id"] = queues[plain["id"]]
            rows.append(plain)
        return sorted(rows, key=lambda row: ([str(row.get(key)) for key in KEYS], row.get("version", 0)))


def plain_task(task: Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in Task.__struct_fields__ if name not in ("seq", "queue_id")} | {"queue": task.queue}


class Operator:
    """Draws operations from a seed and does them on both."""

    def __init__(self, twins: Twins, seed: int) -> None:
        self.twins, self.rng, self.ids = twins, random.Random(seed), SeededIds(seed)
        self.claims: list[Task] = []
        self.units: list[Unit] = []

    async def step(self) -> None:
        await self.twins.advance(self.rng.choice((0, 1, 10, 1_000, 20_000)))
        operations = [self.insert, self.insert, self.claim, self.claim, self.settle, self.settle, self.settle]
        operations += [self.wake, self.renew, self.operate, self.repeat]
        operations += [self.begin, self.record, self.record, self.tell, self.tell, self.execute, self.execute, self.pause]
        await self.rng.choice(operations)()

    def new_tasks(self, most: int) -> tuple[NewTask, ...]:
        rng = self.rng
        return tuple(
            NewTask(
                id=self.ids.new_id(),
                queue=rng.choice(QUEUES),
                payload=rng.choice(('{"a":"ü\\"\\\\"}', "{}", "[1,2.5,null]")),
                priority=rng.choice((0, 0, 1, -1)),
                delay=rng.choice((0, 0, 500, 30_000)),
                unique_key=rng.choice((None, None, "k1", "k2")),
                limit_key=rng.choice((None, "l")),
                policy=rng.choice((None, '{"retries":2}')),
                timeout_for=rng.choice((None, 7_000)),
                progress_for=rng.choice((None, 25_000)),
                deadline_for=rng.choice((None, 90_000)),
                run_id=rng.choice((None, "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77")),
                scope=rng.choice((None, "s")),
                trace_id=rng.choice((None, "t")),
            )
            for _ in range(rng.randint(0, most))
        )

    async def insert(self) -> None:
        await self.twins.commit([Unit(tasks=self.new_tasks(4)) for _ in range(self.rng.randint(1, 3))])

    async def claim(self) -> None:
        queues = await self.untied(self.rng.sample(QUEUES, self.rng.randint(1, 3)))
        owner = self.rng.choice(("ann", "bob"))
        self.claims += await self.twins.claim(queues, owner, self.rng.choice((5_000, MINUTE)), self.rng.randint(1, 5))

    async def untied(self, queues: list[QueueKey]) -> list[QueueKey]:
        """The queues, or one of them where two are equally old: which is taken then is nobody's promise."""
        tasks = await self.twins.stores[0].tasks.list_matching(TaskFilter(states=("pending",)), 1_000)
        heads = []
        for queue in queues:
            ready = [task for task in tasks if task.queue == queue and task.wake_at is None and not task.blocked_by]
            heads += sorted((task.priority, task.due_at) for task in ready)[:1]
        return queues if len(set(heads)) == len(heads) else queues[:1]

    async def settle(self) -> None:
        chosen = self.rng.sample(self.claims, min(len(self.claims), self.rng.randint(1, 4)))
        units = [Unit(task.claim, self.settlement(task), self.new_tasks(2)) for task in chosen]
        self.units += units
        await self.twins.commit(units)

    def settlement(self, task: Task) -> Any:
        choice = self.rng.randrange(7)
        if choice == 0:
            return Keep(self.rng.choice((None, '{"half":1}')))
        if choice <= 2:
            return succeed('{"done":"é"}')
        if choice == 3:
            return fail()
        if task.state == "awaiting_external":
            return requeue(task, "still_working", delay=2_000)
        if choice == 4:
            return requeue(task, "hand_off", state="awaiting_external", delay=2_000)
        delay = self.rng.choice((None, 4_000))
        return requeue(
            task, "retry", attempt=task.attempt + 1, failures=task.failures + 1, delay=delay, error='{"code":"e"}', data="1"
        )

    async def wake(self) -> None:
        await self.twins.wake(expire_leases=self.rng.random() < 0.8)

    async def renew(self) -> None:
        chosen = self.rng.sample(self.claims, min(len(self.claims), 3))
        renewals = [Renewal(task.claim, self.rng.random() < 0.5, self.rng.choice((None, '{"p":1}'))) for task in chosen]
        await self.twins.renew(renewals, self.rng.choice((10_000, MINUTE)))

    async def operate(self) -> None:
        tasks = await self.twins.stores[0].tasks.list_matching(TaskFilter(), 1_000)
        chosen = self.rng.sample(tasks, min(len(tasks), 2))
        units = []
        for task in chosen:
            if task.state == "completed":
                continue
            if task.state == "failed" and self.rng.random() < 0.5:
                units.append(Unit(seen(task), Discard("discard", "canceled", "ann")))
            elif task.finished:
                payload, delay = self.rng.choice((None, '{"new":1}')), self.rng.choice((None, None, 4_000))
                units.append(Unit(seen(task), Redrive("requeue", "ann", payload, self.rng.choice((0, 2)), delay, payload)))
            elif self.rng.random() < 0.5:
                units.append(Unit(seen(task), cancel(), self.new_tasks(1)))
            else:
                transition, blocked_by = ("resume", 0) if task.blocked_by else ("pause", 8)
                units.append(
                    Unit(
                        seen(task),
                        requeue(task, transition, blocked_by=blocked_by, actor="ann", delay=self.rng.choice((None, 3_000))),
                    )
                )
        await self.twins.commit(units)

    async def repeat(self) -> None:
        chosen = self.rng.sample(self.units, min(len(self.units), 3))
        await self.twins.commit(chosen)

    # functions, their mail and records

    async def runs(self) -> list[Run]:
        return await self.twins.stores[0].runs.list_matching(RunFilter(), 100)

    async def begin(self) -> None:
        run_id = self.ids.new_id()
        parent = self.rng.choice([None, *await self.runs()])
        key = self.rng.choice((None, None, "once"))
        run = Run(id=run_id, kind="function", flow_id="1", workflow="pay", root_id=run_id, idempotency_key=key)
        if parent is not None:
            run = Run(**asdict(run) | {"parent_id": parent.id, "parent_step_id": self.ids.new_id(), "root_id": parent.root_id})
        rows = (PutRun(run), RunTransition(run_id, "start", "pending", "running"))
        own = NewTask(id=self.ids.new_id(), queue=WORK, run_id=run_id, root_id=run.root_id, limit_key=self.rng.choice((None, "l")))
        await self.twins.commit([Unit(tasks=(own,), rows=rows)])

    async def record(self) -> None:
        units = []
        for _ in range(self.rng.randint(1, 3)):
            first = await self.record_row(("n1", "n2"))
            units.append(Unit(rows=(first, await self.record_row((None,)))[: self.rng.randint(1, 2)]))
        await self.twins.commit(units)

    async def record_row(self, names: tuple[str | None, ...]) -> Row:
        rng, entity = self.rng, self.rng.choice(("schedule", "approval"))
        machine = MACHINES[entity]
        known = await self.twins.stores[0].records.list_matching(RecordFilter(entity), 20)
        if not known or rng.random() < 0.3:
            name = rng.choice(names)
            return PutRecord(Record(id=self.ids.new_id(), entity=entity, name=name, state=machine.initial, document='{"ü":1}'))
        record = rng.choice(known)
        if rng.random() < 0.3:
            return PutItems(record.id, tuple((rng.choice("abÄ"), rng.choice((None, "1", "2"))) for _ in range(3)))
        transitions = [
            (transition, target) for (source, transition), target in machine.transitions.items() if source == record.state
        ]
        if not transitions or rng.random() < 0.3:
            return ChangeRecord(record.id, record.version + rng.choice((0, 0, 0, 1)), '{"edited":1}')
        transition, target = rng.choice(transitions)
        ended = target in machine.final
        return ChangeRecord(record.id, record.version, "{}", transition, record.state, target, ended, "ann", '{"why":1}')

    async def tell(self) -> None:
        runs, units = await self.runs(), []
        for _ in range(self.rng.randint(1, 3) if runs else 0):
            chosen = [self.rng.choice(runs).id for _ in range(self.rng.randint(1, 3))]
            rows: list[Row] = [
                PutMessage(Message(id=self.ids.new_id(), run_id=run_id, name="s", document="{}")) for run_id in chosen
            ]
            units.append(Unit(rows=tuple(rows + self.rng.sample(rows, self.rng.randint(0, 1)))))
        self.units += units
        await self.twins.commit(units)

    async def execute(self) -> None:
        """Operations of functions: checkpoints, waits, ends; under claims that may be lost, of runs that may have advanced."""
        runs = {run.id: run for run in await self.runs()}
        own = [task for task in self.claims if task.run_id in runs]
        units = []
        for task in self.rng.sample(own, min(len(own), 3)):
            units += [await self.executed(task, runs[task.run_id or ""]) for _ in range(self.rng.randint(1, 2))]
        await self.twins.commit(units)

    async def executed(self, task: Task, run: Run) -> Unit:
        step = PutSteps(run.id, (new_step(run, f"{task.id}/{self.rng.choice('ab')}", document=f'{{"n":{self.rng.random()}}}'),), 1)
        guard = RunGuard(run.id, run.version)
        taken = TakeMessages(run.id, tuple(mail.id for mail in await self.twins.stores[0].records.list_messages(run.id, 2)))
        status = self.rng.choice(("unknown", "succeeded", "failed"))
        effect = EffectOutcome(
            idempotency_key=self.rng.choice("pqrs"),
            tool_call_id="c",
            status=status,
            response="{}",
            root_id=run.root_id,
            task_id=self.rng.choice((task.id, None)),
            details="{}",
        )
        match self.rng.randrange(6):
            case 0 | 1:
                return Unit(task.claim, rows=(step,))
            case 2:
                return Unit(task.claim, rows=(step, PutOutcome(effect)), tasks=self.new_tasks(1))
            case 3:
                return Unit(task.claim, Keep(None, "tool_call.unknown", self.rng.choice((None, "{}"))))
            case 4:
                waits = Await(run.id, self.rng.randint(0, 3), added=1)
                return Unit(task.claim, requeue(task, delay=MINUTE), run=guard, rows=(step, taken, waits))
            case _:
                moved = (RunTransition(run.id, "succeed", "running", "completed"),) if run.state == "running" else ()
                return Unit(task.claim, succeed(), run=guard, rows=(taken, *moved))

    async def pause(self) -> None:
        if runs := [run for run in await self.runs() if run.finished_at is None]:
            await self.twins.commit([Unit(rows=(BlockRun(self.rng.choice(runs).id, self.rng.random() < 0.4),))])


@pytest.mark.parametrize("seed", [*range(6), *map(left_out, range(6, 12))])
async def test_the_same_random_operations_leave_the_same_tables(request, tmp_path, seed):
    databases = [SqliteInline(request, tmp_path), Postgres(request, tmp_path)]
    async with AsyncExitStack() as stack:
        for database in databases:
            stack.push_async_callback(database.close)
        twins = Twins(databases, [await database.open_store() for database in databases])
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in databases]
        await twins.open(threads)
        for line in twins.lines:
            stack.push_async_callback(line.close)
        operator = Operator(twins, seed)
        for number in range(100):
            await operator.step()
            if number % 20 == 19:
                twins.compare()
        for store in twins.stores:
            assert (await verify(store)).problems == ()
        histories = [[strip(history) for history in await store.log.list_histories(None, 10_000)] for store in twins.stores]
        assert histories[0] == histories[1]
        listed = [[plain_task(task) for task in await store.tasks.list_matching(TaskFilter(), 10_000)] for store in twins.stores]
        assert listed[0] == listed[1]


def strip(history: Any) -> Any:
    transitions = [
        {name: getattr(transition, name) for name in transition.__struct_fields__ if name != "seq"}
        for transition in history.transitions
    ]
    return (history.entity, history.entity_id, history.state, history.version, transitions)
