"""The effects of one attempt at a plain handler's task: each is begun, called and recorded under the attempt's claim.

The outcome is committed before the task settles, so that the next attempt finds it after a takeover (D22). Identical effects of
one attempt are distinguished by their number. An effect that ended as `unknown` and is requested again is the same effect.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from treadle.kernel.effects.decide import (
    FAIL,
    FAILED,
    REPEAT,
    UNKNOWN,
    UNRESOLVED,
    Begin,
    Effect,
    check_reaction,
    decide,
    failed,
    is_counted,
    is_definite,
    is_requeued,
    last_attempt,
    making,
    no_response,
    read_response,
    stable_hash,
    succeeded,
    succeeded_without_response,
    unrepeated,
)
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.units import Keep, Row, Unit, Verdict
from treadle.kernel.store.value_store import ValueStore
from treadle.model.clock import Clock
from treadle.model.errors import ClaimLost, InvalidInput, NonRetryable, StoreError
from treadle.model.records import STREAM_LIMIT, EffectOutcome
from treadle.model.retry import STORE_BACKOFF
from treadle.model.tasks import Claim, Task
from treadle.model.values import Json

T = TypeVar("T")

_KEYS_PER_READ = 500
_FURTHER_KEYS = 8

_Types = tuple[type[BaseException], ...]


class _EffectRequest(NamedTuple):
    effect: Effect
    identical: list[bool]
    """For each identical effect of this attempt: whether its outcome is unknown, so that it may be requested again."""
    number: int
    again: bool
    """Whether this attempt has begun the effect before, with an unknown outcome."""
    fails: bool
    """Whether an unknown outcome is an error instead of a reason to repeat the effect."""


class EffectKernel:
    """The engine services that effects and streams use; one per worker."""

    def __init__(
        self, store: Store, committer: Committer, value_store: ValueStore, clock: Clock, stream_limit: int = STREAM_LIMIT
    ) -> None:
        self.store = store
        self.committer = committer
        self.value_store = value_store
        self.clock = clock
        self.stream_limit = stream_limit
        """Limit in bytes on the entries of a stream."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the running worker, through which handlers in threads reach the store."""

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read, and retry while the store cannot be reached: store errors must not fail a handler in the middle of an effect."""
        delay = STORE_BACKOFF.first
        while True:
            try:
                return await read()
            except StoreError:
                await self.clock.sleep(delay)
                delay = STORE_BACKOFF.after(delay)


class AttemptEffects:
    """The effects of one attempt."""

    __slots__ = ("_kernel", "_slots", "_task", "_token", "created")

    def __init__(self, kernel: EffectKernel, task: Task, token: Claim) -> None:
        self._kernel = kernel
        self._task = task
        self._token = token
        self._slots: dict[str, list[bool]] = {}
        """Identical effects, by the hash of action, request and key."""
        self.created: list[tuple[Coroutine[Any, Any, Any], str]] = []
        """The async effects that the handler has created, with their actions."""

    def check_awaited(self) -> None:
        """Raise `NonRetryable` if an async effect was created and never awaited."""
        for code, action in self.created:
            if inspect.getcoroutinestate(code) == inspect.CORO_CREATED:
                code.close()
                message = f"The effect {action} was not awaited, so it did not happen: write `await ctx.effect(...)`."
                raise NonRetryable(message, "never_awaited")

    async def perform(
        self, action: str, call: Callable[[], Any], request: Json, key: str | None, unknown: _Types, on_unknown: str
    ) -> Any:
        """Call `call` on the event loop and record its response, or return the recorded one; an awaitable result is awaited."""
        _check(call)
        requested = self._effect(action, request, key, on_unknown)
        begin = await self._begin(requested)
        if isinstance(begin, EffectOutcome):
            return await self._known(begin)
        try:
            with making(begin.keys):
                response = call()
                if inspect.isawaitable(response):
                    response = await response
        except BaseException as error:
            await self._record_failure(begin, requested, error, unknown)
            raise
        failpoint("effect.made")
        return await self._record_success(begin, response)

    def perform_blocking(
        self, action: str, call: Callable[[], Any], request: Json, key: str | None, unknown: _Types, on_unknown: str
    ) -> Any:
        """Do the same for a sync handler: `call` runs in its thread, and commits go through the event loop."""
        _check(call)
        requested = self._effect(action, request, key, on_unknown)
        begin = self._wait_for(self._begin(requested))
        if isinstance(begin, EffectOutcome):
            return self._wait_for(self._known(begin))
        try:
            with making(begin.keys):
                response = call()
            if inspect.iscoroutine(response):
                response.close()
                raise InvalidInput(f"The effect {action} is async; use `await ctx.effect(...)` in an async handler.")
        except BaseException as error:
            self._wait_for(self._record_failure(begin, requested, error, unknown))
            raise
        failpoint("effect.made")
        return self._wait_for(self._record_success(begin, response))

    def _effect(self, action: str, request: Json, key: str | None, on_unknown: str) -> _EffectRequest:
        """Return the effect with its number among the identical effects of this attempt."""
        task = self._task
        fails = check_reaction(on_unknown, FAIL, REPEAT) == FAIL
        identical = self._slots.setdefault(stable_hash([action, request, key], "request"), [])
        number = next((number for number, again in enumerate(identical) if again), len(identical))
        again = number < len(identical)
        if again:
            identical[number] = False
        else:
            identical.append(False)
        if key is not None and number:
            raise InvalidInput(
                f"The effect key {key!r} of {action} was already used in this attempt; each key identifies one effect."
            )
        effect = Effect.of(task.id, task.step_id, task.root_id, action, request, key=key, ordinal=number + 1)
        return _EffectRequest(effect, identical, number, again, fails)

    async def _begin(self, requested: _EffectRequest) -> EffectOutcome | Begin:
        """Return the recorded outcome, or commit that the effect begins."""
        failpoint("effect.before_begin")
        task, effect = self._task, requested.effect
        decided: EffectOutcome | Begin = Begin(effect, task.attempt)
        if task.version or requested.again:  # else this is the first attempt
            outcomes = await self._find(effect)
            counted = await self._counted(outcomes)
            decided = decide(effect, task.attempt, outcomes, lambda _: counted, lost=task.takeovers > 0)
        if isinstance(decided, Begin) and decided.in_doubt == UNRESOLVED and requested.fails:
            await self._refuse_repeat(decided)
        if isinstance(decided, Begin):
            settlement = None if (data := decided.data) is None else Keep(task.checkpoint, UNKNOWN, data)
            await self._commit(Unit(self._token, settlement, rows=decided.rows))
            failpoint("effect.begun")
        return decided

    async def _refuse_repeat(self, begin: Begin) -> None:
        """Raise `EffectUnknown`, after logging what is not logged yet, unless an operator has retried the task since."""
        task = self._task
        if is_requeued(await self._kernel.read(partial(self._kernel.store.log.list_transitions, task.id))):
            return
        if (data := begin.data) is not None:
            await self._commit(Unit(self._token, Keep(task.checkpoint, UNKNOWN, data), rows=begin.rows[:-1]))
        raise unrepeated(
            begin.effect.action,
            f"treadle effects list --task {task.id}",
            "an earlier attempt began it and ended without an answer.",
        )

    async def _known(self, outcome: EffectOutcome) -> Json:
        """Return the recorded response, or raise the recorded error."""
        return await self._kernel.read(lambda: read_response(outcome, self._kernel.value_store))

    async def _find(self, effect: Effect) -> dict[str, EffectOutcome]:
        """Return the recorded outcomes, newest attempt first."""
        outcomes: dict[str, EffectOutcome] = {}
        read, wanted = 0, self._task.attempt + _FURTHER_KEYS
        while read < wanted:
            page = [effect.key(number + 1) for number in range(read, min(wanted, read + _KEYS_PER_READ))]
            read += len(page)
            rows = await self._kernel.read(partial(self._kernel.store.records.find_outcomes, page))
            outcomes |= {row.idempotency_key: row for row in rows}
            if read == wanted and page[-1] in outcomes:
                wanted += _KEYS_PER_READ
        keys = effect.keys(last_attempt(effect, self._task.attempt, outcomes))
        return {key: outcomes[key] for key in keys if key in outcomes}

    async def _counted(self, outcomes: dict[str, EffectOutcome]) -> bool:
        """Return whether the last recorded failure has already led to a retry, so that this attempt is that retry."""
        last = next((row for row in outcomes.values() if row.status == FAILED), None)
        if last is None:
            return True
        transitions = await self._kernel.read(partial(self._kernel.store.log.list_transitions, self._task.id))
        return await self._kernel.read(lambda: is_counted(last, transitions, self._kernel.value_store))

    async def _record_success(self, begin: Begin, response: Json) -> Json:
        """Record the success and return the response."""
        try:
            rows: tuple[Row, ...] = succeeded(begin, response, self._kernel.value_store)
        except InvalidInput as error:
            await self._commit(Unit(self._token, rows=(succeeded_without_response(begin),)))
            raise no_response(error) from error
        await self._commit(Unit(self._token, rows=rows))
        failpoint("effect.recorded")
        return response

    async def _record_failure(self, begin: Begin, requested: _EffectRequest, error: BaseException, unknown: _Types) -> None:
        """Record a definite failure; otherwise log that the outcome is unknown."""
        if is_definite(error, unknown):
            await self._commit(Unit(self._token, rows=(failed(begin, error, self._kernel.value_store, self._task.version),)))
            failpoint("effect.recorded")
            return
        requested.identical[requested.number] = True
        data, row = begin.unknown
        with suppress(ClaimLost):  # the store has logged it with the end of the claim
            await self._commit(Unit(self._token, Keep(self._task.checkpoint, UNKNOWN, data), rows=(row,)))

    async def _commit(self, unit: Unit) -> None:
        answer = await self._kernel.committer.submit(unit)
        if answer.verdict is not Verdict.DONE:
            raise ClaimLost(self._task.id, self._token.version)

    def _wait_for(self, activity: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the event loop and wait for it in this thread."""
        loop = self._kernel.loop
        if loop is None or loop.is_closed():
            activity.close()
            raise ClaimLost(self._task.id, self._token.version)
        return asyncio.run_coroutine_threadsafe(activity, loop).result()


def _check(call: object) -> None:
    if inspect.iscoroutine(call):
        call.close()
        raise InvalidInput("An effect takes a function, not a coroutine: it is called only if the effect has not happened yet.")
    if not callable(call):
        raise InvalidInput(f"An effect takes a function, not a {type(call).__name__}.")
