"""Small programs and handlers with huge results: each fails with a clear error, and the tasks beside them keep their leases."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from tests.attack.arena import HANDLERS, Arena
from tests.chaos.stage import Process

from treadle.kernel.store.process import SystemClock
from treadle.model.values import TEXT_LIMIT

CLOCK = SystemClock()
LEASE = 15.0
MEMORY = 2 * 2**30
"""Bytes that a process may use."""
ERROR = TEXT_LIMIT + 1000
"""Characters of the error of a run: a text, and where it happened."""
BYSTANDERS = 4

_P = "facet P(v: Json) => (v: Json) andThen { yield P(v = $.v) }\n"

ITSELF = """
facet F(n: Long) => (n: Long) andThen { f = F(n = $.n + 1) yield F(n = f.n) }
workflow W() => (n: Long) andThen { f = F(n = 0) yield W(n = f.n) }
"""
TWICE = """
facet F(n: Long) => (n: Long) andThen { f = F(n = $.n + 1) g = F(n = $.n + 1) yield F(n = f.n + g.n) }
workflow W() => (n: Long) andThen { f = F(n = 0) yield W(n = f.n) }
"""
NESTED = """
facet A(list: Json) => (o: Json) andThen foreach x in $.list { b = B(list = $.list) yield A(o = [b.o]) }
facet B(list: Json) => (o: Json) andThen foreach x in $.list { c = C(list = $.list) yield B(o = [c.o]) }
facet C(list: Json) => (o: Json) andThen foreach x in $.list { yield C(o = [$.list]) }
workflow W(list: Json) => (o: Json) andThen { a = A(list = $.list) yield W(o = a.o) }
"""


def _steps(expression: str, first: str, count: int) -> str:
    """A workflow whose steps apply the expression to the value X of the step before."""
    lines = [f"s0 = P(v = {first})", *(f"s{n} = P(v = {expression.replace('X', f's{n - 1}.v')})" for n in range(1, count))]
    return f"{_P}workflow W() => (n: Long) andThen {{\n" + "\n".join(lines) + "\nyield W(n = 1) }"


def _script(code: str) -> str:
    return f"workflow W() => (out: Json) andThen script {{\n{code}\n}}"


def _handler(kind: str) -> str:
    return (
        "namespace attack { event facet Huge(kind: String) => (out: Json)\n"
        f'workflow W() => (out: Json) andThen {{ h = Huge(kind = "{kind}") yield W(out = h.out) }} }}'
    )


FIRST = {
    "a list doubled 24 times": _steps("[X, X]", "[1]", 25),
    "a text doubled 60 times": _steps("X ++ X", '"ab"', 61),
    "lists in lists, 600 deep": _steps("[X]", "[1]", 600),
    "a facet that calls itself": ITSELF,
    "a result of 200 MB": _handler("text"),
    "a result 100,000 deep": _handler("deep"),
    "an error of 50 MB": _handler("error"),
    "a result with 2^60 shared parts": _handler("shared"),
}
BOMBS = FIRST | {
    "a map doubled 60 times": _steps('#{"a": X, "b": X}', "[1]", 61),
    "joined lists, 60 times": _steps("X + X", "[1, 2]", 61),
    "a facet that calls itself twice": TWICE,
    "foreach of many": "workflow W(list: Json) => (n: Json) andThen foreach a in $.list { yield W(n = [$.a]) }",
    "foreach in foreach in foreach": NESTED,
    "a script that never ends": _script("while True: pass"),
    "a script that allocates": _script("result['out'] = 'x' * 10**10"),
    "a script that appends": _script("out = []\nwhile True: out.append('x' * 10**6)"),
    "a script with a result of 100 MB": _script("result['out'] = 'x' * 10**8"),
    "a script with a deep result": _script("v = 0\nfor _ in range(10**5): v = [v]\nresult['out'] = v"),
    "a script with a slow regular expression": _script("import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')"),
    "a script with a huge power": _script("result['out'] = 9 ** 9 ** 9"),
    "a result of five million numbers": _handler("list"),
    "a result that contains itself": _handler("cycle"),
    "a result with a huge number": _handler("number"),
    "a result with a lone surrogate": _handler("surrogate"),
}
INPUTS = {
    "foreach of many": {"list": list(range(150_000))},
    "foreach in foreach in foreach": {"list": list(range(300))},
}
CANCELED = ("a facet that calls itself twice", *INPUTS)
"""Bombs that are large but allowed: they are canceled while they grow."""


async def bombs(arena: Arena) -> None:
    """One process serves HTTP, advances the runs and holds the leases of the bystanders."""
    process = await arena.start(
        "up", "up", "--handlers", str(HANDLERS), "--port", "0", "--lease", f"{LEASE}", "--poll-interval", "1"
    )
    over = arena.folder / "over"
    for number in range(BYSTANDERS):
        payload = {"key": f"bystander{number}", "until": str(over)}
        await arena.submit(payload["key"], "/v1/tasks", {"name": "attack.bystander", "payload": payload})
    watching = asyncio.ensure_future(_watch(arena, ended := asyncio.Event()))
    try:
        for name, source in (BOMBS if arena.size.every_bomb else FIRST).items():
            await _explode(arena, name, source)
        await _all_ended(arena)
    finally:
        over.touch()
        ended.set()
    await watching
    arena.tally.counts["MiB at most"] = peak(process) // 2**20
    arena.tally.check(peak(process) < MEMORY, f"the process used {peak(process) / 2**20:.0f} MiB")
    await arena.settle()


async def _explode(arena: Arena, name: str, source: str) -> None:
    body = {"sources": [{"name": "bomb.afl", "text": source}], "inputs": INPUTS.get(name, {})}
    answer = await arena.ask("POST", "/v1/runs/from-source", json=body)
    arena.tally.counts["bombs"] += 1
    if answer.status_code != 201:
        arena.tally.check(400 <= answer.status_code < 500, f"{name} was answered {answer.status_code}: {answer.text[:300]}")
        arena.tally.counts["of them rejected"] += 1
        return
    run_id = answer.json()["id"]
    if name in CANCELED:
        await asyncio.sleep(2)  # it is canceled at whatever it does by then
        canceled = await arena.ask("POST", f"/v1/runs/{run_id}/cancel", json={})
        arena.tally.check(canceled.status_code in (200, 409), f"{name} could not be canceled: {canceled.text[:300]}")
    arena.bombs[run_id] = name


async def _all_ended(arena: Arena) -> None:
    """Wait until every bomb has failed, and look at its error."""
    for run_id, name in arena.bombs.items():
        while (run := await arena.engine.kernel.store.runs.find(run_id)) is not None and run.finished_at is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert run is not None
        arena.tally.counts[f"of them {run.state}"] += 1
        error = run.error or ""
        arena.tally.check(run.state == "canceled" or (run.state == "failed" and error), f"{name} is {run.state}")
        arena.tally.check(len(error) < ERROR, f"the error of {name} has {len(error)} characters")


async def _watch(arena: Arena, over: asyncio.Event) -> None:
    """Ask for the health and the status of the server until the bombs are over."""
    longest = 0.0
    while not over.is_set():
        for path in ("/health", "/v1/status"):
            began = CLOCK.monotonic()
            try:
                answer = await arena.ask("GET", path)
                arena.tally.check(answer.status_code == 200, f"{path} was answered {answer.status_code}")
            except httpx.TransportError as error:
                arena.tally.problems.append(f"{path} was not answered: {error!r}")
            longest = max(longest, CLOCK.monotonic() - began)
        await asyncio.sleep(0.2)
    arena.tally.counts["ms until the slowest answer"] = round(longest * 1000)
    arena.tally.check(longest < arena.size.answers_within, f"the server did not answer for {longest:.1f} s")


def peak(process: Process) -> int:
    """The most memory that a process used."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
