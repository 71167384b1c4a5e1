"""The causes that exist now for the condition of a rule, by key.

A cause is what an operator would repair in one go: the failed runs of one workflow with one error code, one task list, one
schedule, one server. Many failures of one cause are one alert with a count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from fnmatch import fnmatchcase

from treadle.kernel.alerts.decide import CAUSES, Found
from treadle.kernel.problems import find_problems
from treadle.kernel.status import Status
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import DeadLetterFilter, FailedRun
from treadle.model.alerts import DEAD_LETTERS, RUN_FAILED, SERVER_LOST, TRIGGER_FAILING, AlertRuleBody
from treadle.model.clock import span
from treadle.model.names import handles
from treadle.model.values import decode_object

RUNS = 1000
"""Limit on the failed runs that one evaluation reads; the count of an alert says "1000 or more" then."""

BUDGET_CODE = "budget_exhausted"
"""The error of a run whose budget does not allow the next request to a model."""

_CODES = {TRIGGER_FAILING: ("schedule_failing", "watcher_failing"), SERVER_LOST: ("server_lost", "server_error")}

Causes = dict[str, Found]


class AlertReads:
    """Finds the causes of rules in one namespace."""

    def __init__(self, store: Store, read_status: Callable[[], Awaitable[Status]], *, namespace: str) -> None:
        self._store = store
        self._read_status = read_status
        self._namespace = namespace

    async def find(self, body: AlertRuleBody, since: int) -> Causes:
        """Return the causes of the rule's condition; of failed runs, those that ended after `since`."""
        match body.when:
            case "run_failed" | "budget_spent":
                return self._failed(body, await self._store.list_failed_runs(self._namespace, since, RUNS))
            case "dead_letters":
                which = DeadLetterFilter(namespace=self._namespace, task_list=body.task_list)
                count, _, _ = await self._store.count_dead_letters(which)
                return _dead(body, count)
            case "queue_age":
                return dict(_old(body, await self._read_status()))
            case _:
                return _problems(body, await self._read_status())

    @staticmethod
    def _failed(body: AlertRuleBody, runs: list[FailedRun]) -> Causes:
        groups: dict[tuple[str, str], list[FailedRun]] = defaultdict(list)
        for run in runs:
            code = str(decode_object(run.error).get("code") or "failed") if run.error else "failed"
            if body.workflow is not None and not handles((body.workflow,), run.workflow):
                continue
            if body.when == RUN_FAILED or code == BUDGET_CODE:
                groups[run.workflow, code].append(run)
        largest = sorted(groups.items(), key=lambda group: -len(group[1]))[:CAUSES]
        return {f"{name} {code}": _of_runs(name, code, members, len(runs) == RUNS) for (name, code), members in largest}


def _of_runs(name: str, code: str, runs: list[FailedRun], more: bool) -> Found:
    last, count = runs[0], f"{len(runs)}{' or more' if more else ''}"
    message = str(decode_object(last.error).get("message") or "") if last.error else ""
    what = f"1 run of {name} failed" if len(runs) == 1 and not more else f"{count} runs of {name} failed"
    remedy = f"`treadle runs show {last.id}` shows the last one; `treadle runs retry {last.id}` retries it"
    return Found(f"{what} ({code}): {message[:300]}".rstrip(": "), remedy, len(runs))


def _dead(body: AlertRuleBody, count: int) -> Causes:
    if count <= body.over:
        return {}
    of = f" in list {body.task_list}" if body.task_list else ""
    remedy = "`treadle dlq show` groups them by cause; retry or discard them with `treadle dlq retry` or `treadle dlq discard`"
    return {body.task_list or DEAD_LETTERS: Found(f"{count} dead letter{'' if count == 1 else 's'}{of}", remedy, count)}


def _old(body: AlertRuleBody, status: Status) -> Iterator[tuple[str, Found]]:
    oldest: dict[str, tuple[int, int]] = {}
    for depth in status.users_depths:
        name = depth.lane.task_list
        if depth.oldest_due_at is not None and body.task_list in (None, name):
            due_at, ready = oldest.get(name, (depth.oldest_due_at, 0))
            oldest[name] = min(due_at, depth.oldest_due_at), ready + depth.ready
    for name, (due_at, ready) in sorted(oldest.items()):
        if status.now - due_at > body.age_for:
            text = (
                f"the oldest of {ready} ready task{'' if ready == 1 else 's'} in list {name} has waited {span(status.now - due_at)}"
            )
            yield name, Found(text, f"`treadle lists desired {name}` estimates how many workers it needs", ready)


def _problems(body: AlertRuleBody, status: Status) -> Causes:
    found: Causes = {}
    for problem in find_problems(status):
        wanted = _CODES.get(body.when, (body.code or "*",))
        if any(fnmatchcase(problem.code, each) for each in wanted):
            for subject in problem.subjects or [""]:
                cause = f"{problem.code} {subject}".rstrip()
                found[cause] = Found(problem.text, problem.remedy, max(len(problem.subjects), 1))
    return found
