"""The worker protocol, on an engine and over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code

from treadle.api.work import HeldClaim, NewLogLine
from treadle.engine import Engine
from treadle.engine.operations import Operations
from treadle.model.access import OPEN, Access, Scope
from treadle.model.errors import ClaimLost, Forbidden, ListForbidden, TaskNotFound
from treadle.settings import Settings


async def test_a_worker_claims_reports_and_completes(scene: Scene):
    made = await scene.api.tasks.enqueue("images.Shrink", {"n": 1})
    worker = await scene.api.work.register("w", ["images.*"])
    (held,) = (await scene.api.work.claim(worker.worker_id, limit=5)).tasks
    assert (held.task_id, held.payload, held.attempt, held.claim_version) == (made.id, {"n": 1}, 1, 1)
    said = {"worker_id": worker.worker_id, "claim_version": held.claim_version}
    assert (await scene.api.work.heartbeat(made.id, **said)).state == "held"
    await scene.api.work.progress(made.id, **said, fraction=0.5, message="half way")
    await scene.api.work.partial(made.id, **said, results={"pages": 3})
    await scene.api.work.log(made.id, **said, lines=[NewLogLine("reading"), NewLogLine("slow", "warning", {"s": 3})])
    beat = await scene.api.work.beat(worker.worker_id, claims=[HeldClaim(made.id, held.claim_version)])
    assert [claim.state for claim in beat.claims] == ["held"]
    assert (await scene.api.work.complete(made.id, **said, result={"ok": True})).state == "completed"
    assert (await scene.api.work.complete(made.id, **said, result={"ok": True})).state == "completed"  # said again
    shown = await scene.api.tasks.get(made.id)
    assert (shown.result, [line.message for line in shown.lines if line.source == "handler"]) == ({"ok": True}, ["reading", "slow"])
    assert (await scene.api.work.leave(worker.worker_id)).released == 0


async def test_failures_are_retried_or_not(scene: Scene):
    worker = await scene.api.work.register("w", ["images.Shrink"])
    made = await scene.api.tasks.enqueue("images.Shrink", retry=3)
    (held,) = (await scene.api.work.claim(worker.worker_id)).tasks
    key, said = held.idempotency_key, {"worker_id": worker.worker_id, "claim_version": held.claim_version}
    assert len(key) == 64
    assert (await scene.api.work.fail(made.id, **said, message="no luck", after=0)).state == "pending"
    (held,) = (await scene.api.work.claim(worker.worker_id, wait_for=5)).tasks
    assert (held.attempt, held.idempotency_key) == (2, key)
    said["claim_version"] = held.claim_version
    ended = await scene.api.work.fail(made.id, **said, message="corrupt", code="corrupt_image", retryable=False)
    assert ended.state == "failed"
    assert (await scene.api.tasks.result(made.id)).error_code == "corrupt_image"


async def test_a_worker_that_lost_its_claim_cannot_complete(scene: Scene):
    slow, quick = [await scene.api.work.register(name, ["images.Shrink"]) for name in ("slow", "quick")]
    made = await scene.api.tasks.enqueue("images.Shrink")
    (first,) = (await scene.api.work.claim(slow.worker_id)).tasks
    await scene.api.work.leave(slow.worker_id)
    (second,) = (await scene.api.work.claim(quick.worker_id, wait_for=5)).tasks
    assert second.claim_version == first.claim_version + 1
    with pytest.raises(ClaimLost):
        await scene.api.work.complete(made.id, quick.worker_id, first.claim_version, result={"from": "slow"})
    await scene.api.work.complete(made.id, quick.worker_id, second.claim_version, result={"from": "quick"})
    assert (await scene.api.tasks.result(made.id)).result == {"from": "quick"}


async def test_a_task_can_wait_request_an_approval_and_be_released(scene: Scene):
    worker = await scene.api.work.register("w", ["images.Shrink"])
    made = await scene.api.tasks.enqueue("images.Shrink")

    async def claimed() -> dict[str, object]:
        (held,) = (await scene.api.work.claim(worker.worker_id, wait_for=5)).tasks
        return {"worker_id": worker.worker_id, "claim_version": held.claim_version}

    assert (await scene.api.work.release(made.id, **await claimed())).state == "pending"  # type: ignore[arg-type]
    assert (await scene.api.work.wait(made.id, **await claimed(), seconds=0)).state == "pending"  # type: ignore[arg-type]
    asked = await scene.api.work.ask(made.id, **await claimed(), title="Publish?")  # type: ignore[arg-type]
    assert asked.state == "awaiting_approval"


async def test_a_worker_belongs_to_its_caller(scene: Scene):
    ann, bob = [Operations(scene.engine, Access(name, frozenset({Scope.WORK}), ("default",))) for name in ("ann", "bob")]
    worker = await ann.work.register("w", ["images.*"])
    with raises_code("worker_not_found"):
        await bob.work.claim(worker.worker_id)
    with pytest.raises(ListForbidden):
        await ann.work.register("w", ["images.*"], task_lists=["secret"])
    with pytest.raises(Forbidden):
        await ann.tasks.list()
    assert (await ann.work.claim(worker.worker_id)).tasks == []


async def test_a_worker_of_an_open_server_requires_a_token_for_all_lists(scene: Scene):
    worker = await Operations(scene.engine, OPEN).work.register("w", ["images.*"], task_lists=["default", "secret"])
    ann, bob = [Operations(scene.engine, Access("t", frozenset({Scope.WORK}), lists)) for lists in ((), ("default",))]
    assert (await ann.work.beat(worker.worker_id)).worker_id == worker.worker_id
    with raises_code("worker_not_found"):
        await bob.work.beat(worker.worker_id)


@pytest.mark.parametrize("namespaces", [("default", "b"), ("a", "default"), ("a", "b")])
async def test_workers_of_the_same_name_in_other_namespaces_are_separate(tmp_path: Path, namespaces: tuple[str, str]):
    url = f"sqlite:///{tmp_path}/treadle.db"
    here, there = [Engine(url, settings=Settings(store=url, namespace=each)) for each in namespaces]
    async with here, there:
        own, other = [Operations(engine, OPEN).work for engine in (here, there)]
        task = await here.enqueue("images.resize")
        worker = await own.register("w", ["images.*"])
        (claimed,) = (await own.claim(worker.worker_id)).tasks
        held = HeldClaim(task.id, claimed.claim_version)
        with raises_code("worker_not_found"):
            await other.beat(worker.worker_id, claims=[held])
        with raises_code("worker_not_found"):
            await other.heartbeat(task.id, worker.worker_id, claimed.claim_version)
        with raises_code("worker_not_found"):
            await other.leave(worker.worker_id)
        assert [each.state for each in (await own.beat(worker.worker_id, claims=[held])).claims] == ["held"]


async def test_a_task_of_an_unknown_id_is_not_found(scene: Scene):
    worker = await scene.api.work.register("w", ["images.*"])
    with pytest.raises(TaskNotFound):
        await scene.api.work.complete("01935b8e-7c3a-7000-8000-000000000000", worker.worker_id, 1)
