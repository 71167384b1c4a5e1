"""Objectives from creation to their end: operators' actions, blockers, attempts, budgets, failures, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.goals.scene import (
    GATE,
    OK,
    READINESS,
    RUN,
    SCHEDULE,
    TOPOLOGY,
    approved,
    count,
    ended,
    opened,
    play,
    play_all,
    settle,
    take,
    until,
    use_topology,
)
from tests.limits import BOUND

from treadle import AwaitingApproval, Context, Engine, NonRetryable, Waiting
from treadle.api.objectives import Objective
from treadle.goals import settler as goal_settler
from treadle.goals.records import ObjectiveNotFound
from treadle.goals.topology import InvalidTopology
from treadle.model.errors import IllegalTransition, InvalidInput, PayloadTooLarge, Refused
from treadle.settings import Settings

UNKNOWN = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"
BUDGET = TOPOLOGY.replace("30s", "300ms")


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
async def engine(url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with opened(url, tmp_path) as made:
        yield made


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine for tests that do not depend on the store."""
    async with opened("memory://", tmp_path) as made:
        yield made


# --- operators' actions ---


@pytest.mark.postgres
async def test_a_new_objective_has_its_fields_and_the_status_new(engine: Engine):
    given = {
        "acceptance_criteria": ["fast"],
        "type": "STANDING",
        "importance": 4,
        "urgency": 0,
        "metadata": {"a": [1]},
        "prompt": "Go",
    }
    made = await engine.goals.objectives.add("Do it", actor="ada", **given)
    found = await engine.goals.objectives.get(made.objective_id)
    assert found == made
    assert {name: getattr(found, name) for name in given} == given
    assert (found.status, found.created_by, found.approved_by, found.blockers) == ("NEW", "ada", None, [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"title": ""},
        {"title": "x" * 501},
        {"title": 5},
        {"actor": ""},
        {"type": "not a name"},
        {"importance": 5},
        {"urgency": -1},
        {"urgency": True},
        {"acceptance_criteria": [""]},
        {"metadata": [1]},
        {"prompt": ""},
        {"key": ""},
        {"blocked_by": [""]},
    ],
    ids=str,
)
async def test_invalid_objectives_are_rejected_and_not_stored(small: Engine, wrong: dict[str, Any]):
    given: dict[str, Any] = {"title": "Do it", "actor": "ada", **wrong}
    with pytest.raises(InvalidInput):
        await small.goals.objectives.add(given.pop("title"), **given)
    assert await small.goals.objectives.list() == []


async def test_an_objective_that_is_too_big_is_refused(small: Engine):
    with pytest.raises(PayloadTooLarge):
        await small.goals.objectives.add("Do it", actor="ada", metadata={"big": "x" * 70_000})


async def test_a_missing_objective_is_reported(small: Engine):
    with pytest.raises(ObjectiveNotFound, match="treadle objectives list"):
        await small.goals.objectives.get(UNKNOWN)
    with pytest.raises(ObjectiveNotFound):
        await small.goals.objectives.add("Do it", actor="ada", blocked_by=[UNKNOWN])
    with pytest.raises(InvalidInput, match="not a valid objective id"):
        await small.goals.objectives.approve("x", actor="ada")


async def test_a_key_identifies_one_objective_until_it_is_done(engine: Engine):
    first = await engine.goals.objectives.add("Do it", actor="ada", key="nightly")
    assert (await engine.goals.objectives.add("Again", actor="bea", key="nightly")).objective_id == first.objective_id
    await engine.goals.objectives.approve(first.objective_id, actor="ada")
    await play_all(engine, READINESS)
    await play(engine, SCHEDULE)
    await play(engine, RUN, {"content": "ok"})
    await play(engine, GATE, OK)
    assert (await engine.goals.objectives.add("Next", actor="ada", key="nightly")).objective_id != first.objective_id


async def test_approving_twice_is_approving_once(engine: Engine):
    made = await approved(engine)
    again = await engine.goals.objectives.approve(made.objective_id, actor="bea")
    assert (again.approved_by, again.status_version) == ("ada", 1)


async def test_concurrent_approvals_record_one_transition(engine: Engine):
    made = await engine.goals.objectives.add("Do it", actor="ada")
    await asyncio.gather(*(engine.goals.objectives.approve(made.objective_id, actor=f"person {n}") for n in range(5)))
    trail = await engine.goals.objectives.show(made.objective_id)
    assert [transition.transition for transition in trail.transitions] == ["approve"]
    assert trail.transitions[0].actor == trail.objective.approved_by


