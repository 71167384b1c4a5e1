"""Notes of suspended functions, also of those that a worker of an older version has requeued since."""

from __future__ import annotations

import msgspec
import pytest

from treadle.kernel.functions.decide import CLEANUP_FOR, CancelRequest, cleanup_for, noted, read_request
from treadle.kernel.functions.notes import read_waits, shown_wake_at
from treadle.kernel.queue.decide import refusal
from treadle.kernel.queue.why import why
from treadle.kernel.runs.display import activity_of
from treadle.kernel.store.queries import OpenWork
from treadle.model.names import FUNCTION
from treadle.model.runs import ActivityKind, Run
from treadle.model.states import RunState
from treadle.model.tasks import Task

RUN = Run(id="r", flow_id="f", workflow="w", root_id="r", state=RunState.RUNNING)
DUE_AT = 86_400_000


@pytest.mark.parametrize("kind", ["sleeping", "waiting_for_signal", "waiting_for_child", "retrying"])
def test_a_stale_activity_without_a_note_is_read_as_that_of_an_older_version(kind: str) -> None:
    task = Task(id="t", queue_id=1, kind=FUNCTION, name="ship", run_id="r", wake_at=DUE_AT, activity=kind, checkpoint=None)
    assert read_waits(task) is None
    assert shown_wake_at(task) == DUE_AT
    assert "next check at 1970-01-02" in why(task, [], 0).text
    activity = activity_of(RUN, [OpenWork(ActivityKind(kind), 1, task, None)])
    assert activity is not None
    assert activity.counts == {kind: 1}
    assert "None" not in activity.text


@pytest.mark.parametrize(
    "note", ["", '{"wake', "null", "7", "[]", '"x"', '{"wake_at":"x","counts":7,"cancel":7,"cleanup_for":"x"}']
)
def test_a_damaged_note_is_ignored_and_rewritten(note: str) -> None:
    task = Task(
        id="t",
        queue_id=1,
        kind=FUNCTION,
        name="ship",
        run_id="r",
        wake_at=DUE_AT,
        activity="sleeping",
        checkpoint=note,
        claim_version=1,
    )
    assert refusal(task) is None
    assert read_waits(task) is None
    assert read_request(task) is None
    assert cleanup_for(task, lambda _: None) == CLEANUP_FOR
    assert why(task, [], 0).code == "suspended"
    assert activity_of(RUN, [OpenWork(ActivityKind.SLEEPING, 1, task, None)]) is not None
    request = CancelRequest(actor="ann", reason=None, code="canceled", until=1)
    again = msgspec.structs.replace(task, checkpoint=noted(note, 5, request))
    assert (read_request(again), cleanup_for(again, lambda _: None)) == (request, 5)
