"""Messages to running functions and values from them: signals, updates with their answers, and published values.

An update is a signal whose sender waits: the function's answer is a step of its own, in the same unit as the reply. Published
values are one row of the run, which the run that continues it takes over; reading them needs no worker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from treadle.kernel.functions.steps import UPDATE_PREFIX, answer_id, published_id, read_step
from treadle.kernel.store.chains import current_run
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import PutMessage
from treadle.kernel.store.units import RunGuard, Unit
from treadle.kernel.store.value_store import ValueStore
from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.conversion import plain_object
from treadle.model.errors import IllegalMove, NothingPublished, StoreError, UnreadableValue, UpdateRejected, UpdateUnanswered
from treadle.model.ids import Ids, Ref, derived_id
from treadle.model.names import check_key, check_name
from treadle.model.records import Message
from treadle.model.runs import Run
from treadle.model.states import RUN, StepState
from treadle.model.tasks import FRAMEWORK, SOURCE, LogLine
from treadle.model.values import BlobRef, Json, encode

_PAGE = 1000
_FIRST_POLL, _SLOWEST_POLL = 0.02, 0.5
"""Seconds between two reads of a caller that waits for an answer."""


@dataclass(frozen=True, slots=True)
class SentUpdate:
    """An update on its way to a function; `id` is the same for every call with its key."""

    id: str
    run_id: str
    name: str


@dataclass(frozen=True, slots=True)
class UpdateAnswer:
    """The value with which a function answered an update."""

    value: Json


class Messages(ABC):
    """The part of `Functions` that talks with running functions."""

    _store: Store
    _committer: Committer
    _value_store: ValueStore
    _ids: Ids
    _clock: Clock
    _patience: float
    _payload_limit: int

    @abstractmethod
    async def get(self, run_id: Ref) -> Run:
        """The run of a function, or `RunNotFound`."""

    async def get_current(self, run_id: Ref) -> Run:
        """The current run of the function's chain, or `RunNotFound`."""
        return await current_run(self._store, await self.get(run_id))

    async def signal(
        self, run_id: Ref, name: str, payload: Json = None, *, idempotency_key: str | None = None, actor: str | None = None
    ) -> bool:
        """Send a signal to an unfinished run, or to the run that continues it; returns False if the chain already received one
        with this key.

        The signal is kept until the function waits for it. Raises `IllegalMove` for a finished run. `actor`, if given, is named
        in the run's log.
        """
        check_name(name, "signal name")
        run = await self.get(run_id)
        message_id = None
        if idempotency_key:
            key = check_key(idempotency_key, "idempotency key")
            message_id = derived_id(run.chain_id or run.id, f"signal/{name}/{key}")
        return await self._send(run, name, payload, message_id, keyed=idempotency_key is not None, actor=actor)

    async def _send(
        self, run: Run, name: str, payload: Json, message_id: str | None, *, keyed: bool, actor: str | None, what: str = "Signal"
    ) -> bool:
        text, blobs = self._value_store.pack({"payload": payload}, run.root_id, "payload", self._payload_limit)
        body = {"payload": text} | ({"keyed": True} if keyed else {})
        sealed = self._value_store.seal(encode(body, "signal", 2 * self._payload_limit))
        message = Message(id=message_id or self._ids.new_id(), run_id=run.id, name=name, body=sealed)
        seen: Run | None = run

        async def attempt() -> bool:
            nonlocal seen
            now, seen = await current_run(self._store, seen or await self.get(run.id)), None
            if keyed and await self._was_received(now.id, message.id):
                return False
            if now.finished:
                raise IllegalMove("run", now.id, now.state, what.lower(), RUN.possible(now.state))
            guard = RunGuard(now.id, now.version if keyed else None, live=True)  # a key must be new at that version
            unit = Unit(run=guard, rows=(*blobs, PutMessage(msgspec.structs.replace(message, run_id=now.id))))
            await self._committer.commit(unit, self._patience)
            if actor is not None:
                await self._note_sender(now.id, f"{what} {name.removeprefix(UPDATE_PREFIX)} from {actor}", actor)
            return True

        return await self._committer.transact(attempt, f"signal the run {run.id}")

    async def _note_sender(self, run_id: str, text: str, actor: str) -> None:
        """Log the sender of a message; a failed write does not undo the message."""
        with suppress(StoreError):
            at, task_id = await self._store.now(), derived_id(run_id, "task")
            line = LogLine(
                task_id=task_id,
                at=at,
                level="info",
                message=text,
                details=encode({SOURCE: FRAMEWORK, "actor": actor}),
                run_id=run_id,
            )
            await self._store.append_lines([line])

    async def _was_received(self, run_id: str, message_id: str) -> bool:
        if await self._store.find_step(message_id) is not None:
            return True
        after = 0
        while page := await self._store.list_messages(run_id, _PAGE, after):
            if any(message.id == message_id for message in page):
                return True
            after = page[-1].seq
        return False

    # updates

    async def send_update(
        self, run_id: Ref, name: str, payload: Json = None, *, idempotency_key: str | None = None, actor: str | None = None
    ) -> SentUpdate:
        """Send an update to an unfinished run, or to the run that continues it; a repeated call with the key sends nothing.

        Raises `IllegalMove` for a finished run, unless it has received an update with this key.
        """
        check_name(name, "update name")
        run = await self.get(run_id)
        key = self._ids.new_id() if idempotency_key is None else check_key(idempotency_key, "idempotency key")
        sent = SentUpdate(derived_id(run.chain_id or run.id, f"update/{name}/{key}"), run.id, name)
        body = {"id": sent.id, "value": plain_object(payload)}
        await self._send(run, f"{UPDATE_PREFIX}{name}", body, sent.id, keyed=True, actor=actor, what="Update")
        return sent

    async def find_answer(self, sent: SentUpdate) -> UpdateAnswer | None:
        """Return the answer, or None if it may still come; raises `UpdateRejected` or `UpdateUnanswered`."""
        run = await self.get_current(sent.run_id)
        step = await self._store.find_step(answer_id(sent.id))
        if step is None:
            if run.finished:
                raise UpdateUnanswered(sent.name, run.id)
            return None
        recorded = read_step(step, self._value_store)
        if recorded.state == StepState.COMPLETED:
            return UpdateAnswer(await self._loaded(recorded.value))
        error = recorded.error or {}
        if error.get("code") == UpdateUnanswered.code:
            raise UpdateUnanswered(sent.name, run.id)
        raise UpdateRejected(sent.name, str(error.get("message", "")))

    async def wait_for_answer(self, sent: SentUpdate, timeout: Duration | None = None) -> UpdateAnswer | None:
        """Wait for the answer; None if it has not come after `timeout`."""
        ends_at = None if timeout is None else self._clock.monotonic() + milliseconds(timeout, "timeout") / 1000
        pause = _FIRST_POLL
        while (answer := await self.find_answer(sent)) is None:
            left = pause if ends_at is None else min(pause, ends_at - self._clock.monotonic())
            if left <= 0:
                break
            await self._clock.sleep(left)
            pause = min(pause * 1.5, _SLOWEST_POLL)
        return answer

    # published values

    async def list_published(self, run_id: Ref) -> dict[str, dict[str, Json]]:
        """The values that the current run of the chain has published, by name, each with its `value` and the time `at` (ms)."""
        step = await self._store.find_step(published_id((await self.get_current(run_id)).id))
        found: Any = {} if step is None else await self._loaded(read_step(step, self._value_store).value)
        if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
            raise UnreadableValue("The published values cannot be read. They are damaged, or a newer version wrote them.")
        return found

    async def query(self, run_id: Ref, name: str) -> Json:
        """The value that the function last published under the name, also after its end; raises `NothingPublished`."""
        found = await self.list_published(run_id)
        if name not in found:
            raise NothingPublished(str(run_id), name, list(found))
        return found[name].get("value")

    async def _loaded(self, value: Any) -> Any:
        return (await self._value_store.load([value.digest]))[value.digest] if isinstance(value, BlobRef) else value
