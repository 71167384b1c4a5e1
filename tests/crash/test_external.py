"""Workers of an external service die between any two writes, and between submitting and recording: jobs are neither lost nor
submitted twice in silence. The service is the render farm of the examples, behind real HTTP; the workers are real processes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from tests.crash.child import load_example
from tests.crash.scene import Scene, until
from tests.sizes import sampled

from treadle.kernel.external.records import read_job
from treadle.model.external import DISPATCHED, POLLED, RESOLVED
from treadle.model.values import decode

EXTERNAL_POINTS = ("external.before_start", "external.after_start", "external.after_poll")
OTHER_POINTS = ("claim.after", "handler.before", "handler.after", "settle.before_commit", "settle.after_commit")
WISH = {"scene": "dawn", "frames": 2, "seconds_per_frame": 0.2}


class FarmServer:
    """The example's farm, served from this process; it can be away for a while."""

    def __init__(self, path: Any) -> None:
        self._example = load_example("render_farm", "farm")
        self.farm = self._example.Farm(path)
        self._server = self._example.make_server(self.farm)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def take_its_time(self) -> Any:
        """End no job from now on; return what ended them."""
        show = self.farm.show
        self.farm.show = lambda job: show(job | {"seconds_per_frame": 3600.0})
        return show

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def come_back(self, path: Any) -> None:
        """Another process of the farm, on the same port, with what the first one stored."""
        self.farm = self._example.Farm(path)
        self._server = self._example.make_server(self.farm, self.port)
        self._serve()


@pytest.fixture
def farm(tmp_path: Any) -> Iterator[FarmServer]:
    server = FarmServer(tmp_path / "farm.json")
    yield server
    server.close()


async def crash_and_go_on(scene: Scene, farm: FarmServer, point: str, name: str, count: int = 1) -> Any:
    """A worker dies at the `count`-th passing of the point, before the job ends; another finishes. The task, as it ended."""
    task = await scene.engine.enqueue(name, WISH)
    show = farm.take_its_time()
    first = scene.start("worker", "--farm", farm.url, "--crash-at", f"{point}:{count}")
    await scene.died(first)
    farm.farm.show = show
    await scene.start_worker("--farm", farm.url)
    (ended,) = await scene.finished([task.id])
    return ended


@pytest.mark.postgres
async def test_a_job_submitted_but_not_recorded_is_found_and_reattached(scene: Scene, farm: FarmServer) -> None:
    ended = await crash_and_go_on(scene, farm, "external.after_start", "farm")
    assert ended.state == "completed"
    assert len(farm.farm.jobs) == 1  # one job at the service
    (job,) = farm.farm.jobs.values()
    shown = await scene.engine.kernel.external_jobs.get(ended.id)
    stored = await scene.engine.kernel.store.records.find(shown.id)
    assert stored is not None
    assert (shown.external_job_id, read_job(stored).record.token) == (job["id"], job["token"])
    transitions = await scene.engine.kernel.reads.list_transitions(ended.id)
    assert [transition.transition for transition in transitions] == ["tool_call.unknown", "expire", "hand_off", "succeed"]
    assert decode(transitions[2].data)["reattached"] is True
    assert (await scene.engine.kernel.verify()).problems == ()


async def test_a_job_that_cannot_be_looked_up_has_an_unknown_outcome_and_is_not_resubmitted(scene: Scene, farm: FarmServer) -> None:
    ended = await crash_and_go_on(scene, farm, "external.after_start", "blind_farm")
    assert (ended.state, ended.error_code) == ("failed", "external_outcome_unknown")
    assert len(farm.farm.jobs) == 1
    assert await scene.transitions(ended.id) == ["tool_call.unknown", "expire", "fail"]
    assert "the service may or may not have the job" in (await scene.engine.why(ended.id)).text
    tokens = {job["token"] for job in farm.farm.jobs.values()}
    await scene.engine.retry(ended.id)  # an operator has looked, and wants it again: another token (D31)
    (again,) = await until_ended(scene, ended.id, "completed")
    assert again.state == "completed"
    assert len({job["token"] for job in farm.farm.jobs.values()} | tokens) == 2


async def until_ended(scene: Scene, task_id: str, state: str) -> list[Any]:
    async def there() -> bool:
        return any(task.state == state for task in await scene.engine.kernel.store.tasks.find_many([task_id], ended=True))

    await until(there, *scene._children)
    return await scene.engine.kernel.store.tasks.find_many([task_id], ended=True)


async def test_a_job_is_resubmitted_under_the_same_token_to_a_deduplicating_service(scene: Scene, farm: FarmServer) -> None:
    submit = farm.farm.submit
    farm.farm.submit = lambda wish: submit(wish | {"dedupe": True})
    ended = await crash_and_go_on(scene, farm, "external.after_start", "deduping_farm")
    assert ended.state == "completed"
    assert len(farm.farm.jobs) == 1
    assert await scene.transitions(ended.id) == ["tool_call.unknown", "expire", "hand_off", "succeed"]


async def test_a_worker_killed_before_submitting_leaves_no_job_at_the_service(scene: Scene, farm: FarmServer) -> None:
    ended = await crash_and_go_on(scene, farm, "external.before_start", "farm")
    assert ended.state == "completed"
    assert len(farm.farm.jobs) == 1
    assert await scene.transitions(ended.id) == ["tool_call.unknown", "expire", "hand_off", "succeed"]


@pytest.mark.parametrize(("point", "count"), sampled([*product([*OTHER_POINTS, "external.after_poll"], [1, 2])]))
async def test_a_job_survives_its_workers_wherever_they_die(scene: Scene, farm: FarmServer, point: str, count: int) -> None:
    ended = await crash_and_go_on(scene, farm, point, "farm", count)
    assert ended.state == "completed"
    assert len(farm.farm.jobs) == 1
    shown = await scene.engine.kernel.external_jobs.get(ended.id)
    kinds = [event.kind for event in shown.events]
    assert (kinds[0], kinds[-1]) == (DISPATCHED, RESOLVED)
    assert set(kinds[1:-1]) <= {POLLED}
    assert shown.render_event_object_id is not None
    assert (await scene.engine.kernel.verify()).problems == ()


async def test_checkpoint_b_a_job_continues_after_a_restart_between_polls(scene: Scene, farm: FarmServer, tmp_path: Any) -> None:
    """The seed's smoke test: handed off, polled with hints, the process restarted in between, then done."""
    task = await scene.engine.enqueue("farm", WISH)
    farm.take_its_time()
    first = await scene.start_worker("--farm", farm.url)

    async def polled() -> bool:
        jobs = (await scene.engine.kernel.external_jobs.list()).jobs
        return bool(jobs) and jobs[0].polls >= 2

    await until(polled, first)
    assert (await scene.engine.kernel.reads.get_task(task.id)).state == "awaiting_external"
    before = await scene.engine.kernel.external_jobs.get(task.id)
    assert (before.completed_at, before.progress_hint is not None) == (None, True)
    first.send(signal.SIGTERM)
    assert await first.ended() == 0
    farm.close()  # the farm restarts as well
    farm.come_back(tmp_path / "farm.json")
    await scene.start_worker("--farm", farm.url)
    (ended,) = await scene.finished([task.id])
    after = await scene.engine.kernel.external_jobs.get(task.id)
    assert (ended.state, after.external_job_id, len(farm.farm.jobs)) == ("completed", before.external_job_id, 1)
    assert after.last_polled_at > before.last_polled_at
    assert after.completed_at is not None
    assert after.render_event_object_id is not None
