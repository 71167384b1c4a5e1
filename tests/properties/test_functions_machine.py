"""Random functions, in processes that die at every one of their commits, come to the same as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.functions.blocking import as_sync
from tests.functions.driver import LEASE_FOR, Died, Process, Scene, function_scene
from tests.limits import BOUND

from treadle.model.errors import SignalTimeout, StepFailed, TaskFailed

Program = list[tuple[Any, ...]]

_leaf = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 9)),
    st.tuples(st.just("sync"), st.integers(0, 9)),
    st.tuples(st.just("broken"), st.integers(0, 9)),
    st.tuples(st.just("flaky"), st.integers(0, 9)),
    st.tuples(st.just("effect"), st.integers(0, 9)),
    st.tuples(st.just("sleep"), st.sampled_from([0, 1, 5])),
    st.tuples(st.just("call"), st.integers(0, 9)),
    st.tuples(st.just("call_broken"), st.integers(0, 9)),
    st.tuples(st.just("child"), st.integers(0, 3)),
    st.tuples(st.just("now")),
    st.tuples(st.just("random")),
    st.tuples(st.just("patched")),
    st.tuples(st.just("wait"), st.booleans()),
)


def _branching(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    programs = st.lists(inner, min_size=0, max_size=3)
    return st.one_of(
        st.tuples(st.just("gather"), st.lists(programs, min_size=0, max_size=3)),
        st.tuples(st.just("calls"), st.integers(1, 5)),
    )


PROGRAMS = st.lists(st.recursive(_leaf, lambda inner: st.one_of(inner, _branching(inner)), max_leaves=8), min_size=1, max_size=6)


class Interpreter:
    """Executes a program as a function, and counts how often each of its steps was executed."""

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()

    async def run(self, ctx: Any, program: Program, path: str = "") -> list[Any]:
        out: list[Any] = []
        for number, (what, *details) in enumerate(program):
            out.append(await self._do(ctx, what, details, f"{path}/{number}"))
        return out

    async def _do(self, ctx: Any, what: str, details: list[Any], path: str) -> Any:
        match what:
            case "step":
                return await ctx.step(self._work, path, details[0])
            case "sync":
                return await ctx.step(self._work_sync, path, details[0])
            case "broken":
                try:
                    return await ctx.step(self._break, path)
                except StepFailed as error:
                    return error.error
            case "flaky":
                return await ctx.step(self._flake, path, details[0], retry=3)
            case "effect":
                return await ctx.effect("work", partial(self._work, path, details[0]), {"n": details[0]})
            case "sleep":
                return await ctx.sleep(details[0])
            case "call":
                return await ctx.call("double", {"n": details[0]})
            case "call_broken":
                try:
                    return await ctx.call("broken", {})
                except TaskFailed as error:
                    return error.error
            case "child":
                child = await ctx.start("child", {"n": details[0]})
                return [await child.result(), await child.result()]
            case "now":
                return ctx.now().year
            case "random":
                return 0 <= ctx.random() < 1
            case "patched":
                return ctx.patched("anything")
            case "wait":
                try:
                    return await ctx.wait_for("told" if details[0] else "never", timeout=3)
                except SignalTimeout:
                    return "timeout"
            case "gather":
                return await ctx.gather(*(self.run(ctx, each, f"{path}.{index}") for index, each in enumerate(details[0])))
            case "calls":
                waits = [ctx.call("double", {"n": n}) for n in range(details[0])]
                return await ctx.gather(*waits, ctx.sleep(2), ctx.step(self._work, path, 1))
            case _:
                raise AssertionError(what)

    async def _work(self, path: str, n: int) -> dict[str, Any]:
        self.executed[path] += 1
        await asyncio.sleep(0)
        return {"path": path, "n": n}

    def _work_sync(self, path: str, n: int) -> int:
        self.executed[path] += 1
        return n

    async def _break(self, path: str) -> None:
        self.executed[path] += 1
        raise ValueError(f"broken at {path}")

    async def _flake(self, path: str, n: int) -> int:
        self.executed[path] += 1
        if self.executed[path] < 2:
            raise OSError("not yet")
        return n


def answer(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    if name == "broken":
        raise ValueError("It broke.")
    return {"n": payload["n"] * 2}


async def run_once(program: Program, dies_at: int | None, *, after: bool, warm: int, kind: str) -> tuple[Any, Counter[str], int]:
    """The result of the program when a process dies at its n-th commit; the executions of each step, and the number of commits."""
    interpreter = Interpreter()
    async with function_scene() as scene:

        async def execute(payload: dict[str, Any], ctx: Any) -> Any:
            return await interpreter.run(ctx, program)

        scene.engine.function("program")(execute if kind == "async" else as_sync(execute))

        @scene.engine.function("child")
        async def child(payload: dict[str, Any], ctx: Any) -> Any:
            await ctx.sleep(1)
            return payload["n"]

        started = await scene.engine.start_function("program")
        await scene.engine.signal(started, "told", {"hello": 1})
        await scene.engine.signal(started, "told", {"hello": 2})
        process = scene.process(dies_at=dies_at, after=after, warm=warm)
        commits = 0
        for _ in range(300):
            try:
                await _to_rest(scene, process)
            except Died:
                process.die()
                commits += process.committer.count
                process = scene.process(warm=warm)
                scene.clock.advance(LEASE_FOR / 1000)
            if (await scene.engine.kernel.runs.get_run(started.id)).finished:
                break
            scene.clock.advance(1)
        if not (await scene.engine.kernel.runs.get_run(started.id)).finished:
            said = [
                await scene.steps(started.id),
                await process.live(started.id),
                await scene.engine.kernel.run_reads.why(started.id),
            ]
            raise AssertionError(f"stuck: {said}")
        result = await scene.engine.run_result(started, timeout=BOUND)
        report = await scene.engine.kernel.verify()
        assert report.problems == ()
        return result, interpreter.executed, commits + process.committer.count


async def _to_rest(scene: Scene, process: Process) -> None:
    while await process.turn(answer):
        pass


def check(program: Program, warm: int, kind: str) -> None:
    expected, once, commits = asyncio.run(run_once(program, None, after=False, warm=warm, kind=kind))
    for number in range(1, commits + 1):
        for after in (False, True):
            result, executed, _ = asyncio.run(run_once(program, number, after=after, warm=warm, kind=kind))
            assert result == expected, f"died {'after' if after else 'before'} commit {number}"
            twice = {path for path, count in executed.items() if count > once[path]}
            assert len(twice) <= 1 or not _is_sequential(program), f"{twice} were executed again"


def _is_sequential(program: Program) -> bool:
    return all(what not in ("gather", "calls") for what, *_ in program)


@pytest.mark.parametrize(("warm", "kind"), [(0, "async"), (1000, "async"), (0, "sync"), (1000, "sync")])
@settings(max_examples=2, deadline=None, derandomize=True)
@given(program=PROGRAMS)
def test_a_function_has_the_same_result_after_a_crash_at_any_commit(program: Program, warm: int, kind: str):
    check(program, warm, kind)


@pytest.mark.soak
@pytest.mark.parametrize(("warm", "kind"), [(0, "async"), (1000, "async"), (0, "sync"), (1000, "sync")])
@settings(max_examples=40, deadline=None)
@given(program=PROGRAMS)
def test_many_functions_that_die_at_any_commit_have_the_same_result(program: Program, warm: int, kind: str):
    check(program, warm, kind)
