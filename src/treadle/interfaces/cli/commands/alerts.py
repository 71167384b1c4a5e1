"""`treadle alerts ...`: rules that report problems by webhook, mail or chat: add, test, silence, remove; and their history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Unpack

from click.exceptions import Exit

from treadle.api.options import AlertOptions
from treadle.api.view import short
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.exits import FAILED, TIME_RAN_OUT
from treadle.interfaces.cli.input.values import seconds
from treadle.interfaces.cli.output.format import grid, plain, state, when
from treadle.interfaces.cli.session import Session
from treadle.model.clock import span

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from treadle.api.alerts import Alert, AlertRule, AlertTest

Name = Annotated[str, argument(metavar="NAME", help="The rule's name, or its id")]


async def add(
    session: Session,
    name: Annotated[str, argument(metavar="NAME", help="A name for it, e.g. imports")],
    **options: Unpack[AlertOptions],
) -> None:
    """Send a message when runs fail, dead letters appear, work waits too long, or anything else needs an operator.

    Messages to http and https URLs are webhooks, signed with the workers' TREADLE_WEBHOOK_SECRET. Mail and chat need the extra
    `alerts` and a URL of Apprise in an environment variable of the workers. A DURATION is 90, 1.5s, 5m, 2h or 1d.
    """
    async with session.api(migrate=True) as api:
        rule = await api.alerts.create(name, **options)
    lines = f"{rule.name} is {rule.state} now; `treadle alerts test {rule.name}` sends a test message to {rule.to}."
    session.show(rule, lambda: plain(lines))


async def list_alerts(session: Session) -> None:
    """List the alert rules, and the alerts that fire now."""
    from treadle.api.wire import to_builtins

    async with session.api() as api:
        rules = await api.alerts.rules()
        firing = await api.alerts.list(firing=True, limit=1000)
        now = (await api.system.time()).now
    empty = "No alert rules. Add one with `treadle alerts add NAME --when problem --to URL`."
    shown = {"rules": to_builtins(rules.rules), "firing": to_builtins(firing.alerts)}
    session.show(shown, lambda: plain(empty) if not rules.rules else _overview(rules.rules, firing.alerts, now))


async def history(
    session: Session,
    name: Annotated[str | None, option("--rule", metavar="NAME", help="Only alerts of this rule")] = None,
    limit: Annotated[int, option(min=1, max=1000, help="Maximum number")] = 100,
    before: Annotated[str | None, option(metavar="ID", help="Next page: only alerts older than this one")] = None,
) -> None:
    """List alerts, newest first, with their messages."""
    async with session.api() as api:
        page = await api.alerts.list(rule=name, limit=limit, before=before)
        now = (await api.system.time()).now
    session.show_page(page, page.alerts, "No alerts so far.", lambda: _table(page.alerts, now), before=page.next_before)


async def edit(session: Session, name: Name, **options: Unpack[AlertOptions]) -> None:
    """Change options of an alert rule, except its condition; alerts that fire stay."""
    async with session.api() as api:
        rule = await api.alerts.edit(name, **options)
    session.show(rule, lambda: plain(f"{rule.name} sends to {rule.to} when {_condition(rule)}"))


async def remove(session: Session, name: Name) -> None:
    """Remove an alert rule and end its alerts without a message."""
    async with session.api() as api:
        rule = await api.alerts.remove(name)
    session.show(rule, lambda: plain(f"{rule.name} is {rule.state} now"))


async def silence(
    session: Session,
    name: Name,
    lasting: Annotated[str, option("--for", metavar="DURATION", help="How long, e.g. 2h; 0 ends the silence")] = "1h",
) -> None:
    """Send no messages of a rule for some time; causes that last longer are reported at its end."""
    async with session.api() as api:
        rule = await api.alerts.silence(name, seconds(lasting, "--for") or 0)
        now = (await api.system.time()).now
    until = (
        "sends messages again"
        if rule.silenced_until is None
        else f"is silenced; it sends messages again at {when(rule.silenced_until, now)}"
    )
    session.show(rule, lambda: plain(f"{rule.name} {until}"))


async def test(session: Session, name: Name) -> None:
    """Send a test message through a worker, and print the response; exit 1 if it was not accepted, 6 if no worker sends it."""
    async with session.api() as api:
        done = await api.alerts.test(name)
    session.show(done, lambda: plain(_tested(done)))
    if done.state != "completed":
        raise Exit(TIME_RAN_OUT if done.state == "pending" else FAILED)


def _tested(done: AlertTest) -> str:
    if done.state != "completed":
        return f"The test message {'failed' if done.state == 'failed' else f'is {done.state}'}: {done.error}"
    response = done.response if isinstance(done.response, dict) else {}
    status = f" answered {response['status']}" if "status" in response else " accepted it"
    text = f": {response['response']}" if response.get("response") else ""
    return f"{response.get('to', 'The target')}{status}{text}"


def _overview(rules: list[AlertRule], firing: list[Alert], now: datetime) -> RenderableType:
    from rich.console import Group

    table = grid("name", "when", "to", "?every", ">firing", "note")
    for each in rules:
        note = f"silenced until {when(each.silenced_until, now)}" if each.silenced_until and each.silenced_until > now else ""
        table.add_row(
            plain(each.name),
            plain(_condition(each)),
            plain(short(each.to, 40)),
            span(each.every_for),
            str(each.firing),
            plain(note),
        )
    return Group(table, plain(""), _table(firing, now) if firing else plain("No alert fires now."))


def _condition(rule: AlertRule) -> str:
    of = [each for each in (rule.workflow, rule.task_list, rule.code) if each]
    extra = {"dead_letters": f"over {rule.over}", "queue_age": f"over {span(rule.age_for)}"}.get(rule.when)
    return " ".join([rule.when, *of, *([extra] if extra else [])])


def _table(alerts: list[Alert], now: datetime) -> RenderableType:
    table = grid("fired", "rule", "state", "text", "message")
    for each in alerts:
        last = each.deliveries[-1] if each.deliveries else None
        note = "none" if last is None else f"{last.state}: {last.error}" if last.error else last.state
        table.add_row(
            when(each.fired_at, now), plain(each.rule), state(each.state), plain(short(each.text, 120)), plain(short(note))
        )
    return table
