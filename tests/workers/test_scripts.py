"""Scripts: what goes in, what comes out, and what a script that fails says about itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from treadle.model.errors import InvalidPayload, InvalidPolicy, TreadleError
from treadle.workers.scripts import (
    ScriptError,
    ScriptKilled,
    ScriptLimits,
    ScriptResultInvalid,
    ScriptRunner,
    ScriptSyntax,
    ScriptUnavailable,
)

pytestmark = [pytest.mark.xdist_group("workers scripts"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def runner() -> AsyncIterator[ScriptRunner]:
    async with ScriptRunner() as made:
        yield made


async def test_a_script_returns_its_result_variable(runner):
    assert await runner.run("result['n'] = len(params['words'])", {"words": ["sun", "moon"]}) == {"n": 2}
    assert await runner.run("pass", {}) == {}
    assert await runner.run("", {}) == {}


async def test_params_and_results_are_json_of_any_shape_and_in_any_script(runner):
    value = {"a": [1, 2.5, None, True, {"ü": "日本語 🌍"}], "größe": -(2**53), "": ""}
    assert await runner.run("result.update(params)", value) == value
    assert await runner.run("größe = 'äöü'\nresult[größe] = params['名'][::-1]", {"名": "文字"}) == {"äöü": "字文"}


async def test_large_params_and_results_pass(runner):
    text = "x" * 1_000_000
    assert await runner.run(
        "result['text'] = params['text']\nresult['n'] = len(params['more'])", {"text": text, "more": text * 5}
    ) == {
        "text": text,
        "n": 5_000_000,
    }


async def test_params_that_are_not_json_are_refused_before_anything_runs(runner):
    with pytest.raises(InvalidPayload, match="params"):
        await runner.run("pass", {"a": object()})


async def test_concurrent_scripts_get_their_own_results(runner):
    results = await asyncio.gather(*(runner.run("result['n'] = params['n'] * 2", {"n": n}) for n in range(40)))
    assert results == [{"n": 2 * n} for n in range(40)]


async def test_a_failed_script_does_not_affect_others(runner):
    code = "if params['n'] % 2: raise ValueError('odd')\nresult['n'] = params['n']"
    results = await asyncio.gather(*(runner.run(code, {"n": n}) for n in range(10)), return_exceptions=True)
    assert [r["n"] if isinstance(r, dict) else r.message for r in results] == [n if n % 2 == 0 else "odd" for n in range(10)]


async def test_no_more_than_concurrency_scripts_run_concurrently():
    async with ScriptRunner(concurrency=2) as runner:
        code = "import time\nresult['from'] = time.monotonic()\ntime.sleep(0.05)\nresult['to'] = time.monotonic()"
        spans = await asyncio.gather(*(runner.run(code, {}) for _ in range(6)))
    edges = sorted([(s["from"], 1) for s in spans] + [(s["to"], -1) for s in spans])
    running = [sum(step for _, step in edges[: i + 1]) for i in range(len(edges))]
    assert max(running) == 2


async def test_functions_classes_comprehensions_and_allowed_modules_work(runner):
    code = """
from __future__ import annotations
import json, math, re, random, uuid, collections.abc, urllib.parse
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

@dataclass(order=True)
class Point:
    x: int
    y: int = 0

class Upper(str):
    def __repr__(self):
        return super().upper()

def total(values):
    return sum(v for v in values if isinstance(v, int))

