"""Retention: what has ended is kept for a while, then its whole tree is removed, a few hundred rows to a transaction.

A tree is everything with one `root_id`: a task alone, or a run with its steps, tasks, moves, lines, records and big values. It is
never cut while anything in it is live, and it goes only when everything in it is past its time. One pass walks the ends
in the order in which they came, each once, and stops where nothing can be old enough. It is a task like all others
(`engine.prune`, one per namespace, waiting an hour between passes), and can be asked for at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from treadle.kernel.ports import Pruned, Rules, Store
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import NotFound, Refused
from treadle.model.ids import parse_id
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

    def add(self, pruned: Pruned) -> None:
        for field in fields(pruned):
            if field.name != "more":
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
        rules = self.rules
        if older_than is not None:
            age = milliseconds(older_than, "older_than")
            rules = Rules(self._namespace, age, age)
        report = PruneReport(dry_run=dry_run)
        cursor: str | None = None
        while True:
            page = await self._store.find_prunable(rules, cursor, WINDOW, count=dry_run)
            if dry_run:
                report.trees += page.trees
                report.tasks += page.tasks
            elif page.roots:
                await self._remove(rules, page.roots, report)
            progress(report)
            if page.cursor is None:
                break
            cursor = page.cursor
        if not dry_run:
            await self._tidy(report)
        return report

    async def keep(self, task_list: str, *, completed: Duration | None = None, failed: Duration | None = None) -> None:
        """From now on keep what ends in the list for so long; None means as the defaults say."""
        await self._store.set_keep(
            self._namespace,
            check_name(task_list, "task list"),
            None if completed is None else milliseconds(completed, "completed"),
            None if failed is None else milliseconds(failed, "failed"),
        )

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

    async def _remove(self, rules: Rules, roots: tuple[str, ...], report: PruneReport) -> None:
        while True:
            pruned = await self._store.prune_trees(rules, roots, ROWS)
            report.add(pruned)
            if not pruned.more or not pruned.tasks + pruned.steps + pruned.lines + pruned.records + pruned.outcomes:
                return

    async def _tidy(self, report: PruneReport) -> None:
        """What belongs to no tree: old keys, servers and records; then space is given back, a little at a time."""
        while True:
            keys, servers, records = await self._store.prune_rest(ROWS, KEEP_SERVERS_FOR, KEEP_RECORDS_FOR)
            report.dedupe_keys += keys
            report.servers += servers
            report.records += records
            if max(keys, records) < ROWS:
                break
        while freed := await self._store.compact():
            report.freed += freed

    def task(self, task_id: str) -> NewTask:
        """The task that prunes from now on, if there is none yet."""
        lane = Lane(self._namespace, PRUNE, ENGINE_LIST, PRUNE)
        return NewTask(id=task_id, lane=lane, unique_key=PRUNE, priority=1_000_000, wait_for=FIRST_PRUNE_FOR)
