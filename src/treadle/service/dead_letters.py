"""Calls about dead letters, on an engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Unpack

from msgspec.structs import replace

from treadle.api.dead_letters import (
    BATCH,
    DeadLetter,
    DeadLetterConditions,
    DeadLetterDetail,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterPage,
    DeadLettersApi,
    DeadLettersChanged,
)
from treadle.api.wire import record_of
from treadle.kernel.queue.dead_letters import PASSED_OVER, Bulk, Walk
from treadle.kernel.store.queries import DeadLetterFilter
from treadle.model.errors import InvalidInput, TaskNotFound
from treadle.model.states import TaskState
from treadle.model.values import Json, decode
from treadle.service.group import Group
from treadle.service.task_records import task_detail, task_record

_LAST_SEQ = 2**63 - 1


class DeadLetters(Group, DeadLettersApi):
    """See `DeadLettersApi`."""

    async def list(
        self,
        *,
        limit: int = 50,
        before: int | None = None,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLetterPage:
        chosen = await self._filter(which)
        if before is not None:
            if not 0 <= before <= _LAST_SEQ:
                raise InvalidInput(f"before must be the next_before of the previous page, not {before}.")
            chosen = replace(chosen, until_seq=before - 1)
        found = await self.engine.kernel.dead_letters.list_dead_letters(chosen, limit)
        return DeadLetterPage(
            [task_record(DeadLetter, self.engine, task) for task in found], found[-1].seq if len(found) == limit else None
        )

    async def groups(
        self,
        *,
        limit: int = 50,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLetterGroups:
        chosen = await self._filter(which)
        groups = await self.engine.kernel.dead_letters.list_groups(chosen, limit)
        last = {task.id: task.error for task in await self.engine.kernel.dead_letters.list_last(groups)}
        return DeadLetterGroups([record_of(DeadLetterGroup, group, error=decode(last.get(group.last_id))) for group in groups])

    async def get(self, task_id: str) -> DeadLetterDetail:
        task = await self.find_task(task_id)
        if task.state != TaskState.FAILED or task.fingerprint == "":  # a catch handled it, or its run was retried
            raise TaskNotFound(task_id, "dead letter")
        return await task_detail(self.engine, task, DeadLetterDetail)

    async def retry(
        self,
        *,
        ids: Sequence[str] = (),
        everything: bool = False,
        payload: dict[str, Json] | None = None,
        dry_run: bool = False,
        limit: int = BATCH,
        after: str | None = None,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLettersChanged:
        _check_choice(ids, which, everything)
        letters = self.engine.kernel.dead_letters
        if ids:
            return await self._each(ids, dry_run, partial(letters.retry_one, actor=self.actor, payload=payload))
        edited = payload is not None
        if dry_run:
            return _changed(await letters.count_retry(await self._filter(which), edited=edited))
        at, walk = await self._walk(which, after, partial(letters.begin_retry, edited=edited))
        return _page(at, walk, *await letters.retry_some(walk, actor=self.actor, payload=payload, limit=limit))

    async def discard(
        self,
        *,
        ids: Sequence[str] = (),
        everything: bool = False,
        dry_run: bool = False,
        limit: int = BATCH,
        after: str | None = None,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLettersChanged:
        _check_choice(ids, which, everything)
        letters = self.engine.kernel.dead_letters
        if ids:
            return await self._each(ids, dry_run, partial(self.engine.kernel.queue.discard, actor=self.actor))
        if dry_run:
            return _changed(await letters.count_discard(await self._filter(which)))
        at, walk = await self._walk(which, after, letters.begin_discard)
        return _page(at, walk, *await letters.discard_some(walk, actor=self.actor, limit=limit))

    async def _each(self, ids: Sequence[str], dry_run: bool, act: Callable[[str], Awaitable[object]]) -> DeadLettersChanged:
        """Apply the action to tasks by id, after all of them were found; raise the last error only if it was applied to none."""
        if len(ids) > BATCH:
            raise InvalidInput(f"One call may name at most {BATCH} tasks, not {len(ids)}.")
        tasks = [await self.find_task(task_id) for task_id in dict.fromkeys(ids)]
        of_runs: set[str] = set()
        errors: list[Exception] = []
        for task in tasks if not dry_run else ():
            try:
                if task.run_id not in of_runs and await act(task.id) is True:
                    of_runs.add(task.run_id or "")
            except PASSED_OVER as error:
                errors.append(error)
        done = len(tasks) - len(errors)
        if errors and not done:
            raise errors[-1]
        return _changed(Bulk(len(tasks), done, sum(task.run_id in of_runs for task in tasks), len(errors), dry_run))

    async def _walk(
        self, which: DeadLetterConditions, after: str | None, begin: Callable[[DeadLetterFilter], Awaitable[Walk]]
    ) -> tuple[int, Walk]:
        """The walk to continue, and the instant from which ages are counted: that of the first call."""
        if after is None:
            now = await self.engine.kernel.store.now()
            return now, await begin(await self._filter(which, now))
        at, after_seq, until_seq, matched = _read_cursor(after)
        return at, Walk(replace(await self._filter(which, at), after_seq=after_seq, until_seq=until_seq), matched)

    async def _filter(self, which: DeadLetterConditions, at: int | None = None) -> DeadLetterFilter:
        chosen: dict[str, Any] = {**which, "task_list": self.one_list(which.get("task_list"))}
        return await self.engine.kernel.dead_letters.filter(**chosen, at=at)


def _check_choice(ids: Sequence[str], which: DeadLetterConditions, everything: bool) -> None:
    if sum((bool(ids), any(each is not None for each in which.values()), everything)) != 1:
        raise InvalidInput("Give ids, a filter (name, task_list, error_code, fingerprint, older_than, newer_than), or everything.")


def _changed(done: Bulk, next_after: str | None = None) -> DeadLettersChanged:
    return record_of(DeadLettersChanged, done, next_after=next_after)


def _page(at: int, walk: Walk, done: Bulk, left: Walk | None) -> DeadLettersChanged:
    cursor = None if left is None else f"{at}.{left.todo.after_seq}.{left.todo.until_seq}.{walk.matched}"
    return _changed(replace(done, matched=walk.matched), cursor)


def _read_cursor(after: str) -> tuple[int, int, int, int]:
    parts = after.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in parts):
        raise InvalidInput(f"after must be the next_after of the previous call, not {after!r}.")
    at, after_seq, until_seq, matched = map(int, parts)
    return at, after_seq, until_seq, matched
