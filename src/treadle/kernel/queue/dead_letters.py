"""Dead letters: what failed for good, grouped by what it failed of; retried and discarded in bulk.

Bulk work goes through the letters that there were when it began, in the order in which they failed, a few hundred to a
commit. What fails again meanwhile has a greater seq and is not met twice; what somebody else has changed meanwhile is
passed over. It can be stopped at any moment and begun again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from treadle.kernel.queue.service import PATIENCE, Queue
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import DeadFilter, DeadGroup, DeadLetter
from treadle.kernel.store.units import Amend, PutBlob, Revive, Settlement, Unit, Verdict
from treadle.model.errors import InvalidInput, NothingMatches, Refused
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.states import TASK, TaskState
from treadle.model.tasks import Task
from treadle.model.values import Json

BATCH = 500
"""Letters that one commit takes at most."""

PAGE_LIMIT = 1000
_BATCH_SIZE = 8 * 1024 * 1024

Progress = Callable[[int, int], None]
"""Told after each batch: how many are done, and how many there are to do."""


@dataclass(frozen=True, slots=True)
class Bulk:
    """What bulk work came to, or would: `matched` letters, of which `done` were changed.

    `of_runs` belong to runs, which are retried themselves; `passed_over` were changed by somebody else meanwhile.
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


@dataclass(frozen=True, slots=True)
class Walk:
    """Bulk work on its way: what is left of the letters that there were when it began, `matched` of them in all."""

    todo: DeadFilter
    matched: int


