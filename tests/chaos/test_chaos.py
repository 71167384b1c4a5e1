"""Real processes are killed, stand still and lose their database, and nothing is lost; `make chaos` does it at full size.

The checks are checked too: evidence that was doctored is found out.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable

import msgspec
import pytest
from tests.chaos.evidence import Evidence, Expiry
from tests.chaos.judge import ANEW, judge
from tests.chaos.play import Played, play
from tests.chaos.report import as_json, as_markdown, as_text
from tests.chaos.stage import Plan, is_running
from tests.chaos.storms import CLIENT, CUT, DATABASE, FAST, HUNG, IMMEDIATE, LEFT, LOCKED, LOST, RESTARTED, STOPPED
from tests.chaos.submissions import Submission
from tests.fork_server import ROOT
from tests.limits import BOUND
from tests.simulation.judge import GIVEN_UP

from treadle.kernel.effects.decide import UNKNOWN
from treadle.kernel.queue.decide import TAKEOVER_LIMIT
from treadle.model.tasks import Task

pytestmark = pytest.mark.xdist_group("chaos")

SCRIPT = (RESTARTED, LOST, STOPPED, LOCKED, CUT, LOST, RESTARTED, CLIENT, LEFT, FAST, HUNG, RESTARTED, IMMEDIATE)


def small(store: str) -> Played:
    others = (LOCKED,) if store == "postgres" else DATABASE
    script = tuple(way for way in SCRIPT if way not in others)
    plan = Plan(store, 200, 5, 0, lease=1.0, pause=0.2, blows=len(script), script=script, patience=BOUND, chunk=20, backlog=40)
    return asyncio.run(play(plan))


@pytest.fixture(scope="module")
def on_sqlite() -> Played:
    return small("sqlite")


@pytest.fixture(scope="module")
def on_postgres() -> Played:
    return small("postgres")


@pytest.fixture(params=["sqlite", "postgres"])
def played(request: pytest.FixtureRequest) -> Played:
    found: Played = request.getfixturevalue(f"on_{request.param}")
    return found


def test_no_work_is_lost_when_processes_fail(played: Played) -> None:
    assert not played.verdict.problems, as_text(played)
    assert sum(played.verdict.ended.values()) == played.plan.tasks
    missing = {*played.plan.script} - {*played.storms} - {CLIENT}  # it may have sent everything before
    assert not missing


def test_no_process_is_left(played: Played) -> None:
    assert played.pids
    assert not [pid for pid in played.pids if is_running(pid)]


def test_the_report_shows_the_verdict_as_text_json_and_markdown(played: Played) -> None:
    assert "broken:     nothing" in as_text(played)
    told = json.loads(json.dumps(as_json(played)))
    assert told["verdict"]["problems"] == []
    assert told["verdict"]["ended"] == dict(played.verdict.ended)
    assert f"| {played.plan.store} |" in as_markdown([played])


@pytest.mark.parametrize("moment", ["starting", "workers are up"])
async def test_an_interrupted_run_leaves_no_process(moment: str) -> None:
    """Ctrl-C goes to all processes of the terminal's group at once."""
    command = [sys.executable, "-m", "tests.chaos", "--store", "sqlite", "--tasks", "1000"]
    run = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE, start_new_session=True)
    assert run.stderr is not None
    while moment.encode() not in (line := await run.stderr.readline()):
        assert line
    os.killpg(run.pid, signal.SIGINT)
    said = await run.stderr.read()
    assert b"interrupted; all processes were ended" in said, said.decode()
    assert await run.wait() == 130
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)


# --- the judge ---


@pytest.fixture
def found(on_sqlite: Played) -> Evidence:
    """The evidence of a run on SQLite, with its faults removed: nothing in it explains a manipulation."""
    calm = copy.deepcopy(on_sqlite.evidence)
    given_up = {task.id for task in calm.tasks.values() if task.error_code == GIVEN_UP}
    for entity_id, transitions in calm.transitions.items():
        for transition in (*ANEW, UNKNOWN) if entity_id not in given_up else ():
            del transitions[transition]
    calm.expiries.clear()
    for counts in (calm.ledger.plain, calm.ledger.asked, calm.ledger.submits):
        counts.update(dict.fromkeys(counts, 1))
    assert judge(calm).problems == []
    return calm


