"""The reason of a run with many steps: identical reasons are named once, with their number."""

from __future__ import annotations

from treadle.kernel.functions.reads import why_suspended
from treadle.kernel.functions.steps import CALL, Recorded
from treadle.kernel.runs.reads import why_run
from treadle.kernel.runs.records import Run
from treadle.model.states import BlockReason
from treadle.model.tasks import Task


def test_identical_steps_of_a_run_are_one_sentence_with_a_count() -> None:
    tasks = [Task(id=str(n), queue_id=1, name="shop.pack", kind="handler", task_list="default", step_id=str(n)) for n in range(300)]
    tasks += [Task(id="x", queue_id=2, name="shop.send", kind="handler", task_list="default", step_id="x")]
    run = Run(id="r", flow_id="f", workflow="shop.W", root_id="r", state="running")
    found = why_run(run, tasks, {"0": "all[0].pack", "x": "send"}, [], 0)
    assert found.text.count("no live worker serves shop.pack") == 1
    assert "all[0].pack and 299 other step(s) (shop.pack)" in found.text
    assert "send (shop.send): no live worker" in found.text
    assert "more" not in found.text


def test_paused_steps_of_a_run_are_one_sentence_although_each_has_its_own_remedy() -> None:
    tasks = [
        Task(
            id=f"t{n}",
            queue_id=1,
            name="pack",
            kind="handler",
            task_list="default",
            step_id=str(n),
            blocked_by=BlockReason.TASK_PAUSED,
        )
        for n in range(9)
    ]
    run = Run(id="r", flow_id="f", workflow="shop.W", root_id="r", state="running")
    found = why_run(run, tasks, {"0": "all[0].pack"}, [], 0)
    assert found.text == "waits for all[0].pack and 8 other step(s) (pack): paused; resume it with `treadle tasks resume t0`"


def test_identical_steps_of_a_function_are_one_sentence_with_a_count() -> None:
    steps = [Recorded(kind=CALL, name="pack", ordinal=n, task_id=str(n)) for n in range(300)]
    found = why_suspended(steps, {str(n): "no live worker serves pack" for n in range(300)})
    assert found.text.count("no live worker serves pack") == 1
    assert "(and 299 more like it)" in found.text
