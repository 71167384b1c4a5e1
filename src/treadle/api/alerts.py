"""Alerts: rules that report problems by signed webhook, mail or chat, once per cause, and the alerts that they fired.

A rule makes workers send messages to a target that its creator chooses. Only administrators may therefore add and remove rules.
"""

from __future__ import annotations

from typing import Annotated, Protocol, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Lookup, Page
from treadle.api.options import SECONDS, AlertOptions
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.clock import span
from treadle.model.values import Json

RuleName = Annotated[str, Doc("The rule's name, or its id", "imports")]


class AlertRule(ApiRecord, frozen=True):
    """An alert rule; durations are milliseconds."""

    id: str
    name: str
    state: str
    """`active` or `removed`."""
    when: str
    """The condition."""
    to: str
    """The target: the scheme and host of a URL, or the name of an environment variable."""
    workflow: str | None
    task_list: str | None
    code: str | None
    over: int
    age_for: int
    within_for: int
    lasts_for: int
    """How long a cause must last before it fires, and be gone before it resolves."""
    repeat_for: int | None
    resolved: bool
    """Whether a message is sent when a cause is gone."""
    every_for: int
    silenced_until: Instant | None
    """No messages are sent before this time."""
    firing: int
    """Alerts that fire now."""
    created_at: Instant
    task_id: str | None
    program: str | None = None
    """The program that declares it."""


class AlertRules(ApiRecord, frozen=True):
    """Alert rules, newest first."""

    rules: list[AlertRule]


class AlertDelivery(ApiRecord, frozen=True):
    """A message about an alert. It is sent at least once; all attempts have its id as their idempotency key."""

    id: str
    """The task that sends it."""
    state: str
    """`pending`, `running`, `completed`, `failed`, `canceled`; `pruned`: it ended long ago."""
    attempts: int
    error: str | None


class Alert(ApiRecord, frozen=True):
    """One cause of a rule, from the time it had lasted long enough until it was gone."""

    id: str
    rule: str
    rule_id: str
    state: str
    """`firing` or `resolved`."""
    cause: str
    """Identifies the cause within its rule."""
    text: str
    remedy: str
    count: int
    """The number of things that the cause concerns, such as failed runs."""
    since: Instant
    """When the cause was first seen."""
    fired_at: Instant
    resolved_at: Instant | None
    deliveries: list[AlertDelivery]
    """Messages about it, oldest first; the last ten."""


class AlertPage(Page, frozen=True):
    """Alerts, newest first."""

    alerts: list[Alert]


class AlertTest(ApiRecord, frozen=True):
    """The outcome of a test message."""

    delivery_id: str
    state: str
    """`completed`: it was accepted; `failed`; `pending`: no worker runs, or none has sent it within 15 seconds."""
    response: Json
    """The target, and its status and response; null unless it was accepted."""
    error: str | None


def describe_condition(rule: AlertRule) -> str:
    """The condition of a rule, in a few words."""
    extra = {"dead_letters": f"over {rule.over}", "queue_age": f"over {span(rule.age_for)}"}.get(rule.when)
    return " ".join(part for part in (rule.when, rule.workflow, rule.task_list, rule.code, extra) if part)


def _message(alert: Alert) -> str:
    last = alert.deliveries[-1] if alert.deliveries else None
    return "none" if last is None else f"{last.state}: {last.error}" if last.error else last.state


RULE = View(
    AlertRule,
    columns=(
        Column("name", link="/alerts?rule={id}"),
        Column("when", describe_condition),
        Column("to", limit=40),
        "?every_for",
        Column("repeats", "repeat_for", spare=True),
        "firing",
        Column("declared by", "program", spare=True),
        Column("silenced until", "silenced_until", "time", spare=True),
    ),
    facts=(
        "id",
        "state",
        Column("when", describe_condition),
        "to",
        "firing",
        Column("lasts", "lasts_for"),
        Column("repeats", "repeat_for"),
        "every_for",
        "resolved",
        Column("declared by", "program"),
        "silenced_until",
        "task_id",
        "created_at",
    ),
    brief=("name", "state", "when", "to", "firing"),
    empty="No alert rules. Add one with `treadle alerts add NAME --when problem --to URL`.",
    changed=lambda rule: (
        f"{rule.name} sends to {rule.to} when {describe_condition(rule)}"
        if rule.state == "active"
        else f"{rule.name} is {rule.state} now"
    ),
)
ALERT = View(
    Alert,
    columns=(
        Column("fired", "fired_at"),
        "rule",
        "state",
        Column("text", limit=120),
        "?resolved_at",
        Column("remedy", lambda alert: alert.remedy if alert.state == "firing" else None, spare=True, limit=120),
        Column("message", _message, limit=60, link=lambda alert: f"/tasks/{alert.deliveries[-1].id}" if alert.deliveries else ""),
    ),
    empty="No alerts so far.",
)


class AlertsApi(Lookup[AlertRule], Protocol):
    """Alert rules and the alerts that they fired."""

    @contract.get("/alerts")
    async def list(
        self,
        *,
        firing: Annotated[bool, Doc("Only alerts that fire now")] = False,
        rule: Annotated[str | None, Doc("Only alerts of this rule")] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 100)] = 100,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
    ) -> AlertPage:
        """Alerts, newest first: those that fire now, and the history."""

    @contract.get("/alert-rules")
    async def rules(self) -> AlertRules:
        """Alert rules, newest first."""

    @contract.get("/alert-rules/{name}")
    async def get(self, name: RuleName) -> AlertRule:
        """One alert rule: condition, target, times, and the number of alerts that fire now."""

    @contract.post("/alert-rules", Scope.ADMIN, status=201, creates=True)
    async def create(self, name: Annotated[str, Doc("The name", "imports")], **options: Unpack[AlertOptions]) -> AlertRule:
        """Add an alert rule; causes that exist already fire, too."""

    @contract.post("/alert-rules/{name}/edit", Scope.ADMIN)
    async def edit(self, name: RuleName, **options: Unpack[AlertOptions]) -> AlertRule:
        """Change options of an alert rule, except its condition; alerts that fire stay."""

    @contract.delete("/alert-rules/{name}", Scope.ADMIN)
    async def remove(self, name: RuleName) -> AlertRule:
        """Remove an alert rule and end its alerts without a message; its name becomes free."""

    @contract.post("/alert-rules/{name}/silence", Scope.OPERATE)
    async def silence(
        self, name: RuleName, lasting: Annotated[float, Doc("Seconds; 0 ends the silence", 3600, unit=SECONDS)]
    ) -> AlertRule:
        """Send no messages of a rule for some time; causes that last longer are reported at its end."""

    @contract.post("/alert-rules/{name}/test", Scope.OPERATE)
    async def test(self, name: RuleName) -> AlertTest:
        """Send a test message through a worker, without retries, and return the response; waits up to 15 seconds."""
