"""Alert rules: create, silence, test, remove; and the alerts that they fired.

A rule is a record with one task of kind `alert`, which evaluates it (`evaluate.py`). An alert is a record of its own, from the
time its cause has lasted long enough until it is gone. Messages are tasks of kind `engine.notify`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Unpack

import msgspec

from treadle.api.alerts import Alert, AlertDelivery, AlertPage, AlertRule, AlertRules, AlertTest
from treadle.api.options import AlertOptions
from treadle.api.wire import Instant, record_of
from treadle.kernel.alerts.options import edit_body, make_body, shown_target
from treadle.kernel.queue.why import OPEN_SERVICE, shown_server_state
from treadle.kernel.store.lookups import check_limit, every_record
from treadle.kernel.store.records import ChangeRecord, RecordFilter, read_body
from treadle.kernel.store.units import Row, Unit
from treadle.kernel.triggers.service import Recovery, Triggers
from treadle.model.alerts import FAILED_TEST, PROBLEM, RESOLVED, TEST, AlertBody, AlertRuleBody
from treadle.model.clock import Duration, as_text, milliseconds
from treadle.model.errors import AlertRuleExists, AlertRuleNotFound, InvalidAlert, InvalidInput, UnreadableValue
from treadle.model.ids import parse_id
from treadle.model.names import ALERT, ENGINE_LIST, NOTIFY, Lane, check_name
from treadle.model.records import UNREADABLE, Record
from treadle.model.retry import RetryPolicy
from treadle.model.states import ALERT as ALERT_MACHINE
from treadle.model.states import ALERT_RULE as MACHINE
from treadle.model.stored import plain, write
from treadle.model.tasks import LIVE_SERVER_STATES, NewTask, Task
from treadle.model.values import Json, decode, decode_object, encode

LISTED = 50
"""Maximum number of alerts that one message lists."""

TEST_WITHIN = 15.0
"""Seconds that a test message gets."""
_PAGE = 1000


class Alerts(Triggers[AlertRuleBody]):
    """The alert rules and alerts of one namespace."""

    machine = MACHINE
    not_found = AlertRuleNotFound
    exists = AlertRuleExists
    seal: Callable[[str], str] = staticmethod(str)
    """Seals the text of messages with the engine's codec."""
    wait: Callable[[str], Awaitable[Task]]
    """Waits for the end of a task; returns it with its values opened."""

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

    async def test(self, name: str, *, actor: str = "python") -> AlertTest:
        """Send a test message through a worker, without retries; wait up to `TEST_WITHIN` seconds for the response."""
        record = await self._get_record(name)
        if self.load_shown(record)[0] == UNREADABLE:
            raise InvalidAlert(f"The alert rule {name} cannot be read: remove it, and create another.")
        task = self.message(record, TEST, await self._store.now(), [], 0, text=f"A test message, requested by {actor}.")
        task = msgspec.structs.replace(task, policy=write(RetryPolicy()))
        await self._committer.submit(Unit(tasks=(task,)), self._patience)
        return await self._test_result(task.id)

    async def _test_result(self, task_id: str) -> AlertTest:
        now = await self._store.now()
        live = any(
            shown_server_state(server, now) in LIVE_SERVER_STATES and server.service_name != OPEN_SERVICE
            for server in await self._store.servers.list_all(self._namespace)
        )
        try:
            async with asyncio.timeout(TEST_WITHIN if live else 0):
                sent = await self.wait(task_id)
        except TimeoutError:
            return AlertTest(
                task_id, "pending", None, "No worker has sent it yet: start one with `treadle worker` or `treadle up`."
            )
        response = decode(sent.result) if sent.state == "completed" and sent.result else None
        if isinstance(response, dict) and FAILED_TEST in response:
            return AlertTest(task_id, "failed", None, str(response[FAILED_TEST]))
        return AlertTest(task_id, sent.state, response, _error(sent))

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

    async def find_target(self, rule_id: str) -> tuple[str, AlertRuleBody]:
        """Return the state of a rule and its body, with its whole target; or raise `AlertRuleNotFound`."""
        return self.load_shown(await self._get_record(rule_id))

    async def rules(self) -> AlertRules:
        """Return the live rules, newest first."""
        return AlertRules([self._shown(record) for record in await self._page(False, _PAGE, None)])

    async def list(
        self, *, firing: bool = False, rule: str | None = None, limit: int = 100, before: str | None = None
    ) -> AlertPage:
        """Return a page of alerts, newest first: all, or only those that fire now; those of one rule, by name or id."""
        check_limit(limit)
        before_id = None if before is None else parse_id(before, "cursor")
        rule_id = None if rule is None else (await self._get_record(rule)).id
        which = RecordFilter(ALERT_MACHINE.entity, self._namespace, live=True if firing else None, before_id=before_id)
        if rule_id is None:
            page = await self._store.records.list_matching(which, limit)
        else:
            page = []
            async for record in every_record(self._store, which):
                if load_alert(record).rule_id == rule_id:
                    page.append(record)
                    if len(page) == limit:
                        break
        ids = [task_id for record in page for task_id in load_alert(record).deliveries]
        tasks = {task.id: task for task in await self._store.tasks.find_many(ids)} if ids else {}
        return AlertPage([_alert(record, tasks) for record in page], page[-1].id if len(page) == limit else None)

    async def describe_recovery(self) -> Sequence[Recovery]:
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

    def message(
        self, rule: Record, event: str, now: int, alerts: Sequence[tuple[str, AlertBody]], count: int, text: str = ""
    ) -> NewTask:
        """Return the task that sends one message about alerts of the rule; the target is looked up when it is sent."""
        shown = [_for_message(alert_id, body, event, now) for alert_id, body in alerts[:LISTED]]
        payload = {"event": event, "rule_id": rule.id, "rule": rule.name, "at": as_text(now), "count": count, "alerts": shown}
        return NewTask(
            id=self._ids.new_id(),
            lane=Lane(self._namespace, NOTIFY, ENGINE_LIST, NOTIFY),
            payload=self.seal(encode(payload | ({"text": text} if text else {}), "alert message")),
            trace_id=f"alert_rule:{rule.id}",
        )

    def _shown(self, record: Record) -> AlertRule:
        state, body = self.load_shown(record)
        firing = sum(cause.alert_id is not None for cause in body.causes.values()) if state != "removed" else 0
        return record_of(AlertRule, record, body, name=record.name or "", state=state, to=shown_target(body.to), firing=firing)


