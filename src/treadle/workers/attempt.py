"""One attempt at a task: from its claim, through its handler, to the answer of the store to its settlement.

`kernel.queue.decide` turns the handler's outcome into a settlement. The committer commits it under the task's claim; if the
claim is lost, the result is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from treadle.kernel.approvals.service import ProcessDue
from treadle.kernel.external.decide import unregistered_text
from treadle.kernel.queue.decide import (
    TaskDecision,
    decide,
    failure,
    ignored,
    poll_backoff,
    refusal,
    settle_refused,
    settlement,
    settlement_of,
)
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.units import Requeue, Row, Unit, UnitAnswer, Verdict, returned, tag_rows
from treadle.kernel.telemetry.events import (
    LeaseLost,
    LoopError,
    ResultDropped,
    StoreTrouble,
    TaskSettled,
    TaskTaken,
    current_attempt,
)
from treadle.kernel.telemetry.observer import AttemptEnded, SettleAnswered, Spans
from treadle.model.errors import InvalidInput, StoreError, TreadleError, UnreadableValue
from treadle.model.external import UNREGISTERED
from treadle.model.names import FUNCTION, HANDLER
from treadle.model.outcomes import Outcome, Problem, Released
from treadle.model.retry import STORE_BACKOFF, RetryPolicy
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle.model.values import error_code, error_text, shown, type_name
from treadle.workers.call import attempt_handler, intercepted_handler, task_name
from treadle.workers.context import Context, RegisteredHandler, Settled, holder
from treadle.workers.functions.runner import FunctionRunner
from treadle.workers.lease_renewer import LeaseRenewer
from treadle.workers.resources import QueueGroup, Resources, Services, WorkerOptions

_NO_HANDLER_FOR = 30_000
"""Milliseconds until a task that was claimed without a handler is claimed again."""

_CONTINUING = frozenset({"wait", "ask", "hand_off", "poll"})
"""Transitions after which the handler is called again to continue, so that its streams continue, too."""


class Attempt(msgspec.Struct, eq=False):
    """The state of one attempt; `runner` is None until the attempt is scheduled."""

    task: Task
    context: Context
    group: QueueGroup
    handler: RegisteredHandler | None
    orphan: bool
    """Whether the task was claimed only to end it as ignored."""
    runner: asyncio.Task[None] | None = None
    lost: bool = False
    started: bool = False
    returned: bool = False
    """Whether its handler has returned."""
    settling: bool = False
    """Whether the settlement is being committed, which must not be interrupted."""
    answering: bool = False
    """Whether the committer will report the answer to a callback, so that the runner need not wait for it."""
    refused: bool = False
    """Whether the store refused the outcome, so that the attempt is settled as a failure."""
    stream_rows: tuple[Row, ...] = ()
    """Entries of streams that are stored with the settlement."""
    leave_span: Callable[[], None] | None = None

    def interrupt(self) -> None:
        """Stop the handler if it still runs."""
        self.context.cancel()
        if self.runner is not None and self.started and not self.settling:  # canceled before it started, it would never end
            self.runner.cancel()


class AttemptRunner:
    """Runs the attempts of one worker and counts their results.

    `on_started` receives each attempt that starts, `on_returned` each whose handler has returned, and the seconds that took,
    and `on_ended` each that is over.
    """

    def __init__(
        self,
        resources: Resources,
        services: Services,
        options: WorkerOptions,
        on_started: Callable[[Attempt], None],
        on_returned: Callable[[Attempt, float], None],
        on_ended: Callable[[Attempt], None],
    ) -> None:
        self._committer = resources.committer
        self._clock = resources.clock
        self._emit = resources.emit
        self._telemetry = resources.telemetry
        self._resources = resources
        self._services = services
        self._options = options
        self._on_started = on_started
        self._on_returned = on_returned
        self._on_ended = on_ended
        self.lease_renewer: LeaseRenewer | None = None
        self.stopping = False
        """Whether to give up on settlements while the store cannot be reached."""
        self._unscheduled: list[Attempt] = []
        self.handled = 0
        self.failed = 0
        self.released = 0

    def start(self, task: Task, group: QueueGroup, handler: RegisteredHandler | None, orphan: bool, claimed_at: float) -> Attempt:
        """Register the lease for renewal and schedule the attempt; `claimed_at` is the monotonic time of the claim.

        It begins two turns of the event loop later. The next claim is sent one turn later, so the database works on it while the
        handlers of this one run.
        """
        services = self._services
        context = Context(task, self._clock.now, services.on_line, effects=services.effects, external_jobs=services.external_jobs)
        attempt = Attempt(task, context, group, handler, orphan)
        if self.lease_renewer is not None:
            limits = (handler.progress_for, handler.timeout_for) if handler is not None else (None, None)
            self.lease_renewer.hold(context, claimed_at, *limits)
        if not self._unscheduled:
            asyncio.get_running_loop().call_soon(self._schedule)
        self._unscheduled.append(attempt)
        return attempt

    def _schedule(self) -> None:
        loop, spans = asyncio.get_running_loop(), self._telemetry.spans
        attempts, self._unscheduled = self._unscheduled, []
        for attempt in attempts:
            running = self._run(attempt) if spans is None else self._run_in_span(spans, attempt)
            attempt.runner = loop.create_task(running, name=task_name(attempt.task.name))

    def lose(self, attempt: Attempt, reason: str) -> None:
        """Stop the handler and drop its result: the claim is gone. The store itself answers a settlement on its way."""
        if not attempt.lost and not attempt.settling:
            self._note_lost(attempt, reason)
            attempt.interrupt()

    def _note_lost(self, attempt: Attempt, reason: str) -> None:
        attempt.lost = True
        self._emit(LeaseLost(attempt.task.id, attempt.task.name, reason, attempt.task.trace_id))

    async def release(self, attempt: Attempt, started_at: float) -> None:
        """Return the task to the queue: another worker may claim it immediately if this one stops, or else after a second.

        The code of a handler can cancel the task that runs it, too.
        """
        attempt.settling = True
        await self._close_streams(attempt)
        released = Released(after_for=0) if self.stopping else Released("its handler was canceled")
        await self._settle(attempt, settlement(attempt.task, released, RetryPolicy()), started_at)

    # from claim to settlement

    async def _run_in_span(self, spans: Spans, attempt: Attempt) -> None:
        with spans.executing(attempt.task) as attempt.leave_span:
            await self._run(attempt)

    async def _run(self, attempt: Attempt) -> None:
        task = attempt.task
        started_at = self._clock.monotonic()
        attempt.started = True
        self._on_started(attempt)
        current_attempt.set((task.id, task.trace_id))
        holder.set(attempt.context)
        try:
            if self.lease_renewer is not None and not self.lease_renewer.start(attempt.context.token):
                await self._return_unstarted(attempt)
                return
            if attempt.context.cancelled:
                raise asyncio.CancelledError
            if self._is_heard():
                self._emit(TaskTaken(task.id, task.name, task.attempt, task.trace_id))
            services = self._services
            if task.state == TaskState.AWAITING_APPROVAL and services.process_due is not None:
                await self._process_approval(attempt, services.process_due, started_at)
                return
            if task.baggage is not None:
                services.unpack_baggage(task.baggage)
            decided = await self._decide_task(attempt, started_at)
            attempt.returned = True
            self._on_returned(attempt, self._clock.monotonic() - started_at)
            if decided is None or attempt.lost:
                return
            if attempt.context.has_streams:
                await self._close_streams(attempt, continues=settlement_of(decided).transition in _CONTINUING)
            plain_unit = services.plain_unit
            if plain_unit is not None and (unit := plain_unit(task, attempt.context.token, decided)) is not None:
                self._submit(attempt, unit, decided, started_at)
            else:
                await self._settle(attempt, decided, started_at)
        except asyncio.CancelledError:
            if not attempt.lost:
                await self.release(attempt, started_at)
        except Exception as error:
            await self._fail_unsettled(attempt, error, started_at)
        finally:
            if not attempt.answering:
                self._end(attempt)

    async def _return_unstarted(self, attempt: Attempt) -> None:
        """Return a task whose lease ended before its handler started to the queue, unless another worker has it."""
        if not attempt.lost:
            self._note_lost(attempt, "its lease expired before its handler started")  # `lose` would cancel this very task
        attempt.settling = True
        if attempt.task.state != TaskState.PENDING:
            return
        unit = Unit(attempt.context.token, returned(attempt.task, "its lease ended before its handler started"))
        try:
            await self._committer.submit(unit, STORE_BACKOFF.cap)
        except StoreError as error:
            self._emit(StoreTrouble("returning a task to the queue", str(error), 0.0))

    def _end(self, attempt: Attempt) -> None:
        if self.lease_renewer is not None:
            self.lease_renewer.drop(attempt.context.token)
        self._committer.detach(attempt.context.token)
        attempt.context.drop_streams()
        self._on_ended(attempt)
        if attempt.leave_span is not None:
            attempt.leave_span()

    async def _process_approval(self, attempt: Attempt, process_due: ProcessDue, started_at: float) -> None:
        """Handle a reminder, an escalation or an expiry of the approval that the task waits for."""
        task = attempt.task
        attempt.settling = True
        try:
            answer, decided = await process_due(task, attempt.context.token)
        except StoreError as error:
            released = self._decide(task, attempt.handler, Released(f"its approval could not be read: {error}"))
            await self._settle(attempt, released, started_at)
        else:
            self._settled(task, answer, decided.transition, decided.error, started_at)

    async def _decide_task(self, attempt: Attempt, started_at: float) -> TaskDecision | None:
        """Call the handler and decide the settlement; None if the handler has settled the task itself."""
        task, handler, services = attempt.task, attempt.handler, self._services
        if (problem := refusal(task, self._options.takeover_limit)) is not None:
            if isinstance(refused := settle_refused(task, problem), Requeue):
                self._emit(LoopError("worker", f"task {task.id} ({task.name}) backs off: {problem.message}"))
            return refused
        if (delayed := poll_backoff(task, self._options.takeover_limit)) is not None:
            return delayed
        if task.state == TaskState.AWAITING_EXTERNAL and (handler is None or handler.executes is None):
            return await self._without_specialist(task)
        if handler is None:
            return self._without_handler(task, attempt.orphan)
        if task.kind == FUNCTION and services.functions is not None:
            return await self._run_function(attempt, services.functions, started_at)
        if services.open_payload is not None and task.payload.startswith("@"):
            try:
                task.payload = await services.open_payload(task.payload)
            except StoreError as error:
                return self._decide(task, handler, Released(f"its payload could not be read: {error}"))
            except TreadleError as error:
                return failure(Problem(error.code, str(error), type(error).__name__))
        if "handler" in services.around and task.kind == HANDLER:
            handler = intercepted_handler(handler, services.around)
        failpoint("handler.before")
        called_at = self._measured_at()
        try:
            outcome = await attempt_handler(handler, attempt.context, self._resources.executor)
        except asyncio.CancelledError:
            self._observe_end(task, None, called_at)
            raise
        failpoint("handler.after")
        if isinstance(outcome, Settled):
            self._observe_end(task, "succeed", called_at)
            self._settled(task, outcome.answer, "succeed", None, started_at)
            return None
        decided = self._decide(task, handler, outcome)
        self._observe_end(task, settlement_of(decided).transition, called_at)
        return decided

    async def _run_function(self, attempt: Attempt, functions: FunctionRunner, started_at: float) -> TaskDecision | None:
        """Run a durable function, which settles its task itself."""
        task = attempt.task

        def set_settling(settling: bool) -> None:
            attempt.settling = settling

        called_at = self._measured_at()
        try:
            settled = await functions.execute(task, attempt.context, set_settling)
        except StoreError as error:
            return self._decide(task, attempt.handler, Released(f"the run could not be read: {error}"))
        except asyncio.CancelledError:
            self._observe_end(task, None, called_at)
            raise
        self._observe_end(task, None if settled is None else settled.transition, called_at)
        if settled is not None:
            self._count(task, settled.transition, settled.error, started_at)
        else:
            self._emit(ResultDropped(task.id, task.name, "checkpoint", task.trace_id))
        return None

    async def _without_specialist(self, task: Task) -> TaskDecision:
        """Release or fail an external job without a specialist; a plain handler of the same name cannot poll it."""
        external_jobs = self._services.external_jobs
        if external_jobs is not None and not await external_jobs.is_offered(task):
            return failure(Problem(UNREGISTERED, unregistered_text(task.name, task.scope)))
        return self._decide(task, None, Released("its specialist is not here"))

    def _without_handler(self, task: Task, orphan: bool) -> TaskDecision:
        """Ignore a task that no worker serves; release one whose handler was removed after the claim."""
        if orphan and task.state == TaskState.PENDING:
            return ignored(task)
        return self._decide(task, None, Released("no handler here", _NO_HANDLER_FOR))

    def _decide(self, task: Task, handler: RegisteredHandler | None, outcome: Outcome) -> TaskDecision:
        default = handler.retry if handler else RetryPolicy()
        try:
            return decide(task, outcome, default, self._resources.ids.random, self._options.result_limit)
        except Exception as error:
            return settle_refused(task, _unstorable(error))

    # settlement

    async def _fail_unsettled(self, attempt: Attempt, error: Exception, started_at: float) -> None:
        """Settle as a failure under the same claim, because the outcome cannot be stored (D70)."""
        task = attempt.task
        self._emit(LoopError("worker", _unsettled(task, error)))
        if attempt.lost or isinstance(error, StoreError):
            return
        try:
            await self._settle(attempt, settle_refused(task, _unstorable(error)), started_at)
        except Exception as again:
            self._emit(LoopError("worker", _unsettled(task, again)))

    def _submit(self, attempt: Attempt, unit: Unit, decided: TaskDecision, started_at: float) -> None:
        """Hand the unit to the committer without waiting for its answer; most attempts end like this."""
        attempt.settling = True
        self._attach(attempt)
        failpoint("settle.before_commit")
        sent_at = self._measured_at()

        def answered(answer: UnitAnswer | BaseException) -> None:
            again = False
            try:
                if isinstance(answer, BaseException):
                    self._emit(LoopError("worker", _unsettled(attempt.task, answer)))
                    if isinstance(answer, InvalidInput) and not attempt.refused:
                        attempt.refused = again = True
                        self._submit_failure(attempt, answer, started_at)
                else:
                    self._answered(attempt.task, answer, decided, started_at, sent_at)
            finally:
                if not again:
                    self._end(attempt)

        self._committer.submit_callback(unit, answered)
        attempt.answering = True

    def _submit_failure(self, attempt: Attempt, error: Exception, started_at: float) -> None:
        """Settle as a failure under the same claim, because the store refused the outcome (D70)."""
        failed = settle_refused(attempt.task, _unstorable(error))
        self._submit(attempt, Unit(attempt.context.token, failed), failed, started_at)

    async def _close_streams(self, attempt: Attempt, *, continues: bool = False) -> None:
        """Wait for entries of streams that are being stored; the settlement stores the rest."""
        if attempt.context.has_streams:
            attempt.stream_rows = await attempt.context.close_streams(continues=continues)

    def _attach(self, attempt: Attempt) -> None:
        """Commit the attempt's tags and last entries of streams with its settlement."""
        task, rows = attempt.task, attempt.stream_rows
        if tags := attempt.context.tags:
            of_run = () if task.run_id is None else tag_rows("run", task.run_id, tags)
            rows = (*rows, *tag_rows("task", task.id, tags), *of_run)
        self._committer.attach(attempt.context.token, rows)

    async def _settle(self, attempt: Attempt, decided: TaskDecision, started_at: float) -> None:
        attempt.settling = True
        self._attach(attempt)
        failpoint("settle.before_commit")
        sent_at = self._measured_at()
        answer = await self._commit(attempt, decided)
        self._answered(attempt.task, answer, decided, started_at, sent_at)

    async def _commit(self, attempt: Attempt, decided: TaskDecision) -> UnitAnswer:
        """Commit the settlement, and retry while the store cannot be reached, so that finished work is not done again.

        The lease is renewed meanwhile; the store decides whether it still held.
        """
        settle, token = self._services.settle, attempt.context.token
        delay = STORE_BACKOFF.first
        while True:
            try:
                if settle is None:
                    return await self._committer.submit(Unit(token, settlement_of(decided)))
                return await settle(attempt.task, token, decided)
            except StoreError as error:
                if self.stopping:
                    raise
                self._emit(StoreTrouble("settling", str(error), delay))
                await self._clock.sleep(delay)
                delay = STORE_BACKOFF.after(delay)

    def _answered(self, task: Task, answer: UnitAnswer, decided: TaskDecision, started_at: float, sent_at: float | None) -> None:
        failpoint("settle.after_commit")
        settlement = settlement_of(decided)
        if (observe := self._telemetry.observe) is not None and sent_at is not None:
            done = answer.verdict is Verdict.DONE
            observe(SettleAnswered(task.id, settlement.transition, done, self._clock.monotonic() - sent_at))
        self._settled(task, answer, settlement.transition, settlement.error, started_at)

    # counts and measurements

    def _settled(self, task: Task, answer: UnitAnswer, transition: str, error: str | None, started_at: float) -> None:
        if answer.verdict is Verdict.DONE:
            self._count(task, transition, error, started_at)
        else:
            self._emit(ResultDropped(task.id, task.name, transition, task.trace_id))

    def _count(self, task: Task, transition: str, error: str | None, started_at: float) -> None:
        if transition == "release":
            self.released += 1
        else:
            self.handled += 1
            self.failed += transition == "fail"
        if error is not None or self._is_heard():
            took_ms = (self._clock.monotonic() - started_at) * 1000
            self._emit(TaskSettled.of(task, transition, took_ms, error))

    def _is_heard(self) -> bool:
        """Return whether a subscriber wants an event for every task, including those that succeed."""
        return self._emit is not self._telemetry or self._telemetry.hears_all

    def _measured_at(self) -> float | None:
        return None if self._telemetry.observe is None else self._clock.monotonic()

    def _observe_end(self, task: Task, transition: str | None, called_at: float | None) -> None:
        if (observe := self._telemetry.observe) is not None and called_at is not None:
            observe(AttemptEnded(task, transition, self._clock.monotonic() - called_at))


def _unsettled(task: Task, error: BaseException) -> str:
    return f"task {task.id} ({task.name}) could not be settled: {shown(error)}"


def _unstorable(error: Exception) -> Problem:
    """Return the failure of a task with an outcome that cannot be stored."""
    if isinstance(error, InvalidInput | UnreadableValue):
        return Problem(error_code(error, "unstorable_result"), error_text(error), type_name(error))
    return Problem("unstorable_result", f"The outcome cannot be stored: {shown(error)}", type_name(error))
