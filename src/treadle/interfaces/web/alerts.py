"""Alerts: those that fire now, the rules, and the history."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from treadle.api.options import AlertOptions
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import described, number, options_of, text
from treadle.interfaces.web.site import Site
from treadle.model.errors import InvalidInput

_FIELDS = described(AlertOptions, ("when", "to"))
_CONDITIONS = described(AlertOptions)[0].choices


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/alerts")
    async def alerts(request: Request, service: Operations) -> Response:
        asked = request.query_params
        return await site.render(
            request,
            "alerts.html",
            service=service,
            rules=(await service.alerts.rules()).rules,
            firing=(await service.alerts.list(firing=True)).alerts,
            page=await service.alerts.list(rule=text(asked, "rule"), before=text(asked, "before"), limit=50),
            fields=_FIELDS,
            conditions=_CONDITIONS,
        )

    @site.action("/alerts")
    async def create(request: Request, service: Operations) -> Response:
        form = await request.form()
        made = await service.alerts.create(text(form, "name") or "", **options_of(form, AlertOptions))
        return site.back(request, f"{made.name} is now active. Send a test message to check its target.", to="/alerts")

    @site.action("/alerts/{name}/{act}")
    async def act(request: Request, service: Operations) -> Response:
        name = request.path_params["name"]
        match request.path_params["act"]:
            case "test":
                done = await service.alerts.test(name)
                said = "was accepted" if done.state == "completed" else f"is {done.state}: {done.error}"
                return site.back(request, f"The test message {said}.", bad=done.state != "completed")
            case "silence":
                form = await request.form()
                rule = await service.alerts.silence(name, (number(form, "hours") or 0) * 3600)
                said = "is silenced" if rule.silenced_until else "sends messages again"
                return site.back(request, f"{rule.name} {said}.")
            case "remove":
                rule = await service.alerts.remove(name)
                return site.back(request, f"{rule.name} is removed.", to="/alerts")
            case other:
                raise InvalidInput(f"Unknown action {other!r}.")
