"""The normative sentences of the polling workers' topology, each as a test; `docs/reference/goal-pipeline.md` has the table.

What crashes is in `tests/crash/test_goals.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.goals.scene import (
    GATE,
    NOT_OK,
    OK,
    READINESS,
    RUN,
    SCHEDULE,
    TOPOLOGY,
    again,
    approved,
    count,
    ended,
    image,
    opened,
    play,
    play_all,
    settle,
    take,
    until,
    use_topology,
)
from tests.limits import BOUND

from treadle import Context, Engine
from treadle.api.objectives import ReadinessEvent, RunRecord, Workorder
from treadle.goals.records import event_id_of, follow_up_id
from treadle.goals.schemas import check_document
from treadle.kernel.store.queries import Renewal
from treadle.kernel.store.units import Verdict
from treadle.model.errors import IllegalTransition, InvalidInput
from treadle.model.tasks import Claim


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
async def engine(url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with opened(url, tmp_path) as made:
        yield made


# --- worker roles ---


@pytest.mark.postgres
async def test_the_readiness_worker_enforces_the_status_transitions(engine: Engine) -> None:
    """Only the transitions of the table can be made; the database refuses the rest, whoever tries (tests/contract)."""
    made = await engine.goals.objectives.add("Do it", actor="ada")
    with pytest.raises(IllegalTransition):
        await engine.goals.objectives.block(made.objective_id, actor="ada", reason="not before it is approved")
    await play(engine, READINESS)
    assert (await engine.goals.objectives.get(made.objective_id)).status == "NEW"
    assert await count(engine, "readiness_event") == 0


async def test_the_readiness_worker_emits_an_event_for_an_executable_objective(engine: Engine) -> None:
    made = await approved(engine)
    await play_all(engine, READINESS)
    event = await engine.goals.artifacts.find(ReadinessEvent, event_id_of(made.objective_id, 1))
    assert event is not None
    assert (event.resource_id, event.processed) == (made.objective_id, False)
    check_document("event", event.as_json())


async def test_the_readiness_worker_emits_once_for_a_state_transition(engine: Engine) -> None:
    made = await approved(engine)
    task = await play(engine, READINESS)
    for _ in range(3):
        await again(engine, task)
    await play_all(engine, READINESS)
    assert await count(engine, "readiness_event") == 1
    await engine.goals.objectives.block(made.objective_id, actor="ada", reason="wait")
    await engine.goals.objectives.unblock(made.objective_id, actor="ada")
    await play_all(engine, READINESS)
    assert await count(engine, "readiness_event") == 2  # another transition


async def test_the_scheduler_worker_claims_one_event_and_does_all_of_its_work(engine: Engine) -> None:
    made = await approved(engine)
    await play_all(engine, READINESS)
    task = await take(engine, SCHEDULE)
    assert task is not None
    (claim,) = await engine.goals.objectives.claims()
    event_id = event_id_of(made.objective_id, 1)
    assert (claim.resource_type, claim.resource_id) == ("EVENT", event_id)
    await settle(engine, task)
    trail = await engine.goals.objectives.show(made.objective_id)
    (event,), (order,) = trail.events, trail.workorders
    assert (event.processed, event.processed_reason) == (True, "SCHEDULED")
    assert (trail.objective.status, order.workorder.status) == ("IN_PROGRESS", "CREATED")
    assert order.snapshot is not None
    assert order.snapshot.objective.objective_id == made.objective_id
    for name, document in (("workorder", order.workorder), ("context_snapshot", order.snapshot), ("event", event)):
        check_document(name, document.as_json())


async def test_the_runner_worker_dispatches_to_the_diazotroph_type_and_persists_the_bundle(url: str, tmp_path: Path) -> None:
    async with opened(url, tmp_path) as engine:
        seen: list[Any] = []

        @engine.handler("do")
        async def do(payload: Any, ctx: Context) -> Any:
            seen.append((payload, ctx.task_id))
            return {"content": "ok", "notes": ["quick"]}

        @engine.handler("other")
        async def other(payload: Any) -> Any:
            raise AssertionError("not this one")

        made = await approved(engine, acceptance_criteria=["fast"])
        async with engine.worker():
            (trail,) = await ended(engine, made)
        (order,) = trail.workorders
        ((payload, _),) = seen
        assert order.bundle is not None
        assert (order.workorder.status, order.bundle.content, order.bundle.notes) == ("EXECUTED", "ok", ["quick"])
        assert payload["prompt"] == "Do it\n\nIt is done when:\n- fast"
        assert payload["workorder"]["work_order_id"] == order.workorder.work_order_id
        assert payload["objective"]["title"] == "Do it"
        check_document("output_bundle", order.bundle.as_json())


async def test_the_gate_worker_judges_moves_the_objective_and_emits_a_terminal_pause_state(engine: Engine) -> None:
    made = await approved(engine)
    await play_all(engine, READINESS)
    await play(engine, SCHEDULE)
    await play(engine, RUN, {"content": "ok"})
    await play(engine, GATE, OK)
    trail = await engine.goals.objectives.show(made.objective_id)
    (order,) = trail.workorders
    assert order.run_record is not None
    assert order.pause_state is not None
    assert (trail.objective.status, order.run_record.gate_result) == ("DONE", "PASS")
    assert (order.pause_state.reason, order.pause_state.terminal) == ("RUN_COMPLETE", True)
    check_document("run_record", order.run_record.as_json())
    check_document("pause_state", order.pause_state.as_json())
    check_document("objective", trail.objective.as_json())


# --- claim and lease protocol ---


async def test_every_claim_validates_against_the_claim_record_schema(engine: Engine) -> None:
    await approved(engine)
    await engine.enqueue("plain")
    found: dict[str, str] = {}
    for kind in (READINESS, READINESS, SCHEDULE, RUN, GATE, "handler"):
        task = await take(engine, kind)
        assert task is not None
        (claim,) = await engine.goals.objectives.claims()
        check_document("claim_record", claim.as_json())
        found[kind] = claim.resource_type
        assert claim.owner_id == task.owner_id
        assert claim.claim_version == task.claim_version + (kind == GATE)  # the runner claimed the same workorder once
        if kind != "handler":
            await settle(engine, task, OK if kind == GATE else {"content": "ok"})
    assert found == {READINESS: "TASK", SCHEDULE: "EVENT", RUN: "WORKORDER", GATE: "WORKORDER", "handler": "TASK"}


async def test_the_oldest_candidate_is_read_first(engine: Engine) -> None:
    made = [await approved(engine, f"number {number}") for number in range(4)]
    await play_all(engine, READINESS)
    order = [await play(engine, SCHEDULE) for _ in made]
    events = [event_id_of(each.objective_id, 1) for each in made]
    assert [task.root_id for task in order] == [each.objective_id for each in made]
    assert [(await engine.goals.artifacts.find(ReadinessEvent, event)).processed for event in events] == [True] * 4  # type: ignore[union-attr]


async def test_a_resource_with_an_active_claim_is_not_acquired(engine: Engine) -> None:
    await approved(engine)
    await play_all(engine, READINESS)
    assert await take(engine, SCHEDULE) is not None
    assert await take(engine, SCHEDULE) is None


async def test_concurrent_claims_of_an_event_have_one_winner(shared_url: str, tmp_path: Path) -> None:
    async with opened(shared_url, tmp_path) as first, make_engine(shared_url) as second:
        await approved(first)
        await play_all(first, READINESS)
        found = await asyncio.gather(*(take(engine, SCHEDULE) for engine in (first, second) * 4))
        assert sum(task is not None for task in found) == 1


async def test_an_expired_claim_is_acquired_with_the_next_version(engine: Engine) -> None:
    await approved(engine)
    await play_all(engine, READINESS)
    first = await take(engine, SCHEDULE, lease_for=1)
    assert first is not None
    await expired(engine)
    second = await take(engine, SCHEDULE)
    assert second is not None
    assert (second.id, second.claim_version) == (first.id, first.claim_version + 1)
    await settle(engine, second)


async def expired(engine: Engine) -> None:
    async def woken() -> bool:
        return (await engine.kernel.store.tasks.wake(10)).expired > 0

    await until(woken)


async def test_on_acquisition_failure_the_resource_is_skipped_and_polling_continues(engine: Engine) -> None:
    first, second = await approved(engine, "one"), await approved(engine, "two")
    await play_all(engine, READINESS)
    held, next_one = await take(engine, SCHEDULE), await take(engine, SCHEDULE)
    assert held is not None
    assert next_one is not None
    assert [held.root_id, next_one.root_id] == [first.objective_id, second.objective_id]


async def test_a_long_workorder_renews_its_lease_periodically(shared_url: str, tmp_path: Path) -> None:
    """It goes on until its lease was renewed, and nobody else gets it."""
    async with opened(shared_url, tmp_path) as engine:
        runs = 0

        @engine.handler("do")
        async def do(payload: Any) -> Any:
            nonlocal runs
            runs += 1
            (first,) = await engine.goals.objectives.claims(RUN)

            async def renewed() -> bool:
                (now,) = await engine.goals.objectives.claims(RUN)
                return now.lease_expires_at > first.lease_expires_at

            await until(renewed)
            return {"content": "ok"}

        made = await approved(engine)
        async with engine.worker(lease=9), engine.worker(lease=9):
            (trail,) = await ended(engine, made)
        assert (runs, trail.objective.status, len(trail.workorders)) == (1, "DONE", 1)


async def test_the_lease_is_that_of_the_topology(url: str, tmp_path: Path) -> None:
    """Which takes none under a second or over an hour (tests/goals/test_topology.py)."""
    async with opened(url, tmp_path, TOPOLOGY + "roles: {scheduler: {lease: 90}, runner: {lease: 45}, readiness: {}}\n") as engine:
        started, go = asyncio.Event(), asyncio.Event()

        @engine.handler("do")
        async def do(payload: Any) -> Any:
            started.set()
            await go.wait()

        await approved(engine)
        async with engine.worker() as host:
            assert host.describe().handlers == ["do", "goal.readiness", "goal.run", "goal.schedule"]
            await asyncio.wait_for(started.wait(), BOUND)
            (claim,) = await engine.goals.objectives.claims(RUN)
            go.set()
        span = claim.lease_expires_at - claim.heartbeat_at
        assert span.total_seconds() == 45


async def test_a_renewal_compares_the_claim_version(engine: Engine) -> None:
    await approved(engine)
    await play_all(engine, READINESS)
    first = await take(engine, SCHEDULE, lease_for=1)
    assert first is not None
    await expired(engine)
    second = await take(engine, SCHEDULE)
    assert second is not None

    def renew(claim: Claim) -> set[str]:
        line = engine.kernel.store.servers.lease_connection()
        try:
            return line.renew([Renewal(claim)], 60_000)
        finally:
            line.close()

    assert await asyncio.to_thread(renew, first.claim) == set()
    assert await asyncio.to_thread(renew, second.claim) == {second.id}


@pytest.mark.parametrize("kind", [READINESS, SCHEDULE, RUN, GATE])
async def test_a_settle_after_a_lost_claim_is_a_no_op(engine: Engine, kind: str) -> None:
    made = await approved(engine)
    results = {RUN: {"content": "ok"}, GATE: OK}
    for earlier in (READINESS, SCHEDULE, RUN, GATE):
        if earlier == kind:
            break
        await play(engine, earlier, results.get(earlier))
    lost = await take(engine, kind, lease_for=1)
    assert lost is not None
    await expired(engine)
    before = await image(engine)
    assert (await settle(engine, lost, results.get(kind))).verdict is Verdict.CLAIM_LOST
    assert await image(engine) == before
    await play_all(engine, READINESS)
    assert (await engine.goals.objectives.get(made.objective_id)).status in ("TODO", "IN_PROGRESS")


async def test_a_failed_lease_renewal_aborts_the_handler(shared_url: str, tmp_path: Path) -> None:
    async with opened(shared_url, tmp_path) as engine:
        started, stopped = asyncio.Event(), asyncio.Event()

        @engine.handler("do")
        async def do(payload: Any, ctx: Context) -> Any:
            if ctx.attempt > 1:
                return {"content": "ok"}
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        made = await approved(engine)
        async with engine.worker():
            await asyncio.wait_for(started.wait(), BOUND)
            (claim,) = await engine.goals.objectives.claims(RUN)
            assert await engine.kernel.store.tasks.expire_leases_of([claim.owner_id]) == 1
            await asyncio.wait_for(stopped.wait(), BOUND)
            (trail,) = await ended(engine, made)
        assert (trail.objective.status, len(trail.workorders)) == ("DONE", 1)


async def test_terminal_artifacts_and_the_release_are_one_write(engine: Engine) -> None:
    """There is no moment at which one is there without the other, so none at which a crash could come between."""
    made = await approved(engine)
    await play_all(engine, READINESS)
    await play(engine, SCHEDULE)
    task = await take(engine, RUN)
    assert task is not None
    before = await image(engine)
    assert len(await engine.goals.objectives.claims(RUN)) == 1
    await settle(engine, task, {"content": "ok"})
    assert await image(engine) != before
    assert await engine.goals.objectives.claims(RUN) == []
    (order,) = (await engine.goals.objectives.show(made.objective_id)).workorders
    assert order.workorder.status == "EXECUTED"


# --- idempotency ---


async def test_reprocessing_a_processed_event_is_a_no_op(engine: Engine) -> None:
    await approved(engine)
    await play_all(engine, READINESS)
    task = await play(engine, SCHEDULE)
    before = await image(engine)
    repeated = await again(engine, task)
    await play(engine, SCHEDULE)
    assert await image(engine) == before
    assert '"repeated":true' in ((await engine.kernel.reads.get_task(repeated.id)).result or "")


async def test_rerunning_the_scheduler_for_an_event_makes_no_second_workorder(engine: Engine) -> None:
    """Neither one after another, nor both at once, nor after the objective has gone on."""
    made = await approved(engine)
    await play_all(engine, READINESS)
    first = await take(engine, SCHEDULE)
    assert first is not None
    await again(engine, first)
    second = await take(engine, SCHEDULE)
    assert second is not None
    answers = await asyncio.gather(settle(engine, first), settle(engine, second))
    assert {answer.verdict for answer in answers} == {Verdict.DONE}
    assert await engine.goals.objectives.claims() == []  # also the one that was beaten is settled
    assert await count(engine, "workorder") == await count(engine, "context_snapshot") == 1
    await play(engine, RUN, {"content": "ok"})
    await play(engine, GATE, NOT_OK)
    await again(engine, first)
    await play(engine, SCHEDULE)
    assert await count(engine, "workorder") == 1
    assert (await engine.goals.objectives.get(made.objective_id)).status == "TODO"


async def test_rerunning_the_runner_for_an_executed_workorder_is_a_no_op(url: str, tmp_path: Path) -> None:
    async with opened(url, tmp_path) as engine:
        runs = 0

        @engine.handler("do")
        async def do(payload: Any) -> Any:
            nonlocal runs
            runs += 1
            return {"content": "ok"}

        made = await approved(engine)
        async with engine.worker():
            (trail,) = await ended(engine, made)
            (task,) = await engine.kernel.reads.list_tasks(kind=RUN)
            before = await image(engine)
            repeated = await again(engine, task)
            await engine.result(repeated.id, timeout=BOUND)
        assert (runs, await image(engine)) == (1, before)
        assert len(trail.workorders) == 1


async def test_the_gate_worker_upserts_by_work_order_id(engine: Engine) -> None:
    """One workorder has one run record and one terminal pause state, whatever is asked again, and whatever is answered then."""
    made = await approved(engine)
    await play_all(engine, READINESS)
    await play(engine, SCHEDULE)
    await play(engine, RUN, {"content": "ok"})
    task = await play(engine, GATE, OK)
    before = await image(engine)
    for answer in (OK, NOT_OK):
        await again(engine, task)
        await play(engine, GATE, answer)
    await again(engine, task)
    await play(engine, GATE, error={"code": "gate_error", "message": "too late"})
    assert await image(engine) == before
    order_id = follow_up_id(event_id_of(made.objective_id, 1), "workorder")
    record = await engine.goals.artifacts.find(RunRecord, follow_up_id(order_id, "run_record"))
    assert record is not None
    assert (record.gate_result, record.work_order_id) == ("PASS", order_id)
    assert await count(engine, "run_record") == await count(engine, "pause_state") == 1


async def test_concurrent_gates_judge_a_workorder_once(engine: Engine) -> None:
    await approved(engine)
    await play_all(engine, READINESS)
    await play(engine, SCHEDULE)
    await play(engine, RUN, {"content": "ok"})
    first = await take(engine, GATE)
    assert first is not None
    await again(engine, first)
    second = await take(engine, GATE)
    assert second is not None
    answers = await asyncio.gather(settle(engine, first, OK), settle(engine, second, NOT_OK))
    assert {answer.verdict for answer in answers} == {Verdict.DONE}
    assert await count(engine, "run_record") == await count(engine, "pause_state") == 1
    assert await engine.goals.objectives.claims() == []


async def test_every_repeated_operation_is_idempotent(engine: Engine) -> None:
    """Each role plays each of its tasks again at once, with the same answer."""
    made = await approved(engine)
    await engine.goals.objectives.approve(made.objective_id, actor="ada")
    results = {RUN: {"content": "ok"}, GATE: NOT_OK}
    for attempt in range(3):
        for kind in (READINESS, SCHEDULE, RUN, GATE):
            while (task := await take(engine, kind)) is not None:
                await settle(engine, task, results.get(kind))
                before = await image(engine)
                await again(engine, task)
                await play(engine, kind, results.get(kind))
                assert await image(engine) == before, (attempt, kind)
    trail = await engine.goals.objectives.show(made.objective_id)
    assert (trail.objective.status, len(trail.workorders), len(trail.events)) == ("BLOCKED", 3, 3)
    assert await count(engine, "run_record") == await count(engine, "pause_state") == 3


# --- coordination ---


async def test_claims_keep_workers_from_double_execution(shared_url: str, tmp_path: Path) -> None:
    runs: list[str] = []
    engines = [make_engine(shared_url) for _ in range(3)]
    for engine in engines:
        use_topology(engine, tmp_path)

        @engine.handler("do")
        async def do(payload: Any) -> Any:
            runs.append(payload["workorder"]["work_order_id"])
            return {"content": "ok"}

    async with engines[0], engines[1], engines[2]:
        async with engines[0].worker(), engines[1].worker(), engines[2].worker():
            made = [await approved(engines[0], f"number {number}") for number in range(12)]
            trails = await ended(engines[0], *made)
        assert len(runs) == len(set(runs)) == 12
        assert {(trail.objective.status, len(trail.workorders)) for trail in trails} == {("DONE", 1)}
        assert (await engines[0].kernel.verify()).problems == ()


@pytest.mark.parametrize("interval", ["50ms", "20s"])
async def test_correctness_does_not_depend_on_the_poll_interval(url: str, tmp_path: Path, interval: str) -> None:
    roles = f"roles: {{readiness: {{interval: {interval}}}, scheduler: {{}}, runner: {{}}, gate: {{}}}}\n"
    async with opened(url, tmp_path, TOPOLOGY + roles) as engine:

        @engine.handler("do")
        def do(payload: Any) -> Any:
            return {"content": "ok"}

        made = await approved(engine)
        async with engine.worker():
            (trail,) = await ended(engine, made)
        assert trail.objective.status == "DONE"


# --- the human boundary ---


@pytest.mark.parametrize("actor", ["", "   ", "reviewer:me", None])
async def test_new_to_todo_needs_a_named_person(engine: Engine, actor: Any) -> None:
    made = await engine.goals.objectives.add("Do it", actor="ada")
    with pytest.raises(InvalidInput):
        await engine.goals.objectives.approve(made.objective_id, actor=actor)
    await play_all(engine, READINESS)
    assert (await engine.goals.objectives.get(made.objective_id)).status == "NEW"


async def test_the_approving_person_is_recorded(engine: Engine) -> None:
    made = await approved(engine)
    trail = await engine.goals.objectives.show(made.objective_id)
    assert trail.objective.approved_by == "ada"
    assert [(transition.transition, transition.actor) for transition in trail.transitions] == [("approve", "ada")]


async def test_an_unapproved_objective_does_no_work(url: str, tmp_path: Path) -> None:
    async with opened(url, tmp_path) as engine:

        @engine.handler("do")
        async def do(payload: Any) -> Any:
            return {"content": "ok"}

        new = await engine.goals.objectives.add("Nobody wants it", actor="ada")
        async with engine.worker():
            await ended(engine, await approved(engine))
        trail = await engine.goals.objectives.show(new.objective_id)
        assert (trail.objective.status, trail.events, trail.workorders) == ("NEW", [], [])
        assert "waits for approval" in trail.why


async def test_an_autonomous_reviewer_replaces_the_person_with_the_same_result(url: str, tmp_path: Path) -> None:
    async with opened(url, tmp_path, TOPOLOGY + "reviewer: careful\n") as engine:

        @engine.handler("do")
        async def do(payload: Any) -> Any:
            return {"content": "ok"}

        @engine.handler("careful")
        async def careful(payload: Any) -> Any:
            return {"approved": "wild" not in payload["objective"]["title"], "reason": "as it seems"}

        good = await engine.goals.objectives.add("Do it", actor="ada")
        wild = await engine.goals.objectives.add("Something wild", actor="ada")
        async with engine.worker():
            (trail,) = await ended(engine, good)

            async def reviewed() -> bool:
                return [
                    transition.transition for transition in (await engine.goals.objectives.show(wild.objective_id)).transitions
                ] == ["review"]

            await until(reviewed)
            assert [transition.transition for transition in trail.transitions] == ["approve", "schedule", "pass"]
            assert trail.objective.approved_by == "reviewer:careful"
            assert (await engine.goals.objectives.get(wild.objective_id)).status == "NEW"
            await engine.goals.objectives.approve(wild.objective_id, actor="bea")  # a person may still
            (after,) = await ended(engine, wild)
        assert (after.objective.status, after.objective.approved_by) == ("DONE", "bea")


async def test_workorders_carry_the_fields_of_their_artifacts(engine: Engine) -> None:
    made = await approved(engine)
    await play_all(engine, READINESS)
    await play(engine, SCHEDULE)
    order = await engine.goals.artifacts.find(Workorder, follow_up_id(event_id_of(made.objective_id, 1), "workorder"))
    assert order is not None
    assert (order.diazotroph_type, order.budget_ms, order.objective_id) == ("do", 30_000, made.objective_id)
