"""Approvals on every store, at the store's own time: one unit each for asking, deciding, reminding, escalating and expiring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.errors import raises_code

from treadle.api.approvals import Approval
from treadle.kernel.approvals.service import Approvals
from treadle.kernel.core import Core
from treadle.kernel.queue.decide import SettlementWith, settlement
from treadle.kernel.queue.service import Queue
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.retention import Retention
from treadle.kernel.store.units import Finish, Requeue, Row, Seen, Unit, Verdict
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.store.verify import verify
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import InvalidInput, Refused
from treadle.model.names import ENGINE_LIST, NOTIFY
from treadle.model.outcomes import AwaitingApproval
from treadle.model.retry import RetryPolicy
from treadle.model.tasks import NewTask, Task
from treadle.model.values import decode
from treadle_conformance.task_steps import MINUTE, claim, claim_one, get, ids, put_and_claim, transitions_of


class RequestContext:
    """The services around one store."""

    def __init__(self, store: Store, *, notifies: bool = False) -> None:
        self.store = store
        self.committer = Committer(store, SystemClock())
        self.value_store = ValueStore(store)
        self.core = Core(store, self.committer, self.value_store, ids, SystemClock())
        self.approvals = Approvals(self.core, notifies=notifies)
        self.closes_approvals = True
        self.queue = Queue(self.core, follow=self._follow)

    async def _follow(self, task: Task, _: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        return (), await self.approvals.rows_for_end(task) if self.closes_approvals else ()

    async def ask(self, **options: Any) -> tuple[Task, Approval]:
        """A task that has just asked, and its approval."""
        task = await put_and_claim(self.store)
        request = ApprovalRequest.of("Refund?", **options)
        decided = settlement(task, AwaitingApproval(request, {"page": 1}), RetryPolicy())
        assert isinstance(decided, SettlementWith)
        assert (await self.approvals.ask(task, task.claim, decided.settlement, request)).verdict is Verdict.DONE
        return await get(self.store, task.id), await self.only(task.id)

    async def only(self, task_id: str) -> Approval:
        (pending,) = (await self.approvals.list(task_id=task_id)).approvals
        return pending

    async def wake_and_tend(self) -> tuple[Verdict, Finish | Requeue]:
        await self.store.tasks.wake(10)
        task = await claim_one(self.store)
        assert task.state == "awaiting_approval"
        processed = await self.approvals.process_due(task, task.claim)
        return processed.answer.verdict, processed.settlement

    async def transitions(self, entity_id: str) -> list[str]:
        return transitions_of(await self.store.log.list_transitions(entity_id))

    async def told(self) -> list[tuple[str, str]]:
        """(event, approval id) of the notifications that are to be sent, oldest first."""
        tasks = await self.store.tasks.list_matching(TaskFilter(kind=NOTIFY, task_list=ENGINE_LIST), 100)
        said = [decode(task.payload) for task in reversed(tasks)]
        return [(each["event"], each["approval_id"]) for each in said]


@pytest.fixture
async def desk(store: Store) -> AsyncIterator[RequestContext]:
    made = RequestContext(store)
    yield made
    await made.committer.drain()


@pytest.fixture
async def telling_desk(store: Store) -> AsyncIterator[RequestContext]:
    """One where somebody is to be told."""
    made = RequestContext(store, notifies=True)
    yield made
    await made.committer.drain()


async def check(store: Store) -> None:
    assert (await verify(store)).problems == ()


async def test_asking_requeues_the_task_and_stores_the_question_in_one_unit(desk, clock):
    task, shown = await desk.ask(context={"amount": 5}, expires=60)
    assert (task.state, task.owner_id, task.wake_at) == ("awaiting_approval", None, clock.now() + MINUTE)
    assert (task.attempt, task.failures) == (1, 0)
    assert (shown.state, shown.task_id, shown.context) == ("pending", task.id, {"amount": 5})
    assert shown.expires_at.ms == clock.now() + MINUTE
    assert await claim(desk.store) == []
    (moved,) = await desk.store.log.list_transitions(task.id)
    assert (moved.transition, decode(moved.data)["approval_id"]) == ("ask", shown.id)
    assert await desk.told() == []
    await check(desk.store)


async def test_a_worker_that_lost_its_claim_requests_no_approval(desk):
    task = await put_and_claim(desk.store)
    request = ApprovalRequest.of("Refund?")
    decided = settlement(task, AwaitingApproval(request), RetryPolicy())
    await desk.queue.cancel(task.id)
    assert isinstance(decided, SettlementWith)
    assert (await desk.approvals.ask(task, task.claim, decided.settlement, request)).verdict is Verdict.CLAIM_LOST
    assert (await desk.approvals.list(every=True)).approvals == []


async def test_approving_makes_the_task_ready_immediately_with_the_decision(desk):
    task, shown = await desk.ask(context={"amount": 5})
    done = await desk.approvals.decide(shown.id, "approve", actor="ada", reason="fine")
    assert (done.state, done.ended_by) == ("approved", "ada")
    again = await claim_one(desk.store)
    assert (again.id, again.state, again.attempt) == (task.id, "pending", 1)
    held = decode(again.checkpoint)
    assert held["checkpoint"] == {"page": 1}
    (decision,) = held["@approvals"]
    assert (decision["by"], decision["reason"], decision["context"], decision["edited"]) == ("ada", "fine", {"amount": 5}, False)
    assert await desk.transitions(task.id) == ["ask", "approve"]
    assert await desk.transitions(shown.id) == ["approve"]
    await check(desk.store)


async def test_denying_fails_the_task_immediately(desk):
    task, shown = await desk.ask()
    done = await desk.approvals.decide(shown.id, "deny", actor="ada", reason="too much")
    ended = await get(desk.store, task.id)
    assert (done.state, ended.state, ended.error_code, ended.actor) == ("denied", "failed", "approval_denied", "ada")
    assert decode(ended.error)["message"] == "approval denied by ada: too much"
    assert await desk.transitions(task.id) == ["ask", "deny"]
    await check(desk.store)


@pytest.mark.parametrize(("first", "second"), [("approve", "approve"), ("approve", "deny"), ("deny", "approve")])
async def test_a_second_decision_is_refused_without_effect(desk, first, second):
    task, shown = await desk.ask()
    await desk.approvals.decide(shown.id, first, actor="ada")
    before = (await get(desk.store, task.id), await desk.approvals.get(shown.id))
    with raises_code("already_decided", match=r"already \w+ by ada") as raised:
        await desk.approvals.decide(shown.id, second, actor="bob")
    assert raised.value.code == "already_decided"
    assert (await get(desk.store, task.id), await desk.approvals.get(shown.id)) == before


async def test_concurrent_decisions_have_one_winner(desk):
    task, shown = await desk.ask()
    votes = [desk.approvals.decide(shown.id, "approve" if n % 2 else "deny", actor=f"p{n}") for n in range(8)]
    answers = await asyncio.gather(*votes, return_exceptions=True)
    done = [answer for answer in answers if not isinstance(answer, Exception)]
    assert len(done) == 1
    assert {answer.code for answer in answers if isinstance(answer, Refused)} == {"already_decided"}
    assert len(await desk.transitions(shown.id)) == 1
    assert len(await desk.transitions(task.id)) == 2
    await check(desk.store)


async def test_an_unauthorized_decision_is_refused_naming_the_deciders(desk):
    task, shown = await desk.ask(deciders=["ada", "ops"])
    with raises_code("may_not_decide", match="the deciders are ada, ops") as raised:
        await desk.approvals.decide(shown.id, "approve", actor="eve", groups=["dev"])
    assert raised.value.code == "may_not_decide"
    assert (await get(desk.store, task.id)).state == "awaiting_approval"
    assert await desk.transitions(shown.id) == []
    assert (await desk.approvals.decide(shown.id, "approve", actor="eve", groups=["ops"])).state == "approved"


async def test_a_decision_after_expiry_is_refused_even_before_the_expiry_is_recorded(desk, clock):
    task, shown = await desk.ask(expires=60)
    await clock.advance(MINUTE)
    with raises_code("decided_too_late") as raised:
        await desk.approvals.decide(shown.id, "approve", actor="ada")
    assert raised.value.code == "decided_too_late"
    assert (await get(desk.store, task.id)).state == "awaiting_approval"
    await desk.wake_and_tend()
    with raises_code("decided_too_late"):
        await desk.approvals.decide(shown.id, "approve", actor="ada")


async def test_votes_accumulate_and_each_decider_has_one(desk):
    task, shown = await desk.ask(quorum=2, deciders=["ada", "bob", "cyn"])
    one = await desk.approvals.decide(shown.id, "approve", actor="ada")
    assert (one.state, len(one.votes)) == ("pending", 1)
    assert (await get(desk.store, task.id)).state == "awaiting_approval"
    with raises_code("already_voted", match=r"1 of 2 votes"):
        await desk.approvals.decide(shown.id, "approve", actor="ada")
    assert (await desk.approvals.decide(shown.id, "approve", actor="bob")).state == "approved"
    assert await desk.transitions(shown.id) == ["vote", "approve"]
    (decision,) = decode((await get(desk.store, task.id)).checkpoint)["@approvals"]
    assert [each["actor"] for each in decision["votes"]] == ["ada", "bob"]
    await check(desk.store)


async def test_votes_at_the_same_moment_all_count(desk):
    _, shown = await desk.ask(quorum=5)
    await asyncio.gather(*[desk.approvals.decide(shown.id, "approve", actor=f"p{n}") for n in range(4)])
    done = await desk.approvals.decide(shown.id, "approve", actor="last")
    assert (done.state, len(done.votes)) == ("approved", 5)


async def test_edits_of_an_approval_reach_the_task(desk):
    task, shown = await desk.ask(context={"amount": 5, "to": "x"}, edits=True)
    await desk.approvals.decide(shown.id, "approve", actor="ada", edits={"amount": 3})
    (decision,) = decode((await get(desk.store, task.id)).checkpoint)["@approvals"]
    assert (decision["context"], decision["edited"]) == ({"amount": 3, "to": "x"}, True)
    (transition,) = await desk.store.log.list_transitions(shown.id)
    assert decode(transition.data)["edits"] == {"amount": 3}


async def test_forbidden_and_invalid_edits_are_refused(desk):
    _, shown = await desk.ask()
    with raises_code("edits_not_allowed") as raised:
        await desk.approvals.decide(shown.id, "approve", actor="ada", edits={"amount": 3})
    assert raised.value.code == "edits_not_allowed"
    for wrong in ({"edits": [1]}, {"edits": {"x": object()}}, {"actor": ""}, {"reason": "x" * 5000}):
        with pytest.raises(InvalidInput):
            await desk.approvals.decide(shown.id, "approve", **{"actor": "ada"} | wrong)
    with pytest.raises(InvalidInput, match="only possible when approving"):
        await desk.approvals.decide(shown.id, "deny", actor="ada", edits={"x": 1})
    with pytest.raises(InvalidInput, match="'approve' or 'deny'"):
        await desk.approvals.decide(shown.id, "maybe", actor="ada")
    with raises_code("approval_not_found"):
        await desk.approvals.decide(ids.new_id(), "approve", actor="ada")
    assert await desk.transitions(shown.id) == []


async def test_each_approval_of_a_batch_is_decided_independently(desk):
    shown = [(await desk.ask(deciders=names))[1] for names in (["ada"], ["bob"], [])]
    missing = ids.new_id()
    answers = (await desk.approvals.decide_many([*[each.id for each in shown], missing], "approve", actor="ada")).answers
    assert [answer.id for answer in answers] == [*[each.id for each in shown], missing]
    assert [answer.error.code if answer.error else answer.state for answer in answers] == [
        "approved",
        "may_not_decide",
        "approved",
        "approval_not_found",
    ]


async def test_an_expired_approval_fails_its_task(desk, clock):
    task, shown = await desk.ask(expires=60)
    await clock.advance(MINUTE)
    verdict, settled = await desk.wake_and_tend()
    assert (verdict, settled.transition) == (Verdict.DONE, "fail")
    ended = await get(desk.store, task.id)
    assert (ended.state, ended.error_code) == ("failed", "approval_expired")
    assert decode(ended.error)["message"].startswith("approval expired: nobody decided 'Refund?'")
    assert (await desk.approvals.get(shown.id)).state == "expired"
    assert await desk.transitions(shown.id) == ["expire"]
    await check(desk.store)


async def test_an_expired_approval_can_be_requested_again(telling_desk, clock):
    desk, store = telling_desk, telling_desk.store
    task, first = await desk.ask(expires=60, on_expiry="ask_again", context={"n": 1})
    await clock.advance(MINUTE)
    verdict, settled = await desk.wake_and_tend()
    assert (verdict, settled.transition) == (Verdict.DONE, "ask")
    second = await desk.only(task.id)
    assert (second.round, second.previous_id, second.context) == (2, first.id, {"n": 1})
    old = await desk.approvals.get(first.id)
    assert (old.state, old.next_id) == ("expired", second.id)
    waiting = await get(store, task.id)
    assert (waiting.state, waiting.wake_at) == ("awaiting_approval", clock.now() + MINUTE)
    assert await desk.told() == [("approval.requested", first.id), ("approval.requested", second.id)]
    assert (await desk.approvals.decide(second.id, "approve", actor="ada")).state == "approved"
    (decision,) = decode((await get(store, task.id)).checkpoint)["@approvals"]
    assert decision["approval_id"] == second.id
    await check(store)


async def test_deciders_are_reminded_and_requests_escalated(telling_desk, clock):
    desk, store = telling_desk, telling_desk.store
    task, shown = await desk.ask(
        deciders=["ada"], remind_after=10, remind_every=20, escalate_after=15, escalate_to=["boss"], expires=60
    )
    seen = []
    for seconds in (10, 5, 15):
        await clock.advance(seconds * 1000)
        _, settled = await desk.wake_and_tend()
        waiting = await get(store, task.id)
        assert (settled.transition, waiting.state) == ("ask", "awaiting_approval")
        seen.append((waiting.wake_at or 0) - clock.now())
    assert seen == [5_000, 15_000, 20_000]
    assert await desk.transitions(shown.id) == ["remind", "escalate", "remind"]
    assert [event for event, _ in await desk.told()] == [
        "approval.requested",
        "approval.reminder",
        "approval.escalated",
        "approval.reminder",
    ]
    assert (await desk.approvals.decide(shown.id, "approve", actor="boss")).state == "approved"
    await check(store)


async def test_a_task_examined_too_early_keeps_waiting(desk, clock):
    task, shown = await desk.ask(expires=60)
    seen = Seen(task.id, task.version, task.claim_version)
    woken = Requeue("resume", task.state, 1, 0, 0, checkpoint=task.checkpoint)
    await desk.committer.submit(Unit(seen, woken))
    _, settled = await desk.wake_and_tend()
    assert settled.transition == "ask"
    assert (await get(desk.store, task.id)).wake_at == clock.now() + MINUTE
    assert await desk.transitions(shown.id) == []


async def test_a_decision_wins_over_a_worker_that_is_about_to_remind(desk, clock):
    task, shown = await desk.ask(remind_after=10)
    await clock.advance(10_000)
    await desk.store.tasks.wake(10)
    taken = await claim_one(desk.store)
    assert (await desk.approvals.decide(shown.id, "approve", actor="ada")).state == "approved"
    stale = Requeue("ask", taken.state, 1, 0, 0, delay=1000)
    assert (await desk.committer.submit(Unit(taken.claim, stale))).verdict is Verdict.CLAIM_LOST
    assert (await get(desk.store, task.id)).state == "pending"


async def test_a_vote_concurrent_with_a_reminder_is_not_lost(desk, clock):
    task, shown = await desk.ask(remind_after=10, quorum=2)
    await clock.advance(10_000)
    await desk.store.tasks.wake(10)
    taken = await claim_one(desk.store)
    due, looked = desk.approvals._due, 0

    async def slow(*arguments):
        nonlocal looked
        looked += 1
        unit = await due(*arguments)
        if looked == 1:
            await desk.approvals.decide(shown.id, "approve", actor="ada")
        return unit

    desk.approvals._due = slow
    assert (await desk.approvals.process_due(taken, taken.claim)).answer.verdict is Verdict.DONE
    assert (looked, await desk.transitions(shown.id)) == (2, ["vote", "remind"])
    assert len((await desk.only(task.id)).votes) == 1


async def test_canceling_the_task_cancels_its_approval(desk):
    task, shown = await desk.ask()
    await desk.queue.cancel(task.id)
    assert (await desk.approvals.get(shown.id)).state == "canceled"
    with raises_code("already_decided", match="is already canceled"):
        await desk.approvals.decide(shown.id, "approve", actor="ada")
    await check(desk.store)


async def test_a_deadline_ends_the_wait_for_an_approval(desk, store, clock):
    task = await put_and_claim(store, deadline_for=MINUTE)
    request = ApprovalRequest.of("Refund?", remind_after=120)
    decided = settlement(task, AwaitingApproval(request), RetryPolicy())
    assert isinstance(decided, SettlementWith)
    await desk.approvals.ask(task, task.claim, decided.settlement, request)
    shown = await desk.only(task.id)
    await clock.advance(2 * MINUTE)
    await desk.wake_and_tend()
    assert (await get(store, task.id)).error_code == "deadline_exceeded"
    assert (await desk.approvals.get(shown.id)).state == "canceled"
    await check(store)


async def test_a_paused_task_can_be_decided_and_stays_paused(desk):
    task, shown = await desk.ask()
    await desk.queue.pause(task.id)
    await desk.approvals.decide(shown.id, "approve", actor="ada")
    held = await get(desk.store, task.id)
    assert (held.state, held.shown_state) == ("pending", "paused")
    assert await claim(desk.store) == []
    await desk.queue.resume(task.id)
    assert (await claim_one(desk.store)).id == task.id


async def test_a_context_that_is_big_is_kept_whole(desk):
    task, shown = await desk.ask(context={"text": "x" * 50_000}, edits=True)
    assert len((await desk.approvals.get(shown.id)).context["text"]) == 50_000
    await desk.approvals.decide(shown.id, "approve", actor="ada", edits={"n": 1})
    (decision,) = decode((await get(desk.store, task.id)).checkpoint)["@approvals"]
    assert len(decision["context"]["text"]) == 50_000


async def test_an_approval_is_pruned_with_its_task(desk, clock):
    task, shown = await desk.ask(expires=60)
    await desk.approvals.decide(shown.id, "deny", actor="ada")
    await clock.advance(MINUTE)
    await Retention(desk.store).prune_tree(task.id)
    with raises_code("approval_not_found"):
        await desk.approvals.get(shown.id)


async def test_lists_are_paged_and_filtered(desk):
    shown = [(await desk.ask())[1] for _ in range(3)]
    await desk.approvals.decide(shown[1].id, "deny", actor="ada")
    assert [each.id for each in (await desk.approvals.list()).approvals] == [shown[2].id, shown[0].id]
    assert [each.id for each in (await desk.approvals.list(state=("denied",))).approvals] == [shown[1].id]
    first = (await desk.approvals.list(every=True, limit=2)).approvals
    rest = (await desk.approvals.list(every=True, limit=2, before=first[-1].id)).approvals
    assert [each.id for each in [*first, *rest]] == [each.id for each in reversed(shown)]
    with pytest.raises(InvalidInput, match="Unknown state 'open'"):
        await desk.approvals.list(state=("open",))


async def test_an_approval_of_another_namespace_is_not_found(desk, store):
    _, shown = await desk.ask()
    other = Approvals(replace(desk.core, namespace="other"))
    assert (await other.list(every=True)).approvals == []
    with raises_code("approval_not_found"):
        await other.decide(shown.id, "approve", actor="ada")


async def test_an_approval_that_lost_its_task_is_found_and_closed(desk):
    task, shown = await desk.ask()
    desk.closes_approvals = False
    await desk.queue.cancel(task.id)
    (orphan,) = (await desk.approvals.list()).approvals
    assert orphan.id == shown.id
    with raises_code("already_decided", match="canceled"):
        await desk.approvals.decide(shown.id, "approve", actor="ada")
    assert (await desk.approvals.list()).approvals == []
