"""The words for what tasks and runs wait for, and the progress of functions."""

from __future__ import annotations

from treadle.kernel.functions.notes import note_steps
from treadle.kernel.functions.steps import Recorded
from treadle.kernel.queue.why import why
from treadle.kernel.runs.display import activity_of
from treadle.kernel.runs.records import Run
from treadle.kernel.store.queries import OpenWork
from treadle.model.runs import ActivityKind
from treadle.model.states import BlockReason
from treadle.model.tasks import Task
from treadle.model.values import decode

TASK = Task(id="t1", queue_id=1, name="shop.pack", kind="handler", task_list="default")


def test_a_run_that_waits_for_a_worker_names_the_work_first() -> None:
    run = Run(id="r", flow_id="f", workflow="shop.W", root_id="r", state="running")
    found = activity_of(run, [OpenWork(ActivityKind.WAITING_FOR_WORKER, 1, TASK, None)])
    assert found is not None
    assert found.text == "shop.pack: waiting for a worker"


def test_the_remedy_of_a_paused_task_can_be_run_as_written() -> None:
    paused = Task(id="t1", queue_id=1, name="shop.pack", kind="handler", task_list="default", blocked_by=BlockReason.TASK_PAUSED)
    assert why(paused, [], 0).text == "paused; resume it with `treadle tasks resume t1`"


def test_the_progress_of_a_function_that_reported_none_stays_null() -> None:
    noted = note_steps(None, 1, [Recorded(id="i", place="p", kind="step", name="n", began_at=0, attempt=1)])
    assert decode(note_steps(noted, 1, [])) is None
    assert decode(note_steps('{"message":"half"}', 1, [])) == {"message": "half"}
