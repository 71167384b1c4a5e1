"""A worker holds the tasks that follow from its own work from the commit that inserts them, unless others come first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.limits import BOUND
from tests.unit.workers.harness import Workshop, turns, until

from treadle.kernel.store.units import Answer, CancelRunTasks, Finish, Park, Unit, Verdict
from treadle.model.errors import StoreUnavailable
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, Task
from treadle.model.values import decode, encode
from treadle.workers.context import Context
from treadle_conformance.task_steps import WORK, new_task, put

MakeShop = Callable[..., Workshop]


class Chain:
    """Tasks of which each end inserts the next one, down to 0; counts what its worker claims and executes."""

    def __init__(self, shop: Workshop, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
        self.shop, self.fields = shop, fields
        self.executed: list[int] = []
        self.claims: list[int] = []
        self.answers: list[Answer] = []
        self.during: Callable[[int], Awaitable[None]] | None = None
        """Called during each attempt, with the number of its task."""
        shop.services.settle = self.settle
        shop.committer.preclaims.append(shop.worker.preclaim)
        shop.handler()(self.work)
        claim = shop.store.claim

        async def counted(*args: Any) -> list[Task]:
            tasks = await claim(*args)
            self.claims.append(len(tasks))
            return tasks

        monkeypatch.setattr(shop.store, "claim", counted)

    async def work(self, payload: Any, ctx: Context) -> None:
        self.executed.append(payload["n"])
        if self.during is not None:
            await self.during(payload["n"])

    async def settle(self, task: Task, token: Claim, decided: Finish | Park) -> Answer:
        number = decode(task.payload)["n"]
        tasks = (self.task(number - 1),) if number else ()
        self.answers.append(await self.shop.committer.submit(Unit(token, decided, tasks)))
        return self.answers[-1]

    def task(self, number: int, **fields: Any) -> Any:
        return new_task(payload=encode({"n": number}), **self.fields | fields)

    async def start(self, number: int) -> None:
        await put(self.shop.store, self.task(number))
        self.shop.start()

    async def finished(self, count: int) -> None:
        """Wait until that many tasks have ended, and the worker rests."""
        await self.settled(count)
        await until(lambda: self.shop.worker.running == 0)
        await turns()

    async def settled(self, count: int) -> None:
        async with asyncio.timeout(BOUND):
            while len(self.answers) < count:
                self.shop.clock.advance(0.1)  # the committer's pause after an error
                await asyncio.sleep(0)


async def test_the_steps_of_a_chain_need_one_claim(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(make_shop(poll_every=3600), monkeypatch)
    await chain.start(9)
    await chain.finished(10)
    assert chain.executed == list(range(9, -1, -1))
    assert chain.claims == [1, 0], "one that found the first task, one that found no other"
    assert [len(answer.claimed) for answer in chain.answers] == [1] * 9 + [0]


async def test_a_chain_leaves_its_only_slot_to_a_task_that_waits(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(make_shop(concurrency=1, poll_every=3600), monkeypatch)
    await put(chain.shop.store, chain.task(2, priority=-1), chain.task(0, priority=0), chain.task(0, priority=1))
    chain.shop.start()
    await chain.finished(5)
    assert chain.executed == [2, 0, 1, 0, 0], "the one of the same priority came before the second step, the later one after all"


@pytest.mark.parametrize(("concurrency", "claimed"), [(3, 1), (2, 0)], ids=["room", "no room"])
async def test_a_chain_goes_on_beside_tasks_that_wait_if_its_worker_has_room_for_them(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch, concurrency: int, claimed: int
) -> None:
    chain = Chain(make_shop(concurrency=concurrency, poll_every=3600), monkeypatch)

    async def store_others(number: int) -> None:
        if number == 5:  # without a signal, so they wait
            await put(chain.shop.store, chain.task(0), chain.task(0))

    chain.during = store_others
    await chain.start(9)
    await chain.settled(10)
    assert [len(answer.claimed) for answer in chain.answers[:5]] == [1, 1, 1, 1, claimed]


async def test_a_full_worker_goes_on_with_its_chains_while_several_commits_are_on_their_way(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(make_shop(concurrency=2, poll_every=3600), monkeypatch)
    store, commit = chain.shop.store, chain.shop.store.commit
    first, second = asyncio.Event(), asyncio.Event()

    async def slow(units: Sequence[Unit]) -> list[Answer]:
        if any(unit.guard for unit in units):
            (second if first.is_set() else first).set()
            await second.wait()
        return await commit(units)

    async def after_the_first(number: int) -> None:
        if number == 19:
            await first.wait()

    chain.during = after_the_first
    monkeypatch.setattr(store, "parallel_commits", 2)
    monkeypatch.setattr(store, "commit", slow)
    await put(store, chain.task(9), chain.task(19))
    chain.shop.start()
    await chain.finished(30)
    assert chain.claims == [2, 0]
    assert sum(len(answer.claimed) for answer in chain.answers) == 28


@pytest.mark.parametrize("fields", [{"limit_key": "k"}, {"fairness_key": "f"}, {"delay": 500}, {"hold": 4}])
async def test_only_plain_tasks_are_preclaimed(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch, fields: Any) -> None:
    chain = Chain(make_shop(), monkeypatch)
    await chain.start(0)
    await chain.finished(1)
    unit = Unit(Claim("a", 1, "owner-1"), tasks=(chain.task(0, **fields),))
    assert chain.shop.worker.preclaim([unit]) == {}
    foreign = new_task(lane=WORK._replace(name="foreign"))
    assert chain.shop.worker.preclaim([Unit(unit.guard, tasks=(foreign,))]) == {}
    cancels = Unit(unit.guard, tasks=(chain.task(0),), rows=(CancelRunTasks("run", "me", "{}"),))
    assert chain.shop.worker.preclaim([cancels]) == {}
    assert chain.shop.worker.running == 0


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
async def test_a_lost_answer_costs_neither_an_attempt_nor_a_second_execution(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    chain = Chain(make_shop(poll_every=3600), monkeypatch)
    commit, lost = chain.shop.store.commit, []

    async def breaks(units: Sequence[Unit]) -> list[Answer]:
        if not lost and any(task.preclaimed for unit in units for task in unit.tasks):
            lost.extend(task.id for unit in units for task in unit.tasks)
            if committed:
                await commit(units)
            raise StoreUnavailable("the connection broke")
        return await commit(units)

    monkeypatch.setattr(chain.shop.store, "commit", breaks)
    await chain.start(2)
    await chain.finished(3)
    assert chain.executed == [2, 1, 0]
    task = await chain.shop.get(lost[0])
    assert (task.state, task.claim_version, task.attempt, task.takeovers) == (TaskState.COMPLETED, 1, 1, 0)


async def test_a_refused_unit_returns_the_room(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(make_shop(), monkeypatch)
    await chain.start(0)
    await chain.finished(1)
    answer = await chain.shop.committer.submit(
        Unit(Claim(chain.task(0).id, 7, "owner-1"), Finish("succeed", "completed"), (chain.task(0),))
    )
    assert answer.verdict is Verdict.CLAIM_LOST
    await turns()
    assert chain.shop.worker.running == 0
    assert chain.executed == [0]


async def test_a_worker_that_stops_during_the_commit_preclaims_nothing_more(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(make_shop(poll_every=3600), monkeypatch)
    commit, sent, go_on = chain.shop.store.commit, asyncio.Event(), asyncio.Event()

    async def slow(units: Sequence[Unit]) -> list[Answer]:
        answers = await commit(units)
        if any(task.preclaimed for unit in units for task in unit.tasks):
            sent.set()
            await go_on.wait()
        return answers

    monkeypatch.setattr(chain.shop.store, "commit", slow)
    await chain.start(3)
    await sent.wait()
    stopping = asyncio.ensure_future(chain.shop.worker.stop())
    await turns()
    assert not stopping.done(), "the commit may bring a task"
    go_on.set()
    await stopping
    assert chain.executed == [3, 2], "the second was held already"
    assert [len(answer.claimed) for answer in chain.answers] == [1, 0]


async def test_the_lease_keeper_knows_of_a_preclaim_on_its_way(make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(make_shop(poll_every=3600), monkeypatch)
    shown: list[bool] = []

    class Renewer:
        def set_claiming(self, claiming: bool) -> None:
            shown.append(claiming)

        def hold(self, *args: Any) -> None: ...

        def start(self, claim: Claim) -> bool:
            return True

        def drop(self, claim: Claim) -> None: ...

    commit, during = chain.shop.store.commit, []

    async def watched(units: Sequence[Unit]) -> list[Answer]:
        during.append((any(task.preclaimed for unit in units for task in unit.tasks), shown[-1]))
        return await commit(units)

    chain.shop.worker.renew_with(Renewer())  # type: ignore[arg-type]
    await put(chain.shop.store, chain.task(1))
    monkeypatch.setattr(chain.shop.store, "commit", watched)
    chain.shop.start()
    await chain.finished(2)
    assert (True, True) in during
    assert not shown[-1]