async def test_lists_are_paged_and_the_board_counts_objectives_by_status(engine: Engine):
    new = [await engine.goals.objectives.add(f"new {n}", actor="ada", importance=n) for n in range(3)]
    todo = await approved(engine, "todo")
    listed = await engine.goals.objectives.list(limit=2)
    assert [each.objective_id for each in listed] == [todo.objective_id, new[2].objective_id]
    rest = await engine.goals.objectives.list(before_id=listed[-1].objective_id)
    assert [each.objective_id for each in rest] == [new[1].objective_id, new[0].objective_id]
    assert [each.title for each in await engine.goals.objectives.list(statuses=["TODO"])] == ["todo"]
    board = await engine.goals.objectives.board(2)
    assert {status: (number, [each.title for each in found]) for status, (number, found) in board.items()} == {
        "NEW": (3, ["new 2", "new 1"]),
        "TODO": (1, ["todo"]),
        "IN_PROGRESS": (0, []),
        "BLOCKED": (0, []),
        "DONE": (0, []),
    }
    with pytest.raises(InvalidInput):
        await engine.goals.objectives.list(statuses=["MAYBE"])


async def test_an_edit_changes_given_fields_until_the_objective_is_done(engine: Engine):
    made = await approved(engine)
    edited = await engine.goals.objectives.edit(made.objective_id, actor="bea", title="Do that", urgency=4)
    assert (edited.title, edited.urgency, edited.importance, edited.status) == ("Do that", 4, 2, "TODO")
    await engine.goals.objectives.edit(made.objective_id, actor="bea", title="Do that")  # nothing
    trail = await engine.goals.objectives.show(made.objective_id)
    assert [(transition.transition, transition.actor) for transition in trail.transitions] == [("approve", "ada"), ("edit", "bea")]
    await play_all(engine, READINESS)
    await play(engine, SCHEDULE)
    await engine.goals.objectives.edit(made.objective_id, actor="bea", title="Too late for this workorder")
    await play(engine, RUN, {"content": "ok"})
    await play(engine, GATE, OK)
    trail = await engine.goals.objectives.show(made.objective_id)
    (order,) = trail.workorders
    assert order.snapshot is not None
    assert (order.snapshot.objective.title, trail.objective.title) == ("Do that", "Too late for this workorder")
    with pytest.raises(IllegalTransition):
        await engine.goals.objectives.edit(made.objective_id, actor="bea", title="No")


# --- blockers ---


async def finish(engine: Engine, gate: Any = OK) -> None:
    """Finish everything that is ready."""
    while True:
        await play_all(engine, READINESS)
        if await play_all(engine, SCHEDULE):
            continue
        for kind, result in ((RUN, {"content": "ok"}), (GATE, gate)):
            if (task := await take(engine, kind)) is not None:
                await settle(engine, task, result)
                break
        else:
            return


async def test_an_objective_with_an_open_blocker_is_not_executable_until_that_is_done(engine: Engine):
    first = await engine.goals.objectives.add("first", actor="ada")
    second = await approved(engine, "second", blocked_by=[first.objective_id])
    await finish(engine)
    trail = await engine.goals.objectives.show(second.objective_id)
    assert (trail.objective.status, trail.events) == ("TODO", [])
    assert first.objective_id in trail.why
    await engine.goals.objectives.approve(first.objective_id, actor="ada")
    await finish(engine)
    trail = await engine.goals.objectives.show(second.objective_id)
    assert (trail.objective.status, [transition.transition for transition in trail.transitions]) == (
        "DONE",
        ["approve", "resolve", "schedule", "pass"],
    )


async def test_a_text_blocker_is_resolved_by_a_person(engine: Engine):
    made = await approved(engine, blocked_by=["no key for the door"])
    await finish(engine)
    assert (await engine.goals.objectives.get(made.objective_id)).status == "TODO"
    resolved = await engine.goals.objectives.unblock(made.objective_id, actor="bea")
    assert [(each.text, each.resolved_by) for each in resolved.blockers] == [("no key for the door", "bea")]
    await finish(engine)
    assert (await engine.goals.objectives.get(made.objective_id)).status == "DONE"


