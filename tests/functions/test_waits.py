"""How much must come before a suspended function can go on: never too much, so that no wake-up is lost; rarely too little."""

from __future__ import annotations

from treadle.kernel.functions.steps import Recorded
from treadle.workers.functions.execution import Branch
from treadle.workers.functions.inbox import NEVER, NO_MESSAGES, Group, Need, Wait, need_of


def child(group: Group | None = None) -> Wait:
    return _in(Wait(Branch(), Recorded(), child_step_id="child"), group)


def timer(at: int, group: Group | None = None) -> Wait:
    return _in(Wait(Branch(), Recorded(), wake_at=at), group)


def signal(until: int | None, group: Group | None = None) -> Wait:
    return _in(Wait(Branch(), Recorded(), signal="go", wake_at=until), group)


def _in(wait: Wait, group: Group | None) -> Wait:
    wait.group = group
    return wait


def test_a_single_wait_needs_its_own_message_or_time():
    assert need_of([child()]) == Need(1, NEVER)
    assert need_of([timer(5)]) == Need(NO_MESSAGES, 5)
    assert need_of([signal(None)]) == Need(1, NEVER)
    assert need_of([signal(7)]) == Need(1, 7)


def test_a_gather_of_children_needs_all_of_them():
    group = Group(1000)
    assert need_of([child(group) for _ in range(1000)]) == Need(1000, NEVER)


def test_a_gather_of_timers_needs_the_last():
    group = Group(3)
    assert need_of([timer(5, group), timer(9, group), timer(7, group)]) == Need(NO_MESSAGES, 9)


def test_a_gather_of_both_needs_its_messages_first():
    group = Group(3)
    assert need_of([child(group), child(group), timer(9, group)]) == Need(2, NEVER)


def test_a_wait_with_alternatives_is_counted_separately():
    group = Group(3)
    assert need_of([child(group), child(group), signal(4, group)]) == Need(1, 4)


def test_the_first_group_that_can_continue_counts():
    one, two = Group(3), Group(2)
    assert need_of([*(child(one) for _ in range(3)), *(child(two) for _ in range(2)), timer(8)]) == Need(2, 8)


def test_an_open_branch_with_code_keeps_its_gather_suspended():
    group = Group(3)
    group.coded = 1
    assert need_of([child(group), child(group), timer(30)]) == Need(NO_MESSAGES, 30)
    assert need_of([child(group), child(group), child()]) == Need(1, NEVER)
