"""A worker dies at each point around an effect: each step has one effect, or more only where the log says so (D23).

The effect server is a real one in this process. It does what it is asked each time, and counts; what a service that
deduplicates would have done is the number of dedupe keys that it saw.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import Any

import pytest
from tests.crash.scene import Scene
from tests.limits import BOUND
from tests.sizes import left_out, sampled

from treadle.kernel.effects.decide import Effect
from treadle.model.errors import RunFailed
from treadle.model.tasks import Transition
from treadle.model.values import decode

EFFECT_POINTS = ("effect.before_begin", "effect.begun", "effect.made", "effect.recorded")
OTHER_POINTS = ("claim.after", "handler.before", "handler.after", "settle.before_commit", "settle.after_commit")
STEPS = 2


class EffectServer:
    """Counts effects by step and by key."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        """(step, idempotency key, dedupe key) of each effect, in order."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                step = self.path.removeprefix("/")
                outer.calls.append((step, self.headers["Idempotency-Key"], self.headers["Dedupe-Key"]))
                outer.before_answer()
                body = json.dumps({"step": step, "attempt": int(self.headers["Attempt"])}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def before_answer(self) -> None:
        """Wait, in a service that takes its time."""

    @property
    def made(self) -> Counter[str]:
        return Counter(step for step, _, _ in self.calls)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[EffectServer]:
    server = EffectServer()
    yield server
    server.close()


def doubts(transitions: list[Transition]) -> Counter[str]:
    """How often the log says of each step that nobody knew."""
    said = [decode(transition.data) for transition in transitions if transition.transition == "tool_call.unknown"]
    return Counter(each["action"].replace("pay-", "step-") for each in said)


async def die_and_take_over(
    scene: Scene, service: EffectServer, name: str, crash_at: str
) -> tuple[list[Transition], dict[str, Any]]:
    """The transitions and the result of a task whose first worker dies there."""
    task = await scene.engine.enqueue(name, {"url": service.url, "steps": STEPS})
    first = scene.start("worker", "--crash-at", crash_at)
    await scene.died(first)
    await scene.start_worker()
    (ended,) = await scene.finished([task.id])
    assert ended.state == "completed"
    transitions = await scene.engine.kernel.reads.list_transitions(task.id)
    # What must hold wherever it died: no effect without a reason, one at a service that deduplicates, and a log that explains it.
    told = doubts(transitions)
    for number in range(STEPS):
        step = f"step-{number}"
        assert 1 <= service.made[step] <= 1 + told[step]
        effect = Effect.of(task.id, None, task.id, f"pay-{number}", {"step": number})
        assert {dedupe for each, _, dedupe in service.calls if each == step} == {effect.dedupe_key}
        rows = await scene.engine.kernel.store.records.find_outcomes(effect.keys(ended.attempt))
        assert {key for each, key, _ in service.calls if each == step} <= {row.idempotency_key for row in rows}
        assert [row.status for row in rows].count("succeeded") == 1
    assert len({key for _, key, _ in service.calls}) == len(service.calls)
    await scene.check(1)
    return transitions, decode(ended.result)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("name", "point", "count"),
    sampled([*[("pay", point, count) for point in EFFECT_POINTS for count in (1, STEPS)], ("pay_sync", "effect.made", 1)]),
)
async def test_a_step_has_one_effect_or_a_logged_unknown_outcome(
    scene: Scene, service: EffectServer, point: str, count: int, name: str
) -> None:
    transitions, result = await die_and_take_over(scene, service, name, f"{point}:{count}")
    died_in, other = f"step-{count - 1}", f"step-{2 - count}"
    assert service.made[died_in] == (2 if point == "effect.made" else 1)
    assert service.made[other] == 1
    # A success that was recorded is used, by the attempt that it belongs to.
    first_made = {"step-0": count == 2 or point == "effect.recorded", "step-1": count == 2 and point == "effect.recorded"}
    attempts = {each["step"]: each["attempt"] for each in result["receipts"]}
    assert attempts == {step: 1 if kept else 2 for step, kept in first_made.items()}
    # Nothing found of a lost attempt counts as unknown too: only an outcome is proof.
    assert doubts(transitions) == Counter(step for step, kept in first_made.items() if not kept)
    found = [decode(transition.data) for transition in transitions if transition.transition == "tool_call.unknown"]
    said = {each["action"].replace("pay-", "step-"): each["found"] for each in found}
    if point in ("effect.begun", "effect.made"):
        assert said[died_in] == "unknown"


