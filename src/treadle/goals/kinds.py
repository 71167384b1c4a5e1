"""Task kinds of the goal pipeline; importing this module registers them with the kernel."""

from __future__ import annotations

from treadle.kernel.queue.kinds import ExtensionKind, register_kinds

GOAL_READINESS = "goal.readiness"
"""Tasks that decide whether an objective is executable, and emit its readiness event if so."""
GOAL_SCHEDULE = "goal.schedule"
"""Tasks that create a workorder from a readiness event, one for each."""
GOAL_RUN = "goal.run"
"""Tasks that call the handler of a workorder; their name is the handler's."""
GOAL_GATE = "goal.gate"
"""Tasks that judge the output of a workorder, one for each."""
GOAL_DEADLINE = "goal.deadline"
"""Tasks that flag overdue objectives, one for each type in a namespace; their name is the type."""
GOAL_ROLE = "goal.role"
"""Tasks of additional roles that a topology declares; their name is ROLE/TYPE."""

_REMEDY = "start one with `treadle worker --topology FILE`"

GOAL_KINDS = register_kinds(
    [
        ExtensionKind(name=GOAL_READINESS, start_with=_REMEDY, is_repeated=True),
        ExtensionKind(name=GOAL_SCHEDULE, start_with=_REMEDY, is_repeated=True),
        ExtensionKind(name=GOAL_RUN, start_with=_REMEDY, is_work=True),
        ExtensionKind(name=GOAL_GATE, start_with=_REMEDY),
        ExtensionKind(name=GOAL_DEADLINE, start_with=_REMEDY, is_repeated=True),
        ExtensionKind(name=GOAL_ROLE, start_with=_REMEDY, has_roles=True),
    ]
)
