"""Bad input: a clear error with a code, and nothing has changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of

from treadle import Engine, TaskNotFound, TaskSpec
from treadle.engine import NotOpen
from treadle.model.errors import IllegalTransition, InvalidInput, InvalidStoreUrl, StoreUnavailable, TreadleError

NOBODY = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    made = make_engine(url_of(request.param, request, tmp_path), payload_limit=2000)
    async with made:
        yield made


BAD_TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "a name with odd characters": ({"name": "drop table;"}, "invalid_name"),
    "no name": ({"name": ""}, "invalid_name"),
    "a name that is no text": ({"name": None}, "invalid_name"),
    "a very long name": ({"name": "x" * 500}, "invalid_name"),
    "a list with odd characters": ({"task_list": "a b"}, "invalid_name"),
    "a payload that is a list": ({"payload": [1, 2]}, "invalid_input"),
    "a payload that is text": ({"payload": "text"}, "invalid_input"),
    "a payload with an object": ({"payload": {"x": object()}}, "invalid_payload"),
    "a payload with bytes": ({"payload": {"x": b"x"}}, "invalid_payload"),
    "a payload with NaN": ({"payload": {"x": float("nan")}}, "invalid_payload"),
    "a payload with infinity": ({"payload": {"x": float("-inf")}}, "invalid_payload"),
    "a payload with U+0000": ({"payload": {"x": "a\x00"}}, "invalid_payload"),
    "a payload with half a character": ({"payload": {"x": "\ud800"}}, "invalid_payload"),
    "a payload that is too large": ({"payload": {"x": "y" * 2000}}, "payload_too_large"),
    "a negative number of retries": ({"retry": -1}, "invalid_policy"),
    "a policy that is text": ({"retry": "often"}, "invalid_policy"),
    "a negative delay": ({"delay": -1}, "invalid_policy"),
    "a delay of a thousand years": ({"delay": 1e12}, "invalid_policy"),
    "a delay that is no number": ({"delay": float("nan")}, "invalid_policy"),
    "a time without a zone": ({"at": datetime(2030, 1, 1)}, "invalid_policy"),
    "a time that is text": ({"at": "2030-01-01"}, "invalid_policy"),
    "no timeout at all": ({"timeout": 0}, "invalid_policy"),
    "a negative deadline": ({"deadline": -5}, "invalid_policy"),
    "a priority that is no whole number": ({"priority": 1.5}, "invalid_input"),
    "a priority out of bounds": ({"priority": 10**9}, "invalid_input"),
    "an empty key": ({"unique_key": ""}, "invalid_input"),
    "a key with a line break": ({"unique_key": "a\nb"}, "invalid_input"),
    "a very long key": ({"unique_key": "x" * 1000}, "invalid_input"),
    "a key that is no text": ({"unique_key": 7}, "invalid_input"),
    "a trace id with U+0000": ({"trace_id": "a\x00b"}, "invalid_input"),
    "a trace id that is no text": ({"trace_id": 7}, "invalid_input"),
}


@pytest.mark.postgres
@pytest.mark.parametrize("what", BAD_TASKS)
async def test_a_bad_task_is_refused_with_a_code_and_not_stored(engine: Engine, what: str) -> None:
    bad, code = BAD_TASKS[what]
    arguments = {"name": "fine"} | bad
    with pytest.raises(TreadleError) as refused:
        await engine.enqueue(**arguments)
    assert refused.value.code == code
    with pytest.raises(TreadleError) as refused:
        await engine.enqueue_many([TaskSpec(name="fine"), TaskSpec(**arguments)])
    assert refused.value.code == code
    assert await engine.kernel.reads.list_tasks(kind="handler") == []


async def test_delay_and_at_do_not_go_together(engine: Engine) -> None:
    from datetime import UTC

    with pytest.raises(InvalidInput, match="not both"):
        await engine.enqueue("fine", delay=1, at=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("operation", ["result", "cancel", "retry", "pause", "resume", "why"])
async def test_a_missing_task_is_not_found(engine: Engine, operation: str) -> None:
    with pytest.raises(TaskNotFound, match=NOBODY):
        await getattr(engine, operation)(NOBODY)
    with pytest.raises(InvalidInput, match=r"not a valid task (or run )?id"):
        await getattr(engine, operation)("task-7")


async def test_transitions_that_the_table_does_not_have_are_refused(engine: Engine) -> None:
    task = await engine.enqueue("fine")
    with pytest.raises(IllegalTransition, match="retry is not possible"):
        await engine.retry(task)
    with pytest.raises(IllegalTransition, match=r"resume is not possible\. Possible now: cancel, pause\."):
        await engine.resume(task)
    await engine.cancel(task)
    with pytest.raises(IllegalTransition, match="pause is not possible"):
        await engine.pause(task)
    with pytest.raises(InvalidInput):
        await engine.retry(task, payload=[1])  # type: ignore[arg-type]
    assert (await engine.kernel.verify()).holds


@pytest.mark.parametrize("arguments", [{"states": ("asleep",)}, {"limit": 0}, {"limit": 10_000}, {"before_id": "x"}])
async def test_a_bad_page_is_refused(engine: Engine, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await engine.kernel.reads.list_tasks(**arguments)


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"threads": 0}, {"lease": 0}, {"lease": -1}, {"grace": -1}, {"task_lists": ("a b",)}, {"task_lists": ()}],
)
async def test_an_invalid_worker_is_rejected(engine: Engine, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        async with engine.worker(**options):
            raise AssertionError("must not start")


@pytest.mark.parametrize("url", ["", "treadle.db", "mysql://x/y", "sqlite://", "sqlite:///", "memory://x", "://", "http://x"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    if url == "":
        with pytest.raises(InvalidStoreUrl):
            make_engine("x", store="")
    else:
        with pytest.raises(InvalidStoreUrl) as refused:
            make_engine(url)
        assert refused.value.code == "invalid_store_url"


async def test_an_engine_that_is_not_open_raises_with_a_remedy() -> None:
    engine = make_engine("memory://")
    with pytest.raises(NotOpen):
        await engine.result(NOBODY)


async def test_a_database_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidStoreUrl, match="no directory"):
        async with make_engine(f"sqlite:///{tmp_path}/missing/treadle.db"):
            raise AssertionError("must not open")
    with pytest.raises(StoreUnavailable):
        async with make_engine("postgresql://nobody@127.0.0.1:1/nothing"):
            raise AssertionError("must not open")
