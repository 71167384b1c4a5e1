"""Alert rules: create, silence, test, remove; and the alerts that they fired.

A rule is a record with one task of kind `alert`, which evaluates it (`evaluate.py`). An alert is a record of its own, from the
time its cause has lasted long enough until it is gone. Messages are tasks of kind `engine.notify`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Unpack
from urllib.parse import urlsplit

import msgspec

from treadle.api.alerts import Alert, AlertDelivery, AlertPage, AlertRule, AlertRules, AlertTest
from treadle.api.options import AlertOptions
from treadle.api.wire import Instant, record_of
from treadle.kernel.queue.why import OPEN_SERVICE, shown_server_state
from treadle.kernel.store.lookups import check_limit, every_record
from treadle.kernel.store.records import ChangeRecord, RecordFilter, read_document
from treadle.kernel.store.units import Row, Unit
from treadle.kernel.triggers import Triggers, check_options, is_web_url
from treadle.model.alerts import (
    AGE_FOR,
    BUDGET_SPENT,
    CONDITIONS,
    DEAD_LETTERS,
    DEFINITION,
    EVERY_FOR,
    FAILED_TEST,
    PROBLEM,
    QUEUE_AGE,
    RESOLVED,
    RUN_FAILED,
    TEST,
    VARIABLE,
    WITHIN_FOR,
    AlertDocument,
    AlertRuleDocument,
    shown_target,
)
from treadle.model.clock import Duration, as_text, milliseconds
from treadle.model.errors import InvalidAlert, InvalidInput, UnreadableValue
from treadle.model.ids import parse_id
from treadle.model.names import ALERT, ENGINE_LIST, NOTIFY, QueueKey, check_name, check_pattern
from treadle.model.records import UNREADABLE, Record
from treadle.model.retry import RetryPolicy
from treadle.model.states import ALERT as ALERT_MACHINE
from treadle.model.states import ALERT_RULE as MACHINE
from treadle.model.stored import write
from treadle.model.tasks import LIVE_SERVER_STATES, NewTask, Task
from treadle.model.values import Json, decode, decode_error, encode, shown

LISTED = 50
"""Maximum number of alerts that one message lists."""

TEST_WITHIN = 15.0
"""Seconds that a test message gets."""
_PAGE = 1000


class Alerts(Triggers[AlertRuleDocument, AlertRule]):
    """The alert rules and alerts of one namespace."""

    machine = MACHINE
    document = AlertRuleDocument
    kind = ALERT
    encode_text: Callable[[str], str] = staticmethod(str)
    """Encodes the text of messages with the engine's codec."""
    wait: Callable[[str], Awaitable[Task]]
    """Waits for the end of a task; returns it with its values opened."""

    # changes by operators

    async def create(self, name: str, *, actor: str = "python", **options: Unpack[AlertOptions]) -> AlertRule:
        """Add a rule; see `AlertOptions`. Causes that exist now fire, too."""
        check_name(name, "name of an alert rule")
        return await self.get(await self.begin(name, make_document(options), actor=actor))

    def redefine(self, document: AlertRuleDocument, wanted: AlertRuleDocument, now: int) -> AlertRuleDocument | None:
        """Return the document with another definition, its causes and its silence; None for another condition."""
        if document.when != wanted.when or not document.to:
            return None
        return msgspec.structs.replace(document, **{name: getattr(wanted, name) for name in DEFINITION})

    async def edit(self, name: str, *, actor: str = "python", **changes: Unpack[AlertOptions]) -> AlertRule:
        """Change options of a rule, except its condition; the next evaluation uses them, and alerts that fire stay."""
        if not changes:
            raise InvalidInput("Give at least one option to change.")
        return await self._operate(name, "edit", actor, lambda document, _: edit_document(document, changes))

    async def silence(self, name: str, lasting: Duration, *, actor: str = "python") -> AlertRule:
        """Send no messages of the rule for that time; 0 ends the silence. Causes that last longer are reported at its end."""
        silence_for = milliseconds(lasting, "lasting")

        def silenced(document: AlertRuleDocument, now: int) -> AlertRuleDocument:
            return msgspec.structs.replace(document, silenced_until=now + silence_for if silence_for else None)

        return await self._operate(name, "silence", actor, silenced)

    async def test(self, name: str, *, actor: str = "python") -> AlertTest:
        """Send a test message through a worker, without retries; wait up to `TEST_WITHIN` seconds for the response."""
        record = await self.get_record(name)
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
        ids = [cause.alert_id for cause in self.load(record).causes.values() if cause.alert_id]
        alerts = [await self._store.records.find(alert_id) for alert_id in ids]
        return tuple(resolution(alert, None, actor) for alert in alerts if alert is not None and alert.ended_at is None)

    # reads

    async def find_target(self, rule_id: str) -> tuple[str, AlertRuleDocument]:
        """Return the state of a rule and its document, with its whole target; or raise `NotFound`."""
        return self.load_shown(await self.get_record(rule_id))

    async def rules(self) -> AlertRules:
        """Return the live rules, newest first."""
        rules, _ = await self._page(False, _PAGE, None)
        return AlertRules(rules)

    async def list(
        self, *, firing: bool = False, rule: str | None = None, limit: int = 100, before: str | None = None
    ) -> AlertPage:
        """Return a page of alerts, newest first: all, or only those that fire now; those of one rule, by name or id."""
        check_limit(limit)
        before_id = None if before is None else parse_id(before, "cursor")
        rule_id = None if rule is None else (await self.get_record(rule)).id
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
        return AlertPage([_alert(record, tasks) for record in page], next_before=page[-1].id if len(page) == limit else None)

    # records and tasks

    def placeholder(self, problem: dict[str, Any]) -> AlertRuleDocument:
        """Return the document that is displayed in place of one that cannot be read."""
        return AlertRuleDocument(when=PROBLEM, to="")

    def message(
        self, rule: Record, event: str, now: int, alerts: Sequence[tuple[str, AlertDocument]], count: int, text: str = ""
    ) -> NewTask:
        """Return the task that sends one message about alerts of the rule; the target is looked up when it is sent."""
        entries = [_for_message(alert_id, document, event, now) for alert_id, document in alerts[:LISTED]]
        payload = {"event": event, "rule_id": rule.id, "rule": rule.name, "at": as_text(now), "count": count, "alerts": entries}
        return NewTask(
            id=self._ids.new_id(),
            queue=QueueKey(self._namespace, NOTIFY, ENGINE_LIST, NOTIFY),
            payload=self.encode_text(encode(payload | ({"text": text} if text else {}), "alert message")),
            trace_id=f"alert_rule:{rule.id}",
        )

    def show(self, record: Record) -> AlertRule:
        """Return the rule of the API."""
        state, document = self.load_shown(record)
        firing = sum(cause.alert_id is not None for cause in document.causes.values()) if state != "removed" else 0
        return record_of(
            AlertRule, record, document, name=record.name or "", state=state, to=shown_target(document.to), firing=firing
        )


