"""Invariants that hold when a run is over, whichever faults occurred. Pure: evidence in, broken promises and counts out.

Nothing is lost: each submission exists once and has ended with the expected result. Effects at a service that deduplicates happen
once. Effects are asked for again only where the log says `tool_call.unknown`. Handlers' bodies run at least once, and again only
for a lease that ran out, a retry or a release that the log has. External jobs are made once. Nothing is left behind, and the log
explains every row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.chaos.crew import COUNTED
from tests.chaos.evidence import Evidence
from tests.chaos.submissions import Submission
from tests.simulation.invariants import ENDED_STEPS
from tests.simulation.judge import GIVEN_UP

from treadle.goals.kinds import GOAL_KINDS
from treadle.kernel.effects.decide import UNKNOWN
from treadle.kernel.queue.decide import TAKEOVER_LIMIT
from treadle.model.names import UPKEEP
from treadle.model.tasks import Task
from treadle.model.values import decode

ANEW = ("expire", "release", "retry", "requeue")
"""Transitions after which a task is executed again."""


@dataclass(slots=True)
class Verdict:
    """The verdict on a run."""

    problems: list[str] = field(default_factory=list)
    inconsistent: int = 0
    """The last so many of them: not about work that was lost, but about rows that contradict each other or never end."""
    ended: Counter[str] = field(default_factory=Counter)
    """Submissions by kind."""
    given_up: int = 0
    """Submissions that lost too many workers and correctly became dead letters."""
    bodies: int = 0
    bodies_again: int = 0
    """Executions of plain code, and those of them that were not the first."""
    effects: int = 0
    effects_again: int = 0
    unknown: int = 0
    """Effects, requests for them beyond the first, and how often the log says that nobody knew."""
    jobs: int = 0
    submits_again: int = 0
    expiries: int = 0
    verified: int = 0


def judge(found: Evidence) -> Verdict:
    """Everything that must hold."""
    verdict = Verdict(verified=found.verified, expiries=len(found.expiries))
    judging = Judging(found, verdict)
    for submission in found.submissions:
        judging.check_submission(submission)
    for problem in (
        *judging.strangers(),
        *judging.bodies(),
    ):
        verdict.problems.append(problem)
    inconsistent = [
        *judging.left_over(),
        *judging.settled_twice(),
        *judging.shapes(),
        *(f"verify: {each}" for each in found.unexplained),
        *found.loop_errors,
    ]
    verdict.problems += inconsistent
    verdict.inconsistent = len(inconsistent)
    verdict.unknown = sum(transitions[UNKNOWN] for transitions in found.transitions.values())
    return verdict


class Judging:
    """One look at the evidence."""

    def __init__(self, found: Evidence, verdict: Verdict) -> None:
        self._found, self._verdict = found, verdict
        self._of_run: dict[str, list[Task]] = {}
        self._of_objective: dict[str, list[Task]] = {}
        keys: Counter[str] = Counter(run.idempotency_key for run in found.runs.values() if run.idempotency_key)
        for task in found.tasks.values():
            if task.run_id is not None:
                self._of_run.setdefault(task.run_id, []).append(task)
            elif task.kind in GOAL_KINDS:
                self._of_objective.setdefault(task.root_id, []).append(task)
            elif task.name in ("note", "nap", "charge", "charge_blocking", "chaos.Print"):
                keys[decode(task.payload)["key"]] += 1
        self._keys = keys
        self._late: Counter[str] = Counter(expiry.task_id for expiry in found.expiries if expiry.alive)

    def _wrong(self, problem: str) -> None:
        self._verdict.problems.append(problem)

    def _transitions(self, entity_id: str) -> Counter[str]:
        return self._found.transitions.get(entity_id, Counter())

    # the requested work

    def check_submission(self, submission: Submission) -> None:
        """It exists once, has the expected end, and its effects happened as often as promised."""
        ids = self._found.acks.get(submission.key, set())
        if not ids:
            self._wrong(f"{submission.key} ({submission.name}) was never acknowledged")
        elif len(ids) > 1:
            self._wrong(f"{submission.key} ({submission.name}) was acknowledged as {len(ids)} things: {', '.join(sorted(ids))}")
        elif submission.kind == "objective":
            self._check_objective(submission, *ids)
        elif submission.kind == "task":
            self._check_task(submission, *ids)
        else:
            self._check_run(submission, *ids)

    def _check_task(self, submission: Submission, task_id: str) -> None:
        task = self._found.tasks.get(task_id)
        if task is None:
            self._wrong(f"{submission.key} ({submission.name}) is lost: there is no task {task_id}")
            return
        result = decode(task.result) if task.result else None
        if isinstance(result, dict) and (attempt := result.pop("attempt", task.attempt)) != task.attempt:
            self._wrong(
                f"{submission.key} ({submission.name}, {task_id}) was at attempt {task.attempt}, "
                f"and has the result of attempt {attempt}"
            )
        self._check_end(submission, task_id, task.state, result, task.error, [task])

    def _check_run(self, submission: Submission, run_id: str) -> None:
        run = self._found.runs.get(run_id)
        if run is None:
            self._wrong(f"{submission.key} ({submission.name}) is lost: there is no run {run_id}")
            return
        tasks = self._of_run.get(run_id, [])
        self._check_end(submission, run_id, run.state, decode(run.outputs) if run.outputs else None, run.error, tasks)

    def _check_end(
        self, submission: Submission, work_id: str, state: str, result: object, error: str | None, tasks: list[Task]
    ) -> None:
        self._verdict.ended[submission.kind] += 1
        if self._keys[submission.key] != 1:
            self._wrong(f"{submission.key} ({submission.name}) is there {self._keys[submission.key]} times")
        if state == "failed" and any(self._was_given_up(task) for task in tasks):
            self._verdict.given_up += 1
            return
        if state != submission.ends:
            self._wrong(f"{submission.key} ({submission.name}, {work_id}) is {state}, not {submission.ends}: {error}")
            return
        if result != submission.expected:
            self._wrong(f"{submission.key} ({submission.name}, {work_id}) came to {result}, not {submission.expected}")
        self._check_effects(submission, work_id, tasks)
        self._check_jobs(submission, work_id, tasks)

    def _was_given_up(self, task: Task) -> bool:
        """Its workers were lost too often, and the log has each of these times."""
        return task.error_code == GIVEN_UP and self._transitions(task.id)["expire"] >= TAKEOVER_LIMIT

    def _check_effects(self, submission: Submission, work_id: str, tasks: list[Task]) -> None:
        """Made under one dedupe key, so once at a service that deduplicates; asked for again only where nobody knew (D23)."""
        ledger = self._found.ledger
        unknown = sum(self._transitions(task.id)[UNKNOWN] for task in tasks)
        again = 0
        for effect in submission.effects:
            made = ledger.made.get(effect, ())
            if len(made) != 1:
                self._wrong(f"{submission.key} ({work_id}): the effect {effect} was made {len(made)} times instead of once")
            again += max(ledger.asked.get(effect, 0) - 1, 0)
        if again > unknown:
            self._wrong(f"{submission.key} ({work_id}): {again} effect(s) were asked for again; the log says {unknown} x {UNKNOWN}")
        self._verdict.effects += len(submission.effects)
        self._verdict.effects_again += again

    def _check_jobs(self, submission: Submission, work_id: str, tasks: list[Task]) -> None:
        """One job for each that is wanted; submitted again only by a worker that had lost its lease and lived on."""
        ledger = self._found.ledger
        lost = sum(self._late[task.id] for task in tasks)
        for job in submission.jobs:
            made = ledger.jobs.get(job, ())
            if len(made) != 1:
                self._wrong(f"{submission.key} ({work_id}): {len(made)} external jobs instead of one")
            again = max(ledger.submits.get(job, 0) - 1, 0)
            if again > lost:
                self._wrong(
                    f"{submission.key} ({work_id}): "
                    f"its external job was submitted {again + 1} times; {lost} worker(s) could be late"
                )
            self._verdict.jobs += 1
            self._verdict.submits_again += again

    def _check_objective(self, submission: Submission, objective_id: str) -> None:
        """Done or given up after so many tries, and each of its workorders judged once (D44)."""
        trail = self._found.trails.get(objective_id)
        if trail is None:
            self._wrong(f"{submission.key} is lost: there is no objective {objective_id}")
            return
        self._verdict.ended["objective"] += 1
        if any(self._transitions(task.id)["expire"] >= TAKEOVER_LIMIT for task in self._of_objective.get(objective_id, ())):
            self._verdict.given_up += 1  # its bundle says so: the task of a workorder that could not be run ends well
            return
        if trail.objective.status != submission.ends:
            self._wrong(f"{submission.key} (objective {objective_id}) is {trail.objective.status}, not {submission.ends}")
        orders = min(submission.payload["failing"] + 1, 3)
        if len(trail.workorders) != orders:
            errors = [order.bundle.error for order in trail.workorders if order.bundle is not None]
            self._wrong(f"{submission.key} (objective {objective_id}) has {len(errors)} workorders, not {orders}: {errors}")
        for order in trail.workorders:
            if order.workorder.status != "EXECUTED" or order.run_record is None or order.pause_state is None:
                self._wrong(f"{submission.key}: workorder {order.workorder.work_order_id} was not judged")

    # work that was not requested

    def strangers(self) -> Iterator[str]:
        """Nothing that nobody asked for."""
        effects = {effect for submission in self._found.submissions for effect in submission.effects}
        jobs = {job for submission in self._found.submissions for job in submission.jobs}
        wanted = {submission.key for submission in self._found.submissions}
        yield from (f"nobody asked for the effect {effect}" for effect in self._found.ledger.asked if effect not in effects)
        yield from (f"nobody asked for the external job {job}" for job in self._found.ledger.submits if job not in jobs)
        yield from (f"nobody asked for {key}" for key in self._keys if key not in wanted)

    def left_over(self) -> Iterator[str]:
        """No live task but upkeep; no run, step or external job without an end, no result that nobody took in."""
        found = self._found
        for task in found.tasks.values():
            if not task.finished and task.kind not in UPKEEP:
                yield f"left over: task {task.id} ({task.kind} {task.name}) {task.state}, owner {task.owner_id}, {task.wake_at}"
        for run in found.runs.values():
            if self._transitions(run.id)["repair"]:
                yield f"run {run.id} ({run.workflow}) had to be repaired"
            if not run.finished:
                yield f"run {run.id} ({run.workflow}) is {run.state}"
            for step in found.steps.get(run.id, ()):
                if step.inbox is not None:
                    yield f"run {run.id} ({run.workflow}): a result was left in the inbox of step {step.id}"
                if run.state == "completed" and step.state not in ENDED_STEPS:
                    yield f"run {run.id} ({run.workflow}) is completed, and its step {step.id} is {step.state}"
        yield from (f"the external job of record {record_id} is still followed" for record_id in found.followed)

    def bodies(self) -> Iterator[str]:
        """Each body ran, and again only as often as the log says why."""
        found = self._found
        for task in found.tasks.values():
            if task.name in COUNTED and task.state == "completed" and task.kind != "gate" and not found.ledger.plain.get(task.id):
                yield f"task {task.id} ({task.name}) is completed, and its handler never ran"
        own = {run_id: next((task for task in tasks if task.step_id is None), None) for run_id, tasks in self._of_run.items()}
        for key, times in found.ledger.plain.items():
            work_id, _, place = key.partition(".")
            task = own.get(work_id) if place else found.tasks.get(work_id)
            allowed = 1 if task is None else 1 + sum(self._transitions(task.id)[transition] for transition in ANEW)
            self._verdict.bodies += times
            self._verdict.bodies_again += times - 1
            if task is None:
                yield f"the code of {key} ran, and there is no such task"
            elif times > allowed:
                yield f"the code of {key} ({task.name}) ran {times} times, and the log explains {allowed}"

    def settled_twice(self) -> Iterator[str]:
        """No step has two tasks that completed, and nothing ended twice."""
        completed = Counter(
            (task.run_id, task.step_id, task.name)
            for task in self._found.tasks.values()
            if task.step_id is not None and task.state == "completed"
        )
        yield from (
            f"step {step_id} of run {run_id} was settled {n} times" for (run_id, step_id, _), n in completed.items() if n > 1
        )
        for entity_id, transitions in self._found.transitions.items():
            if transitions["succeed"] > 1:
                yield f"{entity_id} succeeded {transitions['succeed']} times"

    def shapes(self) -> Iterator[str]:
        """Runs of one shape have the same number of steps: none was made twice, none was left out."""
        sizes: dict[str, dict[int, str]] = {}
        for submission in self._found.submissions:
            for run in self._runs(self._found.acks.get(submission.key, ()) if submission.shape else ()):
                sizes.setdefault(submission.shape, {}).setdefault(len(self._found.steps.get(run, ())), run)
        for shape, seen in sizes.items():
            if len(seen) > 1:
                yield f"runs of {shape} have different numbers of steps: {', '.join(f'{n} ({run})' for n, run in seen.items())}"

    def _runs(self, ids: Iterable[str]) -> list[str]:
        runs = (self._found.runs.get(run_id) for run_id in ids)
        return [run.id for run in runs if run is not None and run.state == "completed"]
