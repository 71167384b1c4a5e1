"""The error tree is as drawn, and every code is stable and its own."""

from __future__ import annotations

import re

import pytest

from treadle.model import errors
from treadle.model.errors import IllegalTransition, NonRetryable, TaskFailed, TreadleError

CLASSES = {name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, TreadleError)}


def drawn_tree() -> dict[str, str]:
    """Each class in the drawing, and the one that it hangs from."""
    parents, stack = {}, []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^ {4}((?:[│├└─ ]{4})*)([A-Z]\w+)(?: {2,}|$)", line)
        if match:
            depth = len(match[1]) // 4
            del stack[depth:]
            parents[match[2]] = stack[-1] if stack else "Exception"
            stack.append(match[2])
    return parents


def test_the_drawn_tree_of_errors_is_the_class_hierarchy():
    drawn = drawn_tree()
    assert set(drawn) == set(CLASSES)
    for name, parent in drawn.items():
        assert CLASSES[name].__bases__[0].__name__ == parent, name


def test_every_error_class_has_a_unique_code_derived_from_its_name():
    codes = {name: vars(cls).get("code") for name, cls in CLASSES.items()}
    assert None not in codes.values()
    assert len(set(codes.values())) == len(codes)
    for name, code in codes.items():
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        assert code == ("error" if name == "TreadleError" else snake)


def test_invalid_input_is_a_value_error_and_not_found_a_lookup_error():
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.NotFound, LookupError)


def test_errors_carry_their_values():
    lost = errors.ClaimLost("t-1", 3)
    assert (lost.task_id, lost.version) == ("t-1", 3)
    assert errors.TaskNotFound("t-2").task_id == "t-2"
    failed = TaskFailed("t-3", "boom", "It broke.")
    assert (failed.task_id, failed.error_code, failed.error) == ("t-3", "boom", "It broke.")
    illegal = IllegalTransition("task", "t-4", "completed", "cancel")
    assert (illegal.entity, illegal.entity_id, illegal.state, illegal.transition) == ("task", "t-4", "completed", "cancel")


def test_an_illegal_transition_lists_the_possible_transitions():
    assert "cancel, pause" in str(IllegalTransition("task", "t", "pending", "requeue", ("cancel", "pause")))
    assert "final" in str(IllegalTransition("task", "t", "completed", "cancel"))


def test_a_handler_may_give_its_failure_a_code():
    assert NonRetryable("no").error_code == "non_retryable"
    assert NonRetryable("no", "card_declined").error_code == "card_declined"


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_all_can_be_caught_as_one(name):
    assert issubclass(CLASSES[name], TreadleError)