async def test_a_finished_blocker_does_not_block(engine: Engine):
    first = await approved(engine, "first")
    await finish(engine)
    second = await approved(engine, "second", blocked_by=[first.objective_id])
    assert second.open_blockers == []
    await finish(engine)
    assert (await engine.goals.objectives.get(second.objective_id)).status == "DONE"


async def test_a_blocked_objective_waits_for_a_person_and_its_stale_event_is_processed(engine: Engine):
    made = await approved(engine)
    await play_all(engine, READINESS)
    blocked = await engine.goals.objectives.block(made.objective_id, actor="bea", reason="not now")
    assert (blocked.status, blocked.open_blockers[0].text) == ("BLOCKED", "not now")
    await finish(engine)
    trail = await engine.goals.objectives.show(made.objective_id)
    assert [event.processed_reason for event in trail.events] == ["STALE"]
    assert (trail.objective.status, trail.workorders) == ("BLOCKED", [])
    await engine.goals.objectives.unblock(made.objective_id, actor="bea")
    await finish(engine)
    trail = await engine.goals.objectives.show(made.objective_id)
    assert (trail.objective.status, [event.processed_reason for event in trail.events]) == ("DONE", ["STALE", "SCHEDULED"])


async def test_a_blocked_objective_continues_when_its_blocker_is_done(engine: Engine):
    first, second = await engine.goals.objectives.add("first", actor="ada"), await approved(engine, "second")
    await engine.goals.objectives.block(second.objective_id, actor="ada", on=first.objective_id)
    await finish(engine)
    assert (await engine.goals.objectives.get(second.objective_id)).status == "BLOCKED"
    await engine.goals.objectives.approve(first.objective_id, actor="ada")
    await finish(engine)
    trail = await engine.goals.objectives.show(second.objective_id)
    assert [(transition.transition, transition.actor) for transition in trail.transitions][1:3] == [
        ("block", "ada"),
        ("unblock", "readiness"),
    ]
    assert trail.objective.status == "DONE"


async def test_blocking_cycles_are_refused(small: Engine):
    first, second, third = [await approved(small, f"number {n}") for n in range(3)]
    await small.goals.objectives.block(second.objective_id, actor="ada", on=first.objective_id)
    await small.goals.objectives.block(third.objective_id, actor="ada", on=second.objective_id)
    for other in (first, third):
        with pytest.raises(InvalidInput, match=r"itself|cycle"):
            await small.goals.objectives.block(first.objective_id, actor="ada", on=other.objective_id)
    with pytest.raises(InvalidInput, match="either a reason"):
        await small.goals.objectives.block(first.objective_id, actor="ada")


async def test_blocking_on_a_finished_objective_is_refused(small: Engine):
    first = await approved(small, "first")
    await finish(small)
    second = await approved(small, "second")
    with pytest.raises(InvalidInput, match="already DONE"):
        await small.goals.objectives.block(second.objective_id, actor="ada", on=first.objective_id)


