"""Two namespaces in one store: their servers, handlers and external jobs do not see each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import Engine
from treadle.engine.operations import Operations
from treadle.model.access import OPEN
from treadle.model.errors import TaskIgnored
from treadle.model.records import HandlerRegistration
from treadle.model.tasks import Server


@pytest.fixture(params=SHARED)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two engines on one database, one in the namespace `red`, the other in `blue`."""
    url = url_of(request.param, request, tmp_path)
    async with AsyncExitStack() as stack:
        red = await stack.enter_async_context(make_engine(url, namespace="red"))
        blue = await stack.enter_async_context(make_engine(url, namespace="blue"))
        yield red, blue


async def work(payload: dict[str, Any]) -> None:
    """Do nothing."""


def a_server(engine: Engine, namespace: str | None, **fields: Any) -> Server:
    values = {"name": "s", "host": "h", "pid": 1, "version": "1", "state": "running", "task_lists": ["default"]}
    return Server(id=engine.kernel.ids.new_id(), namespace=namespace, **values | fields)


@pytest.mark.postgres
async def test_a_worker_of_one_namespace_is_not_a_live_worker_of_another(both: tuple[Engine, Engine]):
    red, blue = both
    red.handler("work")(work)
    async with red.worker():
        task = await blue.enqueue("work")
        reason = await blue.kernel.reads.why(task.id)
        assert (reason.code, len(await blue.kernel.reads.list_servers())) == ("no_worker", 0)
        (server,) = await red.kernel.reads.list_servers()
        assert server.namespace == "red"
        with raises_code("server_not_found"):
            await blue.kernel.reads.get_server(server.id)
        there, here = Operations(blue, OPEN), Operations(red, OPEN)
        assert [each.namespace for each in (await here.servers.list()).servers] == ["red"]
        assert (await there.servers.list()).servers == []
        assert (await there.system.status()).live_servers == 0
        assert (await here.system.status()).live_servers == 1
        assert (await blue.kernel.reads.desired_workers()).workers == 0


async def test_a_list_that_ignores_unserved_tasks_counts_only_workers_of_its_namespace(both: tuple[Engine, Engine]):
    red, blue = both
    red.handler("work")(work)
    blue.handler("other")(work)
    await blue.kernel.lists.set_policy("default", "ignore", actor="test")
    async with red.worker(), blue.worker():
        task = await blue.enqueue("work")
        with pytest.raises(TaskIgnored):
            await blue.result(task, timeout=BOUND)


async def test_a_specialist_of_another_namespace_does_not_count_for_an_external_job(both: tuple[Engine, Engine]):
    red, blue = both
    await red.kernel.store.servers.save(a_server(red, "red", handlers=["render", "render@"]))
    task = await blue.kernel.reads.get_task((await blue.enqueue("render")).id)
    assert not await blue.kernel.external_jobs.is_offered(task)
    await blue.kernel.store.servers.save(a_server(blue, "blue", handlers=["render", "render@"]))
    assert await blue.kernel.external_jobs.is_offered(task)


async def test_a_server_of_an_older_version_counts_for_every_namespace(both: tuple[Engine, Engine]):
    red, _ = both
    await red.kernel.store.servers.save(a_server(red, None, handlers=["work"]))
    for engine in both:
        task = await engine.enqueue("work")
        assert (await engine.kernel.reads.why(task.id)).code != "no_worker"
        assert [each.namespace for each in await engine.kernel.reads.list_servers()] == [None]


async def test_remote_workers_and_handler_registrations_belong_to_a_namespace(both: tuple[Engine, Engine]):
    red, blue = both
    worker = await red.kernel.remote_workers.register("w", handlers=["work"])
    assert worker.namespace == "red"
    with raises_code("worker_not_found"):
        await blue.kernel.remote_workers.beat(worker.id)
    await red.kernel.store.operators.save_handler("red", HandlerRegistration("work", "file:///x.py"))
    assert [each.facet_name for each in await red.kernel.store.operators.list_handlers("red")] == ["work"]
    assert await red.kernel.store.operators.list_handlers("blue") == []