def load_alert(record: Record) -> AlertBody:
    """Decode the body of an alert; one that cannot be read has the reason as its text."""
    try:
        return read_body(AlertBody, record)
    except UnreadableValue as error:
        return AlertBody(rule_id="", rule="", cause=UNREADABLE, text=str(error), since=record.created_at)


def _alert(record: Record, tasks: Mapping[str, Task]) -> Alert:
    body = load_alert(record)
    return record_of(
        Alert,
        record,
        body,
        fired_at=Instant.of(record.created_at),
        resolved_at=None if record.ended_at is None else Instant.of(record.ended_at),
        deliveries=[_delivery(task_id, tasks.get(task_id)) for task_id in body.deliveries],
    )


def _delivery(task_id: str, task: Task | None) -> AlertDelivery:
    if task is None:
        return AlertDelivery(task_id, "pruned", 0, None)
    return AlertDelivery(task_id, task.shown_state, task.attempt, _error(task))


def _error(task: Task) -> str | None:
    return str(decode_object(task.error).get("message") or "") if task.error else None


def resolution(record: Record, body: AlertBody | None, actor: str | None = None) -> ChangeRecord:
    """Return the row that ends an alert, with a new body if given."""
    text = record.body if body is None else write(body)
    return ChangeRecord(record.id, record.version, text, "resolve", "firing", "resolved", ended=True, actor=actor)


def _for_message(alert_id: str, body: AlertBody, event: str, now: int) -> dict[str, Json]:
    return {
        "id": alert_id,
        "state": "resolved" if event == RESOLVED else "firing",
        "cause": body.cause,
        "text": body.text,
        "remedy": body.remedy,
        "count": body.count,
        "since": as_text(body.since),
        "resolved_at": as_text(now) if event == RESOLVED else None,
    }
