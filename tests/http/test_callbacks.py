"""Callbacks of external jobs: who has the token of a job resolves it at once, over real HTTP too; nobody else does."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from tests.limits import BOUND

from treadle import ExternalPollingLoop, ExternalProductionHandle
from treadle.engine import Engine
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.server import HttpOptions, HttpServer, listen, url_of
from treadle.settings import Settings

FARM = Path(__file__).parents[2] / "examples" / "render_farm"
HOUR = 3600.0
WRONG = (403, "callback_refused")


class Clinic:
    """A service that is polled once an hour; all that is known of it comes by callback."""

    def __init__(self) -> None:
        self.urls: list[str | None] = []
        self.tokens: list[str] = []

    async def start(self, payload: dict[str, Any], ctx: Any) -> ExternalProductionHandle:
        self.urls.append(ctx.callback_url)
        self.tokens.append(ctx.callback_token)
        return ExternalProductionHandle(f"job-{len(self.tokens)}", HOUR)

    async def poll(self, external_job_id: str) -> ExternalProductionHandle:
        raise AssertionError("nobody should have to ask")


@dataclass
class Bench:
    engine: Engine
    clinic: Clinic
    client: httpx.AsyncClient

    async def job(self) -> tuple[str, str]:
        """A job that goes on: its task, and the URL that its service was given."""
        task = await self.engine.enqueue("clinic.Scan")
        await ExternalPollingLoop(self.engine).tick()
        url = self.clinic.urls[-1]
        assert url is not None
        return task.id, url

    async def call(self, url: str, said: Any, **options: Any) -> tuple[int, str]:
        answer = await self.client.post(url, json=said, **options)
        return answer.status_code, answer.json().get("code") or answer.json()["state"]


def make_engine(url: str) -> tuple[Engine, Clinic]:
    clinic = Clinic()
    engine = Engine(settings=Settings(store="memory://", public_url=url))
    engine.specialist("clinic.Scan", clinic)
    return engine, clinic


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A server that needs tokens, and a service that has none."""
    engine, clinic = make_engine("https://work.example.org")
    async with engine:
        app = make_app(engine)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            yield Bench(engine, clinic, client)


async def test_a_callback_completes_the_task_immediately(bench: Bench):
    task_id, url = await bench.job()
    assert url.startswith(f"https://work.example.org/v1/external-jobs/{task_id}/callback?token=")
    assert await bench.call(url, {"result": {"scan": "clear"}}) == (200, "completed")
    assert await bench.engine.result(task_id) == {"scan": "clear"}


async def test_a_failure_fails_it_with_the_services_code(bench: Bench):
    task_id, url = await bench.job()
    assert await bench.call(url, {"failure_detail": "it moved", "error_code": "blurred"}) == (200, "failed")
    task = await bench.engine.kernel.reads.get_task(task_id)
    assert (task.state, task.error_code) == ("failed", "blurred")


async def test_a_progress_callback_keeps_omitted_fields(bench: Bench):
    task_id, url = await bench.job()
    assert await bench.call(url, {"progress_hint": "half way", "progress": 0.5}) == (200, "awaiting_external")
    assert await bench.call(url, {"polling_interval_seconds": 60.0}) == (200, "awaiting_external")
    record = await bench.engine.kernel.external_jobs.get(task_id)
    assert (record.progress_hint, record.progress, record.polling_interval_seconds) == ("half way", 0.5, 60)
    assert record.external_job_id == "job-1"
    assert (await bench.call(url, {"polling_interval_seconds": 0}))[0] == 422
    assert await bench.call(url, {"result": {}}) == (200, "completed")


async def test_the_token_may_be_in_a_header_and_the_job_be_named_by_its_own_id(bench: Bench):
    task_id, url = await bench.job()
    place, _, token = url.partition("?token=")
    job_id = (await bench.engine.kernel.external_jobs.get(task_id)).id
    by_id = place.replace(task_id, job_id)
    assert await bench.call(by_id, {"result": {}}, headers={"Authorization": f"Bearer {token}"}) == (200, "completed")


