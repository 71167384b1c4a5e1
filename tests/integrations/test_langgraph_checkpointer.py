"""The LangGraph checkpointer: LangGraph's conformance suite, and writes that the claim of the held task guards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.errors import raises_code

from treadle import ClaimLost, Context, Engine, FunctionContext
from treadle.engine.codecs import Zlib
from treadle.integrations.langgraph import TreadleSaver
from treadle.model.errors import MisusedContext
from treadle.model.names import HANDLER, QueueKey
from treadle.model.records import ThreadItem
from treadle.model.states import THREAD
from treadle.model.tasks import Task
from treadle.settings import Settings
from treadle.workers.context import holder


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], lambda left, right: left + right]


def counting(saver: TreadleSaver) -> Any:
    builder: Any = StateGraph(State)
    builder.add_node("one", lambda state: {"n": state["n"] + 1, "log": ["one"]})
    builder.add_node("two", lambda state: {"n": state["n"] * 10, "log": ["two"]})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    builder.add_edge("two", END)
    return builder.compile(checkpointer=saver)


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


@pytest.fixture(params=SHARED)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as engine:
        yield engine


@pytest.fixture
async def memory() -> AsyncIterator[Engine]:
    async with make_engine("memory://") as engine:
        yield engine


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
async def test_langgraphs_conformance_suite_passes(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with make_engine(url_of(kind, request, tmp_path)) as engine:

        @checkpointer_test(name=f"TreadleSaver on {kind}")
        async def savers() -> AsyncIterator[TreadleSaver]:
            yield TreadleSaver(engine)

        report = await validate(savers)
        assert [failure for result in report.results.values() for failure in result.failures or ()] == []
        assert all(result.passed for result in report.results.values())
        assert len(report.results) == 8
        assert (await engine.kernel.verify()).holds
        problems, _ = await engine.kernel.documents.check_page(THREAD.entity, None, 1000)
        assert problems == []


# --- the claim ---


async def claimed(engine: Engine, owner: str) -> Task:
    store = engine.kernel.store
    queues = await store.tasks.queue_ids([QueueKey("default", HANDLER, "default", "work")])
    (task,) = await store.tasks.claim(list(queues.values()), owner, 60_000, 1)
    return task


@contextmanager
def held(task: Task) -> Iterator[None]:
    token = holder.set(SimpleNamespace(task=task, token=task.claim))
    try:
        yield
    finally:
        holder.reset(token)


async def items(engine: Engine, name: str) -> list[tuple[str, str]]:
    record = await engine.kernel.store.records.find_named("default", THREAD.entity, name)
    return [] if record is None else await engine.kernel.store.records.list_items(record.id, None, 1000)


async def test_a_worker_with_a_lost_lease_writes_no_checkpoint(engine: Engine) -> None:
    saver = TreadleSaver(engine)
    graph = counting(saver)
    await engine.enqueue("work")
    first = await claimed(engine, "first")
    with held(first):
        await graph.ainvoke({"n": 1, "log": []}, thread("t"), interrupt_after=["one"])
    before = await items(engine, "t")
    assert await engine.kernel.store.tasks.expire_leases_of(["first"]) == 1
    await engine.kernel.store.tasks.wake(10)
    second = await claimed(engine, "second")
    with held(first):
        with pytest.raises(ClaimLost, match="Nothing was written"):
            await graph.ainvoke(None, thread("t"))
        with pytest.raises(ClaimLost):
            await saver.aput(thread("t"), empty_checkpoint(), {}, {})
        with pytest.raises(ClaimLost):
            await saver.aput_writes((await saver.aget_tuple(thread("t"))).config, [("n", 5)], "task")  # type: ignore[union-attr]
        with pytest.raises(ClaimLost):
            await saver.adelete_thread("t")
        with pytest.raises(ClaimLost):
            await saver.aprune(["t"])
        with pytest.raises(ClaimLost):
            await saver.aput(thread("new"), empty_checkpoint(), {}, {})
    assert await items(engine, "t") == before
    assert await items(engine, "new") == []
    with held(second):
        assert (await graph.ainvoke(None, thread("t")))["n"] == 20


async def test_a_thread_belongs_to_its_task_until_that_ends(engine: Engine) -> None:
    saver = TreadleSaver(engine)
    task = await engine.enqueue("work")
    await engine.enqueue("work")
    first, second = await claimed(engine, "first"), await claimed(engine, "second")
    with held(first):
        await saver.aput(thread("t"), empty_checkpoint(), {}, {})
    with held(second), raises_code("thread_held", match="has not ended"):
        await saver.aput(thread("t"), empty_checkpoint(), {}, {})
    with raises_code("thread_held"):  # nor code outside of held work
        await saver.adelete_thread("t")
    await engine.cancel(task)
    with held(second):
        await saver.aput(thread("t"), empty_checkpoint(), {}, {})
    with raises_code("thread_held"):
        await saver.aput(thread("t"), empty_checkpoint(), {}, {})
    assert len([key for key, _ in await items(engine, "t") if key.startswith("c/")]) == 2


async def test_a_writer_without_a_claim_is_refused_after_a_concurrent_retry(engine: Engine) -> None:
    saver = TreadleSaver(engine)
    task = await engine.enqueue("work")
    with held(await claimed(engine, "first")):
        await saver.aput(thread("t"), empty_checkpoint(), {}, {})
    await engine.cancel(task)
    before = await items(engine, "t")

    async def decide(record_id: str | None) -> dict[str, ThreadItem | None]:
        if (await engine.kernel.reads.get_task(task)).finished:
            await engine.retry(task)
        return dict.fromkeys((key for key, _ in before), None)

    with raises_code("thread_held"):
        await engine.kernel.threads.write("t", decide, None, None)
    assert await items(engine, "t") == before
    await engine.cancel(task)
    await saver.adelete_thread("t")
    assert await items(engine, "t") == []


async def test_concurrent_writers_without_a_claim_lose_no_write(engine: Engine) -> None:
    saver = TreadleSaver(engine)
    await asyncio.gather(*(saver.aput(thread("t"), empty_checkpoint(), {}, {}) for _ in range(10)))
    config = (await saver.aget_tuple(thread("t"))).config  # type: ignore[union-attr]
    await asyncio.gather(*(saver.aput_writes(config, [("n", number)], f"task-{number % 5}") for number in range(10)))
    assert len([each async for each in saver.alist(thread("t"))]) == 10
    assert len((await saver.aget_tuple(config)).pending_writes or ()) == 5  # type: ignore[union-attr]


async def test_handlers_and_functions_own_the_threads_that_they_write(memory: Engine) -> None:
    graph = counting(TreadleSaver(memory))

    @memory.handler("async")
    async def in_loop(payload: Any, ctx: Context) -> Any:
        return {"n": (await graph.ainvoke({"n": 1, "log": []}, thread(ctx.task_id)))["n"]}

    @memory.handler("sync")
    def in_thread(payload: Any, ctx: Context) -> Any:
        return {"n": graph.invoke({"n": 1, "log": []}, thread(ctx.task_id))["n"]}

    @memory.function("function")
    async def function(payload: Any, ctx: FunctionContext) -> Any:
        async def work() -> int:
            return int((await graph.ainvoke({"n": 1, "log": []}, thread(ctx.run_id)))["n"])

        await ctx.sleep(0)
        return {"n": await ctx.step(work)}

    async with memory.worker():
        for name in ("async", "sync"):
            task = await memory.enqueue(name)
            assert await memory.result(task) == {"n": 20}
            record = await memory.kernel.store.records.find_named("default", THREAD.entity, task.id)
            assert record is not None
            assert (record.task_id, record.root_id) == (task.id, task.id)
        run = await memory.start("function", {})
        assert await memory.run_result(run) == {"n": 20}
        record = await memory.kernel.store.records.find_named("default", THREAD.entity, run.id)
        assert record is not None
        assert record.run_id == run.id
        await memory.kernel.retention.prune_tree(run.id)
        assert await memory.kernel.store.records.find(record.id) is None


# --- values ---


class Order(BaseModel):
    number: int


async def test_only_safe_types_and_those_given_are_restored() -> None:
    async with Engine("memory://", settings=Settings(), codec=Zlib()) as engine:
        builder: Any = StateGraph(dict)
        builder.add_node("make", lambda _: {"order": Order(number=7), "said": [HumanMessage("hi"), AIMessage("ho")]})
        builder.add_edge(START, "make")
        for types, expected in (((), {"number": 7}), ((Order,), Order(number=7))):
            saver = TreadleSaver(engine, types=types)
            graph = builder.compile(checkpointer=saver)
            await graph.ainvoke({}, thread(f"t{len(types)}"))
            values = (await graph.aget_state(thread(f"t{len(types)}"))).values
            values = values.get("__root__", values)
            assert values["order"] == expected
            assert [type(each) for each in values["said"]] == [HumanMessage, AIMessage]
        record = await engine.kernel._plain_store.records.find_named("default", THREAD.entity, "t0")
        assert record is not None
        encoded = await engine.kernel._plain_store.records.list_items(record.id, None, 100)
        assert all(value.startswith("@code:") for _, value in encoded)


def appended(state: list[str], writes: list[Any]) -> list[str]:
    return [*state, *(each for write in writes for each in (write if isinstance(write, list) else [write]))]


async def test_pruning_keeps_the_ancestors_of_a_delta_channel(memory: Engine) -> None:
    class Long(TypedDict, total=False):
        n: int
        lines: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=100)]

    builder: Any = StateGraph(Long)
    builder.add_node("add", lambda state: {"n": state.get("n", 0) + 1, "lines": [f"line {state.get('n', 0)}"]})
    builder.add_edge(START, "add")
    builder.add_conditional_edges("add", lambda state: "add" if state["n"] < 4 else END)
    saver = TreadleSaver(memory)
    graph = builder.compile(checkpointer=saver)
    final = await graph.ainvoke({"n": 0}, thread("t"))
    await saver.aprune(["t"])
    assert (await graph.aget_state(thread("t"))).values == final
    plain = counting(saver)
    await plain.ainvoke({"n": 1, "log": []}, thread("plain"))
    await saver.aprune(["plain"])
    assert {key.partition("/")[0] for key, _ in await items(memory, "plain")} == {"c", "v"}
    assert len([each async for each in saver.alist(thread("plain"))]) == 1
    assert (await plain.aget_state(thread("plain"))).values == {"n": 20, "log": ["one", "two"]}


async def test_blocking_calls_on_the_engines_event_loop_are_refused(memory: Engine) -> None:
    saver = TreadleSaver(memory)
    with pytest.raises(MisusedContext, match="ainvoke"):
        saver.get_tuple(thread("t"))
    assert await asyncio.to_thread(saver.get_tuple, thread("t")) is None
