# ruff: noqa: ASYNC221, ASYNC230, ASYNC251, PTH123, SIM115, TID251 - the calls that functions must not make
"""Warnings about code of durable functions that a replay would execute differently."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import subprocess
import time
import uuid
from datetime import datetime
from pathlib import Path
from random import randint
from time import sleep as nap
from typing import Any

import pytest

from treadle import DeterminismWarning, Engine
from treadle.testing import Environment
from treadle.workers.functions.registry import find_calls


async def suspicious(payload: Any, ctx: Any) -> None:
    await asyncio.sleep(1)  # never runs: the lint reads it
    time.sleep(1)  # never runs: the lint reads it
    nap(1)
    random.random()
    randint(1, 2)
    uuid.uuid4()
    dt.datetime.now(tz=dt.UTC)
    datetime.today()
    dt.date.today()
    open("x")
    subprocess.run(["x"])

    async def branch() -> None:
        await asyncio.gather()

    await ctx.gather(branch())
    await ctx.step(time.time())


async def sound(payload: Any, ctx: Any) -> None:
    def read() -> str:
        return open("x").read() + str(random.random())

    await ctx.step(read)
    await ctx.step(lambda: random.random())
    await ctx.effect("mail", lambda: subprocess.run(["x"]))
    await ctx.step(asyncio.sleep, 1)
    await ctx.sleep(1)
    random.Random(ctx.random()).random()
    time.strftime("%H", time.gmtime(0))
    payload.open()
    time.time()  # treadle: ignore


def test_suspicious_calls_are_found_with_their_replacement() -> None:
    assert [(found.call, found.instead.partition("(")[0]) for found in find_calls(suspicious)] == [
        ("asyncio.sleep", "await ctx.sleep"),
        ("time.sleep", "await ctx.sleep"),
        ("time.sleep", "await ctx.sleep"),
        ("random.random", "ctx.random"),
        ("random.randint", "ctx.random"),
        ("uuid.uuid4", "a step: `await ctx.step"),
        ("datetime.datetime.now", "ctx.now"),
        ("datetime.datetime.today", "ctx.now"),
        ("datetime.date.today", "ctx.now"),
        ("open", "a step: `await ctx.step"),
        ("subprocess.run", "a step: `await ctx.step"),
        ("asyncio.gather", "`await ctx.gather"),
        ("time.time", "ctx.now"),
    ]
    assert find_calls(sound) == []
    assert find_calls(len) == []


def test_registration_warns_at_the_line_of_the_call() -> None:
    async def naps(payload: Any, ctx: Any) -> None:
        await asyncio.sleep(1)  # never runs: the lint reads it

    with pytest.warns(
        DeterminismWarning, match=r"The durable function naps calls asyncio.sleep, .*; use await ctx.sleep"
    ) as caught:
        Engine("memory://").function("naps")(naps)
    assert (caught[0].filename, caught[0].lineno) == (__file__, naps.__code__.co_firstlineno + 1)


async def test_io_outside_a_step_is_reported_while_the_function_runs(tmp_path: Path) -> None:
    (path := tmp_path / "x").write_text("7")
    engine = Engine("memory://")

    def read() -> int:
        return int(path.read_text())

    @engine.function("reads")
    async def reads(payload: Any, ctx: Any) -> Any:
        inside = await ctx.step(read)
        import colorsys  # noqa: F401 - an import opens a file, too

        exempt = read()  # treadle: ignore
        return [inside, exempt, read()]

    async with Environment(engine) as env:
        run = await engine.start_function("reads")
        with pytest.warns(DeterminismWarning, match="The durable function reads does IO outside a step") as caught:
            assert await env.result(run) == [7, 7, 7]
    assert [warning.lineno for warning in caught] == [reads.__code__.co_firstlineno + 6]
