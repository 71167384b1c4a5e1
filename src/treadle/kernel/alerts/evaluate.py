"""The attempts of a rule's task: find the causes, decide, and commit alerts and messages together with the task.

An alert and the task that sends its message are stored in one commit under the claim of the evaluation: a crash leaves both or
neither. The task of the message is retried by itself and has an id of its own, by which the receiver recognises a repetition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import msgspec

from treadle.kernel.alerts.service import Alerts, load_alert, resolution
from treadle.kernel.core import Core
from treadle.kernel.problems import find_problems
from treadle.kernel.status import SystemStatus
from treadle.kernel.store.queries import LATEST_FAILURE, DeadLetterFilter, FailedRun
from treadle.kernel.store.records import ChangeRecord, PutRecord
from treadle.kernel.store.units import Requeue, Row, Unit, UnitAnswer
from treadle.kernel.triggers import TriggerTasks
from treadle.model.alerts import (
    DEAD_LETTERS,
    FIRING,
    RESOLVED,
    RUN_FAILED,
    TRIGGER_FAILING,
    WORKER_LOST,
    AlertDocument,
    AlertRuleDocument,
    Cause,
)
from treadle.model.clock import span
from treadle.model.names import handles
from treadle.model.records import Record
from treadle.model.states import ALERT, TaskState
from treadle.model.stored import write
from treadle.model.tasks import NewTask, Task
from treadle.model.values import decode, decode_error, encode

OVERLAP_FOR = 10_000
"""An evaluation also finds runs that ended this long before the last one: their commits may have taken as long."""

DELIVERIES = 10
"""Number of messages that an alert remembers."""


class AlertEvaluator(TriggerTasks[Alerts]):
    """Evaluates rules."""

    point = "alert"

    def __init__(self, core: Core, alerts: Alerts, read_status: Callable[[], Awaitable[SystemStatus]]) -> None:
        super().__init__(core, alerts)
        self.read_status = read_status

    async def act(self, record: Record, task: Task) -> UnitAnswer:
        """Evaluate a rule once, and leave its task for the next evaluation."""
        document = self.triggers.load(record)
        now = await self._store.now()
        # an evaluation may be late, because no worker ran: look back as far as the last one
        last_at = now if task.checkpoint is None else decode(task.checkpoint)["at"]
        since = min(now - document.within_for, last_at - OVERLAP_FOR)
        causes = await self.find_causes(document, since)
        decided = decide(document, causes, now)
        rows, tasks = await self._write(record, document, decided, causes, now)
        done = encode({"at": now})
        requeue = Requeue("wait", TaskState.PENDING, task.attempt, 0, 0, delay=document.every_for, checkpoint=done, quiet=True)
        return await self.commit(Unit(task.claim, requeue, tasks, rows=rows))

    async def _write(
        self, rule: Record, document: AlertRuleDocument, decided: Decided, found_causes: Causes, now: int
    ) -> tuple[tuple[Row, ...], tuple[NewTask, ...]]:
        """Return the rows of the rule and its alerts, and the tasks of the messages: at most one of each event."""
        causes = dict(decided.causes)
        records: dict[str, Record] = {}
        alerts: dict[str, tuple[str, AlertDocument]] = {}
        for cause, old in document.causes.items():
            if old.alert_id and (record := await self._store.records.find(old.alert_id)) is not None:
                records[cause], alerts[cause] = record, (record.id, _updated(load_alert(record), found_causes.get(cause)))
        for cause in decided.fired:
            alert_id = self._ids.new_id()
            causes[cause] = msgspec.structs.replace(causes[cause], alert_id=alert_id)
            what = found_causes[cause]
            alert = AlertDocument(
                rule_id=rule.id,
                rule=rule.name or "",
                cause=cause,
                text=what.text,
                remedy=what.remedy,
                count=what.count,
                since=causes[cause].since,
            )
            alerts[cause] = (alert_id, alert)
        tasks = []
        for event, reported in ((FIRING, decided.due), (RESOLVED, decided.resolved_due)):
            if reported := tuple(cause for cause in reported if cause in alerts):
                task = self.triggers.message(rule, event, now, [alerts[cause] for cause in reported], len(reported))
                tasks.append(task)
                alerts |= {cause: (alerts[cause][0], _delivered(alerts[cause][1], task.id)) for cause in reported}
        rows: list[Row] = []
        if causes != document.causes:
            text = self.triggers.save(msgspec.structs.replace(document, causes=causes))
            rows.append(ChangeRecord(rule.id, rule.version, text))
        rows += [row for cause, alert in alerts.items() if (row := self._row(cause, *alert, records, decided.resolved)) is not None]
        return tuple(rows), tuple(tasks)

    def _row(
        self, cause: str, alert_id: str, document: AlertDocument, records: dict[str, Record], resolved: Sequence[str]
    ) -> Row | None:
        record, text = records.get(cause), write(document)
        if record is None:
            alert = Record(id=alert_id, namespace=self._namespace, entity=ALERT.entity, state="firing", document=text)
            return PutRecord(alert)
        if cause in resolved:
            return resolution(record, document)
        return ChangeRecord(record.id, record.version, text) if text != record.document else None

    async def find_causes(self, document: AlertRuleDocument, since: int) -> Causes:
        """Return the causes of the rule's condition; of failed runs, those that ended after `since`."""
        match document.when:
            case "run_failed" | "budget_spent":
                return await self._failed(document, since)
            case "dead_letters":
                which = DeadLetterFilter(namespace=self._namespace, task_list=document.task_list)
                count, _, _ = await self._store.dead_letters.count(which)
                return _dead(document, count)
            case "queue_age":
                return dict(_old(document, await self.read_status()))
            case _:
                return _problems(document, await self.read_status())

    async def _failed(self, document: AlertRuleDocument, since: int) -> Causes:
        counts: Counter[tuple[str, str]] = Counter()
        last: dict[tuple[str, str], FailedRun] = {}
        before = LATEST_FAILURE
        for _ in range(PAGES):
            page = await self._store.runs.list_failed(self._namespace, since, PAGE, before)
            for run in page:
                if document.workflow is not None and not handles((document.workflow,), run.workflow):
                    continue
                code = str(decode_error(run.error).get("code") or "failed") if run.error else "failed"
                if document.when == RUN_FAILED or code == BUDGET_CODE:
                    counts[run.workflow, code] += 1
                    last.setdefault((run.workflow, code), run)
            if len(page) < PAGE:
                break
            before = page[-1]
        more = len(page) == PAGE
        causes = {f"{key[0]} {key[1]}": _of_runs(*key, last[key], count, more) for key, count in counts.most_common()}
        return causes | {cause: _unseen(cause) for cause in document.causes if more and cause not in causes}