async def test_every_objective_behind_one_blocker_is_examined(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(goal_settler, "DEPENDANTS_PAGE", 3)
    first = await engine.goals.objectives.add("first", actor="ada")
    waiting = [await approved(engine, f"number {n}", blocked_by=[first.objective_id]) for n in range(7)]
    await play_all(engine, READINESS)
    await engine.goals.objectives.approve(first.objective_id, actor="ada")
    await finish(engine)
    assert {(await engine.goals.objectives.get(each.objective_id)).status for each in waiting} == {"DONE"}


async def test_an_objective_added_while_its_blocker_finishes_is_not_stuck(engine: Engine):
    """Add and judge concurrently, many times: in any commit order, nothing waits for a finished objective."""
    for number in range(8):
        first = await approved(engine, f"first {number}")
        await play_all(engine, READINESS)
        await play(engine, SCHEDULE)
        await play(engine, RUN, {"content": "ok"})
        second, _ = await asyncio.gather(
            approved(engine, f"second {number}", blocked_by=[first.objective_id]), play(engine, GATE, OK)
        )
        await finish(engine)
        assert (await engine.goals.objectives.get(second.objective_id)).status == "DONE"


# --- how workorders end ---


async def worked(engine: Engine, *made: Objective) -> Any:
    async with engine.worker():
        trails = await ended(engine, *made)
    return trails[0] if len(made) == 1 else trails


async def test_a_gate_that_fails_three_times_blocks_until_a_person_unblocks(engine: Engine):
    @engine.handler("do")
    async def do(payload: Any) -> Any:
        return {"content": "no"}

    made = await approved(engine)
    trail = await worked(engine, made)
    assert (trail.objective.status, len(trail.workorders), trail.objective.failed_workorders) == ("BLOCKED", 3, 3)
    assert [order.pause_state.reason for order in trail.workorders] == ["GATE_FAILED"] * 3
    assert [len(order.snapshot.run_records) for order in trail.workorders] == [0, 1, 2]
    assert "3 workorders failed; the last: says-ok: ok was not found" in trail.why
    unblocked = await engine.goals.objectives.unblock(made.objective_id, actor="bea")
    assert (unblocked.status, unblocked.failed_workorders) == ("TODO", 0)
    trail = await worked(engine, made)
    assert (trail.objective.status, len(trail.workorders)) == ("BLOCKED", 6)


@pytest.mark.parametrize(
    ("handler", "code"),
    [("broken", "handler_error"), ("final", "spoiled"), ("odd", "unexpected_result")],
)
async def test_a_final_failure_is_recorded_in_a_bundle_and_fails(engine: Engine, handler: str, code: str):
    calls = 0

    @engine.handler("do")
    async def do(payload: Any) -> Any:
        nonlocal calls
        calls += 1
        if handler == "final":
            raise NonRetryable("no good", "spoiled")
        if handler == "odd":
            return 5
        raise RuntimeError("no luck")

    trail = await worked(engine, await approved(engine))
    assert (trail.objective.status, calls) == ("BLOCKED", 3)
    for order in trail.workorders:
        assert (order.workorder.status, order.bundle.error.code, order.run_record.gate_result) == ("EXECUTED", code, "FAIL")
        assert order.bundle.notes[-1].startswith(f"{code}: ")
        assert order.run_record.gates == []
        assert order.pause_state.reason == "GATE_FAILED"


async def test_a_handlers_own_retries_are_within_one_workorder(engine: Engine):
    attempts: list[int] = []

    @engine.handler("do", retry=2)
    async def do(payload: Any, ctx: Context) -> Any:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return {"content": "ok"}

    trail = await worked(engine, await approved(engine))
    assert (trail.objective.status, len(trail.workorders), attempts) == ("DONE", 1, [1, 2, 3])


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_exhausted_budget_ends_the_workorder_despite_remaining_retries(url: str, tmp_path: Path, kind: str):
    async with opened(url, tmp_path, BUDGET + "    on_fail: BLOCKED\n") as engine:

        async def slow(payload: Any) -> Any:
            await asyncio.sleep(60)  # the budget ends it

        def blocking(payload: Any, ctx: Context) -> Any:
            ctx.wait_cancelled(60)

        engine.handler("do", retry=5)(slow if kind == "async" else blocking)
        trail = await worked(engine, await approved(engine))
        (order,) = trail.workorders
        assert (trail.objective.status, order.bundle.error.code) == ("BLOCKED", "budget_exhausted")
        assert (order.pause_state.reason, order.run_record.gate_result) == ("BUDGET_EXHAUSTED", "FAIL")
        assert 1 <= len(order.pause_state.actions) <= 3


async def test_the_budget_is_for_all_attempts_together_and_sleeping_costs_none_of_it(url: str, tmp_path: Path):
    async with opened(url, tmp_path, TOPOLOGY.replace("30s", "2s")) as engine:
        seen: list[Any] = []

        @engine.handler("do", retry=9)
        async def do(payload: Any, ctx: Context) -> Any:
            seen.append(ctx.checkpoint)
            if ctx.checkpoint is None:
                return Waiting(2_200, {"slept": True})
            await asyncio.sleep(0.8)  # uses the budget up
            raise RuntimeError("again")

        made = await approved(engine)
        async with engine.worker():

            async def once() -> bool:
                return bool((await engine.goals.objectives.show(made.objective_id)).objective.workorders)

            await until(once)
        (first, *_) = (await engine.goals.objectives.show(made.objective_id)).workorders
        assert first.bundle is not None
        assert first.bundle.error is not None
        assert first.bundle.error.code == "budget_exhausted"
        assert seen[0] is None
        assert [each for each in seen[1:4] if each is not None] == [{"slept": True}] * min(3, len(seen) - 1)


async def test_handlers_run_in_threads_and_report_progress(engine: Engine):
    @engine.handler("do")
    def do(payload: Any, ctx: Context) -> Any:
        ctx.progress(0.5, "half")
        ctx.log("a line")
        return {"content": "ok"}

    trail = await worked(engine, await approved(engine))
    assert trail.objective.status == "DONE"
    (task,) = await engine.kernel.reads.list_tasks(kind=RUN)
    assert [line.message for line in await engine.kernel.reads.list_lines(task.id)] == ["a line"]


async def test_an_effect_of_a_workorder_is_made_once(engine: Engine):
    made: list[str] = []

    @engine.handler("do", retry=2)
    async def do(payload: Any, ctx: Context) -> Any:
        async def pay() -> Any:
            made.append(ctx.dedupe_key)
            return {"paid": 5}

        paid = await ctx.effect("pay", pay, {"amount": 5})
        if ctx.attempt == 1:
            raise RuntimeError("after the effect")
        return {"content": "ok", "metadata": paid}

    trail = await worked(engine, await approved(engine))
    assert (len(made), trail.objective.status, trail.workorders[0].bundle.metadata) == (1, "DONE", {"paid": 5})


async def test_a_workorder_cannot_request_an_approval(engine: Engine):
    @engine.handler("do")
    async def do(payload: Any) -> Any:
        return AwaitingApproval("May I?")

    trail = await worked(engine, await approved(engine))
    assert [order.bundle.error.code for order in trail.workorders] == ["unexpected_result"] * 3


async def test_a_big_bundle_is_kept_whole(engine: Engine):
    big = {"text": "ok " + "x" * 200_000}

    @engine.handler("do")
    async def do(payload: Any) -> Any:
        return {"content": big, "metadata": {"y": "z" * 20_000}}

    trail = await worked(engine, await approved(engine))
    (order,) = trail.workorders
    assert (order.bundle.content, order.bundle.metadata) == (big, {"y": "z" * 20_000})


class Backwards:
    """A codec that hides all it is given."""

    name = "backwards"

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, stored: str) -> str:
        return stored[::-1]


