"""Batch handlers: attempts that share one call of their code.

Each attempt keeps its own claim, time limit and outcome: it joins a batch, and waits for its part of the list that is returned.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from treadle.kernel.telemetry.events import current_attempt
from treadle.model.errors import NonRetryable
from treadle.model.values import decode, encode, type_name
from treadle.workers.baggage import context_without_baggage
from treadle.workers.call import Executor, Raised, noted, result_of, task_name
from treadle.workers.context import Context, RegisteredHandler, holder

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle


class _Item(msgspec.Struct, eq=False):
    """One attempt in a batch."""

    context: Context
    executor: Executor
    payload: Any
    answer: Future[Any]


class _Batch(msgspec.Struct, eq=False):
    """Attempts with one key; `call` is None until they are handed to the code."""

    key: str
    items: list[_Item] = msgspec.field(default_factory=list)
    timer: TimerHandle | None = None
    is_due: bool = False
    call: asyncio.Task[None] | None = None


class Batches:
    """The batches of one handler. `execute` is its `RegisteredHandler.executes`."""

    def __init__(self) -> None:
        self._collectors: WeakKeyDictionary[Executor, _Collector] = WeakKeyDictionary()

    async def execute(self, context: Context, executor: Executor, handler: RegisteredHandler) -> Any:
        """Run one attempt as an item of a batch; returns or raises what the code has for it."""
        signature, batch, text = handler.signature, handler.batch, context.task.payload
        assert signature is not None
        assert batch is not None
        ((payload, *_), _named) = signature.load(text, context)
        key = "" if batch.key is None else encode(decode(text).get(batch.key), "batch key")
        collector = self._collectors.get(executor)
        if collector is None:
            collector = self._collectors[executor] = _Collector(handler)
        item = _Item(context, executor, payload, asyncio.get_running_loop().create_future())
        returned = result_of(await collector.join(f"{context.task.namespace} {key}", item))
        if isinstance(returned, BaseException):
            raise returned
        context._check_awaited()
        return signature.dump_result(returned, as_text=True)


class _Collector:
    """Collects the attempts of a batch handler in one worker process, and calls its code."""

    def __init__(self, handler: RegisteredHandler) -> None:
        assert handler.batch is not None
        self._handler = handler
        self._options = handler.batch
        self._open: dict[str, _Batch] = {}
        """Batches with room, by key."""
        self._due: deque[_Batch] = deque()
        """Batches that are full or have waited long enough; one with room is filled until its call begins."""
        self._calls = 0

    async def join(self, key: str, item: _Item) -> Any:
        """Return what the call returns for this item, in the form that `result_of` takes."""
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = _Batch(key)
            batch.timer = asyncio.get_running_loop().call_later(self._options.within_for / 1000, self._set_due, batch)
        batch.items.append(item)
        if len(batch.items) >= self._options.size:
            del self._open[key]
            self._set_due(batch)
        try:
            return await item.answer
        finally:
            if not item.answer.done() or item.answer.cancelled():
                self._leave(batch, item)

    def _set_due(self, batch: _Batch) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        if not batch.is_due:
            batch.is_due = True
            self._due.append(batch)
        self._begin()

    def _begin(self) -> None:
        while self._due and self._calls < self._options.concurrency:
            batch = self._due.popleft()
            if self._open.get(batch.key) is batch:
                del self._open[batch.key]
            if batch.items:
                self._calls += 1
                name = task_name(self._handler.name)
                batch.call = asyncio.get_running_loop().create_task(self._call(batch), name=name, context=_without_attempt())

    def _leave(self, batch: _Batch, item: _Item) -> None:
        """Take out an attempt that was stopped; a call without any other stops, too."""
        if batch.call is None:
            batch.items.remove(item)
        elif all(other.answer.done() for other in batch.items):
            batch.call.cancel()

    async def _call(self, batch: _Batch) -> None:
        items = list(batch.items)
        answers: Sequence[Any]
        try:
            answers = _checked(await self._invoke(items), len(items))
        except BaseException as error:
            answers = [Raised(error)] * len(items)
        finally:
            self._calls -= 1
            self._begin()
        for item, answer in zip(items, answers, strict=True):
            if not item.answer.done():
                item.answer.set_result(answer)

    async def _invoke(self, items: list[_Item]) -> Any:
        handler = self._handler
        arguments = ([item.payload for item in items], [item.context for item in items])[: handler.arguments]
        if handler.isolation == "thread":
            return await items[0].executor.in_thread(handler, arguments)
        return await noted(handler.name, handler.call(*arguments))


def _checked(returned: Any, count: int) -> Sequence[Any]:
    if not isinstance(returned, list | tuple):
        raise NonRetryable(
            f"A batch handler returns a list with one result for each payload, not a {type_name(returned)}.", "unexpected_result"
        )
    if len(returned) != count:
        raise NonRetryable(
            f"The batch handler returned {len(returned)} results for {count} payloads; it returns one for each, in their order.",
            "unexpected_result",
        )
    return returned


def _without_attempt() -> contextvars.Context:
    """Return the variables of a call that belongs to no single attempt."""
    variables = context_without_baggage()
    variables.run(holder.set, None)
    variables.run(current_attempt.set, None)
    return variables
