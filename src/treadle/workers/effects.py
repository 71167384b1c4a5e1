"""The effects of one attempt at a plain handler's task: each begins, is made and is recorded under the attempt's claim.

The outcome is committed before the task settles, so that whoever takes over a task whose worker died in between finds it
(D22). Identical effects of one attempt are told apart by their number. One that ended as `unknown` and is asked for again is
the same effect, made again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, TypeVar

from treadle.kernel.effects.decide import (
    FAILED,
    UNKNOWN,
    Begin,
    Effect,
    decide,
    failed,
    is_counted,
    is_definite,
    making,
    no_response,
    read_response,
    stable_hash,
    succeeded,
    succeeded_without_response,
)
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Keep, Row, Unit, Verdict
from treadle.kernel.store.value_store import ValueStore
from treadle.model.clock import Clock
from treadle.model.errors import ClaimLost, InvalidInput, StoreError
from treadle.model.records import EffectOutcome
from treadle.model.tasks import Claim, Task
from treadle.model.values import Json

T = TypeVar("T")

_LOOKED_AT = 500
"""Keys of attempts that one read looks for."""


_FIRST_DELAY, _LONGEST_DELAY = 0.1, 2.0
"""Seconds between looks while the store cannot be reached."""

_Types = tuple[type[BaseException], ...]


class _Asked(NamedTuple):
    effect: Effect
    alike: list[bool]
    number: int
    again: bool
    """It was begun in this attempt, and nobody knows how that ended."""


class EffectKernel:
    """What effects need of the engine; one for a worker."""

    def __init__(self, store: Store, committer: Committer, value_store: ValueStore, clock: Clock) -> None:
        self.store = store
        self.committer = committer
        self.value_store = value_store
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None
        """The worker's, once it runs: what handlers in threads store goes through it."""

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        """What is read, once the store can be reached: that it cannot is no failure of the handler that makes an effect."""
        delay = _FIRST_DELAY
        while True:
            try:
                return await read()
            except StoreError:
                await self.clock.sleep(delay)
                delay = min(delay * 2, _LONGEST_DELAY)


