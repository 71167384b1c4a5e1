"""Alert rules: create, silence, test, remove; and the alerts that they fired.

A rule is a record with one task of kind `alert`, which evaluates it (`evaluate.py`). An alert is a record of its own, from the
time its cause has lasted long enough until it is gone. Messages are tasks of kind `engine.notify`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import msgspec

from treadle.api.options import AlertOptions
from treadle.kernel.alerts.options import edit_body, make_body
from treadle.kernel.store.lookups import check_limit, every_record
from treadle.kernel.store.records import ChangeRecord, RecordFilter, read_body
from treadle.kernel.store.units import Row, Unit
from treadle.kernel.triggers.service import Recovery, Triggers
from treadle.model.alerts import PROBLEM, RESOLVED, TEST, AlertBody, AlertRuleBody
from treadle.model.clock import Duration, as_text, milliseconds
from treadle.model.errors import AlertRuleExists, AlertRuleNotFound, InvalidAlert, InvalidInput, UnreadableValue
from treadle.model.ids import parse_id
from treadle.model.names import ALERT, ENGINE_LIST, NOTIFY, Lane, check_name
from treadle.model.records import UNREADABLE, Record
from treadle.model.retry import RetryPolicy
from treadle.model.states import ALERT as ALERT_MACHINE
from treadle.model.states import ALERT_RULE as MACHINE
from treadle.model.stored import plain, write
from treadle.model.tasks import NewTask
from treadle.model.values import Json, encode

LISTED = 50
"""Maximum number of alerts that one message lists."""

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A rule for display."""

    id: str
    name: str
    state: str
    version: int
    body: AlertRuleBody
    created_at: int
    task_id: str | None


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert for display."""

    id: str
    state: str
    body: AlertBody
    fired_at: int
    resolved_at: int | None


class Alerts(Triggers[AlertRuleBody]):
    """The alert rules and alerts of one namespace."""

    machine = MACHINE
    not_found = AlertRuleNotFound
    exists = AlertRuleExists
    seal: Callable[[str], str] = staticmethod(str)
    """Seals the text of messages with the engine's codec."""

    # changes by operators

    async def create(self, name: str, *, actor: str = "python", **options: Unpack[AlertOptions]) -> AlertRule:
        """Add a rule; see `AlertOptions`. Causes that exist now fire, too."""
        check_name(name, "name of an alert rule")
        return await self.get(await self._put(name, make_body(options), paused=False, actor=actor))

    async def edit(self, name: str, *, actor: str = "python", **changes: Unpack[AlertOptions]) -> AlertRule:
        """Change options of a rule, except its condition; the next evaluation uses them, and alerts that fire stay."""
        if not changes:
            raise InvalidInput("Give at least one option to change.")
        return self._shown(await self._operate(name, "edit", actor, lambda body, _: edit_body(body, changes)))

    async def remove(self, name: str, *, actor: str = "python") -> AlertRule:
        """End the rule and its alerts without a message; the name becomes free."""
        return self._shown(await self._operate(name, "remove", actor, lambda body, _: body))

    async def silence(self, name: str, lasting: Duration, *, actor: str = "python") -> AlertRule:
        """Send no messages of the rule for that time; 0 ends the silence. Causes that last longer are reported at its end."""
        silence_for = milliseconds(lasting, "lasting")

        def silenced(body: AlertRuleBody, now: int) -> AlertRuleBody:
            return msgspec.structs.replace(body, silenced_until=now + silence_for if silence_for else None)

        return self._shown(await self._operate(name, "silence", actor, silenced))

    async def test(self, name: str, *, actor: str = "python") -> str:
        """Send a test message, without retries; return the id of the task that sends it."""
        record = await self._get_record(name)
        if self.load_shown(record)[0] == UNREADABLE:
            raise InvalidAlert(f"The alert rule {name} cannot be read: remove it, and create another.")
        task = self.message(record, TEST, await self._store.now(), [], 0, text=f"A test message, requested by {actor}.")
        task = msgspec.structs.replace(task, policy=write(RetryPolicy()))
        await self._committer.submit(Unit(tasks=(task,)), self._patience)
        return task.id

    async def follow(self, record: Record, state: str, actor: str) -> tuple[Row, ...]:
        """Return the rows that end the alerts of a removed rule."""
        if state not in MACHINE.final or self.load_shown(record)[0] == UNREADABLE:
            return ()
        ids = [each.alert_id for each in self.load(record).causes.values() if each.alert_id]
        found = [await self._store.records.find(each) for each in ids]
        return tuple(resolution(each, None, actor) for each in found if each is not None and each.ended_at is None)

    # reads

    async def get(self, name: str) -> AlertRule:
        """Return the live rule of that name, or the rule of that id; or raise `AlertRuleNotFound`."""
        return self._shown(await self._get_record(name))

    async def list_rules(self, *, ended: bool = False, limit: int = _PAGE, before_id: str | None = None) -> list[AlertRule]:
        """Return a page of rules, newest first: the live ones, with `ended` also removed ones."""
        return [self._shown(record) for record in await self._page(ended, limit, before_id)]

    async def list_alerts(
        self, *, firing: bool = False, rule: str | None = None, limit: int = 100, before_id: str | None = None
    ) -> list[Alert]:
        """Return a page of alerts, newest first: all, or only those that fire now; those of one rule, by name or id."""
        check_limit(limit)
        before_id = None if before_id is None else parse_id(before_id, "cursor")
        rule_id = None if rule is None else (await self._get_record(rule)).id
        which = RecordFilter(ALERT_MACHINE.entity, self._namespace, live=True if firing else None, before_id=before_id)
        if rule_id is None:
            return [shown_alert(record) for record in await self._store.records.list_matching(which, limit)]
        found: list[Alert] = []
        async for record in every_record(self._store, which):
            if (alert := shown_alert(record)).body.rule_id == rule_id:
                found.append(alert)
                if len(found) == limit:
                    break
        return found

    async def describe_recovery(self) -> list[Recovery]:
        """Return nothing: a late evaluation finds everything that the missed ones would have."""
        return []

    # records and tasks

    def load(self, record: Record) -> AlertRuleBody:
        """Decode the body of a rule's record."""
        return read_body(AlertRuleBody, record)

    def save(self, body: AlertRuleBody) -> str:
        """Encode the body of a rule's record."""
        return encode(plain(body), "alert rule")

    def placeholder(self, problem: dict[str, Any]) -> AlertRuleBody:
        """Return the body that is displayed in place of one that cannot be read."""
        return AlertRuleBody(when=PROBLEM, to="")

    def next_task(self, record_id: str, body: AlertRuleBody, now: int) -> NewTask:
        """Return a task that evaluates the rule immediately."""
        return NewTask(
            id=self._ids.new_id(),
            lane=Lane(self._namespace, ALERT, ENGINE_LIST, ALERT),
            payload=encode({"alert_rule_id": record_id}),
            trace_id=f"alert_rule:{record_id}",
        )

    def message(self, rule: Record, event: str, now: int, alerts: list[Alert], count: int, text: str = "") -> NewTask:
        """Return the task that sends one message about alerts of the rule; the target is looked up when it is sent."""
        shown: list[Json] = [_for_message(each, event, now) for each in alerts[:LISTED]]
        payload = {"event": event, "rule_id": rule.id, "rule": rule.name, "at": as_text(now), "count": count, "alerts": shown}
        return NewTask(
            id=self._ids.new_id(),
            lane=Lane(self._namespace, NOTIFY, ENGINE_LIST, NOTIFY),
            payload=self.seal(encode(payload | ({"text": text} if text else {}), "alert message")),
            trace_id=f"alert_rule:{rule.id}",
        )

    def _shown(self, record: Record) -> AlertRule:
        state, body = self.load_shown(record)
        return AlertRule(record.id, record.name or "", state, record.version, body, record.created_at, record.task_id)


def shown_alert(record: Record) -> Alert:
    """Return the alert for display."""
    try:
        body = read_body(AlertBody, record)
    except UnreadableValue as error:
        body = AlertBody(rule_id="", rule="", cause=UNREADABLE, text=str(error), since=record.created_at)
    return Alert(record.id, record.state, body, record.created_at, record.ended_at)


def resolution(record: Record, body: AlertBody | None, actor: str | None = None) -> ChangeRecord:
    """Return the row that ends an alert, with a new body if given."""
    text = record.body if body is None else write(body)
    return ChangeRecord(record.id, record.version, text, "resolve", "firing", "resolved", ended=True, actor=actor)


def _for_message(alert: Alert, event: str, now: int) -> dict[str, Json]:
    body = alert.body
    return {
        "id": alert.id,
        "state": "resolved" if event == RESOLVED else "firing",
        "cause": body.cause,
        "text": body.text,
        "remedy": body.remedy,
        "count": body.count,
        "since": as_text(body.since),
        "resolved_at": as_text(now) if event == RESOLVED else None,
    }
