"""Dead letters: permanently failed tasks, grouped by cause, retried and discarded in bulk.

A bulk operation covers the dead letters that existed when it began, in order of failure, a few hundred per commit. A task that
fails again meanwhile has a greater seq and is not visited twice; one changed by someone else meanwhile is skipped. The
operation can be stopped at any time and started again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from treadle.kernel.queue.service import PATIENCE, Queue
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.pages import check_limit
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import DeadLetter, DeadLetterFilter, DeadLetterGroup
from treadle.kernel.store.short_ids import find_id
from treadle.kernel.store.units import Amend, PutBlob, Revive, Settlement, Unit, Verdict
from treadle.kernel.store.value_store import ValueLost
from treadle.model.errors import Contended, IllegalMove, InvalidInput, NotFound, NothingMatches, Refused, UnreadableValue
from treadle.model.ids import Ref
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.states import TASK, TaskState
from treadle.model.tasks import Task
from treadle.model.values import Json

BATCH = 500
"""Limit on the dead letters of one commit."""

PASSED_OVER = (Contended, IllegalMove, InvalidInput, NotFound, Refused, UnreadableValue, ValueLost)
"""Errors of one dead letter or its run, which do not stop a bulk operation."""

_BATCH_SIZE = 8 * 1024 * 1024

RetryRun = Callable[[str, str], Awaitable[object]]
"""Retries everything that failed in a run, for an actor."""

Progress = Callable[[int, int], None]
"""Called after each batch with the number done and the total."""


class Bulk(msgspec.Struct, frozen=True):
    """Counts of a bulk operation (with `dry_run`, of its preview).

    `of_runs` of those done belong to runs, which were retried as a whole. `passed_over` were skipped: changed by someone else
    meanwhile, or their run cannot be retried, or not with another payload.
    """

    matched: int
    done: int = 0
    of_runs: int = 0
    passed_over: int = 0
    dry_run: bool = False

    def __add__(self, other: Bulk) -> Bulk:
        return Bulk(
            self.matched + other.matched,
            self.done + other.done,
            self.of_runs + other.of_runs,
            self.passed_over + other.passed_over,
            self.dry_run,
        )


class Walk(msgspec.Struct, frozen=True):
    """The remaining part of a bulk operation; `matched` is the total."""

    todo: DeadLetterFilter
    matched: int


class DeadLetters:
    """The dead letters of one namespace."""

    def __init__(
        self, store: Store, committer: Committer, queue: Queue, retry_run: RetryRun, *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        self._retry_run = retry_run
        self._store = store
        self._committer = committer
        self._queue = queue
        self._namespace = namespace

    async def filter(
        self,
        *,
        name: str | None = None,
        task_list: str | None = None,
        error_code: str | None = None,
        fingerprint: str | None = None,
        older_than: float | None = None,
        newer_than: float | None = None,
        at: int | None = None,
    ) -> DeadLetterFilter:
        """Build a filter for this namespace; ages are in seconds since the failure, as of now or `at`."""
        for age, what in ((older_than, "older_than"), (newer_than, "newer_than")):
            if age is not None and not 0 <= age < 10**9:
                raise InvalidInput(f"{what} must be an age in seconds, zero or more, not {age}.")
        aged = older_than is not None or newer_than is not None
        now = at if at is not None else await self._store.now() if aged else 0
        return DeadLetterFilter(
            namespace=self._namespace,
            task_list=task_list,
            name=name,
            error_code=error_code,
            fingerprint=fingerprint,
            failed_before=None if older_than is None else now - round(older_than * 1000) + 1,
            failed_after=None if newer_than is None else now - round(newer_than * 1000),
        )

    async def list_dead_letters(self, which: DeadLetterFilter, limit: int = 50) -> list[Task]:
        """A page of dead letters, latest failure first; the last one's seq minus one is the `until_seq` of the next page."""
        check_limit(limit)
        return await self._store.dead_letters.list_newest(which, limit)

    list_letters = list_dead_letters
    """The earlier name."""

    async def list_groups(self, which: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        """Dead letters grouped by fingerprint, largest group first."""
        check_limit(limit)
        return await self._store.dead_letters.group(which, limit)

    async def list_last(self, groups: Sequence[DeadLetterGroup]) -> list[Task]:
        """The latest failed task of each group."""
        return await self._store.tasks.find_finished([group.last_id for group in groups])

    async def retry(
        self,
        which: DeadLetterFilter,
        *,
        actor: str = "operator",
        payload: Json = None,
        dry_run: bool = False,
        progress: Progress = lambda done, total: None,
    ) -> Bulk:
        """Make the dead letters live again, with an edited payload if given (the same for all).

        Of tasks that belong to runs, the runs are retried as a whole, unless a payload is given. Raises `NothingMatches` if nothing
        matches, and `Refused` if a payload is given and all belong to runs.
        """
        if dry_run:
            return await self.count_retry(which, edited=payload is not None)
        walk = await self.begin_retry(which, edited=payload is not None)

        async def some(walk: Walk) -> tuple[Bulk, Walk | None]:
            return await self.retry_some(walk, actor=actor, payload=payload)

        return await _whole(walk, some, progress)

    async def discard(
        self,
        which: DeadLetterFilter,
        *,
        actor: str = "operator",
        dry_run: bool = False,
        progress: Progress = lambda done, total: None,
    ) -> Bulk:
        """Cancel the dead letters; each keeps its error."""
        if dry_run:
            return await self.count_discard(which)
        walk = await self.begin_discard(which)

        async def some(walk: Walk) -> tuple[Bulk, Walk | None]:
            return await self.discard_some(walk, actor=actor)

        return await _whole(walk, some, progress)

    # the same, batch by batch

    async def count_retry(self, which: DeadLetterFilter, *, edited: bool = False) -> Bulk:
        """Preview `retry`, with another payload if `edited`."""
        matched, of_runs, _ = await self._count(which, refuse_runs=edited)
        skipped = of_runs if edited else 0
        return Bulk(matched, matched - skipped, of_runs - skipped, skipped, dry_run=True)

    async def count_discard(self, which: DeadLetterFilter) -> Bulk:
        """Preview `discard`."""
        matched, _, _ = await self._count(which)
        return Bulk(matched, matched, dry_run=True)

    async def begin_retry(self, which: DeadLetterFilter, *, edited: bool = False) -> Walk:
        """Begin `retry` with all current dead letters that match; refuses as `retry` does."""
        matched, _, last_seq = await self._count(which, refuse_runs=edited)
        return Walk(replace(which, until_seq=last_seq), matched)

    async def begin_discard(self, which: DeadLetterFilter) -> Walk:
        """Begin `discard` with all current dead letters that match; refuses as `discard` does."""
        matched, _, last_seq = await self._count(which)
        return Walk(replace(which, until_seq=last_seq), matched)

    async def retry_some(
        self, walk: Walk, *, actor: str = "operator", payload: Json = None, limit: int = BATCH
    ) -> tuple[Bulk, Walk | None]:
        """Retry the next batch of up to `limit`; returns its counts and the rest (None at the end)."""
        size = 0 if payload is None else sum(len(blob.value) for blob in self._queue.pack(payload, "")[1])

        def revived(dead_letter: DeadLetter) -> tuple[Settlement, tuple[PutBlob, ...]] | None:
            if dead_letter.run_id is not None:
                return None
            text, blobs = (None, ()) if payload is None else self._queue.pack(payload, dead_letter.root_id)
            return Revive("requeue", actor, text), blobs

        return await self._some(
            walk, revived, min(limit, max(_BATCH_SIZE // size, 1)) if size else limit, actor if payload is None else None
        )

    async def retry_one(self, task_id: Ref, *, actor: str = "operator", payload: Json = None) -> bool:
        """Retry one task as `retry` does; returns whether its run was retried."""
        task_id = await find_id(self._store, self._namespace, "task", task_id)
        task = await self._store.tasks.find(task_id)
        if task is None or task.run_id is None or task.state != TaskState.FAILED or payload is not None:
            await self._queue.retry(task_id, actor=actor, payload=payload)
            return False
        await self._retry_run(task.run_id, actor)
        return True

    async def discard_some(self, walk: Walk, *, actor: str = "operator", limit: int = BATCH) -> tuple[Bulk, Walk | None]:
        """Discard the next batch of up to `limit`; returns its counts and the rest (None at the end)."""
        discarded = Amend("discard", TASK.moves[TaskState.FAILED, "discard"], actor)
        return await self._some(walk, lambda _: (discarded, ()), limit)

    async def _count(self, which: DeadLetterFilter, *, refuse_runs: bool = False) -> tuple[int, int, int]:
        matched, of_runs, last_seq = await self._store.dead_letters.count(which)
        if not matched:
            raise NothingMatches("No dead letter matches; nothing was changed. `treadle dlq show` lists the groups.")
        if refuse_runs and of_runs == matched:
            raise Refused(f"All {matched} belong to runs, which keep their inputs: retry them without another payload.")
        return matched, of_runs, last_seq

    async def _some(
        self,
        walk: Walk,
        decide: Callable[[DeadLetter], tuple[Settlement, tuple[PutBlob, ...]] | None],
        limit: int,
        runs_for: str | None = None,
    ) -> tuple[Bulk, Walk | None]:
        """Process the next batch; retry the runs of those that are not decided for the actor `runs_for`, or skip them."""
        check_limit(limit, BATCH)
        found = await self._store.dead_letters.walk(walk.todo, limit)
        decided = [(dead_letter, decide(dead_letter)) for dead_letter in found]
        units = [Unit(dead_letter.seen, what[0], rows=what[1]) for dead_letter, what in decided if what is not None]
        answers = await asyncio.gather(*[self._committer.submit(unit, PATIENCE) for unit in units])
        of_runs = await self._retry_runs([letter.run_id or "" for letter, what in decided if what is None], runs_for)
        done = sum(answer.verdict is Verdict.DONE for answer in answers) + of_runs
        left = Walk(replace(walk.todo, after_seq=found[-1].seq), walk.matched) if len(found) == limit else None
        return Bulk(len(found), done, of_runs, len(found) - done), left

    async def _retry_runs(self, run_ids: Sequence[str], actor: str | None) -> int:
        """Retry each run once; return how many of the ids are of runs that were retried."""
        done = 0
        for run_id, count in Counter(run_ids).items() if actor is not None else ():
            with suppress(*PASSED_OVER):
                await self._retry_run(run_id, actor or "")
                done += count
        return done


async def _whole(walk: Walk, some: Callable[[Walk], Awaitable[tuple[Bulk, Walk | None]]], progress: Progress) -> Bulk:
    """Run all batches one after another."""
    left: Walk | None = walk
    total = Bulk(0)
    while left is not None:
        part, left = await some(left)
        total = total + part
        if part.matched:
            progress(total.matched, walk.matched)
    return total
