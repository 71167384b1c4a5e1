"""The blocking face: the same engine, for code without an event loop."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND

from treadle import Context, Engine, TaskFailed, TaskSpec
from treadle.engine import NotOpen
from treadle.model.errors import InvalidInput, InvalidStoreUrl


@pytest.fixture(params=ALL)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    made = make_engine(url_of(request.param, request, tmp_path))

    @made.handler("echo")
    async def echo(payload: Any) -> Any:
        return payload

    @made.handler("thread")
    def thread(payload: Any, ctx: Context) -> dict[str, Any]:
        return {"thread": threading.current_thread().name, "attempt": ctx.attempt}

    return made


@pytest.mark.postgres
def test_every_operation_works_without_an_event_loop(engine: Engine) -> None:
    with engine.blocking() as e:
        task = e.enqueue("echo", {"n": 1}, priority=3)
        assert e.why(task).code == "no_worker"
        e.pause(task)
        e.resume(task)
        e.cancel(task)
        e.retry(task)
        more = e.enqueue_many([TaskSpec(name="thread"), TaskSpec(name="broken")])
        e.start_worker(concurrency=4)
        e.start_worker()
        assert e.result(task, timeout=BOUND) == {"n": 1}
        assert e.result(more[0], timeout=BOUND)["thread"].startswith("treadle-handler")
        assert e.tasks.get(task).state == "completed"
        assert [each.name for each in e.tasks.list().tasks] == ["broken", "thread", "echo"]
        e.stop_worker()
        e.stop_worker()
        assert e.verify().holds


def test_errors_are_raised_in_the_blocking_caller(engine: Engine) -> None:
    @engine.handler("broken")
    def broken(payload: Any) -> None:
        raise ValueError("no")

    with engine.blocking() as e:
        e.start_worker()
        with pytest.raises(TaskFailed, match="no"):
            e.result(e.enqueue("broken"), timeout=BOUND)
        with pytest.raises(InvalidInput):
            e.enqueue("not a name")
        with pytest.raises(TimeoutError):
            e.result(e.enqueue("echo", delay=3600), timeout=0.01)


def test_leaving_stops_the_worker_and_the_thread(engine: Engine) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with engine.blocking() as e:
        e.start_worker()
        task = e.enqueue("echo")
        e.result(task, timeout=BOUND)
    assert {thread.name for thread in threading.enumerate()} - before == set()
    with pytest.raises(NotOpen):
        e.enqueue("echo")


def test_calls_on_an_engine_that_was_never_entered_raise_not_open(engine: Engine) -> None:
    face = engine.blocking()
    with pytest.raises(NotOpen):
        face.tasks.get("x")


def test_a_store_that_fails_to_open_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(InvalidStoreUrl), make_engine(f"sqlite:///{tmp_path}/missing/treadle.db").blocking():
        raise AssertionError("must not open")
    assert "treadle-engine" not in {thread.name for thread in threading.enumerate()}


def test_a_blocking_engine_can_be_reentered_on_a_persistent_store(tmp_path: Path) -> None:
    face = make_engine(f"sqlite:///{tmp_path}/treadle.db").blocking()
    with face as e:
        task = e.enqueue("echo")
    with face as e:
        assert e.tasks.get(task).state == "pending"
