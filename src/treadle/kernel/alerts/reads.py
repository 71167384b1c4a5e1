"""The causes that exist now for the condition of a rule, by key.

A cause is repaired in one go: the failed runs of one workflow with one error code, one task list, one
schedule, one server. Many failures of one cause are one alert with a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from fnmatch import fnmatchcase

from treadle.kernel.alerts.decide import Found
from treadle.kernel.problems import find_problems
from treadle.kernel.status import Status
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import LATEST_FAILURE, DeadLetterFilter, FailedRun
from treadle.model.alerts import DEAD_LETTERS, RUN_FAILED, SERVER_LOST, TRIGGER_FAILING, AlertRuleBody
from treadle.model.clock import span
from treadle.model.names import handles
from treadle.model.values import decode_object

PAGE, PAGES = 1000, 20
"""One evaluation reads the latest failed runs: up to `PAGES` pages. If there are more, it resolves no cause."""

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
                return await self._failed(body, since)
            case "dead_letters":
                which = DeadLetterFilter(namespace=self._namespace, task_list=body.task_list)
                count, _, _ = await self._store.dead_letters.count(which)
                return _dead(body, count)
            case "queue_age":
                return dict(_old(body, await self._read_status()))
            case _:
                return _problems(body, await self._read_status())

    async def _failed(self, body: AlertRuleBody, since: int) -> Causes:
        counts: Counter[tuple[str, str]] = Counter()
        last: dict[tuple[str, str], FailedRun] = {}
        before = LATEST_FAILURE
        for _ in range(PAGES):
            page = await self._store.runs.list_failed(self._namespace, since, PAGE, before)
            for run in page:
                if body.workflow is not None and not handles((body.workflow,), run.workflow):
                    continue
                code = str(decode_object(run.error).get("code") or "failed") if run.error else "failed"
                if body.when == RUN_FAILED or code == BUDGET_CODE:
                    counts[run.workflow, code] += 1
                    last.setdefault((run.workflow, code), run)
            if len(page) < PAGE:
                break
            before = page[-1]
        more = len(page) == PAGE
        found = {f"{each[0]} {each[1]}": _of_runs(*each, last[each], count, more) for each, count in counts.most_common()}
        return found | {cause: _unseen(cause) for cause in body.causes if more and cause not in found}


def _of_runs(name: str, code: str, last: FailedRun, count: int, more: bool) -> Found:
    message = str(decode_object(last.error).get("message") or "") if last.error else ""
    what = f"1 run of {name} failed" if count == 1 and not more else f"{count}{' or more' * more} runs of {name} failed"
    remedy = f"`treadle runs show {last.id}` shows the last one; `treadle runs retry {last.id}` retries it"
    return Found(f"{what} ({code}): {message[:300]}".rstrip(": "), remedy, count)


def _unseen(cause: str) -> Found:
    """A known cause that may still exist: not all failed runs were read."""
    name, _, code = cause.rpartition(" ")
    text = f"runs of {name} failed ({code}), before the latest {PAGE * PAGES} failed runs"
    return Found(text, f"`treadle runs list --state failed --workflow {name}` lists them")


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