def load_alert(record: Record) -> AlertDocument:
    """Decode the document of an alert; one that cannot be read has the reason as its text."""
    try:
        return read_document(AlertDocument, record)
    except UnreadableValue as error:
        return AlertDocument(rule_id="", rule="", cause=UNREADABLE, text=str(error), since=record.created_at)


def _alert(record: Record, tasks: Mapping[str, Task]) -> Alert:
    document = load_alert(record)
    return record_of(
        Alert,
        record,
        document,
        fired_at=Instant.of(record.created_at),
        resolved_at=None if record.ended_at is None else Instant.of(record.ended_at),
        deliveries=[_delivery(task_id, tasks.get(task_id)) for task_id in document.deliveries],
    )


def _delivery(task_id: str, task: Task | None) -> AlertDelivery:
    if task is None:
        return AlertDelivery(task_id, "pruned", 0, None)
    return AlertDelivery(task_id, task.shown_state, task.attempt, _error(task))


def _error(task: Task) -> str | None:
    return str(decode_error(task.error).get("message") or "") if task.error else None


def resolution(record: Record, document: AlertDocument | None, actor: str | None = None) -> ChangeRecord:
    """Return the row that ends an alert, with a new document if given."""
    text = record.document if document is None else write(document)
    return ChangeRecord(record.id, record.version, text, "resolve", "firing", "resolved", ended=True, actor=actor)


def _for_message(alert_id: str, document: AlertDocument, event: str, now: int) -> dict[str, Json]:
    return {
        "id": alert_id,
        "state": "resolved" if event == RESOLVED else "firing",
        "cause": document.cause,
        "text": document.text,
        "remedy": document.remedy,
        "count": document.count,
        "since": as_text(document.since),
        "resolved_at": as_text(now) if event == RESOLVED else None,
    }


