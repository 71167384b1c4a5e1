"""How much must come before a suspended function can go on: never too much, so that no wake-up is lost; rarely too little."""

from __future__ import annotations

from treadle.kernel.functions.steps import Recorded
from treadle.workers.functions.execution import FunctionBranch
from treadle.workers.functions.inbox import NEVER, NO_MESSAGES, GatherGroup, Wait, WakeCondition, need_of


def child(group: GatherGroup | None = None) -> Wait:
    return _in(Wait(FunctionBranch(), Recorded(), child_step_id="child"), group)


def timer(at: int, group: GatherGroup | None = None) -> Wait:
    return _in(Wait(FunctionBranch(), Recorded(), wake_at=at), group)


def signal(until: int | None, group: GatherGroup | None = None) -> Wait:
    return _in(Wait(FunctionBranch(), Recorded(), signal="go", wake_at=until), group)


def _in(wait: Wait, group: GatherGroup | None) -> Wait:
    wait.group = group
    return wait


def test_a_single_wait_needs_its_own_message_or_time():
    assert need_of([child()]) == WakeCondition(1, NEVER)
    assert need_of([timer(5)]) == WakeCondition(NO_MESSAGES, 5)
    assert need_of([signal(None)]) == WakeCondition(1, NEVER)
    assert need_of([signal(7)]) == WakeCondition(1, 7)


def test_a_gather_of_children_waits_for_all():
    group = GatherGroup(1000)
    assert need_of([child(group) for _ in range(1000)]) == WakeCondition(1000, NEVER)


def test_a_gather_of_timers_waits_for_the_last():
    group = GatherGroup(3)
    assert need_of([timer(5, group), timer(9, group), timer(7, group)]) == WakeCondition(NO_MESSAGES, 9)


def test_a_gather_of_both_needs_its_messages_first():
    group = GatherGroup(3)
    assert need_of([child(group), child(group), timer(9, group)]) == WakeCondition(2, NEVER)


def test_a_wait_with_alternatives_is_counted_separately():
    group = GatherGroup(3)
    assert need_of([child(group), child(group), signal(4, group)]) == WakeCondition(1, 4)


def test_the_first_group_that_can_continue_counts():
    one, two = GatherGroup(3), GatherGroup(2)
    assert need_of([*(child(one) for _ in range(3)), *(child(two) for _ in range(2)), timer(8)]) == WakeCondition(2, 8)


def test_an_open_branch_with_code_keeps_its_gather_suspended():
    group = GatherGroup(3)
    group.coded = 1
    assert need_of([child(group), child(group), timer(30)]) == WakeCondition(NO_MESSAGES, 30)
    assert need_of([child(group), child(group), child()]) == WakeCondition(1, NEVER)
