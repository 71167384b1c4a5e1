"""Tests never depend on how busy the machine is: the limits of their waits only end hangs."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.limits import BOUND

TESTS = Path(__file__).parents[1]
VIRTUAL = ("simulation", "fuzz")
"""Folders in which time is virtual, or which are given a time to take."""
POSITIONS = {"timeout": 0, "wait_for": 1, "wait": 0, "join": 0, "get": 1, "until": 1}
"""Calls that wait up to a limit, with the position of that argument; it may also be called `timeout` or `bound`."""
WAITS = {*POSITIONS, "run", "check_output", "communicate", "urlopen", "result", "run_result", "Barrier"}


def limits(call: ast.Call) -> list[float]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in WAITS or (isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "ctx"):
        return []
    given = [each.value for each in call.keywords if each.arg in ("timeout", "bound")]
    given += call.args[POSITIONS[name] :][:1] if name in POSITIONS else []
    return [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, int | float)]


def test_waits_end_at_the_common_limit_or_are_meant_to_end_early() -> None:
    own = [
        f"{path.relative_to(TESTS.parent)}:{node.lineno}: {limit}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.relative_to(TESTS).parts[0] not in VIRTUAL
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for limit in limits(node)
        if 1 < limit < BOUND
    ]
    assert not own, "\n".join(own)
