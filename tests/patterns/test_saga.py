"""A saga: a failure undoes what was done, in reverse order, whatever crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.patterns.programs import load, source, world

from treadle import Engine, NonRetryable, RunCanceled, RunFailed
from treadle.testing import Environment, crash_test, run_workflow

UNDONE = ["book flight", "book hotel", "cancel hotel", "cancel flight"]


def refusing(did: list[str], refused: str) -> Any:
    """A booking service that refuses one request."""

    async def request(action: str, part: str, trip: Any, key: str) -> None:
        if f"{action} {part}" == refused:
            raise NonRetryable("sold out", "sold_out")
        did.append(f"{action} {part}")

    return request


@pytest.mark.parametrize(
    ("refused", "expected"),
    [("book flight", []), ("book hotel", ["book flight", "cancel flight"]), ("book car", UNDONE)],
)
async def test_a_failure_undoes_the_earlier_steps_in_reverse_order(refused: str, expected: list[str]):
    saga, did = load("saga"), []
    saga.request = refusing(did, refused)
    async with Environment(saga.engine) as env:
        run = await saga.engine.start(saga.book_trip, {"city": "Oslo"})
        assert await env.result(run) == {"state": "undone", "reason": "sold out"}
    assert did == expected


async def test_a_request_without_a_response_is_undone_too():
    saga, did = load("saga"), []

    async def request(action: str, part: str, trip: Any, key: str) -> None:
        did.append(f"{action} {part}")
        if (action, part) == ("book", "hotel"):
            raise TimeoutError("no response")

    saga.request = request
    async with Environment(saga.engine) as env:
        run = await saga.engine.start(saga.book_trip, {"city": "Oslo"})
        assert (await env.result(run))["state"] == "undone"
    assert did == ["book flight", *4 * ["book hotel"], "cancel hotel", "cancel flight"]


async def test_a_canceled_run_undoes_its_bookings():
    saga, did = load("saga"), []

    async def request(action: str, part: str, trip: Any, key: str) -> None:
        if f"{action} {part}" == "book car":
            await saga.engine.runs.cancel(run.id, reason="ordered twice")
        did.append(f"{action} {part}")

    saga.request = request
    async with Environment(saga.engine) as env:
        run = await saga.engine.start(saga.book_trip, {"city": "Oslo"})
        with pytest.raises(RunCanceled):
            await env.result(run)
    assert did[-3:] == ["cancel car", "cancel hotel", "cancel flight"]


async def test_an_operator_retry_repeats_only_the_failed_compensation_and_its_successors():
    saga, did = load("saga"), []
    saga.request = refusing(did, "cancel flight")
    async with Environment(saga.engine) as env:
        trip = {"city": "Oslo"}
        run = await saga.engine.start(saga.book_trip, trip)
        booking = saga.request

        async def sold_out(action: str, part: str, trip: Any, key: str) -> None:
            if f"{action} {part}" == "book car":
                raise NonRetryable("sold out", "sold_out")
            await booking(action, part, trip, key)

        saga.request = sold_out
        with pytest.raises(RunFailed):
            await env.result(run)
        assert did == UNDONE[:-1]
        saga.request = refusing(did, "nothing")
        await saga.engine.runs.retry(run.id)
        assert (await env.result(run))["state"] == "undone"
    assert did == UNDONE


def test_a_worker_killed_at_any_write_undoes_the_same_in_the_same_order():
    saga = load("saga")

    async def request(action: str, part: str, trip: Any, key: str) -> None:
        if f"{action} {part}" == "book car":
            raise NonRetryable("sold out", "sold_out")
        if [f"{action} {part}", key] not in world.get():
            world.get().append([f"{action} {part}", key])

    def setup(engine: Engine, effects: list[Any]) -> None:
        world.set(effects)
        engine.function("trip")(saga.book_trip)

    saga.request = request
    report = crash_test(setup, lambda engine: engine.start_function("trip", {"city": "Oslo"}))
    report.check()
    assert report.outcome == '{"state":"undone","reason":"sold out"}'
    lines = Path(saga.__file__).read_text().splitlines()
    compensation = 1 + next(number for number, line in enumerate(lines) if 'await perform("cancel"' in line)
    assert any(f"saga.py:{compensation} in" in place for case in report.cases for place in case.places)
    for case in report.cases:
        assert [name for name, _ in case.effects] == UNDONE, case.crash


@pytest.mark.parametrize(
    ("refused", "state", "expected"),
    [
        ("nothing", "booked", ["book flight", "book hotel"]),
        ("book hotel", "undone: sold out", ["book flight", "cancel flight"]),
    ],
)
def test_the_saga_in_afl_undoes_its_completed_steps(refused: str, state: str, expected: list[str]):
    did: list[str] = []

    def request(payload: Any) -> dict[str, str]:
        name = f"{payload['action']} {payload['part']}"
        if name == refused:
            raise RuntimeError("sold out")
        did.append(name)
        return {"state": "booked"}

    assert run_workflow(source("saga.afl"), "travel.Trip", {"city": "Oslo"}, {"travel.Request": request}) == {"state": state}
    assert did == expected
