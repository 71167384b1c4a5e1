"""The turns of a rule's task: find the causes, decide, and commit alerts and messages together with the task.

An alert and the task that sends its message are stored in one commit under the claim of the evaluation: a crash leaves both or
neither. The task of the message is retried by itself and has an id of its own, by which the receiver recognises a repetition.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.kernel.alerts.decide import Decided, Found, decide
from treadle.kernel.alerts.reads import AlertReads, Causes
from treadle.kernel.alerts.service import Alerts, load_alert, resolution
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import ChangeRecord, PutRecord
from treadle.kernel.store.units import Answer, Finish, Park, Row, Unit, Verdict
from treadle.kernel.triggers.service import ACTIVE
from treadle.model.alerts import FIRING, RESOLVED, AlertBody, AlertRuleBody
from treadle.model.ids import Ids
from treadle.model.records import Record
from treadle.model.states import ALERT, TaskState
from treadle.model.stored import write
from treadle.model.tasks import NewTask, Task
from treadle.model.values import decode, encode

OVERLAP_FOR = 10_000
"""An evaluation also finds runs that ended this long before the last one: their commits may have taken as long."""

DELIVERIES = 10
"""Number of messages that an alert remembers."""


class AlertEvaluator:
    """Evaluates rules. One is enough for all of them, and any number may run concurrently."""

    def __init__(self, store: Store, committer: Committer, alerts: Alerts, reads: AlertReads, ids: Ids, *, namespace: str) -> None:
        self._store = store
        self._committer = committer
        self._alerts = alerts
        self._reads = reads
        self._ids = ids
        self._namespace = namespace

    async def evaluate(self, task: Task) -> Answer:
        """Evaluate the rule of a claimed task once, and leave the task for the next evaluation."""
        answer = await self._evaluate(task)
        while answer.verdict is Verdict.DEFERRED:  # the record changed concurrently
            answer = await self._evaluate(task)
        return answer

    async def _evaluate(self, task: Task) -> Answer:
        record = await self._store.records.find(decode(task.payload)["alert_rule_id"])
        if record is None or record.state != ACTIVE or record.task_id != task.id:
            note = encode({"note": "the alert rule has another task now"})
            return await self._commit(Unit(task.claim, Finish("succeed", TaskState.COMPLETED, result=note)))
        body = self._alerts.load(record)
        now = await self._store.now()
        # an evaluation may be late, because no worker ran: look back as far as the last one
        last_at = now if task.checkpoint is None else decode(task.checkpoint)["at"]
        since = min(now - body.within_for, last_at - OVERLAP_FOR)
        found = await self._reads.find(body, since)
        decided = decide(body, found, now)
        rows, tasks = await self._write(record, body, decided, found, now)
        done = encode({"at": now})
        park = Park("wait", TaskState.PENDING, task.attempt, 0, 0, delay=body.every_for, checkpoint=done, quiet=True)
        return await self._commit(Unit(task.claim, park, tasks, rows=rows))

    async def _write(
        self, rule: Record, body: AlertRuleBody, decided: Decided, found: Causes, now: int
    ) -> tuple[tuple[Row, ...], tuple[NewTask, ...]]:
        """Return the rows of the rule and its alerts, and the tasks of the messages: at most one of each event."""
        causes = dict(decided.causes)
        known: dict[str, Record] = {}
        alerts: dict[str, tuple[str, AlertBody]] = {}
        for cause, old in body.causes.items():
            if old.alert_id and (record := await self._store.records.find(old.alert_id)) is not None:
                known[cause], alerts[cause] = record, (record.id, _updated(load_alert(record), found.get(cause)))
        for cause in decided.fired:
            alert_id = self._ids.new_id()
            causes[cause] = msgspec.structs.replace(causes[cause], alert_id=alert_id)
            what = found[cause]
            made = AlertBody(
                rule_id=rule.id,
                rule=rule.name or "",
                cause=cause,
                text=what.text,
                remedy=what.remedy,
                count=what.count,
                since=causes[cause].since,
            )
            alerts[cause] = (alert_id, made)
        tasks = []
        for event, told in ((FIRING, decided.told), (RESOLVED, decided.resolved_told)):
            if told := tuple(cause for cause in told if cause in alerts):
                task = self._alerts.message(rule, event, now, [alerts[cause] for cause in told], len(told))
                tasks.append(task)
                alerts |= {cause: (alerts[cause][0], _delivered(alerts[cause][1], task.id)) for cause in told}
        rows: list[Row] = []
        if causes != body.causes:
            text = self._alerts.save(msgspec.structs.replace(body, causes=causes))
            rows.append(ChangeRecord(rule.id, rule.version, text))
        rows += [row for cause, alert in alerts.items() if (row := self._row(cause, *alert, known, decided.resolved)) is not None]
        return tuple(rows), tuple(tasks)

    def _row(self, cause: str, alert_id: str, body: AlertBody, known: dict[str, Record], resolved: Sequence[str]) -> Row | None:
        record, text = known.get(cause), write(body)
        if record is None:
            made = Record(id=alert_id, namespace=self._namespace, entity=ALERT.entity, state="firing", body=text)
            return PutRecord(made)
        if cause in resolved:
            return resolution(record, body)
        return ChangeRecord(record.id, record.version, text) if text != record.body else None

    async def _commit(self, unit: Unit) -> Answer:
        reach("alert.before_commit")
        answer = await self._committer.submit(unit)
        reach("alert.after_commit")
        return answer


def _updated(body: AlertBody, found: Found | None) -> AlertBody:
    """The alert in its current words; a cause that is gone keeps its last ones."""
    if found is None:
        return body
    return msgspec.structs.replace(body, text=found.text, remedy=found.remedy, count=found.count)


def _delivered(body: AlertBody, task_id: str) -> AlertBody:
    return msgspec.structs.replace(body, deliveries=(*body.deliveries, task_id)[-DELIVERIES:])