def _updated(document: AlertDocument, cause: FoundCause | None) -> AlertDocument:
    """The alert in its current words; a cause that is gone keeps its last ones."""
    if cause is None:
        return document
    return msgspec.structs.replace(document, text=cause.text, remedy=cause.remedy, count=cause.count)


def _delivered(document: AlertDocument, task_id: str) -> AlertDocument:
    return msgspec.structs.replace(document, deliveries=(*document.deliveries, task_id)[-DELIVERIES:])


CAUSES = 100
"""Maximum number of causes that a rule follows at the same time."""


@dataclass(frozen=True, slots=True)
class FoundCause:
    """A cause that exists now, in words; `count` is the number of things that it concerns."""

    text: str
    remedy: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Decided:
    """The consequences of an evaluation: the new causes of the rule, and the causes by verdict."""

    causes: dict[str, Cause]
    fired: tuple[str, ...]
    """Causes of alerts that begin."""
    due: tuple[str, ...]
    """Causes to report: new ones, those that were silenced before, and those whose repetition is due."""
    resolved: tuple[str, ...]
    """Causes of alerts that end."""
    resolved_due: tuple[str, ...]
    """Those of them whose end is reported, because their beginning was."""


def decide(document: AlertRuleDocument, found_causes: Mapping[str, FoundCause], now: int) -> Decided:
    """Compare the known causes with those found now. A fired cause has the alert id "" until its alert is made."""
    silenced = document.silenced_until is not None and now < document.silenced_until
    causes: dict[str, Cause] = {}
    fired, due, resolved = [], [], []
    for cause in dict.fromkeys((*document.causes, *found_causes)):
        previous = document.causes.get(cause)
        if cause not in found_causes:
            assert previous is not None
            if previous.alert_id is None:
                continue  # it did not last
            gone_at = previous.gone_at if previous.gone_at is not None else now
            if now - gone_at >= document.lasts_for:
                resolved.append(cause)
            else:
                causes[cause] = msgspec.structs.replace(previous, gone_at=gone_at)
            continue
        if previous is None and len(causes) >= CAUSES:
            continue
        current = msgspec.structs.replace(previous or Cause(since=now), gone_at=None)
        if current.alert_id is None and now - current.since >= document.lasts_for:
            fired.append(cause)
            current = msgspec.structs.replace(current, alert_id="")
        if current.alert_id is not None and not silenced and _is_due(current, document, now):
            due.append(cause)
            current = msgspec.structs.replace(current, reported_at=now)
        causes[cause] = current
    reported = [
        cause for cause in resolved if document.resolved and not silenced and document.causes[cause].reported_at is not None
    ]
    return Decided(causes, tuple(fired), tuple(due), tuple(resolved), tuple(reported))


