"""Tests never depend on how busy the machine is: the limits of their waits only end hangs, and no lease ends by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.limits import BOUND

TESTS = Path(__file__).parents[1]
VIRTUAL = ("simulation/", "fuzz/", "typing/")
"""Folders in which time is virtual, which are given a time to take, or whose code is only type-checked."""
POSITIONS = {"timeout": 0, "wait_for": 1, "wait": 0, "join": 0, "until": 1}
"""Calls that wait up to a limit, with the position of that argument; it may also be called `timeout` or `bound`."""
WAITS = {*POSITIONS, "get", "run", "check_output", "communicate", "urlopen", "result", "run_result", "Barrier"}
HTTPX, HTTPX_LIMIT = {"get", "post", "put", "delete", "request", "stream", "Client", "AsyncClient"}, 5.0
"""Calls of httpx, and the seconds after which they give up if nothing is said."""
CLOCKS = {"monotonic", "perf_counter", "time"}
"""Clocks to which nobody adds the time that something may take."""
SHORT = {
    "agents/drainer.py": "a pause between two looks",
    "chaos/patroni.py": "a look at a node that may be stopped",
    "chaos/test_failover.py": "the absence of something takes time",
    "contract/test_watchers.py": "an answer that drips",
    "fork_server.py": "a look whether a process has ended",
    "engine/test_blocking.py": "it waits for nothing, and says so",
    "http/test_handles.py": "it waits for nothing, and says so",
    "queue/test_tasks.py": "it waits for nothing, and says so",
    "stores/test_postgres_store.py": "the absence of something takes time",
    "workers/test_lease_sidecar.py": "a pause between two looks",
}
"""Files with waits that are meant to end early, and why."""
LEASE = 5.0
"""Seconds for which any process may stand still without losing what it holds."""
LEASES = {
    "chaos/test_chaos.py": "losing leases is what it is about",
    "crash/test_lost_answers.py": "leases of a worker that is cut off must end; tasks may be taken over",
    "crash/test_postgres_outage.py": "tasks may be taken over, and must come to an end",
    "crash/test_remote_workers.py": "nobody who could take over looks before the holder is dead",
    "crash/test_signals.py": "one that sleeps past its lease; meanwhile it can take over nothing",
    "http/test_curl_worker.py": "one that is slower than its lease",
    "engine/test_input.py": "leases that are refused",
    "monitoring/test_metrics.py": "on a clock that only the test advances",
}
"""Files with leases that are shorter, and why."""


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def numbers(nodes: list[ast.expr]) -> Iterator[float]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.replace(".", "", 1).isdigit():
            yield float(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node.value


def limits(node: ast.AST) -> list[float]:
    """The seconds after which that gives up."""
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Call) and name_of(node.left) in CLOCKS:
        return [*numbers([node.right])] if isinstance(node.op, ast.Add) and not node.left.args else []
    if not isinstance(node, ast.Call):
        return []
    of = getattr(node.func.value, "id", "") if isinstance(node.func, ast.Attribute) else ""
    if of in ("httpx", "httpx2") and name_of(node) in HTTPX:
        options = {each.arg: each.value for each in node.keywords}
        return [*numbers([options["timeout"]])] if "timeout" in options else [] if "transport" in options else [HTTPX_LIMIT]
    if name_of(node) not in WAITS or of == "ctx":
        return []
    given = [each.value for each in node.keywords if each.arg in ("timeout", "bound")]
    given += node.args[POSITIONS[name_of(node)] :][:1] if name_of(node) in POSITIONS else []
    return [*numbers(given)]


def leases(node: ast.AST) -> list[float]:
    """The seconds for which something is held."""
    if not isinstance(node, ast.Call):
        return []
    given = [each.value for each in node.keywords if each.arg in ("lease", "TREADLE_LEASE", "LEASE")]
    given += [after for word, after in zip(node.args, node.args[1:], strict=False) if getattr(word, "value", "") == "--lease"]
    locks = [each.value for each in node.keywords if each.arg == "lock_duration_ms"]
    return [*numbers(given), *(lock / 1000 for lock in numbers(locks))]


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The calls and operations in a tree; `ast.walk` takes three times as long."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Call | ast.BinOp):
            yield node
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                left.append(value)
            elif isinstance(value, list):
                left += [each for each in value if isinstance(each, ast.AST)]


def complaints(name: str, text: str) -> Iterator[str]:
    for node in nodes(ast.parse(text)):
        at = f"{name}:{getattr(node, 'lineno', 0)}"
        yield from (
            f"{at}: a wait of {limit} s: BOUND, or SHORT and why"
            for limit in limits(node)
            if limit < BOUND and (limit > 1 or name not in SHORT)
        )
        yield from (
            f"{at}: a lease of {lease} s: end it with expire_leases_of"
            for lease in leases(node)
            if lease < LEASE and name not in LEASES
        )


def test_waits_end_only_hangs_and_no_lease_expires() -> None:
    names = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py")]
    own = [each for name in names if not name.startswith(VIRTUAL) for each in complaints(name, (TESTS / name).read_text())]
    assert not own, "\n".join(own)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("asyncio.timeout(5)", [5]),
        ("asyncio.wait_for(it, 0.5)", [0.5]),
        ("process.communicate(timeout=30)", [30]),
        ("time.monotonic() + 60", [60]),
        ("asyncio.timeout(BOUND)", []),
        ("httpx.get(url)", [5]),
        ("httpx.Client(timeout=60)", [60]),
        ("httpx.Client(timeout=BOUND)", []),
        ("httpx.AsyncClient(transport=made)", []),
        ("ctx.wait_for('go', timeout=3)", []),
        ("engine.worker(lease=1)", [1]),
        ("scene.start_worker('--lease', 1, '--name', 'a')", [1]),
        ("start('x', TREADLE_LEASE='1.5')", [1.5]),
        ("RunnerConfig(lock_duration_ms=1500)", [1.5]),
    ],
)
def test_limits_are_found(text: str, found: list[float]) -> None:
    node = ast.parse(text, mode="eval").body
    assert [*limits(node), *leases(node)] == found


def test_the_engine_does_not_use_a_wait_that_can_swallow_a_cancellation() -> None:
    """On Python 3.11, `asyncio.wait_for` returns instead of raising if its future is done when it is canceled."""
    source = TESTS.parent / "src"
    assert [str(path) for path in source.rglob("*.py") if "asyncio.wait_for(" in path.read_text()] == []
