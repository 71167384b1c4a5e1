"""Bugs in what operators and people do, and in what is done with what has ended."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulation.bugs.bug import Plants, rewrite

from treadle.kernel.functions import operations as function_runs
from treadle.kernel.functions import service as kernel_functions
from treadle.kernel.store.units import CancelRunTasks
from treadle.model import approvals
from treadle.model.approvals import Approval


def trees_are_pruned_while_they_live(patch: pytest.MonkeyPatch) -> None:
    """Ended work is pruned although other parts of its tree are live."""
    rewrite(patch, "list_prunable", "where not exists (select 1 from tasks as t where t.id = w.value)", "where true")
    rewrite(patch, "list_prunable", "t.root_id = w.value and t.root_id <> t.id", "false")
    rewrite(patch, "list_prunable", "r.finished_at is null or ", "")


def pruning_leaves_blobs(patch: pytest.MonkeyPatch) -> None:
    """Big values of what is gone stay."""
    rewrite(patch, "delete_blobs", "where ", "where false and ")


def paused_lists_go_on(patch: pytest.MonkeyPatch) -> None:
    """A list is shown as paused, and its tasks are taken."""
    rewrite(patch, "mark_list", "select paused, accepting", "select 0, accepting")


def dead_letters_are_lost_when_retried(patch: pytest.MonkeyPatch) -> None:
    """A retried dead letter is removed and not enqueued."""
    rewrite(patch, "redrive", "from jsonb_each(:rows) as r\n", "from jsonb_each('[]') as r\n")


def canceled_runs_go_on(patch: pytest.MonkeyPatch) -> None:
    """A run is canceled, and its tasks are not."""
    real = kernel_functions.canceled_rows

    def canceled_rows(*arguments: Any, **options: Any) -> list[Any]:
        return [row for row in real(*arguments, **options) if not isinstance(row, CancelRunTasks)]

    patch.setattr(kernel_functions, "canceled_rows", canceled_rows)
    patch.setattr(function_runs, "canceled_rows", canceled_rows)


def forks_keep_nothing(patch: pytest.MonkeyPatch) -> None:
    """A fork does everything again."""
    patch.setattr(function_runs, "is_finished", lambda recorded: False)


def anybody_may_decide(patch: pytest.MonkeyPatch) -> None:
    """A decision of somebody outside of the groups counts."""
    patch.setattr(Approval, "may_decide", lambda self, actor, groups=(): True)


def one_vote_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Nobody counts."""
    real = approvals.vote

    def vote(approval: Approval, decision: str, *more: Any) -> Any:
        voted = real(approval, decision, *more)
        return voted._replace(transition=decision)

    from treadle.kernel.approvals import service as kernel_approvals

    patch.setattr(kernel_approvals, "vote", vote)


PLANTS: Plants = {
    trees_are_pruned_while_they_live: ((), ("flow",), ("prune",)),
    pruning_leaves_blobs: ((), ("work",), ()),
    paused_lists_go_on: ((), ("work",), ("hold_the_list",)),
    dead_letters_are_lost_when_retried: ((), ("doomed",), ("see_to_letters",)),
    canceled_runs_go_on: ((), ("order",), ("cancel_something",)),
    forks_keep_nothing: ((), ("order",), ("do_again",)),
    anybody_may_decide: ((), ("vote",), ()),
    one_vote_is_enough: ((), ("vote",), ()),
}
