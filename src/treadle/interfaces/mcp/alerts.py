"""Tools for alerts: list, add a rule, send a test message."""

from __future__ import annotations

from typing import Annotated, Literal

from treadle.api.alerts import Alert, AlertRule, AlertTest, RuleName
from treadle.api.contract import ApiRecord, Doc, record
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.model.access import Scope

_MOST = 50


@record
class AlertOverview(ApiRecord):
    """The alert rules, and the newest alerts."""

    rules: list[AlertRule]
    alerts: list[Alert]


@tool()
async def alert_list(
    context: RequestContext, firing: Annotated[bool, Doc("Only alerts that fire now; false: also resolved ones")] = True
) -> AlertOverview:
    """The alert rules, and the alerts that fire now or fired before."""
    rules = (await context.api.alerts.rules()).rules
    return AlertOverview(rules, (await context.api.alerts.list(firing=firing, limit=_MOST)).alerts)


@tool(Scope.ADMIN)
async def alert_add(
    context: RequestContext,
    name: Annotated[str, Doc("A name for the rule", "imports")],
    when: Annotated[
        Literal["run_failed", "dead_letters", "queue_age", "trigger_failing", "server_lost", "budget_spent", "problem"],
        Doc("The condition; `problem`: any problem that system_status names"),
    ],
    to: Annotated[str, Doc("An http or https URL, or the name of an environment variable of the workers (TREADLE_ALERT_...)")],
    workflow: Annotated[str | None, Doc("For run_failed and budget_spent: only this workflow or glob")] = None,
    lasts: Annotated[float | None, Doc("Seconds that the cause must last before the alert fires")] = None,
) -> AlertRule:
    """Add a rule that sends a message once per cause, and another when the cause is gone."""
    given = {"workflow": workflow, "lasts": lasts}
    options = {option: value for option, value in given.items() if value is not None}
    return await context.api.alerts.create(name, when=when, to=to, **options)  # type: ignore[arg-type]


@tool(Scope.OPERATE)
async def alert_test(context: RequestContext, name: Annotated[str, Doc("The rule's name", "imports")]) -> AlertTest:
    """Send a test message of an alert rule through a worker, and return the response."""
    return await context.api.alerts.test(name)


@tool(Scope.OPERATE, repeatable=True)
async def alert_silence(
    context: RequestContext, name: RuleName, lasting: Annotated[float, Doc("Seconds; 0 ends the silence")]
) -> AlertRule:
    """Send no messages of a rule for some time."""
    return await context.api.alerts.silence(name, lasting)


@tool(Scope.ADMIN, ends=True)
async def alert_remove(context: RequestContext, name: RuleName) -> AlertRule:
    """Remove an alert rule and end its alerts without a message."""
    return await context.api.alerts.remove(name)


TOOLS = (alert_list, alert_add, alert_test, alert_silence, alert_remove)
