"""A result that reaches two servers: the second one settles nothing, and learns nothing from the answer."""

from __future__ import annotations

from pathlib import Path

from treadle import Engine
from treadle.kernel.queue.decide import decide
from treadle.model.outcomes import Succeeded
from treadle.model.retry import NO_RETRY
from treadle.model.tasks import Task

AFL = """
namespace o {
    event facet Pack(item: Json) => (box: Json)
    workflow All(items: Json) => (boxes: Json) andThen foreach item in $.items {
        packed = Pack(item = $.item)
        yield All(boxes = [packed.box])
    }
}
"""


async def settle(engine: Engine, task: Task) -> None:
    decided = decide(task, Succeeded({"box": 1}), NO_RETRY, engine.kernel.ids.random, engine.kernel.settings.payload_limit)
    await engine.kernel.run_services.settler.settle(task, task.claim, decided)


async def test_a_result_that_two_servers_settle_hides_no_later_result_from_them(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/treadle.db"
    async with Engine(url) as one, Engine(url) as other:
        run = await one.start_run([("o.afl", AFL)], "o.All", {"items": [1, 2, 3]})
        store = one.kernel.store
        queues = [queue_id for queue_id, queue in (await store.tasks.list_queues()).items() if queue.name == "o.Pack"]
        first, second, third = await store.tasks.claim(queues, "worker", 60_000, 3)
        await settle(one, first)
        await settle(other, first)
        await settle(one, second)
        await settle(other, third)
        assert await one.run_result(run) == {"boxes": [1, 1, 1]}
