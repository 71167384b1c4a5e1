"""Dispatch, on an engine and over HTTP: the routes, and the four errors of its specification with their statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.api.conftest import Scene

from treadle.api.dispatch import Issue, IssueOwner, IssueRepository
from treadle.dispatch import AgentCoordinator, coordinator_of
from treadle.dispatch.coordinator import DELAYS
from treadle.engine import Engine
from treadle.engine.operations import Operations
from treadle.interfaces.http.app import make_app
from treadle.model.access import OPEN, Access, Scope
from treadle.model.errors import ClaimLost, Forbidden, InvalidInput, ListForbidden, StoreUnavailable, TreadleError
from treadle.testing import ManualClock

REPOSITORY = IssueRepository(5, "loom", "weavers/loom", IssueOwner("weavers"), "git@example.org:weavers/loom.git", "main")


def issue(number: int = 17, **fields: Any) -> Issue:
    return Issue(2000 + number, number, f"Issue {number}", REPOSITORY, **fields)


async def test_a_job_is_enqueued_dequeued_and_completed(scene: Scene):
    api = scene.api.dispatch
    made = await api.enqueue(issue(), metadata={"by": "ada"})
    assert (made.status, made.attempts, made.issue.number, made.issue.labels) == ("pending", 0, 17, [])
    job = (await api.dequeue("worker-1")).job
    assert job is not None
    assert (job.id, job.status, job.metadata) == (made.id, "running", {"by": "ada", "worker_id": "worker-1"})
    assert (await api.dequeue("worker-1")).job is None
    done = await api.update_status(job.id, "worker-1", "completed", result={"branch": "fix-17"})
    assert (done.status, done.completed_at is not None) == ("completed", True)
    assert (await scene.api.tasks.result(job.id)).result == {"branch": "fix-17"}
    assert await api.get(job.id) == done


async def test_a_job_has_the_log_lines_of_its_attempts(scene: Scene):
    api = scene.api.dispatch
    made = await api.enqueue(issue())
    assert (await api.logs(made.id)).lines == []
    await api.dequeue("worker-1")
    await api.update_status(made.id, "worker-1", "failed", error="no luck", retry=True)
    (line,) = (await api.logs(made.id)).lines
    assert (line.level, "no luck" in line.message) == ("error", True)
    with pytest.raises(TreadleError) as caught:
        await api.logs("01935b8e-7c3a-7000-8000-000000000000")
    assert caught.value.code == "TASK_NOT_FOUND"
    with pytest.raises(InvalidInput):
        await api.logs(made.id, limit=0)


async def test_enqueueing_twice_under_one_key_creates_one_job(scene: Scene):
    api = scene.api.dispatch
    first, again = [await api.enqueue(issue(), idempotency_key="delivery-1") for _ in range(2)]
    assert first.id == again.id


async def test_jobs_are_listed_newest_first_by_status_and_page(scene: Scene):
    api = scene.api.dispatch
    ids = [(await api.enqueue(issue(number))).id for number in range(1, 6)]
    await api.cancel(ids[0], reason="not wanted")
    page = await api.list(limit=3)
    assert [job.id for job in page.jobs] == ids[:1:-1]
    rest = await api.list(limit=3, before=page.next_before)
    assert ([job.id for job in rest.jobs], rest.next_before) == (ids[1::-1], None)
    assert [job.id for job in (await api.list(status="cancelled")).jobs] == ids[:1]
    with pytest.raises(InvalidInput):
        await api.list(status="lost")


async def test_a_worker_without_the_claim_cannot_change_the_job(scene: Scene):
    api = scene.api.dispatch
    made = await api.enqueue(issue())
    with pytest.raises(ClaimLost):
        await api.update_status(made.id, "worker-1", "completed")
    await api.dequeue("worker-1")
    await api.update_status(made.id, "worker-1", "pending")
    await api.dequeue("worker-2")
    with pytest.raises(ClaimLost):
        await api.update_status(made.id, "worker-1", "completed", result={"from": "worker-1"})
    assert (await api.update_status(made.id, "worker-2", "completed")).status == "completed"


async def test_a_job_claimed_through_another_process_is_fenced_by_its_worker():
    async with Engine("memory://") as engine:
        api = Operations(engine, OPEN).dispatch
        made = await api.enqueue(issue())
        await api.dequeue("worker-1")
        elsewhere = AgentCoordinator(engine)
        with pytest.raises(ClaimLost):
            await elsewhere.update_status(made.id, "completed", worker_id="worker-2")
        await elsewhere.update_status(made.id, "completed", worker_id="worker-1")
        assert (await api.get(made.id)).status == "completed"


async def test_every_way_to_cancel_or_retry_requires_the_operate_scope():
    async with Engine("memory://") as engine:
        made = await Operations(engine, OPEN).dispatch.enqueue(issue())
        worker = Operations(engine, Access("w", frozenset({Scope.READ, Scope.WORK}))).dispatch
        await worker.dequeue("worker-1")
        for call in (worker.cancel(made.id), worker.retry(made.id), worker.update_status(made.id, "worker-1", "cancelled")):
            with pytest.raises(Forbidden):
                await call
        assert (await worker.get(made.id)).status == "running"
        elsewhere = Operations(engine, Access("w", frozenset({Scope.READ, Scope.WORK}), ("other",))).dispatch
        for refused in (elsewhere.get(made.id), elsewhere.list(), elsewhere.dequeue("worker-1"), elsewhere.enqueue(issue())):
            with pytest.raises(ListForbidden):
                await refused


async def test_a_stopping_server_releases_its_claimed_jobs():
    engine = Engine("memory://")
    given_back: list[str] = []
    async with engine:
        api = Operations(engine, OPEN).dispatch
        made = await api.enqueue(issue())
        await api.dequeue("worker-1")

        async def look() -> None:
            given_back.append((await engine.kernel.reads.get_task(made.id)).shown_state)

        engine.kernel.before_close.insert(0, look)  # after the coordinator's
    assert given_back == ["pending"]


# --- the error table ---


@pytest.fixture
async def server() -> AsyncIterator[tuple[Engine, ManualClock, httpx.AsyncClient]]:
    clock = ManualClock()
    async with Engine("memory://", clock=clock) as engine:
        transport = httpx.ASGITransport(make_app(engine, open_access=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/v1/dispatch") as client:
            yield engine, clock, client


BODY = {
    "id": 1,
    "number": 1,
    "title": "It hangs",
    "repository": {
        "id": 5,
        "name": "loom",
        "full_name": "weavers/loom",
        "owner": {"login": "weavers"},
        "clone_url": "git@example.org:weavers/loom.git",
        "default_branch": "main",
    },
}


def told(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["Content-Type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


async def test_task_not_found_is_404(server: tuple[Engine, ManualClock, httpx.AsyncClient]):
    engine, _, client = server
    stranger = (await engine.enqueue("greet")).id  # a task, but no job
    for job_id in ("01935b8e-7c3a-7000-8000-000000000000", "nonsense", stranger):
        assert told(await client.get(f"/jobs/{job_id}")) == (404, "TASK_NOT_FOUND")
        assert told(await client.post(f"/jobs/{job_id}/retry")) == (404, "TASK_NOT_FOUND")
        assert told(await client.post(f"/jobs/{job_id}/cancel")) == (404, "TASK_NOT_FOUND")
        said = {"worker_id": "worker-1", "status": "completed"}
        assert told(await client.post(f"/jobs/{job_id}/status", json=said)) == (404, "TASK_NOT_FOUND")


async def test_max_retries_exceeded_is_400_and_the_job_stays_failed(server: tuple[Engine, ManualClock, httpx.AsyncClient]):
    _, clock, client = server
    job_id = (await client.post("/jobs", json={"issue": BODY})).json()["id"]
    for attempt in range(4):
        job = (await client.post("/dequeue", json={"worker_id": "worker-1"})).json()["job"]
        assert (job["id"], job["attempts"]) == (job_id, attempt)
        said = {"worker_id": "worker-1", "status": "failed", "error": "no luck"}
        assert (await client.post(f"/jobs/{job_id}/status", json=said)).json()["status"] == "failed"
        if attempt < 3:
            assert (await client.post(f"/jobs/{job_id}/retry")).json()["status"] == "pending"
            clock.advance(4)
    assert told(await client.post(f"/jobs/{job_id}/retry")) == (400, "MAX_RETRIES_EXCEEDED")
    shown = (await client.get(f"/jobs/{job_id}")).json()
    assert (shown["status"], shown["attempts"], shown["error"]) == ("failed", 3, "no luck")


async def test_worker_unavailable_is_503_at_the_limit_and_while_draining(server: tuple[Engine, ManualClock, httpx.AsyncClient]):
    engine, _, client = server
    coordinator = coordinator_of(engine)
    for number in range(coordinator.config.max_concurrent_tasks + 1):
        await client.post("/jobs", json={"issue": BODY | {"id": number + 1}})
    for _ in range(coordinator.config.max_concurrent_tasks):
        assert (await client.post("/dequeue", json={"worker_id": "worker-1"})).json()["job"] is not None
    assert told(await client.post("/dequeue", json={"worker_id": "worker-1"})) == (503, "WORKER_UNAVAILABLE")
    coordinator.drain()
    assert told(await client.post("/dequeue", json={"worker_id": "worker-1"})) == (503, "WORKER_UNAVAILABLE")


async def test_storage_error_is_500_after_three_retries(
    server: tuple[Engine, ManualClock, httpx.AsyncClient], monkeypatch: pytest.MonkeyPatch
):
    engine, clock, client = server
    tries, waited = [], []

    async def away(*args: object, **options: object) -> None:
        tries.append(args)
        raise StoreUnavailable("The store does not answer.")

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(engine.kernel.reads, "list_tasks", away)
    monkeypatch.setattr(clock, "sleep", sleep)
    assert told(await client.get("/jobs")) == (500, "STORAGE_ERROR")
    assert (len(tries), waited) == (4, list(DELAYS))


async def test_an_invalid_issue_is_rejected_with_its_field(server: tuple[Engine, ManualClock, httpx.AsyncClient]):
    _, _, client = server
    answer = await client.post("/jobs", json={"issue": BODY | {"repository": BODY["repository"] | {"full_name": "loom"}}})
    assert told(answer) == (422, "invalid_issue")
    assert "full_name" in answer.json()["detail"]
    assert told(await client.post("/jobs", json={"issue": {"id": 1}})) == (422, "invalid_request")


async def test_errors_carry_their_codes(scene: Scene):
    with pytest.raises(TreadleError) as caught:
        await scene.api.dispatch.get("01935b8e-7c3a-7000-8000-000000000000")
    assert caught.value.code == "TASK_NOT_FOUND"


async def test_a_job_belongs_to_the_token_that_claimed_it():
    async with Engine("memory://") as engine:
        ann, bob = [Operations(engine, Access(name, frozenset({Scope.WORK}))).dispatch for name in ("ann", "bob")]
        made = await ann.enqueue(issue())
        assert (await ann.dequeue("worker-1")).job.metadata == {"worker_id": "worker-1"}
        for status in ("completed", "failed", "pending"):
            with pytest.raises(ClaimLost):
                await bob.update_status(made.id, "worker-1", status)
        elsewhere = AgentCoordinator(engine)  # another server on the same store
        with pytest.raises(ClaimLost):
            await elsewhere.update_status(made.id, "completed", worker_id="worker-1", actor="bob")
        assert (await ann.update_status(made.id, "worker-1", "completed")).status == "completed"