class AttemptEffects:
    """The effects that one attempt makes."""

    __slots__ = ("_kernel", "_slots", "_task", "_token")

    def __init__(self, kernel: EffectKernel, task: Task, token: Claim) -> None:
        self._kernel = kernel
        self._task = task
        self._token = token
        self._slots: dict[str, list[bool]] = {}
        """For each effect, by action and request, which of its numbers are to be used again."""

    async def make(self, action: str, call: Callable[[], Any], request: Json, key: str | None, unknown: _Types) -> Any:
        """Make the effect, or use what is known of it; `call` is called on the event loop, and awaited if it can be."""
        _check(call)
        asked = self._effect(action, request, key)
        begin = await self._begin(asked)
        if isinstance(begin, EffectOutcome):
            return await self._known(begin)
        try:
            with making(begin.keys):
                response = call()
                if inspect.isawaitable(response):
                    response = await response
        except BaseException as error:
            await self._not_made(begin, asked, error, unknown)
            raise
        reach("effect.made")
        return await self._made(begin, response)

    def make_blocking(self, action: str, call: Callable[[], Any], request: Json, key: str | None, unknown: _Types) -> Any:
        """The same for a sync handler in its thread: `call` runs in that thread, what is stored goes through the loop."""
        _check(call)
        asked = self._effect(action, request, key)
        begin = self._wait_for(self._begin(asked))
        if isinstance(begin, EffectOutcome):
            return self._wait_for(self._known(begin))
        try:
            with making(begin.keys):
                response = call()
            if inspect.iscoroutine(response):
                response.close()
                raise InvalidInput(f"The effect {action} is async; make it from an async handler with `await ctx.effect(...)`.")
        except BaseException as error:
            self._wait_for(self._not_made(begin, asked, error, unknown))
            raise
        reach("effect.made")
        return self._wait_for(self._made(begin, response))

    def _effect(self, action: str, request: Json, key: str | None) -> _Asked:
        """The effect, by its place among those of this attempt that are asked for alike."""
        task = self._task
        alike = self._slots.setdefault(stable_hash([action, request, key], "request"), [])
        number = next((number for number, again in enumerate(alike) if again), len(alike))
        again = number < len(alike)
        if again:
            alike[number] = False
        else:
            alike.append(False)
        if key is not None and number:
            raise InvalidInput(
                f"The effect key {key!r} of {action} was used before in this attempt; each key stands for one effect."
            )
        effect = Effect.of(task.id, task.step_id, task.root_id, action, request, key=key, ordinal=number + 1)
        return _Asked(effect, alike, number, again)

    async def _begin(self, asked: _Asked) -> EffectOutcome | Begin:
        """What is known of the effect, or that it is to be made: then its row is there, and the log says if that is in doubt."""
        reach("effect.before_begin")
        task, effect = self._task, asked.effect
        decided: EffectOutcome | Begin = Begin(effect, task.attempt)
        if task.version or asked.again:  # else nobody has done anything for this task before
            found = await self._find(effect)
            counted = await self._counted(found)
            decided = decide(effect, task.attempt, found, lambda _: counted, lost=task.takeovers > 0)
        if isinstance(decided, Begin):
            settlement = Keep(task.checkpoint, UNKNOWN, decided.data) if decided.doubt else None
            await self._commit(Unit(self._token, settlement, rows=(decided.row,)))
            reach("effect.begun")
        return decided

    async def _known(self, outcome: EffectOutcome) -> Json:
        """What is known to have come back, or to have gone wrong."""
        return await self._kernel.read(lambda: read_response(outcome, self._kernel.value_store))

    async def _find(self, effect: Effect) -> dict[str, EffectOutcome]:
        """What is stored of it, the newest attempt first."""
        keys = effect.keys(self._task.attempt)
        found: dict[str, EffectOutcome] = {}
        for start in range(0, len(keys), _LOOKED_AT):
            page = keys[start : start + _LOOKED_AT]
            rows = await self._kernel.read(partial(self._kernel.store.find_outcomes, page))
            found |= {row.idempotency_key: row for row in rows}
        return {key: found[key] for key in keys if key in found}

    async def _counted(self, found: dict[str, EffectOutcome]) -> bool:
        """Whether the last failure that was found has been acted upon, so that this is the retry after it."""
        last = next((row for row in found.values() if row.status == FAILED), None)
        if last is None:
            return True
        moves = await self._kernel.read(partial(self._kernel.store.list_moves, self._task.id))
        return await self._kernel.read(lambda: is_counted(last, moves, self._kernel.value_store))

    async def _made(self, begin: Begin, response: Json) -> Json:
        """Record the success, and give back the response as the next attempt would find it."""
        try:
            rows: tuple[Row, ...] = succeeded(begin, response, self._kernel.value_store)
        except InvalidInput as error:
            await self._commit(Unit(self._token, rows=(succeeded_without_response(begin),)))
            raise no_response() from error
        await self._commit(Unit(self._token, rows=rows))
        reach("effect.recorded")
        return response

    async def _not_made(self, begin: Begin, asked: _Asked, error: BaseException, unknown: _Types) -> None:
        """Record a failure that is one; leave all else as it is: unknown."""
        if is_definite(error, unknown):
            await self._commit(Unit(self._token, rows=(failed(begin, error, self._kernel.value_store, self._task.version),)))
            reach("effect.recorded")
        else:
            asked.alike[asked.number] = True

    async def _commit(self, unit: Unit) -> None:
        answer = await self._kernel.committer.submit(unit)
        if answer.verdict is not Verdict.DONE:
            raise ClaimLost(self._task.id, self._token.version)

    def _wait_for(self, doing: Coroutine[Any, Any, T]) -> T:
        """Do it on the event loop and wait in this thread."""
        loop = self._kernel.loop
        if loop is None or loop.is_closed():
            doing.close()
            raise ClaimLost(self._task.id, self._token.version)
        return asyncio.run_coroutine_threadsafe(doing, loop).result()


def _check(call: object) -> None:
    if inspect.iscoroutine(call):
        call.close()
        raise InvalidInput("An effect takes a function, not a coroutine: it is called only if it has not happened before.")
    if not callable(call):
        raise InvalidInput(f"An effect takes a function, not a {type(call).__name__}.")
