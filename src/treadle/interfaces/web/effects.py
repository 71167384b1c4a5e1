"""Effects whose outcome is unknown."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import text
from treadle.interfaces.web.site import Site


def add(site: Site) -> None:
    """Register the page."""

    @site.page("/effects")
    async def effects(request: Request, service: Operations) -> Response:
        asked = request.query_params
        page = await service.effects.list(
            task_id=text(asked, "task_id"), run_id=text(asked, "run_id"), before=text(asked, "before")
        )
        return await site.render(request, "effects.html", service=service, page=page)
