"""Effects whose outcome is unknown."""

from __future__ import annotations

from starlette.responses import Response

from treadle.interfaces.web.forms import text
from treadle.interfaces.web.site import Visit, page


@page("/effects")
async def effects(visit: Visit) -> Response:
    asked = visit.query
    page = await visit.api.effects.list(task_id=text(asked, "task_id"), run_id=text(asked, "run_id"), before=text(asked, "before"))
    return await visit.render("effects.html", page=page)
