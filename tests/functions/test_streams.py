"""Streams of handlers and functions: everything written is read once and in order, and abandoned attempts are announced."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.commands import Treadle
from tests.engines import ALL, make_engine, url_of
from tests.functions.driver import LEASE_FOR, Died, Process, Scene, function_scene
from tests.limits import BOUND
from tests.llm.scene import FLOW, GOOD, TARGET, desk, settings_for

from treadle import Context, Engine, RetryPolicy, Waiting
from treadle.agents import Evaluator, Persistence
from treadle.engine.codecs import Zlib
from treadle.kernel.store.units import Unit, UnitAnswer, Verdict
from treadle.kernel.streams import check_entries
from treadle.llm import ClaudeAgentRunner
from treadle.model.errors import (
    ClaimLost,
    InvalidInput,
    InvalidPayload,
    NonRetryable,
    StoreUnavailable,
    TaskNotFound,
    UnreadableValue,
)
from treadle.model.tasks import Claim
from treadle.settings import Settings
from treadle.testing.llm import ModelServer, text, uses
from treadle.workers.streams import Outlet, Streams

AT_ONCE = RetryPolicy.of(3, first=0)


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


async def read(engine: Engine, work: Any, name: str = "tokens", offset: int = 0) -> list[tuple[int, str, Any]]:
    """Everything from an offset on, until the work has ended."""
    async with asyncio.timeout(BOUND):
        return [(each.offset, each.kind, each.value) async for each in engine.stream(work, name, offset=offset)]


async def values(engine: Engine, work: Any, **options: Any) -> list[Any]:
    found = await read(engine, work, **options)
    assert all(kind == "entry" for _, kind, _ in found), found
    return [value for _, _, value in found]


def in_process(payload: dict[str, Any], ctx: Context) -> None:
    for number in range(3):
        ctx.stream("tokens").write(number)


@pytest.mark.postgres
async def test_a_reader_follows_a_handler_from_any_offset(url: str):
    engine = make_engine(url)
    go_on = asyncio.Event()

    @engine.handler("speak")
    async def speak(payload: dict[str, Any], ctx: Context) -> None:
        tokens = ctx.stream("tokens")
        for number in range(100):
            tokens.write(f"token {number}")
        await tokens.flush()
        await go_on.wait()
        tokens.write({"done": True})

    async with engine, engine.worker():
        task = await engine.enqueue("speak")
        reader = engine.stream(task, "tokens", offset=98)
        async with asyncio.timeout(BOUND):
            assert [(await anext(reader)).value for _ in range(2)] == ["token 98", "token 99"]  # while the handler runs
            go_on.set()
            assert [each.value async for each in reader] == [{"done": True}]
        assert await values(engine, task) == [*(f"token {number}" for number in range(100)), {"done": True}]
        (summary,) = (await engine.kernel.streams.list(task)).streams
        assert (summary.name, summary.next_offset, summary.truncated) == ("tokens", 101, False)
        page = await engine.kernel.streams.read(task, "tokens", offset=3, limit=2)
        assert ([each.offset for each in page.entries], page.next_offset, page.ended) == ([3, 4], 5, False)
        assert (await engine.kernel.streams.read(task, "tokens", offset=90)).ended
        with pytest.raises(TaskNotFound):
            await engine.kernel.streams.read("0190b5a0-0000-7000-8000-000000000000", "tokens")


async def test_sync_handlers_and_handlers_in_processes_write():
    engine = make_engine("memory://")

    @engine.handler("in_thread")
    def in_thread(payload: dict[str, Any], ctx: Context) -> None:
        assert threading.current_thread() is not threading.main_thread()
        in_process(payload, ctx)

    engine.handler("in_process", isolation="process")(in_process)
    async with engine, engine.worker():
        for name in ("in_thread", "in_process"):
            assert await values(engine, await engine.enqueue(name)) == [0, 1, 2]


async def test_a_retry_begins_a_generation_and_a_wait_continues(url: str):
    engine = make_engine(url)

    @engine.handler("speak", retry=AT_ONCE)
    async def speak(payload: dict[str, Any], ctx: Context) -> Any:
        ctx.stream("tokens").write([ctx.attempt, ctx.checkpoint])
        if ctx.checkpoint is None:
            return Waiting(0, "waited")
        if ctx.attempt < 2:
            raise ValueError("again")
        return {}

    async with engine, engine.worker():
        assert await read(engine, await engine.enqueue("speak")) == [
            (0, "entry", [1, None]),
            (1, "entry", [1, "waited"]),
            (2, "abandoned", {"generation": 1, "since": 0}),
            (3, "entry", [2, "waited"]),
        ]


async def test_a_thousand_entries_take_few_commits():
    engine = make_engine("memory://")

    @engine.handler("speak")
    async def speak(payload: dict[str, Any], ctx: Context) -> None:
        for number in range(1000):
            ctx.stream("tokens").write(f"token {number}")

    async with engine, engine.worker():
        task = await engine.enqueue("speak")
        assert len(await values(engine, task)) == 1000
        assert len(await engine.kernel.store.streams.list_chunks(task.id, "tokens", 0, 1000)) <= 5


async def test_a_full_stream_drops_entries_and_reports_it():
    engine = make_engine("memory://", stream_limit=2000)

    @engine.handler("speak")
    async def speak(payload: dict[str, Any], ctx: Context) -> None:
        for number in range(100):
            ctx.stream("tokens").write("x" * 100)
            if number % 7 == 0:
                await ctx.stream("tokens").flush()

    async with engine, engine.worker():
        found = await read(engine, await engine.enqueue("speak"))
    assert [kind for _, kind, _ in found] == ["entry"] * 19 + ["truncated"]


async def test_a_codec_encodes_entries():
    engine = Engine("memory://", settings=Settings(), codec=Zlib())

    @engine.handler("speak")
    async def speak(payload: dict[str, Any], ctx: Context) -> None:
        ctx.stream("tokens").write("secret")

    async with engine, engine.worker():
        task = await engine.enqueue("speak")
        assert await values(engine, task) == ["secret"]
        (chunk,) = await engine.kernel._plain_store.streams.list_chunks(task.id, "tokens", 0, 9)
        assert chunk.entries.startswith("@code:")


async def test_an_invalid_stream_write_raises_in_the_handler():
    engine = make_engine("memory://")
    raised: list[str] = []

    @engine.handler("speak")
    async def speak(payload: dict[str, Any], ctx: Context) -> None:
        attempts: list[Any] = [
            lambda: ctx.stream("a b"),
            lambda: ctx.stream("tokens").write(object()),
            lambda: ctx.stream("tokens").write("x" * 65_536),
        ]
        for attempt in attempts:
            try:
                attempt()
            except (InvalidInput, InvalidPayload) as error:
                raised.append(error.code)

    async with engine, engine.worker():
        spoken = await engine.enqueue("speak")
        assert await values(engine, spoken) == []
        task = await engine.kernel.reads.get_task(spoken)
    assert raised == ["invalid_name", "invalid_payload", "payload_too_large"]
    with pytest.raises(NonRetryable, match="need a worker"):
        Context(task, lambda: 0, lambda _: None).stream("tokens")


async def test_a_writer_that_lost_its_claim_is_stopped(url: str):
    engine = make_engine(url)
    begun, canceled = asyncio.Event(), asyncio.Event()
    raised: list[BaseException] = []

    @engine.handler("speak")
    async def speak(payload: dict[str, Any], ctx: Context) -> None:
        tokens = ctx.stream("tokens")
        tokens.write("before")
        await tokens.flush()
        begun.set()
        try:
            await canceled.wait()
        except asyncio.CancelledError:
            await asyncio.wait_for(canceled.wait(), BOUND)
        tokens.write("after")
        try:
            await tokens.flush()
        except ClaimLost as error:
            raised.append(error)
            raise

    async with engine, engine.worker():
        task = await engine.enqueue("speak")
        await asyncio.wait_for(begun.wait(), BOUND)
        await engine.cancel(task)
        canceled.set()
        assert await values(engine, task) == ["before"]
    assert all(isinstance(each, ClaimLost) for each in raised)


async def test_a_store_that_fails_a_read_does_not_cost_the_claim():
    verdicts, reads = [Verdict.CLAIM_LOST, Verdict.DONE], []
    claim = Claim("t", 1, "w")

    async def submit(unit: Unit) -> UnitAnswer:
        return UnitAnswer(verdicts.pop(0))

    async def find_task(task_id: str) -> None:
        reads.append(task_id)
        raise StoreUnavailable("for a moment")

    committer = SimpleNamespace(submit=submit, streamed=lambda: None)
    kernel: Any = SimpleNamespace(
        store=SimpleNamespace(tasks=SimpleNamespace(find=find_task)), committer=committer, loop=None, stream_limit=1000, clock=None
    )
    task: Any = SimpleNamespace(id="t", run_id=None, root_id="t", namespace="default")
    outlet = Outlet(kernel, task, lambda: claim)
    Streams(outlet, "w", "1").add("tokens", '"a"')
    await outlet.flush()
    assert (reads, verdicts, outlet.lost) == (["t"], [], False)


@pytest.mark.parametrize("notice", [{}, {"generation": 1}, {"generation": "1", "since": 0}, {"generation": 1, "since": None}, []])
def test_a_damaged_notice_is_not_readable(notice: Any):
    chunk: Any = SimpleNamespace(kind="abandoned", count=1)
    assert check_entries(chunk, {"generation": 1, "since": 0}) == [{"generation": 1, "since": 0}]
    with pytest.raises(UnreadableValue):
        check_entries(chunk, notice)


# functions


def register(scene: Scene) -> None:
    @scene.engine.function("tell")
    async def tell(payload: dict[str, Any], ctx: Any) -> str:
        tokens = ctx.stream("tokens")
        tokens.write("begin")

        async def speak(word: str) -> str:
            for letter in word:
                tokens.write(letter)
                await tokens.flush()
            return word

        def speak_in_thread(word: str) -> None:
            ctx.stream("tokens").write(word)

        first = await ctx.step(speak, "ab")
        tokens.write(f"said {first}")
        await ctx.sleep(1)
        await ctx.gather(ctx.step(speak, "cd"), ctx.step(speak_in_thread, "ef"))
        tokens.write("end")
        return "told"


def current(entries: list[Any]) -> list[Any]:
    """The entries that were not abandoned: those of a writer from the offset that a notice names are gone."""
    kept: list[Any] = []
    for entry in entries:
        if entry.kind == "abandoned":
            since = entry.value["since"]
            kept = [each for each in kept if each.writer != entry.writer or each.offset < since]
        else:
            kept.append(entry)
    return [each.value for each in kept]


async def until_ended(scene: Scene, run_id: str, process: Process) -> list[Any]:
    for _ in range(5):
        await process.quiet()
        scene.clock.advance(1000)
    return [each async for each in scene.engine.stream(run_id, "tokens")]


async def test_a_function_that_dies_at_any_commit_streams_each_entry_once():
    died = 0
    for at in range(1, 30):
        async with function_scene() as scene:
            register(scene)
            run = await scene.engine.start("tell")
            process = scene.process(dies_at=at, after=at % 2 == 0)
            try:
                entries = await until_ended(scene, run.id, process)
            except Died:
                died += 1
                process.die()
                scene.clock.advance(LEASE_FOR + 1)
                await scene.engine.kernel.store.tasks.wake(1000, expire_leases=True)
                entries = await until_ended(scene, run.id, scene.process())
            assert await scene.state(run.id) == "completed"
            assert [each.offset for each in entries] == list(range(len(entries)))
            told = current(entries)
            assert told[:4] == ["begin", "a", "b", "said ab"], (at, told)
            assert sorted(told[4:-1]) == ["c", "d", "ef"]
            assert told[-1] == "end"
    assert died >= 10


# interfaces


def test_a_reader_without_an_event_loop_follows():
    engine = make_engine("memory://")

    @engine.handler("speak")
    async def speak(payload: dict[str, Any], ctx: Context) -> None:
        ctx.stream("tokens").write("Hello")

    with engine.blocking() as blocking:
        blocking.start_worker()
        task = blocking.enqueue("speak")
        assert [each.value for each in blocking.stream(task, "tokens")] == ["Hello"]


@pytest.mark.parametrize("remote", [False, True], ids=["store", "server"])
def test_the_command_line_prints_streams(treadle: Treadle, remote: bool):
    async def fill() -> str:
        engine = make_engine(f"sqlite:///{treadle.folder / 'treadle.db'}")

        @engine.handler("speak", retry=AT_ONCE)
        async def speak(payload: dict[str, Any], ctx: Context) -> None:
            for word in ("Hel", "lo,\nwor", "ld\x1b[2J", {"n": 1}, "bye"):
                ctx.stream("tokens").write(word)
            if ctx.attempt == 1:
                raise ValueError("again")

        async with engine, engine.worker():
            task = await engine.enqueue("speak")
            await engine.result(task, timeout=BOUND)
            return task.id

    task_id = asyncio.run(fill())
    with treadle.started("serve", "--json") if remote else nullcontext(None) as serving:
        where = [] if serving is None else ["--server", json.loads(serving.first)["url"]]
        (stream,) = treadle.json("stream", task_id, *where)["streams"]
        assert (stream["name"], stream["next_offset"]) == ("tokens", 11)
        text = 'Hello,\nworld\\x1b[2J\n{"n": 1}\nbye\n'
        notice = "[attempt 2 begins: attempt 1 was abandoned, from offset 0 on]\n"
        assert treadle("stream", task_id, "tokens", *where).out == f"{text}{notice}{text}"
        assert treadle("stream", task_id, "tokens", "--follow", "--from", "5", *where).out == f"{notice}{text}"
        lines = treadle("stream", task_id, "tokens", "--from", "9", "--json", *where).out.splitlines()
        assert [json.loads(line)["value"] for line in lines] == [{"n": 1}, "bye"]
        assert treadle("stream", task_id, "a b", *where).code == 2
        for more in ([], ["--follow"]):
            missing = treadle("stream", task_id, "nope", *more, *where)
            assert (missing.code, missing.out) == (3, "")
            assert f"no stream 'nope' of {task_id}, which has ended. It has written tokens." in missing.err


@pytest.mark.parametrize("remote", [False, True], ids=["store", "server"])
def test_the_command_line_suggests_following_an_unfinished_stream(treadle: Treadle, remote: bool):
    async def fill() -> tuple[str, str]:
        engine = make_engine(f"sqlite:///{treadle.folder / 'treadle.db'}")

        @engine.function("support.Answer")
        async def speak(payload: dict[str, Any], ctx: Any) -> None:
            ctx.stream("tokens").write("Hello")
            if not payload:
                await ctx.continue_as_new({"again": True})

        async with engine:
            waiting = await engine.enqueue("nobody")
            async with engine.worker():
                first = await engine.start_function("support.Answer", {})
                await engine.run_result(first.id, timeout=BOUND)
            return waiting.id, first.id

    waiting, first = asyncio.run(fill())
    with treadle.started("serve", "--json") if remote else nullcontext(None) as serving:
        where = [] if serving is None else ["--server", json.loads(serving.first)["url"]]
        early = treadle("stream", waiting, "tokens", *where)
        assert (early.code, early.out) == (0, "")
        assert "no stream 'tokens' yet; as the work has not ended, `--follow` can wait" in early.err
        current = treadle.json("runs", "show", first, *where)["continued_as"]
        followed = treadle("stream", first, "tokens", "--follow", *where)
        assert (followed.code, followed.out) == (0, "Hello\n")
        assert f"The run continued as {current}: `treadle stream {current} tokens --follow`" in followed.err
        shown = treadle("runs", "show", first, *where).out
        assert "fn:support.Answer" in shown, "whole"


@pytest.mark.parametrize("driven", ["worker", "runner"])
async def test_the_text_of_a_model_is_streamed(driven: str):
    with ModelServer() as server:
        server.script(text("Let me ", "think."), uses((TARGET, GOOD)))
        if driven == "worker":
            async with desk(server, stream="tokens") as engine:
                run = await engine.start_run(FLOW, "desk.Sort", {"letter": "Dear all"})
                found = await values(engine, run)
        else:
            found = await asyncio.to_thread(_drive, server)
    said, _, answer = "".join(found).partition("\n")
    assert (said, json.loads(answer)) == ("Let me think.", GOOD)


def _drive(server: ModelServer) -> list[Any]:
    with Persistence("memory://", settings=settings_for(server)) as persistence:
        runner = ClaudeAgentRunner(Evaluator(persistence), persistence, stream="tokens")
        run_id = runner.run("desk.Sort", {"letter": "Dear all"}, FLOW[0][1]).workflow_id
        return persistence.run(values(persistence.engine, run_id))
