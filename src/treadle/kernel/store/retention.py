"""Retention: finished work is kept for a while, then its whole tree is removed, about a thousand rows per transaction.

A tree is everything with one `root_id`: a task alone, or a run with its steps, tasks, transitions, lines, records and large
values. A tree is removed only when nothing in it is live and the retention time of all its parts is over. One pass scans
the ends in order, each once, and stops where nothing can be old enough. A pass is a task like any other (`engine.prune`,
one per namespace, with an hour between passes), and a caller can run one at any time.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter

import msgspec

from treadle.api.store import PruneStep
from treadle.kernel.store.lookups import find_id, is_short
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Pruned, Rules
from treadle.kernel.store.units import Row
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import InvalidInput, NotFound, Refused
from treadle.model.ids import parse_id
from treadle.model.lists import TaskList
from treadle.model.names import DEFAULT_NAMESPACE, ENGINE_LIST, PRUNE, QueueKey, check_name
from treadle.model.tasks import NewTask

PRUNE_EVERY_FOR = 3_600_000
"""Milliseconds between two passes."""

FIRST_PRUNE_FOR = 300_000
"""Milliseconds until the first pass, so that it does not slow down the start of a worker."""

DAY_FOR = 86_400_000
KEEP_COMPLETED_FOR = 30 * DAY_FOR
KEEP_FAILED_FOR = 90 * DAY_FOR
KEEP_SERVERS_FOR = 7 * DAY_FOR
KEEP_RECORDS_FOR = 30 * DAY_FOR
"""For records without a tree, such as removed schedules."""

WINDOW = 1000
"""The number of ends that one page of the scan reads."""

FIRST_WINDOW = 50
"""The number of ends that the first page reads: if the oldest ends are too recent, the scan stops there."""

ROWS = 1000
"""The approximate number of rows that one transaction removes; other writers wait for it."""

TRANSACTIONS, GROUP = 20, 100
"""The number of transactions after which a step of a pass ends, and of trees that it removes together.

A step finishes the trees that it has begun, whatever their size: its last transaction finds rows by the root alone.
"""

START, TIDY = "start", "tidy"
"""Cursors of a step beside the store's own: the beginning of the scan, and the rows that belong to no tree."""

