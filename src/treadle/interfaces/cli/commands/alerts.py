"""`treadle alerts ...`: the rules with the alerts that fire now, silence, and a test message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.exceptions import Exit

from treadle.api.alerts import ALERT, RULE
from treadle.api.wire import to_builtins
from treadle.interfaces.cli.exits import FAILED, TIME_RAN_OUT
from treadle.interfaces.cli.format import plain, table, together, when
from treadle.interfaces.cli.session import Session

if TYPE_CHECKING:
    from treadle.api.alerts import AlertRule, AlertTest
    from treadle.api.facade import Api


async def list_alerts(session: Session) -> None:
    """List the alert rules, and the alerts that fire now."""
    async with session.api() as api:
        rules = (await api.alerts.rules()).rules
        firing = (await api.alerts.list(firing=True, limit=1000)).alerts
        now = (await api.system.time()).now
    alerts = table(ALERT, firing, now) if firing else plain("No alert fires now.")
    session.show(
        {"rules": to_builtins(rules), "firing": to_builtins(firing)},
        lambda: together(table(RULE, rules, now), *(["", alerts] if rules else [])),
    )


async def show_silence(session: Session, api: Api, rule: AlertRule) -> None:
    """Report the end of the silence."""
    now = (await api.system.time()).now
    silence = f"is silenced; it sends messages again at {when(rule.silenced_until, now)}"
    session.show(rule, lambda: plain(f"{rule.name} {silence if rule.silenced_until else 'sends messages again'}"))


async def show_test(session: Session, _: Api, test: AlertTest) -> None:
    """Print the response to a test message; exit 1 if it was not accepted, 6 if no worker sends it."""
    session.show(test, lambda: plain(_tested(test)))
    if test.state != "completed":
        raise Exit(TIME_RAN_OUT if test.state == "pending" else FAILED)


def _tested(test: AlertTest) -> str:
    if test.state != "completed":
        return f"The test message {'failed' if test.state == 'failed' else f'is {test.state}'}: {test.error}"
    response = test.response if isinstance(test.response, dict) else {}
    status = f" answered {response['status']}" if "status" in response else " accepted it"
    text = f": {response['response']}" if response.get("response") else ""
    return f"{response.get('to', 'The target')}{status}{text}"