MIN_EVERY_FOR = 1000
_URL_LIMIT = 2000
_OF_CONDITION = {
    "workflow": (RUN_FAILED, BUDGET_SPENT),
    "within": (RUN_FAILED, BUDGET_SPENT),
    "task_list": (DEAD_LETTERS, QUEUE_AGE),
    "over": (DEAD_LETTERS,),
    "age": (QUEUE_AGE,),
    "code": (PROBLEM,),
}
"""Options that only some conditions have."""


def make_document(options: Mapping[str, Any]) -> AlertRuleDocument:
    """Return the document of a new rule; checks each option."""
    check_options(options, AlertOptions, "An alert rule", "when='run_failed'")
    when = options.get("when")
    if when not in CONDITIONS:
        raise InvalidAlert(f"when must be one of {', '.join(CONDITIONS)}, not {shown(when)}.")
    for name, conditions in _OF_CONDITION.items():
        if name in options and when not in conditions:
            raise InvalidAlert(f"{name} is an option of {' and '.join(conditions)}, not of {when}.")
    over = options.get("over", 0)
    if isinstance(over, bool) or not isinstance(over, int) or over < 0:
        raise InvalidAlert(f"over must be a whole number, zero or more, not {shown(over)}.")
    every_for = milliseconds(options.get("every", EVERY_FOR / 1000), "every", positive=True)
    if every_for < MIN_EVERY_FOR:
        raise InvalidAlert(f"The shortest interval between two evaluations is one second, not {every_for} ms.")
    within_for = milliseconds(options.get("within", WITHIN_FOR / 1000), "within", positive=True)
    lasts_for = milliseconds(options.get("lasts", 0), "lasts")
    if when in _OF_CONDITION["within"] and lasts_for and within_for < (needed := lasts_for + 2 * every_for):
        raise InvalidAlert(
            f"A failure counts for {within_for / 1000:g} s (within), too short for lasts and two evaluations: a single one might "
            f"never fire. Set within to at least {needed / 1000:g} s, or lasts to less."
        )
    return AlertRuleDocument(
        when=when,
        to=check_target(options.get("to")),
        workflow=check_pattern(options["workflow"], "workflow name") if "workflow" in options else None,
        task_list=check_name(options["task_list"], "task list") if "task_list" in options else None,
        code=check_pattern(options["code"], "problem code") if "code" in options else None,
        over=over,
        age_for=milliseconds(options.get("age", AGE_FOR / 1000), "age", positive=True),
        within_for=within_for,
        lasts_for=lasts_for,
        repeat_for=milliseconds(options["repeat"], "repeat", positive=True) if "repeat" in options else None,
        resolved=bool(options.get("resolved", True)),
        every_for=every_for,
    )


def edit_document(document: AlertRuleDocument, changes: Mapping[str, Any]) -> AlertRuleDocument:
    """Return the document with changed options; its condition stays, and so do its causes and its silence."""
    if not document.to:
        raise InvalidAlert("The alert rule cannot be read: remove it, and create another.")
    if changes.get("when", document.when) != document.when:
        raise InvalidAlert(f"The condition of a rule stays ({document.when}): remove the rule and add another.")
    durations = {"age": document.age_for, "within": document.within_for, "lasts": document.lasts_for, "every": document.every_for}
    before: dict[str, Any] = {name: value / 1000 for name, value in durations.items()}
    before |= {name: getattr(document, name) for name in ("when", "to", "workflow", "task_list", "code", "over", "resolved")}
    before["repeat"] = None if document.repeat_for is None else document.repeat_for / 1000
    options = {
        name: value
        for name, value in before.items()
        if value is not None and document.when in _OF_CONDITION.get(name, (document.when,))
    }
    return msgspec.structs.replace(
        make_document(options | dict(changes)), causes=document.causes, silenced_until=document.silenced_until, more=document.more
    )


def check_target(to: Any) -> str:
    """Return the target, or raise `InvalidAlert`: an http or https URL without a user, or the name of a variable."""
    if isinstance(to, str) and re.fullmatch(f"{VARIABLE}[A-Z0-9_]+", to):
        return to
    if not isinstance(to, str) or not is_web_url(to) or "@" in urlsplit(to).netloc or len(to) > _URL_LIMIT:
        raise InvalidAlert(  # it may contain a secret: do not repeat it
            "The target `to` must be an http or https URL without a password, or the name of an environment variable of the "
            f"workers that begins with {VARIABLE}; put URLs of mail and chat (Apprise) and other secrets into such a variable."
        )
    return to
