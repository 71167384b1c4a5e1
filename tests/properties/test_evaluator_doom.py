"""A run that cannot succeed starts nothing new, ends as it would have ended, and completes after one retry of the run.

The harness does the kernel's part: when a call reports `doomed`, the tasks that have not begun are withdrawn.
"""

from __future__ import annotations

import random
import zlib

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.evaluator.stored import StoredRun
from tests.properties.test_evaluator_orders import check_counters, play_in_order, stored, write_program
from tests.sizes import examples

from treadle.evaluator import Changes, Errored, Event, Expand, Finished, Limits, RequestedTask, RetryStep, Started, State, StepKind
from treadle.evaluator.records import NOT_STARTED
from treadle.model.outcomes import Problem
from treadle.model.states import RunState, StepState
from treadle.model.values import encode
from treadle.testing.workflows import compile_program


def answer(run: StoredRun, task: RequestedTask, repaired: bool) -> Event:
    payload = run.payload(task)
    if payload.pop("fail", False) and not repaired:
        return Errored(task.step_id, Problem("failed", f"no {payload['n']}"), task.id)
    return Finished(task.step_id, {"r": zlib.crc32(encode(payload).encode())}, task.id)


class Kernel:
    """Plays a run in a random order; tasks begin at random, before they end."""

    def __init__(self, source: str, rng: random.Random, *, stops: bool = True) -> None:
        self.rng = rng
        limits = Limits(expand=rng.choice([1, 2, 500]), rows=rng.choice([1, 5, 5000]))
        self.run = StoredRun(compile_program(source), "W", limits=limits, preload=rng.random() < 0.5)
        self.begun: set[str] = set()
        self.called: list[str] = []
        self.doomed = False
        self.apply(Started(stops=stops))

    def apply(self, *events: Event) -> Changes:
        changes = self.run.apply(*events)
        if self.doomed and not any(isinstance(event, RetryStep) for event in events):
            assert not changes.tasks, "a run that cannot succeed requests no tasks"
        if changes.doomed:
            self.doomed = True
            held = [task for task in self.run.tasks.values() if task.id not in self.begun]
            self.apply(*(Errored(task.step_id, Problem(NOT_STARTED, "withdrawn"), task.id, withdrawn=True) for task in held))
        return changes

    def play(self, *, repaired: bool = False) -> None:
        while self.run.status is RunState.RUNNING:
            self.begun |= {task.id for task in self.run.tasks.values() if self.rng.random() < 0.4}
            begun = [task for task in self.run.tasks.values() if task.id in self.begun]
            possible: list[Event] = [*(answer(self.run, task, repaired) for task in begun), *map(Expand, self.run.again)]
            if not possible:
                assert self.run.tasks, "a running run has work"
                continue
            event = self.rng.choice(possible)
            if isinstance(event, Expand):
                del self.run.again[event.block_id]
            else:
                self.called.append(self.run.tasks[event.step_id].id)
            self.apply(event)

    def retry(self, step_id: str | None = None) -> bool:
        self.doomed = False
        changes = self.apply(RetryStep(step_id or self.run.run.root_id))
        assert step_id or not changes.ignored
        return not changes.ignored


def is_repairable(found: Kernel, sound: Kernel) -> bool:
    """Whether only tasks have failed, and no step for want of a value that a handled failure did not give."""
    if found.run.status is not RunState.FAILED or sound.run.status is not RunState.COMPLETED:
        return False
    return not lacks_value(found)


def lacks_value(found: Kernel) -> bool:
    """Whether a step has failed for want of a value: a handled failure did not give it, and no retry repeats that one."""
    return any(row.error is not None and row.error.type == "evaluation_error" for row in found.run.rows())


def check_same(found: Kernel, sound: Kernel) -> None:
    """The same results, unless a failure was handled: a catch or a collecting foreach has moved on from it."""
    rows = found.run.rows()
    if any(row.kind is StepKind.CATCH or row.state is State.STATEMENT_ERROR for row in rows):
        return
    check_counters(found.run)
    assert found.run.outputs == sound.run.outputs
    assert {place: row.returns for place, row in stored(found.run).items()} == {
        place: row.returns for place, row in stored(sound.run).items()
    }


