"""Dead letters: permanently failed tasks, grouped by cause, retried and discarded in bulk.

A bulk operation covers the dead letters that existed when it began, in order of failure, a few hundred per commit. A task that
fails again meanwhile has a greater seq and is not visited twice; one changed by someone else meanwhile is skipped. The
operation can be stopped at any time and started again.
"""

from __future__ import annotations

import asyncio
import builtins
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Unpack

from msgspec.structs import replace

from treadle.api import dead_letters as api
from treadle.api.dead_letters import (
    BATCH,
    DeadLetterConditions,
    DeadLetterDetail,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterPage,
    DeadLettersApi,
    DeadLettersChanged,
)
from treadle.api.wire import record_of
from treadle.kernel.core import Core, Service
from treadle.kernel.queue.service import Queue
from treadle.kernel.reads.service import Reads
from treadle.kernel.store.lookups import check_limit, find_id
from treadle.kernel.store.queries import DeadLetterFilter, DeadLetterRef
from treadle.kernel.store.units import Discard, PutBlob, Settlement, Unit, Verdict
from treadle.kernel.store.value_store import ValueLost
from treadle.kernel.tasks.records import TaskRecords
from treadle.model.access import OPEN, Access
from treadle.model.errors import Contended, IllegalTransition, InvalidInput, NotFound, Refused, TaskNotFound, UnreadableValue
from treadle.model.ids import Ref
from treadle.model.states import TASK, TaskState
from treadle.model.values import Json, decode_error

PASSED_OVER = (Contended, IllegalTransition, InvalidInput, NotFound, Refused, UnreadableValue, ValueLost)
"""Errors of one dead letter or its run, which do not stop a bulk operation."""

_BATCH_SIZE = 8 * 1024 * 1024

RetryRun = Callable[[str, str], Awaitable[object]]
"""Retries everything that failed in a run, for an actor."""

_LAST_SEQ = 2**63 - 1


