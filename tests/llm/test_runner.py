"""`ClaudeAgentRunner`: one workflow, driven in the calling thread, with handlers where there are any and a model elsewhere."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.scenes import until
from tests.engines import ALL, url_of
from tests.limits import BOUND
from tests.llm.scene import FLOW, GOOD, OUTPUTS, TARGET, desk, settings_for

from treadle.agents import Evaluator, ToolRegistry
from treadle.agents.persistence import Persistence
from treadle.llm import ClaudeAgentRunner
from treadle.settings import Settings
from treadle.testing.llm import MessagesServer, text, uses

TEXT = FLOW[0][1]
CHAIN = """
namespace shop {
  event facet Ask(topic: String) => (answer: String)
  event facet Keep(answer: String) => (id: Long)
  workflow Survey(topic: String) => (id: Long) andThen {
    a = Ask(topic = $.topic)
    k = Keep(answer = a.answer)
    yield Survey(id = k.id)
  }
}
"""


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer() as made:
        yield made


@pytest.fixture
def memory_store() -> Iterator[Persistence]:
    with Persistence("memory://", settings=Settings()) as made:
        yield made


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def runner_of(persistence: Persistence, **options: Any) -> ClaudeAgentRunner:
    return ClaudeAgentRunner(Evaluator(persistence), persistence, **options)


@pytest.mark.postgres
def test_a_workflow_is_run_to_its_end_by_the_model(server, url):
    server.script(uses((TARGET, GOOD)))
    with Persistence(url, settings=settings_for(server)) as persistence:
        result = runner_of(persistence, system_prompt="Be kind.").run("desk.Sort", {"letter": "Dear all"}, TEXT)
        assert (result.status, result.success, result.outputs) == ("COMPLETED", True, OUTPUTS)
        (row,) = persistence.run(persistence.engine.kernel.store.usage.list_requests(result.workflow_id))
        assert (row.state, row.cost_micros) == ("settled", 200)
    assert server.requests[0]["system"] == 'Be kind.\n\nYou write in a dry tone. Keep {"json": 1}.'


def test_a_handler_wins_and_facets_without_a_prompt_are_described_to_the_model(server):
    server.script(uses(("shop__Ask", {"answer": "yes"})))
    tools = ToolRegistry()
    tools.register("Keep", lambda payload: {"id": len(payload["answer"])})
    with Persistence("memory://", settings=settings_for(server)) as persistence:
        runner = runner_of(persistence, tool_registry=tools, model="claude-haiku-4-5")
        result = runner.run("shop.Survey", {"topic": "bread"}, CHAIN, task_description="A survey of bakers.")
    assert (result.status, result.outputs) == ("COMPLETED", {"id": 3})
    (request,) = server.requests
    assert request["messages"][0]["content"].startswith("A survey of bakers.")
    assert '{"topic": "bread"}' in request["messages"][0]["content"]
    assert [tool["name"] for tool in request["tools"]] == ["shop__Ask", "Keep"]


def test_a_raising_handler_and_an_exhausted_model_fail_the_step(server):
    server.script(*[text("no")] * 3)
    tools = ToolRegistry()

    def broken(payload: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("out of paper")

    tools.register("Ask", broken)
    with Persistence("memory://", settings=settings_for(server)) as persistence:
        result = runner_of(persistence, tool_registry=tools).run("shop.Survey", {"topic": "x"}, CHAIN)
        assert (result.status, result.error) == ("ERROR", "Survey.a: handler failed: out of paper")
        result = runner_of(persistence, max_retries=2).run("shop.Survey", {"topic": "x"}, CHAIN)
        assert (result.status, "did not call shop__Ask" in result.error) == ("ERROR", True)
    assert len(server.requests) == 3


def test_without_handler_and_client_it_raises_and_names_the_facet(server):
    with Persistence("memory://", settings=Settings()) as persistence:
        with pytest.raises(RuntimeError, match=r"shop\.Ask"):
            runner_of(persistence).run("shop.Survey", {"topic": "x"}, CHAIN)
        tasks = persistence.run(persistence.engine.kernel.reads.list_tasks(kind="handler", states=("pending",)))
        assert [task.name for task in tasks] == ["shop.Ask"]


def test_after_max_dispatches_the_run_is_left_for_others(server):
    server.script(uses(("shop__Ask", {"answer": "yes"})))
    with Persistence("memory://", settings=settings_for(server)) as persistence:
        result = runner_of(persistence, max_dispatches=1).run("shop.Survey", {"topic": "x"}, CHAIN)
    assert (result.status, result.success) == ("PAUSED", True)


def test_an_inline_task_is_held_so_that_no_worker_claims_it(server, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    gate = threading.Event()
    server.script(text("One two three", gate=gate), uses((TARGET, GOOD)))
    results: list[Any] = []

    async def beside() -> None:
        async with desk(server, url) as engine:
            async with asyncio.timeout(BOUND):
                while not (tasks := await engine.kernel.reads.list_tasks(kind="handler", states=("running",))):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert [task.name for task in tasks] == ["desk.Summarize"]
            gate.set()
            await engine.run_result(tasks[0].run_id, timeout=BOUND)

    with Persistence(url, settings=settings_for(server)) as persistence:
        runner = runner_of(persistence)
        thread = threading.Thread(target=lambda: results.append(runner.run("desk.Sort", {"letter": "x"}, TEXT)))
        thread.start()
        asyncio.run(beside())
        thread.join(BOUND)
    assert results[0].outputs == OUTPUTS
    assert len(server.requests) == 2


MANY = """
namespace work {
  event facet Item(n: Long) => (n: Long)
  workflow Many(items: [Long]) => (done: [Long]) andThen foreach i in $.items {
    s = Item(n = $.i)
    yield Many(done = [s.n])
  }
}
"""


def tools_of(handler: Any) -> ToolRegistry:
    tools = ToolRegistry()
    tools.register("work.Item", handler)
    return tools


def test_tasks_of_a_runner_are_created_preclaimed(url):
    """Also those of later steps, and those that wait for their turn."""
    seen: list[list[tuple[int, bool, int]]] = []
    with Persistence(url, settings=Settings()) as persistence:

        def look(payload: dict[str, Any]) -> dict[str, Any]:
            assert persistence.claim_task(["work.Item"]) is None
            tasks = persistence.run(persistence.engine.kernel.reads.list_tasks(kind="handler", states=("pending", "running")))
            seen.append([(task.claim_version, task.owner_id is not None, task.attempt) for task in tasks])
            return {"n": payload["n"]}

        result = runner_of(persistence, tool_registry=tools_of(look)).run("work.Many", {"items": [1, 2, 3]}, MANY)
        assert sorted(result.outputs["done"]) == [1, 2, 3]
        assert seen == [[(1, True, 1)] * left for left in (3, 2, 1)]
        assert persistence.run(persistence.engine.kernel.verify()).problems == ()


def test_unhandled_tasks_are_released_unchanged(url):
    with Persistence(url, settings=Settings()) as persistence:
        runner = runner_of(persistence, tool_registry=tools_of(lambda payload: {"n": payload["n"]}), max_dispatches=1)
        result = runner.run("work.Many", {"items": [1, 2, 3]}, MANY)
        assert result.status == "PAUSED"
        tasks = persistence.run(persistence.engine.kernel.reads.list_tasks(kind="handler", states=("pending", "running")))
        assert [(task.owner_id, task.attempt, task.takeovers) for task in tasks] == [(None, 1, 0)] * 2
        assert persistence.claim_task(["work.Item"]) is not None


def test_a_run_paused_by_an_operator_is_released_until_it_is_resumed(url):
    with Persistence(url, settings=Settings()) as persistence:
        engine = persistence.engine

        def work(payload: dict[str, Any]) -> dict[str, Any]:
            (run,) = persistence.get_runners_by_state("running")
            persistence.run(engine.runs.pause(run.uuid))
            return {"n": payload["n"]}

        result = runner_of(persistence, tool_registry=tools_of(work)).run("work.Many", {"items": [1, 2, 3]}, MANY)
        assert result.status == "PAUSED"
        tasks = [
            task
            for task in persistence.run(engine.kernel.reads.list_tasks(kind="handler", states=("paused", "running")))
            if task.name == "work.Item"
        ]
        assert [(task.owner_id, task.shown_state, task.attempt) for task in tasks] == [(None, "paused", 1)] * 2
        persistence.run(engine.runs.resume(result.workflow_id))
        persistence.run(persistence.work_own_kinds())
        assert {persistence.claim_task(["work.Item"]).state for _ in range(2)} == {"running"}


def test_concurrent_runs_of_one_runner_keep_their_tasks_apart(url):
    with Persistence(url, settings=Settings(lease=6.0)) as persistence:
        meet = threading.Barrier(2, timeout=BOUND)

        def work(payload: dict[str, Any]) -> dict[str, Any]:
            meet.wait()
            before = {
                task.id: task.wake_at
                for task in persistence.run(persistence.engine.kernel.reads.list_tasks(kind="handler", states=("running",)))
            }
            until(lambda: _later(persistence, before))
            meet.wait()
            return {"n": payload["n"]}

        runner = runner_of(persistence, tool_registry=tools_of(work))
        results: list[Any] = []
        threads = [
            threading.Thread(target=lambda: results.append(runner.run("work.Many", {"items": [1, 2]}, MANY))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * BOUND)
        assert [sorted(result.outputs["done"]) for result in results] == [[1, 2], [1, 2]]


def _later(persistence: Persistence, before: dict[str, Any]) -> bool:
    """Whether all leases have been renewed since."""
    tasks = persistence.run(persistence.engine.kernel.reads.list_tasks(kind="handler", states=("running",)))
    return all(task.wake_at > before[task.id] for task in tasks if task.id in before)


def test_leases_of_queued_tasks_are_renewed_too(url):
    counts: list[int] = []
    with Persistence(url, settings=Settings(lease=6.0)) as persistence:

        def ends() -> dict[str, int]:
            tasks = persistence.run(persistence.engine.kernel.reads.list_tasks(kind="handler", states=("running",)))
            return {task.id: task.wake_at or 0 for task in tasks}

        def wait(payload: dict[str, Any]) -> dict[str, Any]:
            before = ends()
            counts.append(len(before))
            until(lambda: all(end > before[task_id] for task_id, end in ends().items()))
            return {"n": payload["n"]}

        result = runner_of(persistence, tool_registry=tools_of(wait)).run("work.Many", {"items": [0, 1, 2]}, MANY)
        assert (sorted(result.outputs["done"]), counts) == ([0, 1, 2], [3, 2, 1])


def test_an_evaluator_without_preclaims_is_supported(memory_store):
    class Plain(Evaluator):
        def execute(self, workflow_ast, inputs=None, program_ast=None):
            return super().execute(workflow_ast, inputs, program_ast)

    runner = ClaudeAgentRunner(Plain(memory_store), memory_store, tool_registry=tools_of(lambda payload: {"n": payload["n"]}))
    assert sorted(runner.run("work.Many", {"items": [1, 2]}, MANY).outputs["done"]) == [1, 2]


DYING = """
import sys
from treadle.agents import Evaluator, Persistence
from treadle.llm import ClaudeAgentRunner
from treadle.settings import Settings
url, server, flow = sys.argv[1:]
settings = Settings(anthropic_api_key="k", anthropic_base_url=server)
store = Persistence(url, settings=settings)
ClaudeAgentRunner(Evaluator(store), store).run("desk.Sort", {"letter": "x"}, flow)
"""


async def test_any_worker_with_prompts_continues_after_a_crash(server, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    server.script(text("One two three", gate=threading.Event()), uses((TARGET, GOOD)))
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", DYING, url, server.url, TEXT)
    try:
        async with asyncio.timeout(BOUND):
            while not server.requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        child.kill()
        await child.wait()
    async with desk(server, url) as engine:
        (run,) = await engine.kernel.run_reads.list_runs()
        (task,) = await engine.kernel.reads.list_tasks(kind="handler", states=("running",))
        assert await engine.kernel.store.tasks.expire_leases_of([task.owner_id or ""]) == 1
        assert await engine.run_result(run.id, timeout=BOUND) == OUTPUTS
        (row,) = await engine.kernel.store.usage.list_requests(run.id)
    assert (row.state, row.interrupted, row.attempt) == ("settled", 1, 2)
