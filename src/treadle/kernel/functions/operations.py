"""Operators' transitions on runs of durable functions: pause, resume, cancel, retry, fork, adopt.

A run and all unfinished runs below it form a tree, and a transition applies to all of them in one unit. A child starts only while
its parent is at the version read, so no member can have started a child unseen, except just before the unit: the next attempt finds
those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from treadle.kernel.core import Core, Service
from treadle.kernel.functions.decide import (
    ABANDON,
    REPLAYED,
    TERMINATE,
    CancelRequest,
    canceled_rows,
    cleanup_for,
    cleanup_timer,
    find_policy,
    held_rows,
    new_run,
    own_task,
    read_request,
    requested,
    run_message,
    voided,
)
from treadle.kernel.functions.service import Functions
from treadle.kernel.functions.steps import (
    ASK,
    CALL,
    HIDDEN,
    PUBLISHED,
    RESULT,
    START,
    Recorded,
    check_version,
    failed_beside,
    is_after,
    is_finished,
    make_step,
    parse_queue_name,
    published_id,
    step_id,
)
from treadle.kernel.queue.decide import canceled_error
from treadle.kernel.queue.engine_tasks import cancel_task, deadline_tasks, find_deadline
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.lookups import current_run, kept_tags
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.records import TakeMessages
from treadle.kernel.store.units import (
    BlockRun,
    Dismiss,
    Finish,
    PutSteps,
    Redrive,
    Row,
    RunGuard,
    RunTransition,
    Seen,
    Unit,
    Verdict,
)
from treadle.model.errors import IllegalTransition, Refused, not_found
from treadle.model.ids import Ref, derived_id
from treadle.model.runs import Run
from treadle.model.states import RUN, SHOWN_LIVE_STATES, RunState, TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.values import Json, decode_error, encode

_HELD_LIMIT = 1000
_CANCELED_LIMIT = 10_000
"""Tasks of a run that are canceled when its cleanup begins; all others, when it ends."""


class FunctionRuns(Service):
    """Operators' transitions on the function runs of one namespace."""

    def __init__(self, core: Core, functions: Functions) -> None:
        super().__init__(core)
        self.functions = functions
        """The service of all function runs."""

    # each transition applies to the current run of the lineage

    async def pause(self, run_id: Ref, *, actor: str = "operator") -> Run:
        """Hold the run and all runs below it: no worker claims their tasks; attempts in progress finish and count (D20).

        A function stops at its next `ctx` operation. Pausing a paused run is a no-op.
        """
        return await self._operate(
            run_id, "pause", actor, lambda runs: held_rows(runs, actor, blocked_by=True), unless=(RunState.PAUSED,)
        )

    async def resume(self, run_id: Ref, *, actor: str = "operator") -> Run:
        """Resume a paused run and all runs below it; on any other run this is a no-op."""
        unless = (RunState.RUNNING, RunState.COMPLETED, RunState.FAILED, RunState.CANCELED)
        return await self._operate(run_id, "resume", actor, lambda runs: held_rows(runs, actor, blocked_by=False), unless=unless)

    async def cancel(
        self,
        run_id: Ref,
        *,
        actor: str = "operator",
        reason: str | None = None,
        code: str = "canceled",
        force: bool = False,
        successor: Unit | None = None,
    ) -> Run:
        """End the run, the runs below it that follow it, and all their tasks; steps keep their states. Canceling twice is a no-op.

        If its code may clean up, the run stays live while it does, for a limited time: the request fences off its holder, cancels
        its tasks, and has `Canceled` raised at the operation at which the function is. With `force` the run ends immediately.
        The tasks and rows of a `successor` are stored in the same commit, unless the run has ended before.
        """
        if not force and (live_run := await self._request(run_id, actor, reason, code, successor or Unit())) is not None:
            return live_run
        error = canceled_error(actor, reason, code)
        canceled: list[str] = []

        def rows(runs: Sequence[Run]) -> list[Row]:
            canceled.extend(run.id for run in runs)
            return canceled_rows(runs, actor, error, self._value_store)

        run = await self._operate(run_id, "cancel", actor, rows, unless=(RunState.CANCELED,), force=force, successor=successor)
        for canceled_id in dict.fromkeys(canceled):
            self.functions.finished(canceled_id)
            if late := await self.functions.closed([await self.functions.get(canceled_id)]):  # requested meanwhile
                await self._committer.submit(Unit(rows=tuple(late)), self._patience)
        return run

    async def _request(self, run_id: Ref, actor: str, reason: str | None, code: str, successor: Unit) -> Run | None:
        """Ask the function to clean up, once; None if it has nothing to clean up, or has ended."""
        run_id = (await self.functions.get(run_id)).id

        async def attempt() -> Run | None:
            run = await self.functions.get_current(run_id)
            task = None if run.finished else await self.functions.own_task(run.id)
            if task is None or not (limit := cleanup_for(task, self.functions.cleanup_here)):
                return None
            if read_request(task) is not None:
                if successor.tasks:
                    await self._committer.commit(replace(successor, run=RunGuard(run.id, None, live=True)), self._patience)
                return run
            request = CancelRequest(actor=actor, reason=reason, code=code, until=await self._store.now() + limit)
            requeue, rows = requested(task, request, limit)
            if run.state == RunState.PAUSED:
                rows = (*rows, *held_rows([run], actor, blocked_by=False))
            live = await self._store.tasks.list_matching(TaskFilter(states=SHOWN_LIVE_STATES, run_id=run.id), _CANCELED_LIMIT)
            children, terminated = await self._following(run.id)
            timers, why = [cleanup_timer(run, request, limit)], f"The run {run.id} was canceled."
            if (tasks := [other.id for other in live if other.id != task.id]) or children:
                timers.append(cancel_task(run.id, run.namespace, why, tasks, children))
            if terminated:
                timers.append(cancel_task(derived_id(run.id, "terminated"), run.namespace, why, runs=terminated, force=True))
            unit = replace(
                successor,
                guard=Seen.of(task),
                settlement=requeue,
                tasks=(*successor.tasks, *timers),
                run=RunGuard(run.id, run.version),
                rows=(*successor.rows, *rows),
            )
            await self._committer.commit(unit, self._patience)
            if task.owner_id is not None:
                self._committer.fenced([task.id])
            return await self.functions.get(run.id)

        return await self._committer.transact(attempt, f"cancel the run {run_id}")

    async def _following(self, run_id: str) -> tuple[list[str], list[str]]:
        """The children that are canceled with the run, and those that end without cleanup."""
        canceled: list[str] = []
        terminated: list[str] = []
        for child_id in await self._store.runs.list_children(run_id):
            if (child := await self._store.runs.find(child_id)) is None:
                continue
            policy = await find_policy(self._store, self._value_store, child)
            if policy != ABANDON:
                (terminated if policy == TERMINATE else canceled).append(child_id)
        return canceled, terminated

    async def _operate(
        self,
        run_id: Ref,
        transition: str,
        actor: str,
        rows_of: Callable[[Sequence[Run]], list[Row]],
        unless: tuple[str, ...],
        *,
        force: bool = False,
        successor: Unit | None = None,
    ) -> Run:
        """Apply an operator's transition to the run and all runs below it, until none is left; guarded by the run's version."""
        run_id = (await self.functions.get(run_id)).id

        async def attempt() -> Run:
            run = await self.functions.get_current(run_id)
            cancel_tasks: tuple[NewTask, ...] = ()
            if transition == "cancel":
                descendants, cancel_tasks = await self.functions.closing(run, force=force)
            else:
                descendants = await self.functions.descendants(run.id)
            below = [descendant for descendant in descendants if RUN.target(descendant.state, transition)]
            if run.state in unless and (not below or transition == "resume"):
                return run
            runs = below if run.state in unless else [run, *below]
            if run not in below and run.state not in unless and RUN.target(run.state, transition) is None:
                raise IllegalTransition("run", run.id, run.state, transition, RUN.possible(run.state))
            held = [task.id for ending in runs for task in await self._list_held(ending.id)] if transition == "cancel" else []
            ordered = sorted(runs, key=lambda run: run.id)
            closed = await self.functions.closed(ordered) if transition == "cancel" else []
            after = await self.functions.closed_tasks(ordered) if transition == "cancel" else []
            more = successor if successor is not None and run in runs else Unit()
            unit = replace(
                more,
                run=RunGuard(run.id, run.version),
                tasks=(*more.tasks, *after, *cancel_tasks),
                rows=(*more.rows, *rows_of(ordered), *closed),
            )
            await self._committer.commit(unit, self._patience)
            self._committer.fenced(held)
            raise Stale  # the next attempt finds children that were started meanwhile

        return await self._committer.transact(attempt, f"{transition} the run {run_id}")

    async def _list_held(self, run_id: str) -> list[Task]:
        return await self._store.tasks.list_matching(TaskFilter(states=(TaskState.RUNNING,), run_id=run_id), _HELD_LIMIT)

    async def retry(self, run_id: Ref, chosen: str | None = None, *, actor: str = "operator") -> Run:
        """Repeat the failed steps of a failed run and continue from there; without any, the function's last part runs again.

        The steps are those that the run's error was raised from. An error of which that is not known may be about failures that the
        code has collected: all failed steps are repeated, and everything after them. A child run that failed is retried as well,
        so that its completed steps are kept, and the ends of others, which came while the run was not live, are delivered.
        """
        run = await self.functions.get_current(run_id)
        return await self._redrive(run, *await self._retry_of(run, chosen, actor), actor)

    async def _retry_of(self, run: Run, chosen: str | None, actor: str) -> tuple[Task, list[Row], list[Run]]:
        """Return the task of a failed run, the rows that repeat its failed steps, and the child runs that it continues."""
        if run.state != RunState.FAILED:
            raise IllegalTransition("run", run.id, run.state, "retry", RUN.possible(run.state))
        recorded = await self.functions.recorded(run.id)
        blamed = [chosen] if chosen else decode_error(run.error).get("step_ids") or [run.failed_step_id]
        failed = [step for step in recorded if step.id in blamed]
        if not chosen:
            failed = [*failed, *failed_beside(failed, recorded)]
        if chosen and not failed:
            raise not_found("step", chosen)
        if chosen and failed[0].state != "failed":
            raise Refused(
                f"The step {failed[0].name} is {failed[0].state}, not failed; repeat it in a new run with `treadle runs fork`."
            )
        observed = {step.of for step in recorded if step.kind == RESULT and is_finished(step)}
        unobserved = [step for step in recorded if step.kind == START and step.id not in observed]
        awaited = {step.id: await self._find_child(step) for step in unobserved}
        awaited |= {step.of or step.id: await self._find_child(step) for step in failed if step.kind == RESULT}
        again = [
            step
            for step in recorded
            if step.kind not in HIDDEN
            and (awaited.get(step.id, run) is None or any(step is one or is_after(step.place, one.place) for one in failed))
        ]
        repeated = {step.id for step in again}
        children = [child for start_id, child in awaited.items() if child is not None and start_id not in repeated]
        task = await self.functions.own_task(run.id)
        if task is None or not task.finished:
            raise Refused(f"The run {run.id} has no finished task to retry; start a new run with `treadle runs fork`.")
        rows: list[Row] = [Dismiss(run.id)]
        if again:
            rows.append(PutSteps(run.id, voided(again, run.id, self._value_store), 0))
        rows.append(RunTransition(run.id, "retry", run.state, RunState.RUNNING, actor=actor))
        return task, rows, children

    async def _find_child(self, step: Recorded) -> Run | None:
        """Return the child run that a step starts or awaits, if it can still complete, or has; others are started anew."""
        child = await self._store.runs.find(step.task_id or "")
        child = None if child is None else await current_run(self._store, child)
        if child is None or child.state == RunState.CANCELED:
            return None
        task = await self.functions.own_task(child.id) if child.state == RunState.FAILED else None
        return None if child.state == RunState.FAILED and task is None else child

    async def _continue_child(self, child: Run, actor: str) -> None:
        """Retry the child of a retried run if it has failed, or send its end again if it completed while the run was not live."""
        now = await self.functions.get_current(child.id)
        if now.state == RunState.FAILED:
            await self.retry(now.id, actor=actor)
        elif child.state != RunState.COMPLETED and (rows := self._end_of(now)):
            await self._committer.submit(Unit(run=RunGuard(now.parent_id or "", None), rows=rows), self._patience)

    def _end_of(self, child: Run) -> tuple[Row, ...]:
        """Return the message with the result of a completed child run, which its parent may have received before."""
        return run_message(child, child.state, child.outputs, None, self._value_store) if child.state == RunState.COMPLETED else ()

    async def reopen(self, run_id: Ref, *, actor: str = "operator") -> Run:
        """Continue a canceled run after its last recorded step, with its key if that is free; its deadline is removed.

        Calls, approvals and child runs that were canceled with it are requested again; timers and signals stay. Refused for a run
        that has cleaned up, because its code has undone what it did.
        """
        run = await self.functions.get_current(run_id)
        if run.state != RunState.CANCELED:
            raise IllegalTransition("run", run.id, run.state, "reopen", RUN.possible(run.state))
        task = await self.functions.own_task(run.id)
        if task is None or not task.finished or read_request(task) is not None:
            raise Refused(f"The run {run.id} cannot be continued, because it has cleaned up; use `treadle runs rerun {run.id}`.")
        recorded = await self.functions.recorded(run.id)
        open_steps = [step for step in recorded if step.kind in (CALL, ASK, RESULT) and not is_finished(step)]
        ended = {step.of for step in recorded if step.kind == RESULT and is_finished(step)}
        starts = [step for step in recorded if step.kind == START and step.id not in ended]
        runs = await self._store.runs.find_many([step.task_id for step in starts if step.task_id], (RunState.CANCELED,))
        tasks = await self._store.tasks.find_many([step.task_id for step in open_steps if step.task_id])
        lost = {child.id for child in runs} | {ended.id for ended in tasks if ended.state == TaskState.CANCELED}
        again = [step for step in (*open_steps, *starts) if step.task_id in lost]
        rows: list[Row] = [RunTransition(run.id, "reopen", run.state, RunState.RUNNING, actor=actor)]
        children = [await self._find_child(step) for step in starts if step not in again]
        if again:
            rows.append(PutSteps(run.id, voided(again, run.id, self._value_store), 0))
        return await self._redrive(run, task, rows, [child for child in children if child is not None], actor)

    async def _redrive(self, run: Run, task: Task, rows: list[Row], children: Sequence[Run], actor: str) -> Run:
        """Make the run's finished task live again, in one commit with the rows and with the retries of its failed children.

        A run receives the ends of its children only while it is live, so those that have completed are delivered again.
        """
        redrive, tasks = Redrive("requeue", actor), [task]
        pending = deque([(run, children)])
        while pending:
            parent, below = pending.popleft()
            if failed := [child for child in below if child.state == RunState.FAILED]:
                rows.append(TakeMessages(parent.id, tuple(child.id for child in failed)))
            for child in below:
                rows += self._end_of(child)
            for child in failed:
                child_task, more, further = await self._retry_of(child, None, actor)
                tasks.append(child_task)
                rows += more
                pending.append((child, further))
        also = tuple((Seen.of(child_task), redrive) for child_task in tasks[1:])
        unit = Unit(Seen.of(task), redrive, also=also, run=RunGuard(run.id, None), rows=tuple(rows))
        failpoint("operate.before_commit")
        answer = await self._committer.submit(unit, self._patience)
        failpoint("operate.after_commit")
        if answer.verdict is not Verdict.DONE:
            raise Refused(f"Another change to the run {run.id} came first; nothing was changed. Try again.")
        for child in children:  # some may have ended before the commit
            if child.state != RunState.FAILED:
                await self._continue_child(child, actor)
        return await self.functions.get(run.id)

    async def rerun(self, run: Run, payload: Mapping[str, Json], *, actor: str | None = None) -> str:
        """Start the same version again with a payload, as a separate run."""
        version = await self.functions.version_of(run)
        tags = await kept_tags(self._store, run.id)
        started, _ = await self.functions.start(
            run.workflow,
            payload,
            version=version,
            task_list=run.task_list,
            priority=run.priority,
            actor=actor,
            fairness_key=run.fairness_key,
            baggage=run.baggage,
            tags=tags,
        )
        return started

    async def fork(
        self,
        run_id: Ref,
        chosen: str,
        *,
        payload: Mapping[str, Json] | None = None,
        idempotency_key: str | None = None,
        actor: str | None = None,
    ) -> tuple[str, bool]:
        """Start a new run of the same version that keeps the steps finished before one, and repeats that one and the rest.

        Returns its id and whether it is new: an idempotency key returns its first run.
        """
        run = await self.functions.get(run_id)
        rows_of_run = await self.functions.recorded(run.id)
        recorded = [step for step in rows_of_run if step.kind not in HIDDEN]
        target = next((step for step in recorded if step.id == chosen), None)
        if target is None:
            raise not_found("step", chosen)
        copied = [step for step in recorded if step is not target and is_finished(step) and not is_after(step.place, target.place)]
        awaited = {step.of for step in copied if step.kind == RESULT}
        copied = [step for step in copied if step.kind != START or step.id in awaited]
        run_inputs = {**await self._value_store.unpack(run.inputs), **(payload or {})}
        task = await self.functions.own_task(run.id)
        version = parse_queue_name(task.name if task is not None else run.flow_id.partition(":")[2])[1]
        ends_at, now = await find_deadline(self._store, run.workflow, None, None, self.functions.deadlines)
        new, own, rows = new_run(
            run_id=self._ids.new_id(),
            namespace=run.namespace,
            name=run.workflow,
            version=version,
            payload=run_inputs,
            task_list=run.task_list,
            priority=run.priority,
            value_store=self._value_store,
            payload_limit=self._core.payload_limit,
            root_id=run.root_id,
            trace_id=run.trace_id,
            idempotency_key=idempotency_key,
            parent_id=run.id,
            scope=REPLAYED,
            steps=len(copied),
            actor=actor,
            deadline_at=ends_at,
            fairness_key=run.fairness_key,
            baggage=run.baggage,
            tags=await kept_tags(self._store, run.id),
            limits_for=self._core.limits_for,
        )
        ids = {step.id: step_id(new.id, step.place) for step in copied}
        for step in copied:
            step.id, step.redo, step.of = ids[step.id], 0, ids.get(step.of or "")
        for step in (step for step in rows_of_run if step.kind == PUBLISHED):
            step.id = published_id(new.id)
            copied.append(step)
        steps = tuple(make_step(new.id, step, self._value_store) for step in copied)
        more: tuple[Row, ...] = (PutSteps(new.id, steps, len(steps)),) if steps else ()
        failpoint("function.before_commit")
        answer = await self._committer.submit(Unit(tasks=(own, *deadline_tasks(new, now)), rows=(*rows, *more)), self._patience)
        failpoint("function.after_commit")
        existing = answer.existing.get(idempotency_key or "")
        return (new.id, True) if existing is None else (existing, False)

    async def adopt(self, run_id: Ref, version: int, *, actor: str = "operator") -> Run:
        """Continue an unfinished run with another version of its function (D28); the operator vouches that it matches the
        recorded steps.

        The same unit ends the old task, naming the actor in the log, and creates one of the other version.
        """
        check_version(version)
        run_id = (await self.functions.get(run_id)).id

        async def attempt() -> Run:
            run = await self.functions.get_current(run_id)
            if run.finished:
                raise IllegalTransition("run", run.id, run.state, "adopt", RUN.possible(run.state))
            task = await self.functions.own_task(run.id)
            if task is None or task.finished:
                raise Refused(f"The run {run.id} has no live task that could continue it.")
            if (request := read_request(task)) is not None:
                raise Refused(f"The run {run.id} {request.text}; another version cannot continue it.")
            _, old = parse_queue_name(task.name)
            if old == version:
                return run
            error = encode({"code": "adopted", "message": f"Version {version} continues it instead of {old}, by {actor}."})
            ends = Finish("cancel", TaskState.CANCELED, error=error, error_code="adopted", actor=actor)
            new_id = derived_id(task.id, f"adopt/{task.claim_version}/{version}")
            new = replace(
                own_task(run, version, new_id, REPLAYED),
                unique_key=task.unique_key,
                limit_key=task.limit_key,
                limit_keys=task.limit_keys,
            )
            rows: tuple[Row, ...] = (BlockRun(run.id, True),) if run.state == RunState.PAUSED else ()
            unit = Unit(Seen.of(task), ends, (new,), run=RunGuard(run.id, run.version), rows=rows)
            await self._committer.commit(unit, self._patience)
            return await self.functions.get(run.id)

        return await self._committer.transact(attempt, f"adopt the run {run_id}")
