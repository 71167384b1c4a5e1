"""Effects whose outcome is unknown."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from treadle.interfaces.web.forms import text
from treadle.interfaces.web.site import Site
from treadle.service import Service


def add(site: Site) -> None:
    """Register the page."""

    @site.page("/effects")
    async def effects(request: Request, service: Service) -> Response:
        asked = request.query_params
        page = await service.effects.list(
            task_id=text(asked, "task_id"), run_id=text(asked, "run_id"), before=text(asked, "before")
        )
        return await site.render(request, "effects.html", service=service, page=page)
