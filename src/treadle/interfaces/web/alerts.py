"""Alerts: those that fire now, the rules, and the history."""

from __future__ import annotations

from starlette.responses import Response

from treadle.api.options import AlertOptions
from treadle.interfaces.web.forms import described, filters_of, number
from treadle.interfaces.web.site import Visit, act, action, page

_FIELDS = described(AlertOptions, ("when", "to"))
_CONDITIONS = described(AlertOptions)[0].choices


@page("/alerts")
async def alerts(visit: Visit) -> Response:
    return await visit.render(
        "alerts.html",
        rules=(await visit.api.alerts.rules()).rules,
        firing=(await visit.api.alerts.list(firing=True)).alerts,
        page=await visit.api.alerts.list(**filters_of(visit.query, "alerts.list"), limit=50),
        fields=_FIELDS,
        conditions=_CONDITIONS,
    )


act("/alerts", "alerts.create", "{name} is now active. Send a test message to check its target.", to="/alerts")
act("/alerts/{name}/remove", "alerts.remove", "{name} is removed.", to="/alerts")


@action("/alerts/{name}/test")
async def test(visit: Visit) -> Response:
    done = await visit.api.alerts.test(visit.path["name"])
    result = "was accepted" if done.state == "completed" else f"is {done.state}: {done.error}"
    return visit.back(f"The test message {result}.", bad=done.state != "completed")


@action("/alerts/{name}/silence")
async def silence(visit: Visit) -> Response:
    rule = await visit.api.alerts.silence(visit.path["name"], (number(await visit.form(), "hours") or 0) * 3600)
    return visit.back(f"{rule.name} {'is silenced' if rule.silenced_until else 'sends messages again'}.")
