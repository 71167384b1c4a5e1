"""Events: the latest moves, updated live."""

from __future__ import annotations

from starlette.responses import Response

from treadle.interfaces.web.forms import text, whole
from treadle.interfaces.web.site import Visit, page
from treadle.model.states import MACHINES

_PAGE = 100


@page("/events")
async def events(visit: Visit) -> Response:
    asked = visit.query
    after = whole(asked, "after")
    names = ("entity", "entity_id", "run_id", "move")
    page = await visit.api.events.list(after_seq=after, limit=_PAGE, **{name: text(asked, name) for name in names})
    entity = text(asked, "entity")
    machines = [MACHINES[entity]] if entity in MACHINES else MACHINES.values()
    moves = sorted({move for machine in machines for _, move in machine.moves})
    return await visit.render(
        "events.html",
        page=page,
        entities=sorted(MACHINES),
        moves=moves,
        live=after is None and "still" not in asked,
        older=max(page.events[0].seq - _PAGE - 1, 0) if page.events and page.events[0].seq > 1 else None,
    )
