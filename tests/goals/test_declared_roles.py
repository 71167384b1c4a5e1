"""Additional roles that a topology declares with their handlers, and deadline monitors of several topologies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.goals.scene import READINESS, SCHEDULE, approved, opened, play, play_all, take, until, use_topology
from tests.limits import BOUND

from treadle import Engine
from treadle.engine.operations import Operations
from treadle.goals.topology import ROLE_EVENTS, InvalidTopology
from treadle.kernel.store.units import Unit
from treadle.model.access import OPEN
from treadle.model.states import OBJECTIVE

ROLE, DEADLINE = "goal.role", "goal.deadline"
TOPOLOGY = """
name: capture
roles:
  capture: {handler: capture.check, events: [objective.approve, objective.pass], lease: 45s, interval: 50ms}
types:
  CAPTURE: {handler: do, gates: []}
"""


def with_handlers(engine: Engine, calls: list[dict[str, Any]], result: dict[str, Any] | None = None) -> None:
    @engine.handler("capture.check")
    async def check(payload: dict[str, Any]) -> dict[str, Any]:
        calls.append(payload)
        return result or {}

    @engine.handler("do")
    async def do(payload: dict[str, Any]) -> dict[str, Any]:
        return {"content": "ok"}


async def has(calls: list[Any], count: int) -> bool:
    return len(calls) >= count


async def has_passed(engine: Engine, at: int) -> bool:
    return await engine.kernel.store.now() > at


@pytest.mark.postgres
@pytest.mark.parametrize("kind", SHARED)
async def test_a_role_receives_its_events_and_no_others(kind: str, request: Any, tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = []
    engine = make_engine(url_of(kind, request, tmp_path))
    with_handlers(engine, calls)
    use_topology(engine, tmp_path, TOPOLOGY)
    async with engine, engine.worker(), asyncio.timeout(BOUND):
        await engine.goals.objectives.add("Not approved", actor="ada", type="CAPTURE")
        made = await approved(engine, type="CAPTURE")
        await until(lambda: has(calls, 2))
        fleet = await Operations(engine, OPEN).servers.fleet()
    assert {each["event"] for each in calls} == {"objective.approve", "objective.pass"}
    assert {(each["role"], each["objective"]["objective_id"]) for each in calls} == {("capture", made.objective_id)}
    assert "goal.role/capture" in [each.name for each in fleet.roles]


async def test_the_task_of_a_role_is_leased_and_explained(tmp_path: Path) -> None:
    async with opened("memory://", tmp_path, TOPOLOGY) as engine:
        made = await approved(engine, type="CAPTURE")
        await play_all(engine, READINESS)
        (waiting,) = await engine.kernel.reads.list_tasks(kind=ROLE)
        assert "plays the role capture/CAPTURE" in (await engine.kernel.reads.why(waiting.id)).text
        task = await take(engine, ROLE)
        assert task is not None
        (claim,) = await engine.goals.objectives.claims(ROLE)
        assert (claim.task_id, claim.resource_type, claim.claim_version) == (task.id, "TASK", 1)
        assert await take(engine, ROLE) is None
        await engine.cancel(task.id)
        assert (await engine.goals.objectives.get(made.objective_id)).status == "TODO"


async def test_a_role_blocks_and_unblocks_its_objective_under_its_claim(tmp_path: Path) -> None:
    text = TOPOLOGY.replace("objective.approve, objective.pass", "objective.approve, objective.block")
    async with opened("memory://", tmp_path, text) as engine:
        made = await approved(engine, type="CAPTURE")
        await play_all(engine, READINESS)
        await play(engine, ROLE, {"block": "no camera"})
        objective = await engine.goals.objectives.get(made.objective_id)
        assert (objective.status, objective.blockers[-1].text) == ("BLOCKED", "no camera")
        await play_all(engine, SCHEDULE)  # the event of the earlier status is stale
        await play(engine, ROLE, {"unblock": True})
        objective = await engine.goals.objectives.get(made.objective_id)
        assert (objective.status, objective.open_blockers) == ("TODO", [])
        await play_all(engine, READINESS)
        await play(engine, SCHEDULE)
        assert (await engine.goals.objectives.get(made.objective_id)).status == "IN_PROGRESS"


async def test_roles_of_another_topology_are_not_served(tmp_path: Path) -> None:
    async with opened("memory://", tmp_path, TOPOLOGY) as engine:
        with_handlers(engine, [])
        roles = engine.goals.serve(None)  # type: ignore[arg-type]
        assert roles is not None
        assert roles.find(ROLE, "capture/CAPTURE") is not None
        assert roles.find(ROLE, "capture/REVIEW") is None
        assert roles.find(ROLE, "other/CAPTURE") is None


async def test_a_worker_needs_the_handlers_of_its_roles(tmp_path: Path) -> None:
    engine = make_engine("memory://")
    use_topology(engine, tmp_path, TOPOLOGY)
    async with engine:
        with pytest.raises(InvalidTopology, match=r"roles\.capture\.handler"):
            async with engine.worker():
                pass


def test_every_event_of_a_role_is_a_transition_of_an_objective() -> None:
    transitions = {transition for _, transition in OBJECTIVE.transitions} | {"add"}
    assert {event.removeprefix("objective.") for event in ROLE_EVENTS} == transitions - {"edit", "review"}


@pytest.mark.parametrize(
    ("role", "place"),
    [
        ("capture: {handler: x}", "needs events"),
        ("capture: {events: [objective.approve]}", "needs handler"),
        ("capture: {handler: x, events: objective.approve}", "roles.capture.events: must be a list"),
        ("capture: {handler: x, events: []}", "roles.capture.events: must be a list"),
        ("capture: {handler: x, events: [objective.aprove]}", "did you mean objective.approve"),
        ("capture: {handler: 'not a name', events: [objective.pass]}", "roles.capture.handler"),
        ("ca/pture: {handler: x, events: [objective.pass]}", "contains no /"),
        ("gate: {handler: x, events: [objective.pass]}", "roles.gate.handler: is unknown here"),
        ("gait: {lease: 45s}", "did you mean gate"),
        ("capture: {handler: x, events: [objective.pass], hold: true}", "needs the event objective.approve"),
        ("capture: {handler: x, events: [objective.approve], hold: 1}", "must be true or false"),
    ],
)
def test_a_role_that_is_declared_wrongly_is_reported(role: str, place: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidTopology, match=r".*") as caught:
        use_topology(make_engine("memory://"), tmp_path, f"roles:\n  {role}\ntypes:\n  A: {{handler: do, gates: []}}\n")
    assert place in str(caught.value)


@pytest.mark.parametrize("namespace", ["default", "other"])
async def test_each_type_has_the_deadlines_of_its_own_topology(namespace: str, tmp_path: Path) -> None:
    one = "types: {ONE: {handler: do, gates: []}}\ndeadlines: {2: 1ms}\n"
    other = "types: {OTHER: {handler: do, gates: []}}\ndeadlines: {2: 10d}\n"
    engine = make_engine("memory://", namespace=namespace)
    async with engine:
        made = [await approved(engine, type=of_type) for of_type in ("ONE", "OTHER")]
        for text in (one, other):
            use_topology(engine, tmp_path, text)
            roles = engine.goals.serve(None)  # type: ignore[arg-type]
            assert roles is not None
            (task,) = roles.start_tasks()
            assert (task.queue.namespace, task.queue.name) == (namespace, "ONE" if text == one else "OTHER")
        await until(lambda: has_passed(engine, made[0].approved_at.ms + 1))
        for text in (other, one):
            use_topology(engine, tmp_path, text)
            services = engine.goals
            new = services.settler.monitor_task(engine.kernel.ids.new_id(), "ONE" if text == one else "OTHER")
            await engine.kernel.committer.submit(Unit(tasks=(new,)))
            task = await take(engine, DEADLINE)
            assert task is not None
            await services.settler.scan(task.claim, engine.goals.topology, task.name)
        flags = [(await engine.goals.objectives.get(each.objective_id)).overdue_at is not None for each in made]
    assert flags == [True, False]


@pytest.mark.parametrize("kind", SHARED)
async def test_a_role_receives_events_from_processes_without_its_declaration(kind: str, request: Any, tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = []
    url = url_of(kind, request, tmp_path)
    built_in, alone = make_engine(url), make_engine(url)
    for engine, folder in ((built_in, tmp_path / "a"), (alone, tmp_path / "b")):
        with_handlers(engine, calls)
        folder.mkdir()
        text = TOPOLOGY if engine is alone else TOPOLOGY.replace("roles:\n", "").replace(TOPOLOGY.splitlines()[3] + "\n", "")
        use_topology(engine, folder, text, ["capture"] if engine is alone else None)
    assert built_in.goals.topology is not None
    assert built_in.goals.topology.additional == {}
    async with built_in, alone, alone.worker(), built_in.worker(), asyncio.timeout(BOUND):
        await approved(built_in, type="CAPTURE")
        await until(lambda: has(calls, 2))
    assert {call["event"] for call in calls} == {"objective.approve", "objective.pass"}


async def test_a_role_that_is_withdrawn_receives_no_more_events(tmp_path: Path) -> None:
    async with opened("memory://", tmp_path, TOPOLOGY) as engine:
        with_handlers(engine, [])
        roles = engine.goals.serve(None)  # type: ignore[arg-type]
        assert roles is not None
        await roles.declare()
        use_topology(engine, tmp_path, "types:\n  CAPTURE: {handler: do, gates: []}\n")
        await approved(engine, type="CAPTURE")
        await play_all(engine, READINESS)
        assert len(await engine.kernel.reads.list_tasks(kind=ROLE)) == 1
        await engine.goals.withdraw_role("capture")
        await approved(engine, type="CAPTURE")
        await play_all(engine, READINESS)
        assert len(await engine.kernel.reads.list_tasks(kind=ROLE)) == 1


@pytest.mark.parametrize(("roles", "warns"), [(["capture"], True), (["capture", "readiness"], False), (None, False)])
async def test_a_worker_with_only_additional_roles_reports_that_it_receives_no_events(
    roles: list[str] | None, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine("memory://")
    with_handlers(engine, [])
    use_topology(engine, tmp_path, TOPOLOGY, roles)
    async with engine, engine.worker():
        pass
    assert ("no live worker plays the role readiness, without which capture receives no events" in caplog.text) is warns


HOLDING = TOPOLOGY.replace("lease: 45s", "hold: true, lease: 45s")


@pytest.mark.parametrize(
    ("result", "status", "blockers"),
    [({}, "TODO", []), ({"block": "no camera"}, "BLOCKED", ["no camera"]), ({"unblock": True}, "TODO", [])],
)
async def test_a_role_holds_an_approved_objective_until_it_has_run(
    result: dict[str, Any], status: str, blockers: list[str], tmp_path: Path
) -> None:
    async with opened("memory://", tmp_path, HOLDING) as engine:
        made = await approved(engine, type="CAPTURE")
        await play_all(engine, READINESS)
        objective = await engine.goals.objectives.get(made.objective_id)
        assert (objective.status, [blocker.text for blocker in objective.open_blockers]) == (
            "BLOCKED",
            ["waits for the role capture"],
        )
        assert await take(engine, SCHEDULE) is None
        assert "waits for the role capture" in (await engine.goals.objectives.show(made.objective_id)).why
        (waiting,) = await engine.kernel.reads.list_tasks(kind=ROLE)
        assert waiting.name == "capture/CAPTURE"
        await play(engine, ROLE, result)
        objective = await engine.goals.objectives.get(made.objective_id)
        assert (objective.status, [blocker.text for blocker in objective.open_blockers]) == (status, blockers)
        if status == "BLOCKED":
            await engine.goals.objectives.unblock(made.objective_id, actor="ada")
        await play_all(engine, READINESS)
        await play(engine, SCHEDULE)
        assert (await engine.goals.objectives.get(made.objective_id)).status == "IN_PROGRESS"


async def test_an_operator_frees_an_objective_that_a_role_holds(tmp_path: Path) -> None:
    async with opened("memory://", tmp_path, HOLDING) as engine:
        made = await approved(engine, type="CAPTURE")
        await play_all(engine, READINESS)
        await engine.goals.objectives.unblock(made.objective_id, actor="ada")
        await play_all(engine, READINESS)
        await play(engine, SCHEDULE)
        await play(engine, ROLE, {"block": "too late"})
        assert (await engine.goals.objectives.get(made.objective_id)).status == "IN_PROGRESS"


@pytest.mark.parametrize("kind", SHARED)
async def test_an_objective_with_roles_that_hold_it_ends(kind: str, request: Any, tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = []
    engine = make_engine(url_of(kind, request, tmp_path))
    with_handlers(engine, calls)
    second = "  second: {handler: capture.check, events: [objective.approve], hold: true}\ntypes:"
    use_topology(engine, tmp_path, HOLDING.replace("types:", second).replace(", objective.pass", ""))
    async with engine, engine.worker(), asyncio.timeout(BOUND):
        made = await approved(engine, type="CAPTURE")

        async def is_done() -> bool:
            return (await engine.goals.objectives.get(made.objective_id)).status == "DONE"

        await until(is_done)
    assert sorted(call["role"] for call in calls) == ["capture", "second"]
