"""Notes of parked functions, also of those that a worker of an older version has parked since."""

from __future__ import annotations

import pytest

from treadle.kernel.functions.waits import read_waits, shown_wake_at
from treadle.kernel.queue.why import why
from treadle.kernel.runs.activity import activity_of
from treadle.kernel.store.queries import OpenWork
from treadle.model.activity import Doing
from treadle.model.names import FUNCTION
from treadle.model.runs import Run
from treadle.model.states import RunState
from treadle.model.tasks import Task

RUN = Run(id="r", flow_id="f", workflow="w", root_id="r", state=RunState.RUNNING)
DUE_AT = 86_400_000


@pytest.mark.parametrize("doing", ["sleeping", "waiting_for_signal", "waiting_for_child", "retrying"])
def test_a_stale_activity_without_a_note_is_read_as_that_of_an_older_version(doing: str) -> None:
    task = Task(id="t", lane_id=1, kind=FUNCTION, name="ship", run_id="r", wake_at=DUE_AT, doing=doing, checkpoint=None)
    assert read_waits(task) is None
    assert shown_wake_at(task) == DUE_AT
    assert "next check at 1970-01-02" in why(task, [], 0).text
    activity = activity_of(RUN, [OpenWork(Doing(doing), 1, task, None)])
    assert activity is not None
    assert activity.counts == {doing: 1}
    assert "None" not in activity.text
