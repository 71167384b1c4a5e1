"""Metrics: the task that rolls up transitions, and the reads of the roll-ups.

A task (`engine.metrics`, one per namespace) counts new transitions of the whole store every minute, in bounded pages, and
less often while there are none. A page and its position in the log are one unit, which the claim fences and which does nothing if
another namespace's task has counted the page: every transition counts once. On PostgreSQL, a transition may appear after one with
a greater seq (D9), so the roll-ups end where everything is settled. Reads count the transitions after them, so they are complete
at any time. An end that an operator retries before it was counted counts without the duration of its attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from treadle.api.metrics import By, MetricSeries, MetricsPoint, MetricsReport, ReleaseStart
from treadle.api.wire import Instant, record_of
from treadle.kernel.core import Core, Service
from treadle.kernel.metrics.decide import WORKFLOW, Counts, Points, Series, fold, merge, quantiles, rows_of
from treadle.kernel.queue.kinds import is_work
from treadle.kernel.store.metrics import DAY, HOUR, MINUTE, STEPS, MetricFilter
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.units import PutMetrics, Requeue, Unit, UnitAnswer, Verdict
from treadle.model.access import OPEN, Access
from treadle.model.clock import instant, milliseconds
from treadle.model.errors import InvalidInput
from treadle.model.names import ENGINE_LIST, METRICS, QueueKey
from treadle.model.states import TaskState
from treadle.model.tasks import NewTask, Task

KEEP = (2 * DAY, 30 * DAY, 400 * DAY)
EVERY_FOR, BUSY_EVERY_FOR, IDLE_EVERY_FOR = MINUTE, 10_000, 10 * MINUTE
"""Milliseconds until the next roll-up: usually, after a full page, and after one without work or transitions. The waker polls a
third as often while nothing is due within a minute, so an idle store is left alone for longer."""
FIRST_FOR = 3 * MINUTE
"""Milliseconds until the first roll-up of a namespace."""
SETTLE_FOR = 30_000
"""Milliseconds after which nothing appears before a transition: it may get its seq 15 s after its time, and another one that got a
lower seq may live 15 s more."""
PAGE_ROWS = 5_000
"""Transitions in one unit."""
PAGES = 20
"""Units after which a task is settled."""
TAIL_ROWS = 50_000
"""Transitions after the roll-ups that one read counts."""
EVERY = (MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY)
"""The steps of reports."""
POINTS = 168
"""The number of points beyond which a report has the next longer step."""


class Metrics(Service):
    """The metrics of one namespace."""

    def __init__(self, core: Core, keep: Sequence[int] = KEEP) -> None:
        """`keep` has the milliseconds for which roll-ups by minute, hour and day are kept."""
        super().__init__(core)
        self._keep = keep

    def task(self, task_id: str) -> NewTask:
        """Return the task that rolls up transitions, to insert unless it exists."""
        queue = QueueKey(self._namespace, METRICS, ENGINE_LIST, METRICS)
        return NewTask(id=task_id, queue=queue, unique_key=METRICS, priority=1_000_000, delay=FIRST_FOR)

    async def roll_up(self, task: Task) -> UnitAnswer:
        """Count new transitions, and settle the task until the next time."""
        points = await self._depths()
        delay = EVERY_FOR if points else IDLE_EVERY_FOR
        for left in reversed(range(PAGES)):
            after_seq = await self._store.metrics.find_cursor()
            settle_for = 0 if self._store.log.seqs_in_order else SETTLE_FOR
            page = await self._store.metrics.find_page(after_seq, PAGE_ROWS, settle_for)
            full = page.size >= PAGE_ROWS and page.until_seq is not None
            if page.until_seq is not None:
                for key, counts in fold(await self._store.metrics.tally(after_seq, page.until_seq)).items():
                    points.setdefault(key, Counts()).add(counts)
            if page.size:
                delay = EVERY_FOR if page.size < PAGE_ROWS else BUSY_EVERY_FOR
            settlement = None
            if left == 0 or not full:
                settlement = Requeue("wait", TaskState.PENDING, task.attempt, 0, 0, delay=delay, quiet=True)
            now = await self._store.now()
            before = tuple((step_for, now - keep_for) for step_for, keep_for in zip(STEPS, self._keep, strict=True))
            put = PutMetrics(after_seq, page.until_seq or after_seq, tuple(rows_of(points, now, self._keep)), before)
            failpoint("metrics.before_commit")
            answer = await self._committer.submit(Unit(task.claim, settlement, rows=(put,)))
            failpoint("metrics.after_commit")
            if settlement is not None or answer.verdict is not Verdict.DONE:
                return answer
            points = {}
        raise AssertionError("unreachable")

    async def _depths(self) -> Points:
        """Return the depths of queues with work, and the ages of their oldest ready tasks."""
        now = await self._store.now()
        return {
            (now // MINUTE * MINUTE, Series(*depth.queue)): Counts(
                depth=depth.ready, oldest_for=max(now - (depth.oldest_due_at or now), 0)
            )
            for depth in await self._store.tasks.list_depths()
            if depth.ready and is_work(depth.queue.kind)
        }

    async def series(
        self,
        *,
        by: By = "handler",
        last: float | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step: float | None = None,
        name: str | None = None,
        task_list: str | None = None,
        release: str | None = None,
        limit: int = 20,
        access: Access = OPEN,
    ) -> MetricsReport:
        now = await self._store.now()
        until_at = now + 1 if until is None else instant(until, "until")
        since_at = until_at - milliseconds(last or 3600, "last") if since is None else instant(since, "since")
        if not until_at - since_at > 0 or not 1 <= limit <= 1000:
            raise InvalidInput("since must be before until, and limit from 1 to 1,000.")
        every = self._step(since_at, until_at, now, step)
        which = MetricFilter(
            self._namespace,
            since_at // every * every,
            until_at,
            max(stored for stored in STEPS if every % stored == 0),
            every,
            by,
            name,
            access.one_list(task_list),
            release,
        )
        (points, counted_at), releases = await asyncio.gather(self.read(which), self._store.metrics.list_releases(which))
        totals: dict[str, Counts] = {}
        for (_, label), counts in points.items():
            totals.setdefault(label, Counts()).add(counts)
        ranked = sorted(totals, key=lambda label: (-totals[label].finished, label))
        return MetricsReport(
            since_at=Instant.of(which.since),
            until_at=Instant.of(until_at),
            step_for=every,
            by=by,
            counted_at=Instant.of(counted_at),
            series=[
                MetricSeries(
                    label,
                    _point(which.since, totals[label]),
                    [_point(at, counts) for (at, of), counts in sorted(points.items(), key=lambda item: item[0]) if of == label],
                )
                for label in ranked[:limit]
            ],
            releases=[ReleaseStart(release, Instant.of(at)) for release, at in releases],
        )

    def _step(self, since_at: int, until_at: int, now: int, step: float | None) -> int:
        """Return the step of a report: the shortest one with few enough points whose roll-ups are kept."""
        if step is not None:
            if step * 1000 not in EVERY:
                raise InvalidInput(f"step must be one of {', '.join(str(every // 1000) for every in EVERY)} seconds, not {step:g}.")
            return round(step * 1000)
        keep = dict(zip(STEPS, self._keep, strict=True))
        for every in EVERY:
            stored = max(stored for stored in STEPS if every % stored == 0)
            if until_at - since_at <= POINTS * every and since_at >= now - keep[stored]:
                return every
        return DAY

    async def read(self, which: MetricFilter) -> tuple[dict[tuple[int, str], Counts], int]:
        """Return the counts by step and label, and the time up to which they are complete."""
        cursor, after_seq = -1, await self._store.metrics.find_cursor()
        while cursor != after_seq:  # a roll-up between two reads would be counted twice
            cursor = after_seq
            stored = await self._store.metrics.list_matching(which)
            page = await self._store.metrics.find_page(cursor, TAIL_ROWS, 0)
            tail = await self._store.metrics.tally(cursor, page.until_seq) if page.until_seq else []
            after_seq = await self._store.metrics.find_cursor()
        points: dict[tuple[int, str], Counts] = {}
        for at, label, *numbers, durations, waits in stored:
            counts = points[at, label] = Counts(*numbers)
            merge(counts.durations, durations)
            merge(counts.waits, waits)
        for (at, series), counts in fold(tail).items():
            if _matches(which, at, series):
                points.setdefault((at // which.every * which.every, series.label(which.by)), Counts()).add(counts)
        now = await self._store.now()
        return points, page.until_at if page.size >= TAIL_ROWS and page.until_at else now


def _matches(which: MetricFilter, at: int, series: Series) -> bool:
    of_runs = series.kind in (WORKFLOW, "function") if which.by == "workflow" else series.kind != WORKFLOW
    wanted = ((which.name, series.name), (which.task_list, series.task_list), (which.release, series.release))
    return (
        series.namespace == which.namespace
        and which.since <= at < which.until
        and of_runs
        and all(value is None or value == actual for value, actual in wanted)
    )


def _point(at: int, counts: Counts) -> MetricsPoint:
    median_for, p95_for, p99_for = quantiles(counts.durations, 0.5, 0.95, 0.99)
    wait_median_for, wait_p95_for, wait_p99_for = quantiles(counts.waits, 0.5, 0.95, 0.99)
    return record_of(
        MetricsPoint,
        counts,
        at=Instant.of(at),
        median_for=median_for,
        p95_for=p95_for,
        p99_for=p99_for,
        wait_median_for=wait_median_for,
        wait_p95_for=wait_p95_for,
        wait_p99_for=wait_p99_for,
    )
