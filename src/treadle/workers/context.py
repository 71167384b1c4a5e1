"""What a handler is given beside its payload: facts about its task, and ways to say how it is going. Safe in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from treadle.kernel.effects.decide import current_keys
from treadle.kernel.external.service import ExternalJobs
from treadle.model.approvals import split_checkpoint
from treadle.model.errors import NonRetryable
from treadle.model.external import Production
from treadle.model.reports import log_line, progress_text
from treadle.model.tasks import Claim, LogLine, Task
from treadle.model.values import Json, decode
from treadle.workers.effects import AttemptEffects, EffectKernel

_flagging = threading.Lock()
"""Guards the making of a context's flag, which most attempts never need."""


class Context:
    """One attempt at one task, as its handler sees it."""

    __slots__ = (
        "_cancelled",
        "_effect_kernel",
        "_effects",
        "_now",
        "_on_line",
        "_on_progress",
        "callback_token",
        "dispatch_token",
        "external_jobs",
        "produced",
        "progress_text",
        "progressed",
        "task",
        "token",
    )

    def __init__(
        self,
        task: Task,
        now: Callable[[], int],
        on_line: Callable[[LogLine], None],
        on_progress: Callable[[str], None] | None = None,
        effects: EffectKernel | None = None,
        external_jobs: ExternalJobs | None = None,
    ) -> None:
        self.task = task
        self.token: Claim = task.claim
        self._now = now
        self._on_line = on_line
        self._on_progress = on_progress
        self._effect_kernel = effects
        self._effects: AttemptEffects | None = None
        self._cancelled: threading.Event | None = None
        self.progressed = False
        self.progress_text: str | None = None
        self.external_jobs = external_jobs
        self.dispatch_token: str | None = None
        """For specialists: what the job is submitted under. Give it to the service; `find` is asked for it after a crash."""
        self.callback_token: str | None = None
        """For specialists: with this the service may resolve the job by a call-back, without being polled."""
        self.produced: list[Production] = []

    def standing_in(self, task: Task) -> Context:
        """The same attempt for a handler that is called in this one's place with that task: what it says and does is ours."""
        made = Context(task, self._now, self._on_line, self.note_progress)
        if self._effect_kernel is not None:
            made._effects = self._own_effects()
        return made

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.task.id

    @property
    def attempt(self) -> int:
        """The number of this execution, from 1."""
        return self.task.attempt

    @property
    def fencing_token(self) -> int:
        """Rises with each claim of the task: hand it to outside systems that can refuse an older one."""
        return self.task.claim_version

    @property
    def deadline_at(self) -> int | None:
        """When the task is no longer worth doing (ms since 1970), or None."""
        return self.task.deadline_at

    @property
    def checkpoint(self) -> Json:
        """What this handler left with `Waiting(..., checkpoint=...)` or `AwaitingApproval(...)`, or None."""
        return split_checkpoint(decode(self.task.checkpoint))[1]

    @property
    def approval_decisions(self) -> list[dict[str, Json]]:
        """The approvals that were given to this task so far, oldest first; each as `approval_decision` has it."""
        return split_checkpoint(decode(self.task.checkpoint))[0]

    @property
    def approval_decision(self) -> dict[str, Json] | None:
        """The last approval that was given, once a handler that returned `AwaitingApproval` is entered again; else None.

        `by`, `at` and `reason` say who decided, when and why; `context` is what was approved, and `edited` whether who approved
        has changed it. What is denied fails the task, so that a handler never sees it.
        """
        given = self.approval_decisions
        return given[-1] if given else None

    @property
    def callback_url(self) -> str | None:
        """For specialists: where the service may send its call-back; it has the token in it. None without `TREADLE_PUBLIC_URL`."""
        if self.callback_token is None or self.external_jobs is None:
            return None
        return self.external_jobs.callback_url(self.callback_token)

    @property
    def cancelled(self) -> bool:
        """Whether the work should stop: canceled, lease lost, timed out or shutting down. Sync handlers look at it."""
        return self._cancelled is not None and self._cancelled.is_set()

    def cancel(self) -> None:
        """Raise the flag that `cancelled` shows."""
        self._flag().set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep up to `seconds` in a sync handler, or until it should stop; whether it should."""
        return self._flag().wait(seconds)

    def _flag(self) -> threading.Event:
        with _flagging:
            if self._cancelled is None:
                self._cancelled = threading.Event()
            return self._cancelled

    # effects

    def effect(
        self,
        action: str,
        call: Callable[[], Any],
        request: Json = None,
        *,
        key: str | None = None,
        unknown: tuple[type[BaseException], ...] = (),
    ) -> Coroutine[Any, Any, Any]:
        """`await` it: call `call()` once, as far as that can be known, however often this task is attempted; what it returned.

        What it returns (JSON) is stored before the task settles; a later attempt that comes here gets that, and `call` is not
        called. `action` and `request` (JSON, the same in each attempt) say which effect it is; give a `key` where the request
        would differ. Two effects alike in one attempt are two effects.

        What `call` raises comes out of here. Only `EffectFailed`, `NonRetryable` and errors of HTTP clients with a status below 500
        say that the effect was not made (and none whose type is in `unknown`). An attempt after one of which nobody knows how it
        ended calls again, under a new `idempotency_key` and the same `dedupe_key`, and the log says `tool_call.unknown`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise NonRetryable(
                "ctx.effect(...) is for async handlers; a sync one uses ctx.effect_blocking(...).", "effect_unavailable"
            ) from None
        return self._own_effects().make(action, call, request, key, unknown)

    def effect_blocking(
        self,
        action: str,
        call: Callable[[], Any],
        request: Json = None,
        *,
        key: str | None = None,
        unknown: tuple[type[BaseException], ...] = (),
    ) -> Any:
        """`effect` for sync handlers: `call` runs here, in the handler's thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._own_effects().make_blocking(action, call, request, key, unknown)
        raise NonRetryable(
            "ctx.effect_blocking(...) is for sync handlers; an async one awaits ctx.effect(...).", "effect_unavailable"
        )

    @property
    def idempotency_key(self) -> str:
        """The key of the effect in progress, new for each attempt; only while the function given to `effect` runs."""
        return current_keys().idempotency_key

    @property
    def dedupe_key(self) -> str:
        """The key of the effect in progress that stays the same for all attempts: for services that deduplicate."""
        return current_keys().dedupe_key

    def _own_effects(self) -> AttemptEffects:
        if self._effects is not None:
            return self._effects
        if self._effect_kernel is None:
            raise NonRetryable(
                "There are no effects here: they need a worker of an engine, and a handler that runs in its process "
                "(async or in a thread, not isolation='process').",
                "effect_unavailable",
            )
        self._effects = AttemptEffects(self._effect_kernel, self.task, self.token)
        return self._effects

    def append_produced(self, production: Production | dict[str, Json]) -> Production:
        """For specialists: say what the job produced; return it afterwards. It is stored with the task's end, or not at all."""
        made = Production(production) if isinstance(production, dict) else production
        if not any(each is made for each in self.produced):
            self.produced.append(made)
        return made

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Say that the work gets on: a sign of life for the progress deadline, and a fraction (0 to 1) and text for people.

        Cheap; stored at most about once a second, with the lease. A fraction a little outside is taken for 0 or 1: how far
        the work is must not be what fails it.
        """
        text = progress_text(fraction, message)
        if self._on_progress is not None:
            self._on_progress(text)
        self.note_progress(text)

    def note_progress(self, text: str) -> None:
        """Take in a sign of life, as JSON; the keeper sends it on."""
        self.progress_text = text
        self.progressed = True

    def log(self, message: str, level: str = "info", **details: Json) -> None:
        """Write a line about this task, for people; kept with the task, not fenced, stored soon."""
        self.add_line(log_line(self.task, self._now(), message, level, details))

    def add_line(self, line: LogLine) -> None:
        """Take in a line that is complete."""
        self._on_line(line)
