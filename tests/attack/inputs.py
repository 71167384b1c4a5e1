"""Malformed input on every route and every command: an error that says what is wrong, never a crash or a raw escape sequence."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import click
import httpx
from tests.attack.arena import Arena
from tests.fork_server import start
from tests.http.callers import arguments, populate, request_of
from tests.limits import BOUND

from treadle.api.contract import PREFIX, Call
from treadle.api.facade import all_calls
from treadle.interfaces.cli.app import load_all, make_app
from treadle.settings import child_environment

DEEP = json.loads("[" * 400 + "]" * 400)
VALUES: dict[str, Any] = {
    "NUL": "a\x00b",
    "a lone surrogate": "\ud800",
    "control characters": "a\r\nX-Injected: 1\x1b[2J\x9b31m",
    "a long text": "x" * 20_000,
    "an empty text": "",
    "a huge number": 10**400,
    "a negative number": -(2**63) - 1,
    "a fraction": 1e308,
    "deep JSON": DEEP,
    "a list": [[], {}],
    "a map": {"": None, "\x00": 1},
    "a Boolean": True,
    "null": None,
    "a path": "../../../../etc/passwd",
}
BODIES: dict[str, bytes] = {
    "not JSON": b"{",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "deeper than any parser": b"[" * 200_000,
    "NaN": b'{"a": NaN, "b": Infinity}',
    "digits": b'{"a": ' + b"9" * 100_000 + b"}",
    "a text": b'"text"',
    "empty": b"",
}
COMMANDS = ["x" * 5000, "\udcff\udcfe", "a\x1b[31mb\nc", "--", "-1", "", "../../etc/passwd"]
ENDLESS = {"up", "dev", "serve", "worker", "runner", "mcp", "top", "demo"}
"""Commands that run until they are stopped."""
AT_ONCE = 4


async def inputs(arena: Arena) -> None:
    """Requests first, then commands."""
    ids = await populate(arena.engine, arena.folder)
    process = await arena.serve()
    await _requests(arena, [*_malformed(ids)])
    arena.tally.check(process.exit_code is None, f"the server ended with {process.exit_code}")
    await _commands(arena)
    await arena.verify()


def _malformed(ids: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every route with one wrong part at a time; requests that wait are not made longer."""
    for call in all_calls():
        for name, value in VALUES.items():
            for each in call.path:
                yield f"{call.id}: {each.name} is {name}", _with_path(call, ids, each.name, value)
            for each in call.others:
                if each.name != "wait_for":
                    yield f"{call.id}: {each.name} is {name}", _with_other(call, ids, each.name, value)
        for name, body in BODIES.items() if not call.in_query else ():
            request = request_of(call, ids)
            del request["json"]
            request["headers"]["Content-Type"] = "application/json"
            yield f"{call.id}: the body is {name}", {**request, "content": body}


def _with_path(call: Call, ids: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    words = {**arguments(ids, call.path), name: value if isinstance(value, str) else json.dumps(value)[:2000]}
    quoted = {each: quote(str(word).encode("utf-8", "surrogatepass"), safe="") for each, word in words.items()}
    return {**request_of(call, ids), "url": PREFIX + call.route.path.format(**quoted)}


def _with_other(call: Call, ids: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    request = request_of(call, ids)
    if call.in_query:
        text = value if isinstance(value, str) else json.dumps(value)[:5000]
        others = {**request.pop("params"), name: text}
        query = "&".join(f"{each}={quote(str(word).encode('utf-8', 'surrogatepass'))}" for each, word in others.items())
        return {**request, "url": f"{request['url']}?{query}"}
    request["headers"]["Content-Type"] = "application/json"
    return {**request, "content": json.dumps({**request.pop("json"), name: value}).encode()}


async def _requests(arena: Arena, requests: list[tuple[str, dict[str, Any]]]) -> None:
    chosen = arena.rng.sample(requests, arena.size.inputs) if arena.size.inputs else requests
    waiting = iter(chosen)

    async def send() -> None:
        for what, request in waiting:
            try:
                path = request.pop("url")
                answer = await arena.ask(request.pop("method"), path, **request)
            except httpx.TransportError as error:
                arena.tally.problems.append(f"{what}: no answer: {error!r}")
                continue
            arena.tally.counts["requests"] += 1
            arena.tally.counts["of them rejected"] += 400 <= answer.status_code < 500
            arena.tally.check(answer.status_code < 500, f"{what} was answered {answer.status_code}: {answer.text[:300]}")
            clean = (
                not any("\x1b" in text or "\n" in text for text in answer.headers.values()) and "x-injected" not in answer.headers
            )
            arena.tally.check(clean, f"{what} reached a header")

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))


async def _commands(arena: Arena) -> None:
    load_all()
    leaves = [
        each
        for each in _leaves(click.Context(make_app()), make_app(), [])
        if each[0][0] not in ENDLESS and "--follow" not in each[0]
    ]
    lines = [[*words, *[given] * max(count, 1)] for (words, count), given in itertools.product(leaves, COMMANDS)]
    chosen = arena.rng.sample(lines, min(arena.size.inputs // 10, len(lines))) if arena.size.inputs else lines
    for number, words in enumerate(chosen):
        log = arena.folder / f"command-{number}.log"
        with log.open("wb") as out:
            streams = {"stdout": out.fileno(), "stderr": out.fileno()}
            environment = child_environment(TREADLE_STORE=arena.url)
            process = start("treadle", words, cwd=arena.folder, environment=environment, **streams)
        code, text = await asyncio.to_thread(process.wait, BOUND), log.read_bytes()
        shown = f"treadle {' '.join(each[:40] for each in words)!r}"
        arena.tally.counts["commands"] += 1
        arena.tally.check(0 <= code < 70, f"{shown} ended with {code}: {text[:500]!r}")
        arena.tally.check(b"\x1b[31mb" not in text, f"{shown} wrote control characters to its output")


def _leaves(context: click.Context, command: click.Command, words: list[str]) -> Iterator[tuple[list[str], int]]:
    """Every command that is not a group, and the number of its required arguments."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _leaves(context, found, [*words, name])
    else:
        yield words, sum(isinstance(each, click.Argument) and each.required for each in command.params)