class DeadLetters(Service, DeadLettersApi):
    """The dead letters of one namespace."""

    def __init__(self, core: Core, queue: Queue, reads: Reads, records: TaskRecords, retry_run: RetryRun) -> None:
        super().__init__(core)
        self._queue = queue
        self._reads = reads
        self._records = records
        self._retry_run = retry_run

    async def filter(
        self, *, access: Access = OPEN, at: int | None = None, **which: Unpack[DeadLetterConditions]
    ) -> DeadLetterFilter:
        """Build a filter for this namespace; ages are in seconds since the failure, as of now or `at`."""
        older_than, newer_than = which.get("older_than"), which.get("newer_than")
        for age, what in ((older_than, "older_than"), (newer_than, "newer_than")):
            if age is not None and not 0 <= age < 10**9:
                raise InvalidInput(f"{what} must be an age in seconds, zero or more, not {age}.")
        if at is None and (older_than is not None or newer_than is not None):
            at = await self._store.now()
        return DeadLetterFilter(
            namespace=self._namespace,
            task_list=access.one_list(which.get("task_list")),
            name=which.get("name"),
            error_code=which.get("error_code"),
            fingerprint=which.get("fingerprint"),
            failed_before=None if older_than is None else (at or 0) - round(older_than * 1000) + 1,
            failed_after=None if newer_than is None else (at or 0) - round(newer_than * 1000),
        )

    async def list(
        self,
        *,
        limit: int = 50,
        before: int | None = None,
        access: Access = OPEN,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLetterPage:
        chosen = await self.filter(access=access, **which)
        if before is not None:
            if not 0 <= before <= _LAST_SEQ:
                raise InvalidInput(f"before must be the next_before of the previous page, not {before}.")
            chosen = replace(chosen, until_seq=before - 1)
        check_limit(limit)
        tasks = await self._store.dead_letters.list_newest(chosen, limit)
        letters = [self._records.show(api.DeadLetter, task) for task in tasks]
        return DeadLetterPage(letters, tasks[-1].seq if len(tasks) == limit else None)

    async def groups(
        self,
        *,
        limit: int = 50,
        access: Access = OPEN,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLetterGroups:
        check_limit(limit)
        groups = await self._store.dead_letters.group(await self.filter(access=access, **which), limit)
        errors = {
            task.id: task.error for task in await self._store.tasks.find_many([group.last_id for group in groups], ended=True)
        }
        releases = await self._reads.list_releases()
        return DeadLetterGroups(
            [
                record_of(
                    DeadLetterGroup,
                    group,
                    since_release=releases.get(group.first_owner_id),
                    error=decode_error(errors.get(group.last_id)) or None,
                )
                for group in groups
            ]
        )

    async def get(self, task_id: str, *, access: Access = OPEN) -> DeadLetterDetail:
        task = await self._records.find(task_id, access)
        if task.state != TaskState.FAILED or task.fingerprint == "":  # a catch handled it, or its run was retried
            raise TaskNotFound(task_id, "dead letter")
        return await self._records.detail(task, DeadLetterDetail)

    async def retry(
        self,
        *,
        ids: Sequence[str] = (),
        everything: bool = False,
        payload: dict[str, Json] | None = None,
        dry_run: bool = False,
        limit: int = BATCH,
        after: str | None = None,
        actor: str = "operator",
        access: Access = OPEN,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLettersChanged:
        _check_choice(ids, which, everything)
        if ids:
            return await self._each(ids, dry_run, partial(self.retry_one, actor=actor, payload=payload), access)
        edited = payload is not None
        if dry_run:
            matched, of_runs, _ = await self._count(await self.filter(access=access, **which), refuse_runs=edited)
            skipped = of_runs if edited else 0
            return DeadLettersChanged(matched, matched - skipped, of_runs - skipped, skipped, dry_run=True, next_after=None)
        size = sum(len(blob.value) for blob in self._queue.pack(payload, "")[1]) if edited else 0
        limit = min(limit, max(_BATCH_SIZE // size, 1)) if size else limit

        def redriven(dead_letter: DeadLetterRef) -> tuple[Settlement, tuple[PutBlob, ...]] | None:
            if dead_letter.run_id is not None:
                return None
            text, blobs = self._queue.pack(payload, dead_letter.root_id) if edited else (None, ())
            return self._queue.redriven(actor, text), blobs

        return await self._walk(which, after, access, limit, redriven, None if edited else actor, refuse_runs=edited)

    async def discard(
        self,
        *,
        ids: Sequence[str] = (),
        everything: bool = False,
        dry_run: bool = False,
        limit: int = BATCH,
        after: str | None = None,
        actor: str = "operator",
        access: Access = OPEN,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLettersChanged:
        _check_choice(ids, which, everything)
        if ids:
            return await self._each(ids, dry_run, partial(self._queue.discard, actor=actor), access)
        if dry_run:
            matched, _, _ = await self._count(await self.filter(access=access, **which))
            return DeadLettersChanged(matched, matched, of_runs=0, passed_over=0, dry_run=True, next_after=None)
        discarded = Discard("discard", TASK.transitions[TaskState.FAILED, "discard"], actor)
        return await self._walk(which, after, access, limit, lambda _: (discarded, ()))

    async def _each(
        self, ids: Sequence[str], dry_run: bool, act: Callable[[str], Awaitable[object]], access: Access
    ) -> DeadLettersChanged:
        """Apply the action to tasks by id, after all of them were found; raise the last error only if it was applied to none."""
        if len(ids) > BATCH:
            raise InvalidInput(f"One call may name at most {BATCH} tasks, not {len(ids)}.")
        tasks = [await self._records.find(task_id, access) for task_id in dict.fromkeys(ids)]
        of_runs: set[str] = set()
        errors: builtins.list[Exception] = []
        for task in tasks if not dry_run else ():
            try:
                if task.run_id not in of_runs and await act(task.id) is True:
                    of_runs.add(task.run_id or "")
            except PASSED_OVER as error:
                errors.append(error)
        done = len(tasks) - len(errors)
        if errors and not done:
            raise errors[-1]
        redriven = sum(task.run_id in of_runs for task in tasks)
        return DeadLettersChanged(len(tasks), done, redriven, len(errors), dry_run, next_after=None)

    async def _walk(
        self,
        which: DeadLetterConditions,
        after: str | None,
        access: Access,
        limit: int,
        decide: Callable[[DeadLetterRef], tuple[Settlement, tuple[PutBlob, ...]] | None],
        runs_for: str | None = None,
        *,
        refuse_runs: bool = False,
    ) -> DeadLettersChanged:
        """Process the next batch of an operation, which begins without `after`; ages are counted from the first call.

        The runs of those that are not decided are retried for the actor `runs_for`, or skipped.
        """
        check_limit(limit, BATCH)
        if after is not None:
            at, after_seq, until_seq, matched = _read_cursor(after)
            todo = replace(await self.filter(access=access, at=at, **which), after_seq=after_seq, until_seq=until_seq)
        else:
            at = await self._store.now()
            todo = await self.filter(access=access, at=at, **which)
            matched, _, last_seq = await self._count(todo, refuse_runs=refuse_runs)
            todo = replace(todo, until_seq=last_seq)
        letters = await self._store.dead_letters.walk(todo, limit)
        decided = [(letter, decide(letter)) for letter in letters]
        units = [Unit(letter.seen, what[0], rows=what[1]) for letter, what in decided if what is not None]
        answers = await asyncio.gather(*[self._committer.submit(unit, self._patience) for unit in units])
        of_runs = 0
        run_ids = Counter(letter.run_id or "" for letter, what in decided if what is None)
        for run_id, count in run_ids.items() if runs_for is not None else ():
            with suppress(*PASSED_OVER):
                await self._retry_run(run_id, runs_for or "")
                of_runs += count
        done = sum(answer.verdict is Verdict.DONE for answer in answers) + of_runs
        cursor = f"{at}.{letters[-1].seq}.{todo.until_seq}.{matched}" if len(letters) == limit else None
        return DeadLettersChanged(matched, done, of_runs, len(letters) - done, dry_run=False, next_after=cursor)

    async def retry_one(self, task_id: Ref, *, actor: str = "operator", payload: Json = None) -> bool:
        """Retry one task as `retry` does; returns whether its run was retried."""
        task_id = await find_id(self._store, self._namespace, "task", task_id)
        task = await self._store.tasks.find(task_id)
        if task is None or task.run_id is None or task.state != TaskState.FAILED or payload is not None:
            await self._queue.retry(task_id, actor=actor, payload=payload)
            return False
        await self._retry_run(task.run_id, actor)
        return True

    async def _count(self, which: DeadLetterFilter, *, refuse_runs: bool = False) -> tuple[int, int, int]:
        matched, of_runs, last_seq = await self._store.dead_letters.count(which)
        if not matched:
            raise NotFound(
                "No dead letter matches; nothing was changed. `treadle dlq show` lists the groups.", code="nothing_matches"
            )
        if refuse_runs and of_runs == matched:
            raise Refused(f"All {matched} belong to runs, which keep their inputs: retry them without another payload.")
        return matched, of_runs, last_seq


def _check_choice(ids: Sequence[str], which: DeadLetterConditions, everything: bool) -> None:
    if sum((bool(ids), any(condition is not None for condition in which.values()), everything)) != 1:
        raise InvalidInput("Give ids, a filter (name, task_list, error_code, fingerprint, older_than, newer_than), or everything.")


def _read_cursor(after: str) -> tuple[int, int, int, int]:
    parts = after.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in parts):
        raise InvalidInput(f"after must be the next_after of the previous call, not {after!r}.")
    at, after_seq, until_seq, matched = map(int, parts)
    return at, after_seq, until_seq, matched
