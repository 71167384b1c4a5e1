"""With `TREADLE_LOG_FORMAT=json`, every line that a server writes to stderr is one JSON object, whoever wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.commands import Treadle

SECRET = "sesame-4711"
HANDLERS = """
import asyncio
import gc
import logging
import threading
import warnings

from treadle import Engine

engine = Engine()


def loud(where):
    logging.getLogger("uvicorn.error").error("a library, %s", where)
    warnings.warn(f"a warning, {where}")


@engine.handler("loud")
async def in_loop(payload):
    loud("in the loop")
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    thread = threading.Thread(target=lambda: [][0], name="mine")
    thread.start()
    thread.join()

    class Careless:
        def __del__(self):
            raise KeyError("careless")

    Careless()
    gc.collect()


@engine.handler("threaded")
def in_thread(payload):
    loud("in a thread")


@engine.handler("isolated", isolation="process")
def in_process(payload):
    loud("in a process")


@engine.handler("fails")
async def fails(payload):
    raise RuntimeError("two\\nlines")
"""


class Lines(list[dict[str, Any]]):
    def one(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        (found,) = [line for line in self if holds(line)]
        return found


@pytest.fixture
def told(treadle: Treadle) -> tuple[dict[str, str], Lines]:
    """The log of a worker that did all of that, and the ids of the tasks."""
    (treadle.folder / "loud.py").write_text(HANDLERS)
    with treadle.started("worker", "--handlers", "loud", "--json", TREADLE_LOG_FORMAT="json") as worker:
        for name in ("loud", "threaded", "isolated", "fails"):
            treadle("enqueue", name, "--wait", "--payload", json.dumps({"password": SECRET}))
        err = worker.stop().err
    ids = {task["name"]: task["id"] for task in treadle.json("tasks", "list")["tasks"]}
    assert SECRET not in err
    return ids, Lines(json.loads(line) for line in err.splitlines())


def test_every_line_is_an_object_with_its_context_fields(told: tuple[dict[str, str], Lines]):
    ids, lines = told
    for line in lines:
        assert {"at", "level", "logger", "event", "message"} <= set(line), line
    failed = lines.one(lambda line: line["event"] == "task_settled")
    assert failed["level"] == "error"
    assert failed["task_id"] == ids["fails"]
    assert failed["fields"]["error"] == {"code": "handler_error", "message": "two\nlines", "type": "RuntimeError"}
    assert failed["fields"]["transition"] == "fail"
    started = lines.one(lambda line: line["event"] == "worker_started")
    assert "loud" in started["fields"]["handlers"]
    for name, where in (("loud", "in the loop"), ("threaded", "in a thread"), ("isolated", "in a process")):
        library = lines.one(lambda line, where=where: line["message"] == f"a library, {where}")
        assert (library["logger"], library["task_id"]) == ("uvicorn.error", ids[name])
        warning = lines.one(lambda line, where=where: f"UserWarning: a warning, {where}" in line["message"])
        assert (warning["logger"], warning["level"]) == ("py.warnings", "warning")
    of_loop = lines.one(lambda line: line["logger"] == "asyncio")
    assert of_loop["error"] == "ZeroDivisionError: division by zero"
    assert "Traceback" in of_loop["traceback"]
    of_thread = lines.one(lambda line: "uncaught in mine" in line["message"])
    assert of_thread["error"].startswith("IndexError")
    assert lines.one(lambda line: "careless" in line.get("error", ""))["level"] == "error"


def test_a_server_that_cannot_start_reports_it_as_json(treadle: Treadle):
    ended = treadle("worker", "--handlers", "nowhere", TREADLE_LOG_FORMAT="json")
    assert ended.code != 0
    (line,) = [json.loads(line) for line in ended.err.splitlines()]
    assert (line["event"], line["level"]) == ("handlers_not_found", "error")


def test_the_password_of_a_store_is_in_no_line(treadle: Treadle):
    url = f"postgresql://treadle:{SECRET}@127.0.0.1:1/treadle"
    ended = treadle("tasks", "list", TREADLE_STORE=url, TREADLE_LOG_FORMAT="json", TREADLE_LOG_LEVEL="DEBUG")
    assert ended.code != 0
    assert SECRET not in ended.err + ended.out
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert lines[-1]["event"] == "store_unavailable"