async def test_with_a_codec_no_text_of_an_objective_is_readable_in_the_store(tmp_path: Path):
    engine = Engine(f"sqlite:///{tmp_path / 'treadle.db'}", settings=Settings(), codec=Backwards())
    use_topology(engine, tmp_path)

    @engine.handler("do")
    async def do(payload: Any) -> Any:
        return {"content": "ok a secret answer"}

    async with engine:
        trail = await worked(engine, await approved(engine, "a secret question"))
        assert trail.workorders[0].bundle.content == "ok a secret answer"
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("treadle.db*"))  # noqa: ASYNC240
    assert b"secret" not in stored


async def test_a_gate_that_raises_is_retried_and_finally_fails(url: str, tmp_path: Path):
    async with opened(url, tmp_path, TOPOLOGY.replace("[{use: regex, name: says-ok, pattern: ok}]", "[shaky, broken]")) as engine:
        asked: list[str] = []

        @engine.handler("do")
        async def do(payload: Any) -> Any:
            return {"content": "ok"}

        @engine.goals.gate("shaky")
        async def shaky(bundle: Any) -> bool:
            asked.append("shaky")
            if len(asked) == 1:
                raise RuntimeError("no network")
            return True

        @engine.goals.gate("broken")
        def broken(bundle: Any) -> bool:
            asked.append("broken")
            if asked.count("broken") < 4:
                raise RuntimeError("no luck")
            return True

        made = await approved(engine)
        async with engine.worker():
            (trail,) = await ended(engine, made)
        first, second = trail.workorders
        assert first.run_record is not None
        assert second.run_record is not None
        assert (first.run_record.gate_result, first.run_record.reason) == ("FAIL", "gates: handler_error: no luck")
        assert (second.run_record.gate_result, trail.objective.status) == ("PASS", "DONE")


async def test_canceling_the_task_of_a_workorder_fails_the_workorder(engine: Engine):
    started = asyncio.Event()

    @engine.handler("do")
    async def do(payload: Any) -> Any:
        if started.is_set():
            return {"content": "ok"}
        started.set()
        await asyncio.Event().wait()
        return None

    made = await approved(engine)
    async with engine.worker():
        await asyncio.wait_for(started.wait(), BOUND)
        (task,) = await engine.kernel.reads.list_tasks(kind=RUN, states=("running",))
        await engine.cancel(task.id, actor="bea", reason="changed my mind")
        (trail,) = await ended(engine, made)
    first, second = trail.workorders
    assert first.bundle is not None
    assert first.bundle.error is not None
    assert (first.bundle.error.code, first.bundle.error.message) == ("canceled", "changed my mind")
    assert (second.run_record.gate_result if second.run_record else None, trail.objective.status) == ("PASS", "DONE")