@pytest.mark.parametrize("point", sampled(OTHER_POINTS))
async def test_a_crash_at_another_point_repeats_no_effect(scene: Scene, service: EffectServer, point: str) -> None:
    transitions, result = await die_and_take_over(scene, service, "pay", point)
    assert service.made == {"step-0": 1, "step-1": 1}
    names = [transition.transition for transition in transitions]
    released = point == "claim.after" and names[0] == "release"  # by the lease sidecar, if it was started when the worker died
    before = point in ("claim.after", "handler.before") and not released
    assert [each["attempt"] for each in result["receipts"]] == ([2, 2] if before else [1, 1])
    if released:
        assert names == ["release", "succeed"]
    elif point == "settle.after_commit":
        assert names == ["succeed"]
    else:
        assert names == ["expire", *["tool_call.unknown"] * (2 if before else 0), "succeed"]


FUNCTION_STEPS = 10
WRITES = [*product(["function.before_commit", "function.after_commit"], range(1, 2 * FUNCTION_STEPS + 2))]


@pytest.mark.parametrize(("point", "number"), sampled(WRITES))
async def test_ten_effects_of_a_function_killed_at_any_write_happen_once_or_are_logged_as_unknown(
    scene: Scene, service: EffectServer, point: str, number: int
) -> None:
    started = await scene.engine.start_function("pay_all", {"url": service.url, "steps": FUNCTION_STEPS}, version=1)
    first = scene.start("worker", "--crash-at", f"{point}:{number}")
    await scene.died(first)
    await scene.start_worker()
    steps = [f"step-{each}" for each in range(FUNCTION_STEPS)]
    assert await scene.engine.run_result(started, timeout=BOUND) == steps
    (task,) = await scene.engine.kernel.reads.list_tasks(kind="function", run_id=started.id)
    told = doubts(await scene.engine.kernel.reads.list_transitions(task.id))
    assert sum(told.values()) <= 1
    for step in steps:
        assert 1 <= service.made[step] <= 1 + told[step]
        assert len({dedupe for each, _, dedupe in service.calls if each == step}) == 1
    assert len({key for _, key, _ in service.calls}) == len(service.calls)
    rows = await scene.engine.kernel.store.records.find_outcomes([key for _, key, _ in service.calls])
    assert [row.status for row in rows].count("succeeded") == FUNCTION_STEPS
    assert (await scene.engine.kernel.verify()).problems == ()


async def test_an_effect_that_must_not_be_repeated_is_made_once_and_fails(scene: Scene, service: EffectServer) -> None:
    given = {"url": service.url, "steps": 2, "on_unknown": "fail"}
    started = await scene.engine.start_function("pay_all", given, version=1)
    await scene.died(scene.start("worker", "--crash-at", "effect.made:1"))
    await scene.start_worker()
    with pytest.raises(RunFailed, match="unknown whether the effect pay-0 happened"):
        await scene.engine.run_result(started, timeout=BOUND)
    assert service.made == {"step-0": 1}
    await scene.engine.runs.retry(started.id)
    assert await scene.engine.run_result(started, timeout=BOUND) == ["step-0", "step-1"]
    assert service.made == {"step-0": 2, "step-1": 1}
    assert len({dedupe for step, _, dedupe in service.calls if step == "step-0"}) == 1


BETWEEN = [
    case if case in (("effect.begun", 2), ("effect.made", 1), ("effect.made", 10)) else left_out(case)
    for case in product(("effect.begun", "effect.made"), range(1, FUNCTION_STEPS + 1))
]


@pytest.mark.parametrize(("point", "number"), BETWEEN)
async def test_effects_of_a_function_killed_between_writes_happen_once_even_when_two_are_concurrent(
    scene: Scene, service: EffectServer, point: str, number: int
) -> None:
    run = await scene.engine.start_function("pay_together", {"url": service.url, "steps": FUNCTION_STEPS}, version=1)
    first = scene.start("worker", "--crash-at", f"{point}:{number}")
    await scene.died(first)
    await scene.start_worker()
    assert await scene.engine.run_result(run, timeout=BOUND) == [f"step-{each}" for each in range(FUNCTION_STEPS)]
    (task,) = await scene.engine.kernel.reads.list_tasks(kind="function", run_id=run.id)
    told = doubts(await scene.engine.kernel.reads.list_transitions(task.id))
    for each in range(FUNCTION_STEPS):
        step = f"step-{each}"
        assert 1 <= service.made[step] <= 1 + told[step]
        assert len({dedupe for name, _, dedupe in service.calls if name == step}) == 1
    assert len({key for _, key, _ in service.calls}) == len(service.calls)
    in_flight = 2 if number > FUNCTION_STEPS - 2 else 1  # the last two are made at once
    assert service.made.total() <= FUNCTION_STEPS + in_flight
    assert (await scene.engine.kernel.verify()).problems == ()