_CURSOR = re.compile(r"start|tidy|[0-9]{1,18}|run:|run:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Retention:
    """Prunes one namespace; the lists' own retention times take precedence over the defaults given here."""

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

    async def prune(self, *, older_than: Duration | None = None, dry_run: bool = False) -> PruneStep:
        """Run one pass; `older_than` replaces the default retention times (the lists' own still take precedence).

        A dry run counts the trees and finished tasks that a pass would remove, and changes nothing.
        """
        removed: Counter[str] = Counter()
        after: str | None = START
        while after is not None:
            after = await self._step(older_than, dry_run, after, WINDOW, removed)
        return _report(removed, dry_run)

    async def prune_some(self, *, older_than: Duration | None = None, dry_run: bool = False, after: str = START) -> PruneStep:
        """Run one bounded step of a pass."""
        if _CURSOR.fullmatch(after) is None:
            raise InvalidInput(f"{after!r} is not a cursor of a pass: give the one that the previous step returned.")
        removed: Counter[str] = Counter()
        next_after = await self._step(older_than, dry_run, after, GROUP, removed)
        return _report(removed, dry_run, next_after)

    async def _step(self, older_than: Duration | None, dry_run: bool, after: str, group: int, removed: Counter[str]) -> str | None:
        """Run one step, and add its counts to those removed; return the cursor of the next step, None at the end."""
        rules = self.rules
        if older_than is not None:
            age = milliseconds(older_than, "older_than")
            rules = Rules(self._namespace, age, age)
        if after == TIDY:
            return TIDY if not dry_run and await self._tidy(removed) else None
        if after == START and not dry_run:
            if older_than is None:
                await self._store.retention.prepare(rules)
            dropped = await self._store.retention.drop_expired(rules, ROWS)
            _add(removed, dropped)
            if dropped.more:
                return START
        cursor = None if after == START else after
        window = WINDOW if cursor else FIRST_WINDOW
        page = await self._store.retention.find_prunable(rules, cursor, window, count=dry_run, patient=older_than is None)
        if dry_run:
            removed.update(trees=page.trees, tasks=page.tasks)
            return page.cursor
        used = 0
        for at in range(0, len(page.roots), group):
            if used >= TRANSACTIONS:
                return after  # the next step finds the others again
            used += await self._remove(rules, page.roots[at : at + group], removed)
        return TIDY if page.cursor is None else page.cursor

    async def keep(
        self, task_list: str, *, completed: Duration | None = None, failed: Duration | None = None, entry: tuple[Row, ...] = ()
    ) -> tuple[int | None, int | None]:
        """Set the list's own retention times; None means the default. Returns them in milliseconds."""
        completed_for = None if completed is None else milliseconds(completed, "completed")
        failed_for = None if failed is None else milliseconds(failed, "failed")
        check_name(task_list, "task list")
        await self._store.retention.set_keep(self._namespace, task_list, completed_for, failed_for, entry)
        return completed_for, failed_for

    async def keeps(self) -> list[TaskList]:
        """Return the lists of the namespace with their own retention times."""
        return [
            task_list
            for task_list in await self._store.operators.list_lists()
            if task_list.namespace == self._namespace and (task_list.keep_completed_for, task_list.keep_failed_for) != (None, None)
        ]

    async def prune_tree(self, member_id: str) -> PruneStep:
        """Remove the tree of a task or run now, regardless of its age.

        Raises `Refused`, and changes nothing, if a part of it is live or its list keeps it.
        """
        if is_short(member_id):
            member_id = await find_id(self._store, self._namespace, "run", member_id)
        member_id = parse_id(member_id)
        member = await self._store.runs.find(member_id) or await self._store.tasks.find(member_id)
        if member is None or member.namespace != self._namespace:
            raise NotFound(f"There is no task or run {member_id}. It may have been pruned already.")
        removed: Counter[str] = Counter()
        await self._remove(Rules(self._namespace, 0, 0), (member.root_id,), removed)
        if not removed["trees"]:
            raise Refused(f"The tree {member.root_id} was not pruned: something in it is live, or the rule of its list keeps it.")
        return _report(removed)

    async def _remove(self, rules: Rules, roots: tuple[str, ...], removed: Counter[str]) -> int:
        """Remove the trees; return the number of transactions."""
        for used in itertools.count(1):
            pruned = await self._store.retention.prune_trees(rules, roots, ROWS)
            _add(removed, pruned)
            if not pruned.more or not pruned.tasks + pruned.steps + pruned.lines + pruned.records + pruned.outcomes + pruned.chunks:
                return used
        raise AssertionError("unreachable")

    async def _tidy(self, removed: Counter[str]) -> bool:
        """Remove old keys, servers and records without a tree, then return free space; return whether there is more."""
        for _ in range(TRANSACTIONS):
            keys, servers, records = await self._store.retention.prune_rest(ROWS, KEEP_SERVERS_FOR, KEEP_RECORDS_FOR)
            removed.update(dedupe_keys=keys, servers=servers, records=records)
            if max(keys, records) < ROWS:
                break
        else:
            return True
        for _ in range(TRANSACTIONS):
            freed = await self._store.retention.compact()
            removed["freed"] += freed
            if not freed:
                return False
        return True

    def task(self, task_id: str) -> NewTask:
        """Return the task that prunes periodically, to insert unless it exists."""
        queue = QueueKey(self._namespace, PRUNE, ENGINE_LIST, PRUNE)
        return NewTask(id=task_id, queue=queue, unique_key=PRUNE, priority=1_000_000, delay=FIRST_PRUNE_FOR)


def _add(removed: Counter[str], pruned: Pruned) -> None:
    removed.update({name: count for name, count in msgspec.structs.asdict(pruned).items() if name != "more"})


def _report(removed: Counter[str], dry_run: bool = False, next_after: str | None = None) -> PruneStep:
    counts = {name: removed[name] for name in PruneStep.__struct_fields__ if name not in ("dry_run", "next_after")}
    return PruneStep(**counts, dry_run=dry_run, next_after=next_after)
