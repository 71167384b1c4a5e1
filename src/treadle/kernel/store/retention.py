"""Retention: what has ended is kept for a while, then its whole tree is removed, a few hundred rows to a transaction.

A tree is everything with one `root_id`: a task alone, or a run with its steps, tasks, moves, lines, records and big values. It is
never cut while anything in it is live, and it goes only when everything in it is past its time. One pass walks the ends
in the order in which they came, each once, and stops where nothing can be old enough. It is a task like all others
(`engine.prune`, one per namespace, waiting an hour between passes), and can be asked for at any time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Pruned, Rules
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import InvalidInput, NotFound, Refused
from treadle.model.ids import parse_id
from treadle.model.lists import TaskList
from treadle.model.names import DEFAULT_NAMESPACE, ENGINE_LIST, PRUNE, Lane, check_name
from treadle.model.tasks import NewTask

PRUNE_EVERY_FOR = 3_600_000
"""Milliseconds between two passes."""

FIRST_PRUNE_FOR = 300_000
"""Milliseconds until the first one: who starts a worker has other things to do."""

DAY_FOR = 86_400_000
KEEP_COMPLETED_FOR = 30 * DAY_FOR
KEEP_FAILED_FOR = 90 * DAY_FOR
KEEP_SERVERS_FOR = 7 * DAY_FOR
KEEP_RECORDS_FOR = 30 * DAY_FOR
"""For records of no tree, such as removed schedules."""

WINDOW = 1000
"""Ends that one look takes in."""

ROWS = 1000
"""Rows that one transaction removes, about: what others wait for meanwhile."""

TRANSACTIONS, GROUP = 20, 100
"""A step of a pass ends after so many transactions, and takes so many trees at once.

Those that were begun are finished, however big: what a tree's last transaction removes is found by its root alone.
"""

START, TIDY = "start", "tidy"
"""Where a step may go on, beside the store's own cursors: at the beginning again, and with what belongs to no tree."""