@pytest.mark.parametrize("kind", [READINESS, SCHEDULE, GATE])
async def test_the_other_roles_tasks_are_not_canceled(small: Engine, kind: str):
    made = await approved(small)
    for earlier, result in ((READINESS, None), (SCHEDULE, None), (RUN, {"content": "ok"}), (GATE, OK)):
        if earlier == kind:
            break
        await play(small, earlier, result)
    task = next(task for task in await small.kernel.reads.list_tasks(kind=kind) if not task.finished)
    with pytest.raises(Refused, match="treadle objectives"):
        await small.cancel(task.id)
    await finish(small)
    assert (await small.goals.objectives.get(made.objective_id)).status == "DONE"


# --- topologies and workers ---


async def test_without_a_topology_work_waits_for_a_role(url: str, tmp_path: Path):
    engine = make_engine(url)

    @engine.handler("do")
    async def do(payload: Any) -> Any:
        return {"content": "ok"}

    async with engine:
        made = await engine.goals.objectives.add("Do it", actor="ada")
        await engine.goals.objectives.approve(made.objective_id, actor="ada")
        async with engine.worker():
            (task, *_) = await engine.kernel.reads.list_tasks(kind=READINESS)
            reason = await engine.why(task.id)
            assert reason.code == "no_worker"
            assert "no live worker plays the role goal.readiness in list engine" in reason.text
            assert "treadle worker --topology FILE" in reason.text
        use_topology(engine, tmp_path)
        (trail,) = [await worked(engine, made)]
        assert trail.objective.status == "DONE"


async def test_a_worker_claims_only_workorders_of_its_handlers(small: Engine):
    made = await approved(small)
    async with small.worker():

        async def scheduled() -> bool:
            return (await small.goals.objectives.get(made.objective_id)).status == "IN_PROGRESS"

        await until(scheduled)
        why = (await small.goals.objectives.show(made.objective_id)).why
        assert why.startswith("in progress: no live worker plays the role goal.run with the handler do")

        @small.handler("do")
        async def do(payload: Any) -> Any:
            return {"content": "ok"}

        small.kernel.committer.notify(())
        await ended(small, made)


async def test_a_worker_does_not_start_with_missing_gates_or_handlers_in_its_topology(small: Engine, tmp_path: Path):
    use_topology(small, tmp_path, TOPOLOGY.replace("use: regex, name: says-ok, pattern: ok", "use: unheard"))
    with pytest.raises(InvalidTopology, match="there is no gate unheard here"):
        async with small.worker():
            pass
    use_topology(small, tmp_path, TOPOLOGY + "reviewer: nobody\n")
    with pytest.raises(InvalidTopology, match="there is no handler nobody here"):
        async with small.worker():
            pass
    use_topology(small, tmp_path, TOPOLOGY + "reviewer: nobody\n", roles=["scheduler"])  # which asks neither
    async with small.worker():
        pass


async def test_a_specialist_does_not_handle_workorders(small: Engine):
    class Farm:
        async def start(self, **given: Any) -> Any:
            raise AssertionError("nothing is submitted")

        async def poll(self, external_job_id: str, **given: Any) -> Any:
            raise AssertionError("nothing is polled")

    made = await approved(small)
    async with small.worker():
        small.specialist("do", Farm())
        small.kernel.committer.notify(())
        (trail,) = await ended(small, made)
        assert {order.bundle.error.code for order in trail.workorders if order.bundle and order.bundle.error} == {
            "unexpected_result"
        }
    with pytest.raises(InvalidTopology, match=r"types\.TICKET\.handler: do is a specialist"):
        async with small.worker():
            pass


async def test_a_reviewer_that_requests_an_approval_fails(small: Engine, tmp_path: Path):
    use_topology(small, tmp_path, TOPOLOGY + "reviewer: shy\n")

    @small.handler("shy")
    async def shy(payload: Any) -> Any:
        return AwaitingApproval("May it?")

    made = await small.goals.objectives.add("Do it", actor="ada")
    async with small.worker():

        async def failed() -> bool:
            return [task.state for task in await small.kernel.reads.list_tasks(kind=READINESS)] == ["failed"]

        await until(failed)
    assert (await small.goals.objectives.get(made.objective_id)).status == "NEW"


