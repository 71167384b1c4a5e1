"""The same end whatever the order: events in any order and in batches, delivered twice, decided twice, with any limits.

Random programs (events, bodies, foreach, when, catch, after, failures) are run once in order and once in every odd way. Not only
the outputs but all rows must be the same at the end.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.evaluator.stored import StoredRun
from tests.sizes import examples

from treadle.evaluator import Errored, Event, Expand, Finished, Limits, RequestedTask, RetryStep, Started, State, StepKind, StepRow
from treadle.model.outcomes import Problem
from treadle.model.states import RunState
from treadle.model.values import encode
from treadle.testing.workflows import compile_program

DECLARATIONS = """
event facet Event(n: Json, fail: Boolean = false) => (r: Json, f: [Json] = [])
facet Plain(n: Json) => (r: Json, f: [Json] = [])
facet Body(n: Json) => (r: Json, f: [Json] = []) andThen { e = Event(n = $.n) yield Body(r = [e.r]) }
andThen { yield Body(r = [1]) }
facet Alias(n: Json) => (r: Json, f: [Json] = []) with Event(n = $.n) as first andThen { yield Alias(r = [$.first.r]) }
"""


@dataclass
class Writer:
    """Writes a random workflow, the same for the same random numbers."""

    rng: random.Random
    count: int = 0
    lines: list[str] = field(default_factory=list)

    def block(self, owner: str, visible: list[str], depth: int, *, required: bool = True) -> str:
        names: list[str] = []
        text = ""
        for _ in range(self.rng.randint(1 if required else 0, 3)):
            self.count += 1
            name = f"s{self.count}"
            text += self.step(name, visible + names, depth) + "\n"
            names.append(name)
        seen = [f"{each}.n" for each in self.rng.sample(names, min(len(names), 2))]
        return f"{{ {text} yield {owner}(r = [{', '.join(seen) or '0'}]) }}"

    def step(self, name: str, visible: list[str], depth: int) -> str:
        reads = [
            f"{each}.{self.rng.choice(['n', 'n', 'r'])}"
            for each in self.rng.sample(visible, min(len(visible), self.rng.randint(0, 2)))
        ]
        facet = self.rng.choice(["Event", "Event", "Plain", "Body", "Alias"])
        fail = ", fail = true" if facet == "Event" and self.rng.random() < 0.15 else ""
        text = f"{name} = {facet}(n = [{', '.join([*reads, str(self.count)])}]{fail})"
        if visible and self.rng.random() < 0.2:
            text += f" after {self.rng.choice(visible)}"
        kind = self.rng.random()
        if depth > 0 and kind < 0.2:
            text += f" andThen {self.block(facet, [*visible, name], depth - 1)}"
        elif depth > 0 and kind < 0.4:
            mode = self.rng.choice(["", "collectErrors(f) "])
            text += f" andThen foreach x{self.count} in {name}.n {mode}"
            text += f"{self.block(facet, [*visible, name], depth - 1, required=False)}"
        elif depth > 0 and kind < 0.5:
            cases = f"case {self.rng.choice(['true', 'false'])} => {self.block(facet, visible, depth - 1)}"
            text += f" andThen when {{ {cases} case _ => {self.block(facet, visible, depth - 1)} }}"
        if self.rng.random() < 0.2:
            text += f" catch {self.block(facet, visible, 0, required=False)}"
        return text


def write_program(seed: int) -> str:
    writer = Writer(random.Random(seed))
    blocks = " andThen ".join(writer.block("W", [], 2) for _ in range(writer.rng.randint(1, 2)))
    return f"{DECLARATIONS}\nworkflow W() => (r: Json) andThen {blocks}"


def answer(run: StoredRun, task: RequestedTask) -> Event:
    payload = run.payload(task)
    if payload.get("fail"):
        return Errored(task.step_id, Problem("failed", f"no {payload['n']}"), task.id)
    return Finished(task.step_id, {"r": zlib.crc32(encode(payload).encode())}, task.id)


def play_in_order(source: str) -> StoredRun:
    run = StoredRun(compile_program(source), "W")
    run.apply(Started())
    run.settle()
    while run.status is RunState.RUNNING:
        run.apply(answer(run, next(iter(run.tasks.values()))))
        run.settle()
    return run


def play_oddly(source: str, rng: random.Random) -> StoredRun:
    """Random order, batches, crashes before the commit, second deliveries, tiny limits, empty views, values kept apart."""
    limits = Limits(expand=rng.choice([1, 2, 500]), rows=rng.choice([1, 5, 5000]))
    preload, blob_limit = rng.random() < 0.5, rng.choice([1, 20, 8192])
    run = StoredRun(compile_program(source), "W", limits=limits, preload=preload, blob_limit=blob_limit)
    run.apply(Started())
    delivered: list[Event] = [Started()]
    while run.status is RunState.RUNNING:
        possible: list[Event] = [answer(run, task) for task in run.tasks.values()]
        possible += [Expand(each) for each in run.again]
        events = rng.sample(possible, rng.randint(1, len(possible)))
        for event in events:
            if isinstance(event, Expand):
                del run.again[event.block_id]
        batch = [*events, *rng.choices(delivered, k=rng.choice([0, 0, 2]))]
        rng.shuffle(batch)
        if rng.random() < 0.3:
            assert run.decide(batch) == run.decide(batch)
        run.apply(*batch)
        delivered += [event for event in events if not isinstance(event, Expand)]
    return run


def stored(run: StoredRun) -> dict[str, StepRow]:
    """All rows by their places, with values in place of references."""
    rows = run.rows()
    for row in rows:
        for values in (row.params, row.returns, row.loop):
            values |= {name: run.value(value) for name, value in values.items()}
    return {row.place: row for row in rows}


def check_counters(run: StoredRun) -> None:
    """Counts on a row are what one would count below it; a finished run has nothing open and no tasks."""
    rows = run.rows()
    for row in rows:
        children = [each for each in rows if each.parent_id == row.id]
        assert row.open == sum(not each.is_terminal for each in children)
        assert row.failed == sum(each.state is State.STATEMENT_ERROR and each.kind is not StepKind.CATCH for each in children)
        if row.total is not None:
            assert row.expanded == row.total == len(children)
    assert all(row.is_terminal for row in rows)
    assert not run.tasks
    assert not run.again


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.integers(0, 10**6), schedule=st.integers(0, 10**6))
def test_the_result_is_independent_of_order_batches_crashes_and_redeliveries(program: int, schedule: int) -> None:
    source = write_program(program)
    expected = play_in_order(source)
    check_counters(expected)
    found = play_oddly(source, random.Random(schedule))
    assert (found.status, found.outputs, found.error) == (expected.status, expected.outputs, expected.error)
    assert stored(found) == stored(expected)


@settings(max_examples=examples(32), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.integers(0, 10**6), schedule=st.integers(0, 10**6))
def test_retrying_failed_steps_until_they_succeed_completes_every_run(program: int, schedule: int) -> None:
    """Failures come at random; whatever failed is retried, at the step or at any failed ancestor, in the end with success."""
    source = write_program(program).replace("fail = true", "fail = false")
    rng = random.Random(schedule)
    run = StoredRun(compile_program(source), "W", limits=Limits(expand=2))
    run.apply(Started())
    for patience in range(2000):
        run.settle()
        if run.status is RunState.COMPLETED or not own_failures_only(run):
            break
        failed = [row for row in run.rows() if row.state is State.STATEMENT_ERROR]
        if failed and (rng.random() < 0.5 or not run.tasks):
            run.apply(RetryStep(rng.choice(failed).id))
        elif run.tasks:
            task = rng.choice(list(run.tasks.values()))
            fails = patience < 50 and rng.random() < 0.3
            run.apply(Errored(task.step_id, Problem("x", "chance"), task.id) if fails else answer(run, task))
    else:
        raise AssertionError("the run does not come to an end")
    if run.status is RunState.COMPLETED:
        check_all_complete(run)


def own_failures_only(run: StoredRun) -> bool:
    """Whether everything that failed failed by chance; an expression without a value fails again forever."""
    return all(row.error is None or row.error.message == "chance" for row in run.rows() if row.state is State.STATEMENT_ERROR)


def check_all_complete(run: StoredRun) -> None:
    rows = {row.id: row for row in run.rows()}
    for row in rows.values():
        assert row.open == 0
        if row.state is State.STATEMENT_ERROR:
            above = row
            while above.state is State.STATEMENT_ERROR and above.parent_id:
                above = rows[above.parent_id]
            assert above.state is State.STATEMENT_COMPLETE, "every failure that is left was caught, or belongs to an earlier round"