async def test_late_and_repeated_callbacks_are_refused_without_effect(bench: Bench):
    task_id, url = await bench.job()
    await bench.call(url, {"result": {"n": 1}})
    assert await bench.call(url, {"result": {"n": 2}}) == (409, "external_already_resolved")
    assert await bench.call(url, {"failure_detail": "after all"}) == (409, "external_already_resolved")
    assert await bench.engine.result(task_id) == {"n": 1}
    other_id, other = await bench.job()
    await bench.engine.cancel(other_id)
    assert await bench.call(other, {"result": {}}) == (409, "external_already_resolved")


async def test_a_wrong_token_gets_the_same_refusal_as_a_missing_job(bench: Bench):
    task_id, url = await bench.job()
    _, other = await bench.job()
    place, _, token = url.partition("?token=")
    texts = set()
    unknown = "01935b8e-7c3a-7000-8000-000000000000"
    for wrong in (
        place,
        f"{place}?token={token[:-1]}{'0' if token[-1] != '0' else '1'}",
        f"{place}?token={task_id}",
        f"{place}?token=nonsense",
        f"{place}?token={other.partition('?token=')[2]}",
        url.replace(task_id, unknown),
        f"{place.replace(task_id, unknown)}?token={token}",
        f"{place.replace(task_id, 'nonsense')}?token={token}",
    ):
        answer = await bench.client.post(wrong, json={"result": {}})
        assert (answer.status_code, answer.json()["code"]) == WRONG, wrong
        texts.add(answer.text)
    assert len(texts) == 1
    assert (await bench.engine.kernel.reads.get_task(task_id)).state == "awaiting_external"


async def test_a_callback_that_overtakes_its_record_may_be_sent_again(bench: Bench):
    said: list[tuple[int, str]] = []

    class Hasty(Clinic):
        async def start(self, payload: dict[str, Any], ctx: Any) -> ExternalProductionHandle:
            said.append(await bench.call(ctx.callback_url, {"result": {}}))
            return await super().start(payload, ctx)

    hasty = Hasty()
    bench.engine.specialist("clinic.Hasty", hasty)
    task = await bench.engine.enqueue("clinic.Hasty")
    await ExternalPollingLoop(bench.engine).tick()
    assert said == [(409, "callback_too_early")]
    assert hasty.urls[0] is not None
    assert await bench.call(hasty.urls[0], {"result": {"ok": True}}) == (200, "completed")
    assert await bench.engine.result(task) == {"ok": True}


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        {"result": 3},
        {"result": {}, "failure_detail": "both"},
        {"failure_detail": "x", "progress": 0.1},
        {"error_code": "alone"},
        {"state": "done"},
        {"progress": 7},
    ],
)
async def test_an_invalid_callback_is_rejected_and_the_job_continues(bench: Bench, said: Any):
    task_id, url = await bench.job()
    assert (await bench.client.post(url, json=said)).status_code == 422
    assert (await bench.engine.kernel.reads.get_task(task_id)).state == "awaiting_external"


async def test_without_a_public_url_there_is_a_token_and_no_url():
    engine, clinic = make_engine("")
    async with engine:
        await engine.enqueue("clinic.Scan")
        await ExternalPollingLoop(engine).tick()
    assert clinic.urls == [None]
    assert len(clinic.tokens[0]) > 64


# --- the render farm, over real connections ---


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"render_farm_{name}", FARM / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def a_farm() -> Iterator[tuple[Any, str]]:
    module = load("farm")
    farm = module.Farm()
    server = module.make_server(farm)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield farm, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("fail_at", [None, 1])
async def test_a_job_with_callbacks_is_not_polled(fail_at: int | None):
    free = listen("127.0.0.1", 0)
    url = url_of(free)
    free.close()
    engine = Engine(settings=replace(Settings(store="memory://"), public_url=url))
    with a_farm() as (farm, place):
        engine.specialist("film.Render", load("handlers").RenderFarm(place, interval=HOUR))
        options = HttpOptions(port=int(url.rpartition(":")[2]))
        async with engine, HttpServer(engine, options) as server, engine.worker():
            assert server.url == url
            task = await engine.enqueue(
                "film.Render", {"scene": "dawn", "frames": 2, "seconds_per_frame": 0.01, "fail_at": fail_at}
            )
            if fail_at is None:
                assert (await engine.result(task, timeout=BOUND))["frames"] == 2
            else:
                with pytest.raises(Exception, match="failed"):
                    await engine.result(task, timeout=BOUND)
            assert (len(farm.jobs), farm.looks) == (1, 0)