def some(found: Evidence, fits: Callable[[Submission], object]) -> tuple[Submission, str]:
    """A submission that came to its end, and what it became."""
    for submission in found.submissions:
        (work_id,) = found.acks[submission.key]
        work = found.trails.get(work_id) or found.tasks.get(work_id) or found.runs[work_id]
        if fits(submission) and getattr(work, "state", "completed") == "completed":
            return submission, work_id
    raise AssertionError("there is none")


def charge(found: Evidence) -> tuple[Submission, str]:
    return some(found, lambda submission: submission.name == "charge")


def flow(found: Evidence) -> tuple[Submission, str]:
    return some(found, lambda submission: submission.kind == "flow")


def note(found: Evidence) -> tuple[Submission, str]:
    return some(found, lambda submission: submission.name == "note")


def job(found: Evidence) -> tuple[Submission, str]:
    return some(found, lambda submission: submission.name == "chaos.Print")


def objective(found: Evidence) -> tuple[Submission, str]:
    return some(found, lambda submission: submission.kind == "objective")


def a_step_task(found: Evidence) -> Task:
    _, run_id = flow(found)
    return next(task for task in found.tasks.values() if task.run_id == run_id and task.name == "chaos.Double")


def lose_a_task(found: Evidence) -> None:
    del found.tasks[note(found)[1]]


def lose_a_run(found: Evidence) -> None:
    del found.runs[flow(found)[1]]


def lose_an_objective(found: Evidence) -> None:
    del found.trails[objective(found)[1]]


def forget_a_submission(found: Evidence) -> None:
    del found.acks[note(found)[0].key]


def have_a_task_twice(found: Evidence) -> None:
    found.tasks["twin"] = msgspec.structs.replace(found.tasks[note(found)[1]], id="twin")
    found.ledger.plain["twin"] = 1


def acknowledge_two_ids(found: Evidence) -> None:
    found.acks[note(found)[0].key].add("another")


def come_to_something_else(found: Evidence) -> None:
    found.tasks[note(found)[1]].result = '{"n":-1}'


def settle_without_the_claim(found: Evidence) -> None:
    found.tasks[note(found)[1]].attempt += 1


def leave_a_task(found: Evidence) -> None:
    task = found.tasks[note(found)[1]]
    task.state, task.finished_at = "pending", None


def fail_a_task(found: Evidence) -> None:
    found.tasks[note(found)[1]].state = "failed"


def give_up_too_early(found: Evidence) -> None:
    task = found.tasks[note(found)[1]]
    task.state, task.error_code = "failed", GIVEN_UP
    found.transitions[task.id]["expire"] = TAKEOVER_LIMIT - 1


def repeat_an_effect_in_silence(found: Evidence) -> None:
    found.ledger.asked[charge(found)[0].effects[0]] += 1


def make_an_effect_under_two_keys(found: Evidence) -> None:
    found.ledger.made[charge(found)[0].effects[0]].append("another")


def skip_an_effect(found: Evidence) -> None:
    del found.ledger.made[charge(found)[0].effects[1]]


def make_an_effect_for_nobody(found: Evidence) -> None:
    found.ledger.asked["nobody"] = 1


def make_two_jobs(found: Evidence) -> None:
    found.ledger.jobs[job(found)[0].key].append("another")


def submit_twice(found: Evidence) -> None:
    found.ledger.submits[job(found)[0].key] += 1


def submit_again_after_a_kill(found: Evidence) -> None:
    submission, task_id = job(found)
    found.ledger.submits[submission.key] += 1
    found.expiries.append(Expiry(task_id, "dead", 0, alive=False))


def run_a_body_again(found: Evidence) -> None:
    found.ledger.plain[note(found)[1]] += 1


def skip_a_body(found: Evidence) -> None:
    del found.ledger.plain[note(found)[1]]


def leave_a_step(found: Evidence) -> None:
    _, run_id = flow(found)
    found.steps[run_id][0] = msgspec.structs.replace(found.steps[run_id][0], state="state.EventTransmit")


def leave_a_result(found: Evidence) -> None:
    _, run_id = flow(found)
    found.steps[run_id][0] = msgspec.structs.replace(found.steps[run_id][0], inbox="{}")


def make_a_step_twice(found: Evidence) -> None:
    _, run_id = some(
        found,
        lambda submission: sum(other.shape == submission.shape for other in found.submissions) > 1 and submission.kind == "flow",
    )
    found.steps[run_id].append(found.steps[run_id][0])


def settle_a_step_twice(found: Evidence) -> None:
    task = a_step_task(found)
    found.tasks["twin"] = msgspec.structs.replace(task, id="twin")
    found.ledger.plain["twin"] = 1


