"""The audit: the changes by operators and tokens, and their undo."""

from __future__ import annotations

from operator import attrgetter

from starlette.responses import Response

from treadle.api.contract import option_fields
from treadle.api.events import AuditConditions, AuditEntry
from treadle.interfaces.web.forms import arguments_of, text
from treadle.interfaces.web.site import Visit, action, page
from treadle.model.errors import NotFound, Refused

_LATER_LIMIT = 1000


@page("/audit")
async def audit(visit: Visit) -> Response:
    which = arguments_of(visit.query, option_fields(AuditConditions))
    changes = await visit.api.events.audit(before=text(visit.query, "before"), **which)
    return await visit.render("audit.html", page=changes)


@action("/audit/{seq}/undo")
async def undo(visit: Visit) -> Response:
    seq = visit.path["seq"]
    after = str(int(seq) + 1) if seq.isdecimal() and len(seq) < 18 else "0"
    changes = (await visit.api.events.audit(before=after, limit=1)).changes
    if not changes or str(changes[0].seq) != seq or changes[0].undo is None:
        raise NotFound(f"There is no change {seq} that can be undone.")
    change, inverse = changes[0], changes[0].undo
    await _check_latest(visit, change)
    await attrgetter(inverse.operation)(visit.api)(**inverse.arguments)
    return visit.back(f"{change.operation} of {change.subject} is undone.", to="/audit")


async def _check_latest(visit: Visit, change: AuditEntry) -> None:
    """Raise `Refused` unless the values are still those after the change."""
    assert change.undo is not None
    settings = {change.operation, change.undo.operation}
    later = await visit.api.events.audit(operation=change.operation.partition(".")[0], since=change.at, limit=_LATER_LIMIT)
    newer = [other for other in later.changes if other.seq > change.seq and other.subject == change.subject]
    if latest := next((other for other in newer if other.operation in settings), None):
        raise Refused(f"{latest.actor} changed {latest.subject} later, with {latest.operation}; undo that first.")
    if later.next_before is not None:
        raise Refused(f"{change.subject} has too many later changes to tell whether this one is the last.")
    if change.undo.operation == "lists.resume":
        task_list = await visit.api.lists.get(change.subject)
        if task_list.paused and not task_list.accepting:
            raise Refused(f"{change.subject} is paused and draining, and resuming it would end both.")