result["total"] = total(params["values"])
result["points"] = [repr(p) for p in sorted([Point(2), Point(1, 3)])]
result["upper"] = repr(Upper("a"))
result["counts"] = dict(Counter("aab"))
result["when"] = datetime.strptime("2024-05-06", "%Y-%m-%d").strftime("%d.%m.%Y")
result["sum"] = str(Decimal("0.1") + Decimal("0.2"))
result["name"] = "\\N{SNOWMAN}".encode("utf-16-le").hex()
result["latin"] = "ü".encode("latin-1").hex()
result["many"] = [math.floor(2.5), re.sub("a", "b", "aa"), json.loads("[1]"), len(str(uuid.uuid4())), urllib.parse.quote("ä")]
result["keys"] = isinstance({}, collections.abc.Mapping)
print("nobody reads this", result, "ü")
"""
    assert await runner.run(code, {"values": [1, "a", 2]}) == {
        "total": 3,
        "points": ["Point(x=1, y=3)", "Point(x=2, y=0)"],
        "upper": "A",
        "counts": {"a": 2, "b": 1},
        "when": "06.05.2024",
        "sum": "0.3",
        "name": "0326",
        "latin": "fc",
        "many": [2, "bb", [1], 36, "%C3%A4"],
        "keys": True,
    }


async def test_random_numbers_differ_between_scripts(runner):
    code = "import random, uuid\nresult['r'] = random.random()\nresult['u'] = str(uuid.uuid4())"
    one, two = await runner.run(code, {}), await runner.run(code, {})
    assert one["r"] != two["r"]
    assert one["u"] != two["u"]


async def test_other_modules_and_builtins_are_unavailable(runner):
    for module in ("os", "sys", "subprocess", "socket", "ctypes", "treadle"):
        with pytest.raises(ScriptError, match=f"cannot import '{module}'") as raised:
            await runner.run(f"import {module}", {})
        assert raised.value.type == "ImportError"
    for name in ("open", "eval", "exec", "compile", "input", "globals"):
        with pytest.raises(ScriptError, match=f"name '{name}' is not defined"):
            await runner.run(f"{name}", {})


async def test_an_error_names_its_type_and_its_line_in_the_afl_source(runner):
    code = "def inner(x):\n    return 1 / x\n\n\ninner(params['x'])"
    with pytest.raises(ScriptError) as raised:
        await runner.run(code, {"x": 0}, first_line=10, source="flows/shop.afl")
    error = raised.value
    assert (error.code, error.type, error.message, error.line) == ("script_error", "ZeroDivisionError", "division by zero", 11)
    assert str(error) == "flows/shop.afl, line 11: ZeroDivisionError: division by zero"
    assert isinstance(error, TreadleError)


async def test_an_error_inside_a_module_is_located_at_its_call_in_the_script(runner):
    with pytest.raises(ScriptError) as raised:
        await runner.run("import json\n\njson.loads('{')", {}, first_line=100)
    assert (raised.value.type, raised.value.line) == ("JSONDecodeError", 102)


async def test_a_syntax_error_names_its_line(runner):
    with pytest.raises(ScriptSyntax) as raised:
        await runner.run("x = 1\n\ndef (", {}, first_line=7, source="a.afl")
    assert (raised.value.code, raised.value.type, raised.value.line) == ("script_syntax", "SyntaxError", 9)
    with pytest.raises(ScriptSyntax) as raised:
        await runner.run("if x:\ny = 1", {}, first_line=7)
    assert (raised.value.type, raised.value.line) == ("IndentationError", 8)


async def test_code_that_breaks_the_compiler_is_a_syntax_error(runner):
    for code in ("x = " + "(" * 5_000 + ")" * 5_000, "x = " + "-" * 200_000 + "1"):
        with pytest.raises(ScriptError) as raised:
            await runner.run(code, {}, first_line=3)
        assert raised.value.code in {"script_syntax", "script_memory", "script_killed"}
    assert await runner.run("result['still'] = 1", {}) == {"still": 1}


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("result = {'a': 1}", "another value"),
        ("del result", "another value"),
        ("result = 5", "another value"),
        ("result['a'] = {1, 2}", "not JSON"),
        ("result['a'] = object()", "not JSON"),
        ("result['a'] = float('nan')", "not JSON"),
        ("result['a'] = [float('inf')]", "not JSON"),
        ("result['a'] = result", "not JSON"),
        ("result[(1, 2)] = 3", "not JSON"),
        ("result['a'] = '\\ud800'", "surrogate"),
        ("result['a'] = chr(0)", r"U\+0000"),
        ("result['a'] = 'x' * (1 << 20)", "limit"),
        ("x = []\nfor _ in range(100_000): x = [x]\nresult['a'] = x", "not JSON"),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_the_script(runner, code, says):
    with pytest.raises(ScriptResultInvalid, match=says) as raised:
        await runner.run(code, {})
    assert raised.value.code == "script_result_invalid"


async def test_exit_and_interrupt_are_handled_like_other_errors(runner):
    for code, kind in (("raise SystemExit(0)", "SystemExit"), ("raise KeyboardInterrupt", "KeyboardInterrupt")):
        with pytest.raises(ScriptError) as raised:
            await runner.run(code, {})
        assert (raised.value.code, raised.value.type, raised.value.line) == ("script_error", kind, 1)


async def test_an_exception_without_a_representation_is_reported(runner):
    code = "class Odd(Exception):\n    def __str__(self):\n        raise ValueError('no')\nraise Odd"
    with pytest.raises(ScriptError, match="cannot be shown") as raised:
        await runner.run(code, {})
    assert (raised.value.type, raised.value.line) == ("Odd", 4)
    with pytest.raises(ScriptError) as raised:
        await runner.run("raise ValueError('x' * 100_000 + '\\ud800')", {})
    assert len(raised.value.message) == 4_000


async def test_a_process_that_ends_without_an_answer_is_reported(runner):
    for status in (0, 3):
        with pytest.raises(ScriptKilled) as raised:
            await runner.run(f"import random\nrandom._os._exit({status})", {})
        assert raised.value.code == "script_killed"


async def test_an_answer_that_a_script_forged_is_not_believed(runner):
    send = "import random, struct\nos = random._os\nbody = {}\nos.write(3, struct.pack('!I', {}) + body)\nos._exit(0)"
    for body in ("b'[1]'", "b'{\"result\": NaN}'", "b'\\xff'", "b'[' * 60_000", 'b\'{"problem": "claim_lost", "message": "x"}\''):
        with pytest.raises(ScriptResultInvalid):
            await runner.run(send.format(body, "len(body)"), {})
    with pytest.raises(ScriptResultInvalid, match="more than"):
        await runner.run(send.format("b''", "1 << 31"), {})
    with pytest.raises(ScriptKilled):
        await runner.run(send.format("b''", "100"), {})


async def test_bad_settings_are_refused():
    for wrong in (
        {"wall_for": 0},
        {"cpu_for": float("inf")},
        {"memory_bytes": 0},
        {"output_bytes": -1},
        {"off": frozenset({"gravity"})},
    ):
        with pytest.raises(InvalidPolicy):
            ScriptLimits(**wrong)
    with pytest.raises(InvalidPolicy):
        ScriptRunner(concurrency=0)


async def test_a_missing_interpreter_is_not_reported_as_a_script_error():
    for python in ("/nonexistent/python", "/bin/false"):
        async with ScriptRunner(python=python) as runner:
            with pytest.raises(ScriptUnavailable, match="No process"):
                await runner.run("pass", {})


async def test_a_small_script_is_fast(runner, record_property):
    """Measured, not judged: machines differ."""
    await runner.warm()
    began = time.perf_counter()
    for _ in range(100):
        await runner.run("result['n'] = params['n'] + 1", {"n": 1})
    record_property("milliseconds_per_script", round((time.perf_counter() - began) * 10, 2))