def succeed_twice(found: Evidence) -> None:
    found.transitions[note(found)[1]]["succeed"] += 1


def leave_a_run(found: Evidence) -> None:
    _, run_id = flow(found)
    found.runs[run_id] = msgspec.structs.replace(found.runs[run_id], state="running")


def repair_a_run(found: Evidence) -> None:
    found.transitions[flow(found)[1]]["repair"] += 1


def leave_an_external_job(found: Evidence) -> None:
    found.followed.append("record")


def leave_a_workorder(found: Evidence) -> None:
    trail = found.trails[objective(found)[1]]
    trail.workorders[0] = dataclasses.replace(trail.workorders[0], run_record=None)


def schedule_twice(found: Evidence) -> None:
    trail = found.trails[objective(found)[1]]
    trail.workorders.append(trail.workorders[0])


def leave_a_row_unexplained(found: Evidence) -> None:
    found.unexplained.append("task x: the row says completed, but its last transition ended in pending")


def meet_an_unexpected_error(found: Evidence) -> None:
    found.loop_errors.append("worker0: worker: KeyError")


PLANTS: list[tuple[Callable[[Evidence], None], str]] = [
    (lose_a_task, "is lost: there is no task"),
    (lose_a_run, "is lost: there is no run"),
    (lose_an_objective, "is lost: there is no objective"),
    (forget_a_submission, "was never acknowledged"),
    (have_a_task_twice, "is there 2 times"),
    (acknowledge_two_ids, "was acknowledged as 2 things"),
    (come_to_something_else, "came to {'n': -1}"),
    (settle_without_the_claim, "and has the result of attempt"),
    (leave_a_task, "left over: task"),
    (fail_a_task, "is failed, not completed"),
    (give_up_too_early, "is failed, not completed"),
    (repeat_an_effect_in_silence, "1 effect(s) were asked for again; the log says 0 x tool_call.unknown"),
    (make_an_effect_under_two_keys, "was made 2 times instead of once"),
    (skip_an_effect, "was made 0 times instead of once"),
    (make_an_effect_for_nobody, "nobody asked for the effect"),
    (make_two_jobs, "2 external jobs instead of one"),
    (submit_twice, "its external job was submitted 2 times; 0 worker(s) could be late"),
    (submit_again_after_a_kill, "its external job was submitted 2 times; 0 worker(s) could be late"),
    (run_a_body_again, "ran 2 times, and the log explains 1"),
    (skip_a_body, "is completed, and its handler never ran"),
    (leave_a_step, "is completed, and its step"),
    (leave_a_result, "a result was left in the inbox"),
    (make_a_step_twice, "have different numbers of steps"),
    (settle_a_step_twice, "was settled 2 times"),
    (succeed_twice, "succeeded 2 times"),
    (leave_a_run, "is running, not completed"),
    (repair_a_run, "had to be repaired"),
    (leave_an_external_job, "is still followed"),
    (leave_a_workorder, "was not judged"),
    (schedule_twice, "workorders, not"),
    (leave_a_row_unexplained, "verify: task x"),
    (meet_an_unexpected_error, "KeyError"),
]


@pytest.mark.parametrize(("plant", "said"), PLANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_promise_is_detected(found: Evidence, plant: Callable[[Evidence], None], said: str) -> None:
    plant(found)
    assert [problem for problem in judge(found).problems if said in problem]


def test_allowed_repetitions_are_counted_and_not_reported_as_problems(found: Evidence) -> None:
    submission, charged = charge(found)
    found.ledger.asked[submission.effects[0]] += 1
    found.transitions[charged][UNKNOWN] += 1
    _, noted = note(found)
    found.ledger.plain[noted] += 1
    found.transitions[noted]["expire"] += 1
    printed, sent = job(found)
    found.ledger.submits[printed.key] += 1
    found.expiries.append(Expiry(sent, "slow", 0))
    verdict = judge(found)
    assert verdict.problems == []
    assert (verdict.effects_again, verdict.bodies_again, verdict.submits_again) == (1, 1, 1)


def test_a_task_beyond_its_takeover_limit_is_a_dead_letter_and_not_lost(found: Evidence) -> None:
    before = judge(found).given_up
    task = found.tasks[note(found)[1]]
    task.state, task.error_code = "failed", GIVEN_UP
    found.transitions[task.id]["expire"] = TAKEOVER_LIMIT
    verdict = judge(found)
    assert verdict.problems == []
    assert verdict.given_up == before + 1