_CURSOR = re.compile(r"start|tidy|[0-9]{1,18}|run:|run:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Progress = Callable[["PruneReport"], None]


@dataclass(slots=True)
class PruneReport:
    """What a pass removed, or would; `freed` are bytes given back to the file system."""

    trees: int = 0
    tasks: int = 0
    runs: int = 0
    steps: int = 0
    moves: int = 0
    lines: int = 0
    blobs: int = 0
    records: int = 0
    outcomes: int = 0
    dedupe_keys: int = 0
    servers: int = 0
    freed: int = 0
    dry_run: bool = False

    def add(self, pruned: Pruned | PruneReport) -> None:
        """Count what a transaction, or a step, removed."""
        for field in fields(pruned):
            if field.name not in ("more", "dry_run"):
                setattr(self, field.name, getattr(self, field.name) + getattr(pruned, field.name))


class Retention:
    """Prunes one namespace; lists' own rules win over the defaults given here."""

    def __init__(
        self,
        store: Store,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        keep_completed_for: int = KEEP_COMPLETED_FOR,
        keep_failed_for: int = KEEP_FAILED_FOR,
    ) -> None:
        self._store = store
        self._namespace = namespace
        self.rules = Rules(namespace, keep_completed_for, keep_failed_for)

    async def prune(
        self, *, older_than: Duration | None = None, dry_run: bool = False, progress: Progress = lambda report: None
    ) -> PruneReport:
        """One pass; with `older_than`, by that age instead of the default rules (lists' own rules still win).

        A dry run counts the trees and the finished tasks that would go, and changes nothing.
        """
        report = PruneReport(dry_run=dry_run)
        after: str | None = START
        while after is not None:
            part, after = await self._step(older_than, dry_run, after, WINDOW)
            report.add(part)
            progress(report)
        return report

    async def prune_some(
        self, *, older_than: Duration | None = None, dry_run: bool = False, after: str = START
    ) -> tuple[PruneReport, str | None]:
        """One bounded step of a pass: what it removed, and where the next begins; None when that was all."""
        if _CURSOR.fullmatch(after) is None:
            raise InvalidInput(f"{after!r} is not where a pass stands: give what the step before answered.")
        return await self._step(older_than, dry_run, after, GROUP)

    async def _step(self, older_than: Duration | None, dry_run: bool, after: str, group: int) -> tuple[PruneReport, str | None]:
        rules = self.rules
        if older_than is not None:
            age = milliseconds(older_than, "older_than")
            rules = Rules(self._namespace, age, age)
        report = PruneReport(dry_run=dry_run)
        if after == TIDY:
            return report, TIDY if not dry_run and await self._tidy(report) else None
        page = await self._store.find_prunable(rules, None if after == START else after, WINDOW, count=dry_run)
        if dry_run:
            report.trees, report.tasks = page.trees, page.tasks
            return report, page.cursor
        used = 0
        for at in range(0, len(page.roots), group):
            if used >= TRANSACTIONS:
                return report, after  # the others are found again
            used += await self._remove(rules, page.roots[at : at + group], report)
        return report, TIDY if page.cursor is None else page.cursor

    async def keep(
        self, task_list: str, *, completed: Duration | None = None, failed: Duration | None = None
    ) -> tuple[int | None, int | None]:
        """From now on keep what ends in the list for so long; None means as the defaults say. The same in milliseconds."""
        completed_for = None if completed is None else milliseconds(completed, "completed")
        failed_for = None if failed is None else milliseconds(failed, "failed")
        await self._store.set_keep(self._namespace, check_name(task_list, "task list"), completed_for, failed_for)
        return completed_for, failed_for

    async def keeps(self) -> list[TaskList]:
        """The lists of the namespace that have rules of their own."""
        return [
            each
            for each in await self._store.list_lists()
            if each.namespace == self._namespace and (each.keep_completed_for, each.keep_failed_for) != (None, None)
        ]

    async def prune_tree(self, member_id: str) -> PruneReport:
        """Remove the tree of a task or run now, however young it is.

        `Refused`, and nothing is changed, while anything in it is live, or the rule of its list keeps it.
        """
        member_id = parse_id(member_id)
        member = await self._store.find_run(member_id) or await self._store.find_task(member_id)
        if member is None or member.namespace != self._namespace:
            raise NotFound(f"There is no task or run {member_id}. It may have been pruned already.")
        report = PruneReport()
        await self._remove(Rules(self._namespace, 0, 0), (member.root_id,), report)
        if not report.trees:
            raise Refused(f"The tree {member.root_id} was not pruned: something in it is live, or the rule of its list keeps it.")
        return report

    async def _remove(self, rules: Rules, roots: tuple[str, ...], report: PruneReport) -> int:
        """Remove the trees; how many transactions that took."""
        for used in itertools.count(1):
            pruned = await self._store.prune_trees(rules, roots, ROWS)
            report.add(pruned)
            if not pruned.more or not pruned.tasks + pruned.steps + pruned.lines + pruned.records + pruned.outcomes:
                return used
        raise AssertionError("unreachable")

    async def _tidy(self, report: PruneReport) -> bool:
        """What belongs to no tree: old keys, servers and records; then space is given back. A little at a time: is there more?"""
        for _ in range(TRANSACTIONS):
            keys, servers, records = await self._store.prune_rest(ROWS, KEEP_SERVERS_FOR, KEEP_RECORDS_FOR)
            report.dedupe_keys += keys
            report.servers += servers
            report.records += records
            if max(keys, records) < ROWS:
                break
        else:
            return True
        for _ in range(TRANSACTIONS):
            freed = await self._store.compact()
            report.freed += freed
            if not freed:
                return False
        return True

    def task(self, task_id: str) -> NewTask:
        """The task that prunes from now on, if there is none yet."""
        lane = Lane(self._namespace, PRUNE, ENGINE_LIST, PRUNE)
        return NewTask(id=task_id, lane=lane, unique_key=PRUNE, priority=1_000_000, delay=FIRST_PRUNE_FOR)