def _is_due(cause: Cause, document: AlertRuleDocument, now: int) -> bool:
    if cause.reported_at is None:
        return True
    return document.repeat_for is not None and now - cause.reported_at >= document.repeat_for


PAGE, PAGES = 1000, 20
"""One evaluation reads the latest failed runs: up to `PAGES` pages. If there are more, it resolves no cause."""

BUDGET_CODE = "budget_exhausted"
"""The error of a run whose budget does not allow the next request to a model."""

_CODES = {TRIGGER_FAILING: ("schedule_failing", "watcher_failing"), WORKER_LOST: ("server_lost", "server_error")}

Causes = dict[str, FoundCause]


def _of_runs(name: str, code: str, last: FailedRun, count: int, more: bool) -> FoundCause:
    message = str(decode_error(last.error).get("message") or "") if last.error else ""
    what = f"1 run of {name} failed" if count == 1 and not more else f"{count}{' or more' * more} runs of {name} failed"
    remedy = f"`treadle runs show {last.id}` shows the last one; `treadle runs retry {last.id}` retries it"
    return FoundCause(f"{what} ({code}): {message[:300]}".rstrip(": "), remedy, count)


def _unseen(cause: str) -> FoundCause:
    """A known cause that may still exist: not all failed runs were read."""
    name, _, code = cause.rpartition(" ")
    text = f"runs of {name} failed ({code}), before the latest {PAGE * PAGES} failed runs"
    return FoundCause(text, f"`treadle runs list --state failed --workflow {name}` lists them")


def _dead(document: AlertRuleDocument, count: int) -> Causes:
    if count <= document.over:
        return {}
    of = f" in list {document.task_list}" if document.task_list else ""
    remedy = "`treadle dlq show` groups them by cause; retry or discard them with `treadle dlq retry` or `treadle dlq discard`"
    return {document.task_list or DEAD_LETTERS: FoundCause(f"{count} dead letter{'' if count == 1 else 's'}{of}", remedy, count)}


def _old(document: AlertRuleDocument, status: SystemStatus) -> Iterator[tuple[str, FoundCause]]:
    oldest: dict[str, tuple[int, int]] = {}
    for depth in status.users_depths:
        name = depth.queue.task_list
        if depth.oldest_due_at is not None and document.task_list in (None, name):
            due_at, ready = oldest.get(name, (depth.oldest_due_at, 0))
            oldest[name] = min(due_at, depth.oldest_due_at), ready + depth.ready
    for name, (due_at, ready) in sorted(oldest.items()):
        if status.now - due_at > document.age_for:
            text = (
                f"the oldest of {ready} ready task{'' if ready == 1 else 's'} in list {name} has waited {span(status.now - due_at)}"
            )
            yield name, FoundCause(text, f"`treadle lists desired {name}` estimates how many workers it needs", ready)


def _problems(document: AlertRuleDocument, status: SystemStatus) -> Causes:
    causes: Causes = {}
    for problem in find_problems(status):
        wanted = _CODES.get(document.when, (document.code or "*",))
        if any(fnmatchcase(problem.code, pattern) for pattern in wanted):
            for subject in problem.subjects or [""]:
                cause = f"{problem.code} {subject}".rstrip()
                causes[cause] = FoundCause(problem.text, problem.remedy, max(len(problem.subjects), 1))
    return causes