class DeadLetters:
    """The failed tasks of one namespace."""

    def __init__(self, store: Store, committer: Committer, queue: Queue, *, namespace: str = DEFAULT_NAMESPACE) -> None:
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
    ) -> DeadFilter:
        """The letters of this namespace that fit all that is given; ages are in seconds since they failed, as of now or `at`."""
        for age, what in ((older_than, "older_than"), (newer_than, "newer_than")):
            if age is not None and not 0 <= age < 10**9:
                raise InvalidInput(f"{what} must be an age in seconds, zero or more, not {age}.")
        aged = older_than is not None or newer_than is not None
        now = at if at is not None else await self._store.now() if aged else 0
        return DeadFilter(
            namespace=self._namespace,
            task_list=task_list,
            name=name,
            error_code=error_code,
            fingerprint=fingerprint,
            failed_before=None if older_than is None else now - round(older_than * 1000) + 1,
            failed_after=None if newer_than is None else now - round(newer_than * 1000),
        )

    async def list_letters(self, which: DeadFilter, limit: int = 50) -> list[Task]:
        """Letters, the last to fail first; one less than the last one's seq is the `until_seq` of the next page."""
        _check_limit(limit)
        return await self._store.list_dead(which, limit)

    async def list_groups(self, which: DeadFilter, limit: int = 50) -> list[DeadGroup]:
        """Letters by fingerprint, the biggest group first."""
        _check_limit(limit)
        return await self._store.group_dead(which, limit)

    async def list_last(self, groups: Sequence[DeadGroup]) -> list[Task]:
        """The tasks that failed last, one of each group."""
        return await self._store.find_finished([group.last_id for group in groups])

    async def retry(
        self,
        which: DeadFilter,
        *,
        actor: str = "operator",
        payload: Json = None,
        dry_run: bool = False,
        progress: Progress = lambda done, total: None,
    ) -> Bulk:
        """Make the letters live again, with an edited payload if given (the same for all).

        Those of runs are left alone, as only their run can do their step again; if there are no others, `Refused`.
        Nothing that matches is `NothingMatches`.
        """
        if dry_run:
            return await self.count_retry(which)
        walk = await self.begin_retry(which)

        async def some(walk: Walk) -> tuple[Bulk, Walk | None]:
            return await self.retry_some(walk, actor=actor, payload=payload)

        return await _whole(walk, some, progress)

    async def discard(
        self, which: DeadFilter, *, actor: str = "operator", dry_run: bool = False, progress: Progress = lambda done, total: None
    ) -> Bulk:
        """Take the letters out of the dead letters: they are canceled from now on, and keep what they failed of."""
        if dry_run:
            return await self.count_discard(which)
        walk = await self.begin_discard(which)

        async def some(walk: Walk) -> tuple[Bulk, Walk | None]:
            return await self.discard_some(walk, actor=actor)

        return await _whole(walk, some, progress)

    # the same in steps

    async def count_retry(self, which: DeadFilter) -> Bulk:
        """What `retry` would do."""
        matched, of_runs, _ = await self._count(which, refuse_runs=True)
        return Bulk(matched, matched - of_runs, of_runs, dry_run=True)

    async def count_discard(self, which: DeadFilter) -> Bulk:
        """What `discard` would do."""
        matched, _, _ = await self._count(which)
        return Bulk(matched, matched, dry_run=True)

    async def begin_retry(self, which: DeadFilter) -> Walk:
        """All letters that there are now; refuses as `retry` does."""
        matched, _, last_seq = await self._count(which, refuse_runs=True)
        return Walk(replace(which, until_seq=last_seq), matched)

    async def begin_discard(self, which: DeadFilter) -> Walk:
        """All letters that there are now; refuses as `discard` does."""
        matched, _, last_seq = await self._count(which)
        return Walk(replace(which, until_seq=last_seq), matched)

    async def retry_some(
        self, walk: Walk, *, actor: str = "operator", payload: Json = None, limit: int = BATCH
    ) -> tuple[Bulk, Walk | None]:
        """Retry the next letters, `limit` at most: what came of these, and what is left; None when that was all."""
        size = 0 if payload is None else sum(len(blob.value) for blob in self._queue.pack(payload, "")[1])

        def revived(letter: DeadLetter) -> tuple[Settlement, tuple[PutBlob, ...]] | None:
            if letter.run_id is not None:
                return None
            text, blobs = (None, ()) if payload is None else self._queue.pack(payload, letter.root_id)
            return Revive("requeue", actor, text), blobs

        return await self._some(walk, revived, min(limit, max(_BATCH_SIZE // size, 1)) if size else limit)

    async def discard_some(self, walk: Walk, *, actor: str = "operator", limit: int = BATCH) -> tuple[Bulk, Walk | None]:
        """Discard the next letters, `limit` at most: what came of these, and what is left; None when that was all."""
        discarded = Amend("discard", TASK.moves[TaskState.FAILED, "discard"], actor)
        return await self._some(walk, lambda _: (discarded, ()), limit)

    async def _count(self, which: DeadFilter, *, refuse_runs: bool = False) -> tuple[int, int, int]:
        matched, of_runs, last_seq = await self._store.count_dead(which)
        if not matched:
            raise NothingMatches("No dead letter matches; nothing was changed. `treadle dlq show` groups what there is.")
        if refuse_runs and of_runs == matched:
            raise Refused(
                f"All {matched} belong to runs: retry their runs instead (`treadle runs retry RUN`), or discard them here."
            )
        return matched, of_runs, last_seq

    async def _some(
        self, walk: Walk, decide: Callable[[DeadLetter], tuple[Settlement, tuple[PutBlob, ...]] | None], limit: int
    ) -> tuple[Bulk, Walk | None]:
        if not 0 < limit <= BATCH:
            raise InvalidInput(f"limit must be from 1 to {BATCH}, not {limit}.")
        letters = await self._store.walk_dead(walk.todo, limit)
        decided = [(letter, decide(letter)) for letter in letters]
        units = [Unit(letter.seen, what[0], rows=what[1]) for letter, what in decided if what is not None]
        answers = await asyncio.gather(*[self._committer.submit(unit, PATIENCE) for unit in units])
        done, of_runs = sum(answer.verdict is Verdict.DONE for answer in answers), len(letters) - len(units)
        left = Walk(replace(walk.todo, after_seq=letters[-1].seq), walk.matched) if len(letters) == limit else None
        return Bulk(len(letters), done, of_runs, len(units) - done), left


async def _whole(walk: Walk, some: Callable[[Walk], Awaitable[tuple[Bulk, Walk | None]]], progress: Progress) -> Bulk:
    """All steps of bulk work, one after another."""
    left: Walk | None = walk
    total = Bulk(0)
    while left is not None:
        part, left = await some(left)
        total = total + part
        if part.matched:
            progress(total.matched, walk.matched)
    return total


def _check_limit(limit: int) -> None:
    if not 0 < limit <= PAGE_LIMIT:
        raise InvalidInput(f"limit must be from 1 to {PAGE_LIMIT}, not {limit}.")