async def test_a_type_that_the_topology_does_not_have_waits_for_one_that_does(engine: Engine, tmp_path: Path):
    @engine.handler("do")
    async def do(payload: Any) -> Any:
        return {"content": "ok"}

    other = await approved(engine, type="STANDING")
    assert (await worked(engine, await approved(engine))).objective.status == "DONE"
    trail = await engine.goals.objectives.show(other.objective_id)
    assert (trail.objective.status, trail.events, trail.objective.blockers) == ("TODO", [], [])
    use_topology(engine, tmp_path, TOPOLOGY.replace("TICKET", "STANDING"))
    assert (await worked(engine, other)).objective.status == "DONE"


async def test_workorders_wait_in_the_list_that_the_topology_names(small: Engine, tmp_path: Path):
    use_topology(small, tmp_path, TOPOLOGY + "    task_list: night\n")

    @small.handler("do")
    async def do(payload: Any) -> Any:
        return {"content": "ok"}

    made = await approved(small)
    async with small.worker(task_lists=["night"]):
        await ended(small, made)
    (task,) = await small.kernel.reads.list_tasks(kind=RUN)
    assert task.task_list == "night"


# --- deadlines ---

DEADLINES = TOPOLOGY + "roles: {deadline: {interval: 50ms}}\ndeadlines: {4: 1ms, 1: 1d}\n"


async def test_an_overdue_objective_gets_a_pause_state_once(url: str, tmp_path: Path):
    async with opened(url, tmp_path, DEADLINES) as engine:
        late = await approved(engine, "late", urgency=4)
        blocked = await approved(engine, "blocked", urgency=4)
        await engine.goals.objectives.block(blocked.objective_id, actor="ada", reason="stuck")
        calm = await approved(engine, "calm", urgency=1)
        free = await approved(engine, "free", urgency=2)
        new = await engine.goals.objectives.add("new", actor="ada", urgency=4)
        async with engine.worker():

            async def flagged() -> bool:
                found = [(await engine.goals.objectives.get(each.objective_id)).overdue_at for each in (late, blocked)]
                return None not in found

            await until(flagged)
            (task,) = [task for task in await engine.kernel.reads.list_tasks(kind="goal.deadline") if not task.finished]
            versions = task.claim_version

            async def looked_again() -> bool:
                return (await engine.kernel.reads.get_task(task.id)).claim_version >= versions + 2

            await until(looked_again)
        assert await count(engine, "pause_state") == 2
        trail = await engine.goals.objectives.show(late.objective_id)
        assert trail.overdue is not None
        assert (trail.overdue.reason, trail.overdue.terminal, trail.objective.status) == ("DEADLINE_PASSED", False, "TODO")
        assert [transition.transition for transition in trail.transitions] == ["approve", "overdue"]
        assert (await engine.goals.objectives.show(blocked.objective_id)).objective.status == "BLOCKED"
        for other in (calm, free, new):
            assert (await engine.goals.objectives.get(other.objective_id)).overdue_at is None


async def test_several_workers_share_one_deadline_monitor(small: Engine, tmp_path: Path):
    use_topology(small, tmp_path, DEADLINES)
    async with small.worker(), small.worker():
        pass
    assert len(await small.kernel.reads.list_tasks(kind="goal.deadline")) == 1


# --- retention ---


async def test_the_artifacts_of_an_objective_are_pruned_together_and_it_remains(engine: Engine):
    @engine.handler("do")
    async def do(payload: Any) -> Any:
        return {"content": "no " + "x" * 20_000}

    made = await approved(engine)
    await worked(engine, made)
    report = await engine.kernel.retention.prune(older_than=0)
    assert report.records > 0
    trail = await engine.goals.objectives.show(made.objective_id)
    assert (trail.objective.status, trail.events, trail.workorders) == ("BLOCKED", [], [])
    assert len(trail.objective.workorders) == 3
    await engine.goals.objectives.unblock(made.objective_id, actor="ada")
    trail = await worked(engine, made)
    assert (trail.objective.status, len(trail.workorders)) == ("BLOCKED", 3)