@settings(max_examples=examples(24), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.integers(0, 10**6), schedule=st.integers(0, 10**6))
@example(program=332, schedule=2324)  # a catch that had begun is withdrawn
def test_a_run_that_cannot_succeed_ends_as_before_with_fewer_steps(program: int, schedule: int) -> None:
    source = write_program(program)
    whole = Kernel(source, random.Random(schedule), stops=False)
    whole.play()
    some = Kernel(source, random.Random(schedule))
    some.play()
    assert some.run.status is whole.run.status
    assert set(some.called) <= set(whole.called)
    rows = some.run.rows()
    assert all(row.is_terminal for row in rows)
    if some.run.status is RunState.COMPLETED:
        check_counters(some.run)
        assert some.run.outputs == whole.run.outputs
        return
    assert some.run.error is not None
    errors = {row.place: row.error for row in whole.run.rows() if row.state is State.STATEMENT_ERROR}
    assert some.run.error in errors.values(), "the error of a run is one of its failures, never that of a withdrawn row"
    unhandled = {error.step_id for error in errors.values() if error}
    if len(unhandled) == 1:
        assert some.run.error == whole.run.error


@settings(max_examples=examples(24), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.integers(0, 10**6), schedule=st.integers(0, 10**6))
def test_one_retry_of_a_repaired_run_yields_the_outputs_of_a_run_without_failures(program: int, schedule: int) -> None:
    source = write_program(program)
    sound = Kernel(source, random.Random(schedule))
    sound.play(repaired=True)
    rng = random.Random(schedule)
    found = Kernel(source, rng)
    found.play()
    if not is_repairable(found, sound):
        return
    found.retry()
    found.play(repaired=True)
    assert found.run.status is RunState.COMPLETED
    check_same(found, sound)


@settings(max_examples=examples(24), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.integers(0, 10**6), schedule=st.integers(0, 10**6))
@example(program=11, schedule=11)
def test_retries_of_the_failed_steps_by_name_yield_the_outputs_of_a_run_without_failures(program: int, schedule: int) -> None:
    """One by one in any order; sometimes the next one is retried while the run goes on."""
    source = write_program(program)
    sound = Kernel(source, random.Random(schedule))
    sound.play(repaired=True)
    rng = random.Random(schedule)
    found = Kernel(source, rng)
    found.play()
    if not is_repairable(found, sound):
        return
    while found.run.status is RunState.FAILED:
        failed = [row for row in found.run.rows() if row.error is not None and row.error.step_id == row.id]
        failed = [row for row in failed if row.status is StepState.FAILED]
        rng.shuffle(failed)
        retried = [found.retry(row.id) for row in failed if found.run.status is RunState.FAILED or rng.random() < 0.5]
        assert any(retried)
        found.play(repaired=True)
    check_same(found, sound)


@settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.integers(0, 10**6), schedule=st.integers(0, 10**6))
@example(program=51343, schedule=0)  # a collected failure leaves a later step without a value
def test_a_retry_while_the_run_still_fails_loses_no_step(program: int, schedule: int) -> None:
    """The operator retries as soon as the run is known to fail: while tasks are running, and blocks are not expanded."""
    source = write_program(program)
    rng = random.Random(schedule)
    found = Kernel(source, rng)
    while found.run.status is RunState.RUNNING and not found.doomed:
        found.begun |= {task.id for task in found.run.tasks.values() if rng.random() < 0.4}
        begun = [task for task in found.run.tasks.values() if task.id in found.begun]
        possible: list[Event] = [*(answer(found.run, task, False) for task in begun), *map(Expand, found.run.again)]
        if possible:
            event = rng.choice(possible)
            if isinstance(event, Expand):
                del found.run.again[event.block_id]
            found.apply(event)
    if found.run.status is not RunState.RUNNING or lacks_value(found):
        return
    found.retry()
    found.play(repaired=True)
    expected = play_in_order(source.replace("fail = true", "fail = false"))
    if expected.status is RunState.COMPLETED:
        assert found.run.status is RunState.COMPLETED
