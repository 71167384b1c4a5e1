"""Events: the latest moves, updated live."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import text, whole
from treadle.interfaces.web.site import Site
from treadle.model.states import MACHINES

_PAGE = 100


def add(site: Site) -> None:
    """Register the page."""

    @site.page("/events")
    async def events(request: Request, service: Operations) -> Response:
        asked = request.query_params
        after = whole(asked, "after")
        names = ("entity", "entity_id", "run_id", "move")
        page = await service.events.list(after_seq=after, limit=_PAGE, **{name: text(asked, name) for name in names})
        entity = text(asked, "entity")
        machines = [MACHINES[entity]] if entity in MACHINES else MACHINES.values()
        moves = sorted({move for machine in machines for _, move in machine.moves})
        return await site.render(
            request,
            "events.html",
            service=service,
            page=page,
            entities=sorted(MACHINES),
            moves=moves,
            live=after is None and "still" not in asked,
            older=max(page.events[0].seq - _PAGE - 1, 0) if page.events and page.events[0].seq > 1 else None,
        )
