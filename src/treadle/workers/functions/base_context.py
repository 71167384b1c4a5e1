"""The part of a function's context that never waits: the run's identity, recorded values, and reports."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from treadle.kernel.effects.decide import current_keys
from treadle.kernel.functions.steps import NOW, PATCH, PUBLISH, TAG
from treadle.kernel.store.units import tag_rows
from treadle.model.conversion import plain_object
from treadle.model.errors import InvalidInput
from treadle.model.names import check_key, check_name
from treadle.model.states import StepState
from treadle.model.tags import Tags, TagValue, check_tags, decode_tags
from treadle.model.tasks import log_line
from treadle.model.values import Json, decode, encode
from treadle.workers.functions.driver import Driver
from treadle.workers.functions.journal import error_of
from treadle.workers.streams import StreamWriter

_PUBLISHED_LIMIT = 100
"""Limit on the names that a run publishes."""


class BaseFunctionContext:
    """One run of a durable function: what `FunctionContext` and `BlockingFunctionContext` have in common."""

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._driver.execution.run_id

    @property
    def trace_id(self) -> str | None:
        """The trace that the run belongs to."""
        return self._driver.execution.task.trace_id

    @property
    def version(self) -> int:
        """The version of the function that executes the run."""
        return self._driver.execution.function.version

    @property
    def idempotency_key(self) -> str:
        """The key of the effect in progress, the same for all attempts: pass it to services that deduplicate."""
        return current_keys().idempotency_key

    @property
    def dedupe_key(self) -> str:
        """The same as `idempotency_key`."""
        return current_keys().idempotency_key

    @property
    def attempt_key(self) -> str:
        """The key of this attempt at the effect in progress, under which its outcome is recorded."""
        return current_keys().attempt_key

    # values

    def publish(self, name: str, value: Any) -> None:
        """Set a value that `handle.query(name)` returns to any caller, without a worker and also after the end.

        The value is any JSON or an instance of a supported class; it is stored with the next step, or when the run waits or ends.
        The run that `continue_as_new` starts keeps it. A run publishes up to 100 names, together up to the limit on payloads.
        """
        driver = self._driver
        check_name(name, "name of a published value")
        limit = driver.execution.runtime.payload_limit
        stored = decode(encode(plain_object(value), "published value", limit))
        journal, branch = driver.journal, driver.branches.enter()
        step_name = branch.number(name)
        place, recorded = journal.next_step(branch, PUBLISH, step_name)
        if recorded is None:
            recorded, unit = journal.new_step(place, PUBLISH, step_name, StepState.COMPLETED), branch.next_unit()
            published = {**journal.published, name: {"value": stored, "at": driver.execution.now()}}
            try:  # depends on other branches and earlier runs, so a refusal is recorded
                if len(published) > _PUBLISHED_LIMIT:
                    raise InvalidInput(f"A run publishes values under up to {_PUBLISHED_LIMIT} names.")
                encode(published, "published values", limit)
            except InvalidInput as error:
                recorded.state, recorded.error = StepState.FAILED, {"code": error.code, "message": str(error)}
            else:
                journal.published, unit.publishes = published, True
            journal.write(recorded, unit)
        if (refused := error_of(recorded)) is not None:
            raise refused

    def now(self) -> datetime:
        """Return the time (UTC), the same in every replay."""
        journal, branch = self._driver.journal, self._driver.branches.enter()
        name = branch.number("now")
        place, recorded = journal.next_step(branch, NOW, name)
        if recorded is None:
            recorded = journal.new_step(place, NOW, name, StepState.COMPLETED)
            recorded.value = self._driver.execution.now()
            journal.write(recorded, branch.next_unit())
        return datetime.fromtimestamp(recorded.value / 1000, UTC)

    def random(self) -> float:
        """Return a number in [0, 1), the same in every replay."""
        branch = self._driver.branches.enter()
        branch.randoms += 1
        seed = hashlib.sha256(f"{self.run_id}/{branch.scope}random/{branch.randoms}".encode()).digest()
        return int.from_bytes(seed[:7], "big") / 2**56

    def patched(self, name: str) -> bool:
        """Return whether to use new code: True for runs that reach it for the first time, False for runs already past it.

            if ctx.patched("fraud-check"):
                await ctx.step(check_fraud, order)

        `name` identifies the change; keep it while runs that recorded it may be replayed.
        """
        journal, branch = self._driver.journal, self._driver.branches.enter()
        check_key(name, "name of a patch")
        if journal.replaying:
            recorded = journal.history.left.get(f"{branch.scope}{branch.position}")
            same = recorded is not None and recorded.kind == PATCH and recorded.name == name
            if not same and journal.history.went_past(branch.scope, branch.position):
                return False
        place, recorded = journal.next_step(branch, PATCH, name)
        if recorded is None:
            journal.write(journal.new_step(place, PATCH, name, StepState.COMPLETED), branch.next_unit())
        return True

    def deprecate_patch(self, name: str) -> None:
        """State that the code before the change `name` is gone: use it in place of `patched`, and keep the new code.

        Runs that recorded the change replay as before; new runs record nothing. Remove the call when all runs that began before
        it have ended.
        """
        journal, branch = self._driver.journal, self._driver.branches.enter()
        check_key(name, "name of a patch")
        recorded = journal.history.left.get(f"{branch.scope}{branch.position}")
        if recorded is not None and recorded.kind == PATCH and recorded.name == name:
            journal.next_step(branch, PATCH, name)

    # reports

    def tag(self, tags: Tags | None = None, /, **more: TagValue) -> None:
        """Set search attributes of the run: `ctx.tag(customer="acme")`; they are stored with the next step, or when the run ends.

        Pass them by name, or as a mapping `tags`; `more` wins. A replay does not repeat it, so that an old value never replaces a
        newer one.
        """
        stored = check_tags({**(tags or {}), **more})
        journal, branch = self._driver.journal, self._driver.branches.enter()
        name = branch.number("tag")
        place, recorded = journal.next_step(branch, TAG, name)
        if recorded is None:
            recorded = journal.new_step(place, TAG, name, StepState.COMPLETED)
            recorded.value = decode_tags(stored)
            unit = branch.next_unit()
            journal.write(recorded, unit)
            unit.rows += tag_rows("run", self.run_id, stored)

    def stream(self, name: str) -> StreamWriter:
        """Return the run's stream of that name, for readers that follow the run: `ctx.stream("tokens").write("Hello")`.

        Steps may use it, too. A replay repeats no entry; a step that is attempted again begins a new generation of its entries.
        """
        streams = self._driver.streams
        writer = StreamWriter(name, streams.add, streams.flush)
        streams.add(name, None)
        return writer

    def log(self, message: str, level: str = "info", **details: Json) -> None:
        """Write a log line about this run, with a `message`, a `level` and any JSON `details`; a replay does not repeat it."""
        execution = self._driver.execution
        line = log_line(execution.task, execution.now(), message, level, details)
        if execution.context is not None and not self._driver.journal.silent:
            execution.context.add_line(line)

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report the progress of the run for display: a `fraction` (0 to 1) and a `message`."""
        context = self._driver.execution.context
        if context is not None:
            context.progress(fraction, message)
