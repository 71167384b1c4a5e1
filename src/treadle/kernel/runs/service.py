"""Runs: start, pause, resume, cancel, retry, rerun, fork; and agents' operations on a waiting step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Unpack

import msgspec

from treadle.evaluator import (
    Changes,
    Event,
    Expand,
    Finished,
    LoadedRows,
    Need,
    Resend,
    RetryStep,
    RunRef,
    Started,
    State,
    StepRow,
    Updated,
    fork,
    open_ends,
    repeat_collected,
)
from treadle.kernel.core import Core, Service
from treadle.kernel.functions.operations import FunctionRuns
from treadle.kernel.functions.steps import VOID
from treadle.kernel.queue.decide import canceled_error, failure
from treadle.kernel.queue.engine_tasks import Defaults, deadline_tasks, find_deadline
from treadle.kernel.queue.service import check_priority
from treadle.kernel.runs.advancer import Advancer, LoadedRun
from treadle.kernel.runs.decide import errored, load_step, once, rows_of
from treadle.kernel.runs.flows import Flows, Source, check_inputs, check_result, find_workflow
from treadle.kernel.runs.records import ExecutionResult, ExecutionStatus, NewRun, RunStartOptions, StartedRun
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.lookups import all_steps, check_run_repeat, every_task, find_id, kept_tags
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import (
    BlockRun,
    CancelRunTasks,
    Dismiss,
    Finish,
    PutFlow,
    PutRun,
    Row,
    RunGuard,
    RunTransition,
    Seen,
    Unit,
    Verdict,
    tag_rows,
)
from treadle.lang import Program
from treadle.lang.nodes import Block, Facet, Step
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import IllegalTransition, InvalidInput, Refused, UnreadableValue, not_found
from treadle.model.ids import Ref, parse_id
from treadle.model.names import ADVANCE, APPROVAL, DEFAULT_LIST, HANDLER, SCRIPT, check_key, check_name, handles, is_function
from treadle.model.outcomes import Problem
from treadle.model.runs import Flow, Run
from treadle.model.states import RUN, SHOWN_LIVE_STATES, RunState, TaskState
from treadle.model.tags import Tags, check_tags
from treadle.model.tasks import NewTask, Preclaimed, Task
from treadle.model.values import Json, decode_error, encode

INPUTS_LIMIT = 64 * 1024 * 1024
"""Limit on the characters of JSON in inputs and results."""
_PAGE = 1000
_TASKS_LIMIT = 1000


_ENDED: dict[str, ExecutionStatus] = {
    RunState.COMPLETED: ExecutionStatus.COMPLETED,
    RunState.FAILED: ExecutionStatus.ERROR,
    RunState.CANCELED: ExecutionStatus.CANCELED,
}


class Runs(Service):
    """The runs of one namespace."""

    def __init__(
        self,
        core: Core,
        advancer: Advancer,
        flows: Flows,
        of_functions: FunctionRuns,
        *,
        finishing: Sequence[str] = (),
        deadlines: Defaults = (),
    ) -> None:
        """The workflows `finishing` (names or globs) go on after a failure."""
        super().__init__(core)
        self._advancer = advancer
        self._flows = flows
        self._of_functions = of_functions
        self._finishing = finishing
        self._deadlines = deadlines

    async def start(
        self,
        flow: str | Sequence[Source],
        workflow: str | None = None,
        inputs: Mapping[str, Json] | None = None,
        **options: Unpack[RunStartOptions],
    ) -> StartedRun:
        """Start a workflow of a published flow (name or digest) or of sources; durable when this returns.

        The same commit takes the first steps.
        """
        return await self._begin(await self.prepare(flow, workflow, inputs, **options))

    async def prepare(
        self,
        flow: str | Sequence[Source],
        workflow: str | None = None,
        inputs: Mapping[str, Json] | None = None,
        *,
        version: int | None = None,
        lenient: bool = False,
        strict: bool = False,
        idempotency_key: str | None = None,
        task_list: str = DEFAULT_LIST,
        priority: int = 0,
        trace_id: str | None = None,
        tags: Tags | None = None,
        parent_id: str | None = None,
        run_id: str | None = None,
        preclaimed: Preclaimed | None = None,
        actor: str | None = None,
        on_failure: str | None = None,
        deadline: Duration | str | None = None,
        deadline_at: datetime | None = None,
        fairness_key: str | None = None,
        baggage: str | None = None,
    ) -> NewRun:
        """Build the unit of `start`, for a caller that commits it with other rows."""
        check_priority(priority)
        if on_failure not in (None, "stop", "finish"):
            raise InvalidInput(f"on_failure must be stop or finish, not {on_failure!r}.")
        stored: Flow | None = None
        if isinstance(flow, str):
            named_flow = await self._flows.get_flow(flow, version)
            flow_id, program = named_flow.id, await self._flows.program(named_flow.id)
        else:
            stored, program, _ = await self._flows.compile_aside(flow, strict=strict)
            flow_id = stored.id
        entry = find_workflow(program, workflow)
        run_inputs = dict(inputs or {})
        check_inputs(program, entry, run_inputs, lenient=lenient)
        ends_at, now = await find_deadline(self._store, entry.qualified_name, deadline, deadline_at, self._deadlines)
        run_id = run_id or self._ids.new_id()
        encode(run_inputs, "inputs", INPUTS_LIMIT)
        folded = self._value_store.fold(run_inputs, run_id, "inputs")
        packed, _ = self._value_store.pack(folded.attributes, run_id, "inputs", INPUTS_LIMIT)
        run = Run(
            id=run_id,
            namespace=self._namespace,
            flow_id=flow_id,
            workflow=entry.qualified_name,
            task_list=check_name(task_list, "task list"),
            priority=priority,
            inputs=packed,
            idempotency_key=None if idempotency_key is None else check_key(idempotency_key, "idempotency key"),
            root_id=run_id,
            trace_id=trace_id or self._core.current_trace_id() or run_id,
            parent_id=parent_id,
            deadline_at=ends_at,
            fairness_key=None if fairness_key is None else check_key(fairness_key, "fairness key"),
            baggage=baggage or self._core.baggage(),
        )
        cached = LoadedRun(run, LoadedRows())
        cached.view.blobs.update(folded.values)
        cached.view.add_absent(RunRef(id=run.id, workflow=run.workflow).root_id)  # a new run has no stored rows
        stops = on_failure == "stop" if on_failure else not handles(self._finishing, run.workflow)
        changes = await self._advancer.views.evaluate(cached, [Started(folded.attributes, stops)])
        rows = (*folded.blobs, *tag_rows("run", run_id, check_tags(tags)))
        return self._new(run, stored, rows, cached, changes, actor, preclaimed, deadline_tasks(run, now))

    def _new(
        self,
        run: Run,
        flow: Flow | None,
        rows: tuple[Row, ...],
        cached: LoadedRun,
        changes: Changes,
        actor: str | None,
        preclaimed: Preclaimed | None = None,
        timers: tuple[NewTask, ...] = (),
    ) -> NewRun:
        """Build the unit of a new run with its first changes."""
        cached.run = msgspec.structs.replace(run, version=-1)  # this commit raises it to version 0
        tasks, change_rows, steps = rows_of(cached.run, changes, self._value_store, actor, preclaimed)
        first: tuple[Row, ...] = () if flow is None else (PutFlow(flow),)
        new = PutRun(msgspec.structs.replace(run, steps=len(changes.created)))
        unit = Unit(tasks=(*timers, *tasks), rows=once([*first, new, *rows, *change_rows]))

        def committed() -> None:
            if preclaimed is not None:
                self._advancer.driven[run.id] = preclaimed
            self._advancer.committed(cached, changes, steps)

        return NewRun(run, unit, committed)

    async def _begin(self, new: NewRun) -> StartedRun:
        failpoint("advance.before_commit")
        answer = await self._committer.submit(new.unit, self._patience)
        failpoint("advance.after_commit")
        if new.run.idempotency_key is not None and new.run.idempotency_key in answer.existing:
            existing = answer.existing[new.run.idempotency_key]
            await check_run_repeat(self._store, self._value_store, new.run, existing)
            return StartedRun(existing, created=False)
        new.committed()
        return StartedRun(new.run.id)

    # reads

    async def get_run(self, run_id: Ref) -> Run:
        """The run, or `RunNotFound`."""
        return await self._get_run(run_id)

    async def outputs(self, run: Run) -> dict[str, Json]:
        """The outputs of a completed run."""
        return await self._value_store.unpack(run.outputs)

    async def inputs(self, run: Run) -> dict[str, Json]:
        """The inputs of the run."""
        return await self._value_store.unpack(run.inputs)

    async def list_steps(self, run_id: Ref) -> list[StepRow]:
        """All steps of the run, by depth."""
        run = await self.get_run(run_id)
        return sorted(await self._all_steps(run.id), key=lambda row: (row.depth, row.place))

    async def get_step(self, run_id: Ref, step_id: str) -> StepRow:
        """One step of a run, or `NotFound`."""
        run = await self.get_run(run_id)
        steps = await self._store.runs.load_steps(run.id, rows=[parse_id(step_id, "step id")])
        if not steps or steps[0].kind == VOID:
            raise not_found("step", step_id)
        return load_step(steps[0], self._value_store)

    async def status(self, run_id: Ref) -> ExecutionResult:
        """The current state of the run for its driver; does not wait."""
        run = await self.get_run(run_id)
        error = decode_error(run.error)
        return ExecutionResult(
            status=await self._status(run),
            workflow_id=run.id,
            outputs=await self.outputs(run),
            error=error.get("message"),
            iterations=run.version + 1,
        )

    async def _status(self, run: Run) -> ExecutionStatus:
        if run.state in _ENDED:
            return _ENDED[run.state]
        if run.state == RunState.PAUSED:
            return ExecutionStatus.PAUSED
        if await self._store.runs.list_steps(run.id, None, 1, with_inbox=True):
            return ExecutionStatus.RUNNING
        live = await self._store.tasks.list_matching(TaskFilter(states=SHOWN_LIVE_STATES, run_id=run.id), _TASKS_LIMIT)
        own = any(task.kind in (ADVANCE, SCRIPT, APPROVAL) and task.state == TaskState.PENDING for task in live)
        waits = any(task.kind in (HANDLER, APPROVAL) for task in live) and not own
        return ExecutionStatus.PAUSED if waits else ExecutionStatus.RUNNING

    # operators

    async def _functions_for(self, run_id: Ref) -> FunctionRuns | None:
        """The service for the run, if it belongs to a durable function."""
        return self._of_functions if is_function((await self.get_run(run_id)).flow_id) else None

    async def pause(self, run_id: Ref, *, actor: str = "operator") -> Run:
        """Hold the run: no worker claims its tasks; attempts in progress finish and their results are kept (D20).

        Pausing a paused run is a no-op.
        """
        if (functions := await self._functions_for(run_id)) is not None:
            return await functions.pause(run_id, actor=actor)
        return await self._operate(run_id, "pause", actor, lambda run: (BlockRun(run.id, True),), unless=(RunState.PAUSED,))

    async def resume(self, run_id: Ref, *, actor: str = "operator") -> Run:
        """Resume a paused run; repair a running one.

        Repairing processes leftover results, unexpanded blocks and steps whose task is gone, and names them in the log. On a
        run that lacks nothing, or is finished, this is a no-op.
        """
        if (functions := await self._functions_for(run_id)) is not None:
            return await functions.resume(run_id, actor=actor)
        run = await self.get_run(run_id)
        if run.state == RunState.PAUSED:
            unless = (RunState.RUNNING, RunState.COMPLETED, RunState.FAILED, RunState.CANCELED)
            await self._operate(run.id, "resume", actor, lambda run: (BlockRun(run.id, False),), unless=unless)
            await self._withdraw(run.id)
        elif run.state == RunState.RUNNING:
            await self._repair(run.id, actor)
        return await self.get_run(run_id)

    async def cancel(
        self, run_id: Ref, *, actor: str = "operator", reason: str | None = None, code: str = "canceled", force: bool = False
    ) -> Run:
        """End the run and all its live tasks now; its steps keep their states. Canceling twice is a no-op.

        A function that may clean up does so first, unless `force`: see `FunctionRuns.cancel`.
        """
        if (functions := await self._functions_for(run_id)) is not None:
            return await functions.cancel(run_id, actor=actor, reason=reason, code=code, force=force)
        error = canceled_error(actor, reason, code)
        running = TaskFilter(states=(TaskState.RUNNING,), run_id=(await self.get_run(run_id)).id)
        held = [task.id for task in await self._store.tasks.list_matching(running, _TASKS_LIMIT)]
        run = await self._operate(
            run_id, "cancel", actor, lambda run: (CancelRunTasks(run.id, actor, error),), error=error, unless=(RunState.CANCELED,)
        )
        self._committer.fenced(held)
        if late := (await self._advancer.early_end(run))[1]:  # approvals requested during the cancellation
            await self._committer.submit(Unit(rows=late), self._patience)
        return run

    async def reopen(self, run_id: Ref, *, actor: str = "operator") -> Run:
        """Continue the canceled run of a function after its last recorded step."""
        return await self._of_functions.reopen(run_id, actor=actor)

    async def reschedule(
        self, run_id: Ref, delay: Duration | None = None, start_at: datetime | None = None, *, actor: str = "operator"
    ) -> Run:
        """Change the start of a function's run that has not started; without a time it starts now."""
        return await self._of_functions.functions.reschedule(run_id, delay, start_at, actor=actor)

    async def retry(self, run_id: Ref, step_id: str | None = None, *, actor: str = "operator") -> Run:
        """Repeat in one commit everything that failed in the run, or below one step or block, and continue the run from there.

        Completed steps are kept; steps that were not started because the run could not succeed are started. The failed tasks are
        no longer dead letters. If the failure follows from errors that a `collectErrors` has collected, the items that failed are
        repeated, too, and everything that followed from them.
        """
        if (functions := await self._functions_for(run_id)) is not None:
            return await functions.retry(run_id, step_id, actor=actor)
        run = await self.get_run(run_id)
        if run.state not in (RunState.FAILED, RunState.RUNNING):
            raise IllegalTransition("run", run.id, run.state, "retry", RUN.possible(run.state))
        if run.state == RunState.FAILED and await self._repeat_collected(run.id, step_id, actor):
            return await self.get_run(run_id)
        row = await self.get_step(run.id, step_id or RunRef(id=run.id, workflow=run.workflow).root_id)
        if (await self._flows.program(run.flow_id)).find_node(row.statement_id) is None:
            raise Refused(f"The steps of the run {run.id} are not those of its flow (it was imported): rerun it.")
        if ignored := await self._advancer.offer(run.id, RetryStep(row.id), actor=actor):
            raise Refused(f"The {'step' if step_id else 'run'} cannot be repeated: {ignored[0]}.")
        return await self.get_run(run_id)

    async def _repeat_collected(self, run_id: str, step_id: str | None, actor: str) -> bool:
        """Repeat failures that were collected; return whether there were any. The cost is proportional to the steps of the run."""

        async def attempt() -> bool:
            run = await self.get_run(run_id)
            program = await self._flows.program(run.flow_id)
            if not any(
                isinstance(node, Block) and node.foreach is not None and node.foreach.failed for node in program.nodes.values()
            ):
                return False
            steps = await self._all_steps(run.id)
            if step_id is not None and all(step.id != step_id for step in steps):
                return False
            blobs: dict[str, Json] = {}
            repeat = partial(repeat_collected, program, RunRef(id=run.id, workflow=run.workflow, rows=run.steps), steps, step_id)
            while isinstance(changes := repeat(blobs, self._advancer.views.limits), Need):
                blobs |= await self._value_store.load(changes.blobs)
            if changes is None:
                return False
            tasks, rows, _ = rows_of(run, changes, self._value_store, actor, self._advancer.driven.get(run.id))
            unit = Unit(run=RunGuard(run.id, run.version), tasks=tasks, rows=once([Dismiss(run.id), *rows]))
            try:
                await self._committer.commit(unit, self._patience)
            finally:
                self._advancer.views.forget(run.id)
            return True

        return await self._committer.transact(attempt, f"retry the run {run_id}")

    async def retry_dead(self, run_id: Ref, *, actor: str = "operator") -> Run:
        """Retry the run of a dead letter; first process results that could not be processed."""
        run = await self.get_run(run_id)
        if run.state != RunState.RUNNING:
            return await self.retry(run.id, actor=actor)
        await self.repair(run.id, actor=actor)

        async def attempt() -> Run:
            seen = await self.get_run(run_id)
            try:
                return await self.retry(seen.id, actor=actor)
            except Refused:  # nothing has failed: the letter was about the advance of the run
                await self._committer.commit(Unit(run=RunGuard(seen.id, seen.version), rows=(Dismiss(seen.id),)))
                self._advancer.views.forget(seen.id)
                return await self.get_run(run_id)

        return await self._committer.transact(attempt, f"retry the run {run.id}")

    async def rerun(self, run_id: Ref, *, inputs: Mapping[str, Json] | None = None, actor: str | None = None) -> StartedRun:
        """Start the same workflow of the same flow again, with the same inputs unless others are given."""
        run = await self.get_run(run_id)
        run_inputs = await self.inputs(run) if inputs is None else inputs
        if is_function(run.flow_id):
            return StartedRun(await self._of_functions.rerun(run, run_inputs, actor=actor))
        try:
            root = await self._advancer.views.find_root(run)
        except UnreadableValue:  # the setting of the damaged run is lost with its root
            root = None
        return await self.start(
            run.flow_id,
            run.workflow,
            run_inputs,
            task_list=run.task_list,
            priority=run.priority,
            parent_id=run.id,
            lenient=True,
            actor=actor,
            on_failure=None if root is None else "stop" if root.stops else "finish",
            fairness_key=run.fairness_key,
            baggage=run.baggage,
            tags=await kept_tags(self._store, run.id),
        )

    async def fork(
        self,
        run_id: Ref,
        step_id: str,
        *,
        inputs: Mapping[str, Json] | None = None,
        result: Mapping[str, Json] | None = None,
        idempotency_key: str | None = None,
        actor: str | None = None,
    ) -> StartedRun:
        """Start a new run of the same flow that keeps the results that do not depend on the step, and repeats the step and the
        rest.

        The old run, finished or not, is unchanged; its pending waits are requested again. `inputs` override the old run's:
        repeated steps use them, kept results, defaults and pre-scripts do not change. With `result`, the step has this result
        and its handler is not called. The cost is proportional to the steps of the old run.
        """
        if (functions := await self._functions_for(run_id)) is not None:
            forked = await functions.fork(run_id, step_id, payload=inputs, idempotency_key=idempotency_key, actor=actor)
            return StartedRun(*forked)
        run = await self.get_run(run_id)
        target = await self.get_step(run.id, step_id)
        program = await self._flows.program(run.flow_id)
        run_inputs = {**await self.inputs(run), **(inputs or {})}
        if inputs:
            check_inputs(program, find_workflow(program, run.workflow), run_inputs)
            encode(run_inputs, "inputs", INPUTS_LIMIT)
        new_id = self._ids.new_id()
        folded = self._value_store.fold(run_inputs, run.root_id, "inputs")
        changed = {name: folded.attributes[name] for name in inputs or {}}
        ends_at, now = await find_deadline(self._store, run.workflow, None, None, self._deadlines)
        new = Run(
            id=new_id,
            namespace=run.namespace,
            flow_id=run.flow_id,
            workflow=run.workflow,
            task_list=run.task_list,
            priority=run.priority,
            inputs=self._value_store.pack(folded.attributes, run.root_id, "inputs", INPUTS_LIMIT)[0],
            parent_id=run.id,
            root_id=run.root_id,  # one tree: shared values are kept as long as either run
            trace_id=run.trace_id,
            deadline_at=ends_at,
            fairness_key=run.fairness_key,
            baggage=run.baggage,
            idempotency_key=idempotency_key,
        )
        steps = await self._all_steps(run.id)
        blobs = dict(folded.values)
        ref = RunRef(id=new_id, workflow=run.workflow)
        make = partial(fork, program, ref, steps, target.id, folded.attributes, changed, result=result)
        while isinstance(changes := make(blobs), Need):
            blobs |= await self._value_store.load(changes.blobs)
        rows = (*folded.blobs, *tag_rows("run", new_id, check_tags(await kept_tags(self._store, run.id))))
        return await self._begin(
            self._new(new, None, rows, LoadedRun(new, LoadedRows()), changes, actor, timers=deadline_tasks(new, now))
        )

    async def repair(self, run_id: Ref, *, actor: str | None = None) -> list[str]:
        """Repair a running run; returns the ids of the steps and blocks that lacked something, which its log names.

        A no-op on a run that lacks nothing, does not run, or belongs to a durable function.
        """
        run = await self.get_run(run_id)
        return [] if is_function(run.flow_id) else await self._repair(run.id, actor)

    async def _operate(
        self,
        run_id: Ref,
        transition: str,
        actor: str,
        rows: Callable[[Run], tuple[Row, ...]],
        *,
        error: str | None = None,
        unless: tuple[str, ...] = (),
    ) -> Run:
        """Apply an operator's transition to the run, guarded by its state and not its version, so that concurrent advances do not
        disturb it.
        """
        run_id = await find_id(self._store, self._namespace, "run", run_id)

        async def attempt() -> Run:
            run = await self.get_run(run_id)
            if run.state in unless:
                return run
            target = RUN.target(run.state, transition)
            if target is None:
                raise IllegalTransition("run", run.id, run.state, transition, RUN.possible(run.state))
            moved = RunTransition(run.id, transition, run.state, target, actor=actor, outputs=run.outputs, error=error, data=error)
            after, closed = await self._advancer.early_end(run) if target == RunState.CANCELED else ((), ())
            unit = Unit(run=RunGuard(run.id, None), tasks=after, rows=(moved, *rows(run), *closed))
            try:
                await self._committer.commit(unit, self._patience)
            finally:
                self._advancer.views.forget(run.id)
            for listener in self._advancer.on_finished if target == RunState.CANCELED else ():
                listener(run.id)
            return await self.get_run(run_id)

        return await self._committer.transact(attempt, f"{transition} the run {run_id}")

    # repair

    async def _repair(self, run_id: str, actor: str | None) -> list[str]:
        """Process inboxes, expand blocks and replace missing tasks; returns the rows that lacked something, and logs them (D55).

        Commits keep their promise without this: it covers outside changes to a store, and the unforeseen. All reads and writes
        hold for one version of the run; the cost is proportional to its steps.
        """
        while await self._store.runs.list_steps(run_id, None, 1, with_inbox=True):
            await self._advancer.offer(run_id)

        async def attempt() -> list[str]:
            run = await self._store.runs.find(run_id)
            if run is None or run.state != RunState.RUNNING:
                return []
            events = await self._missing(run)
            if not events:
                return []
            ignored = await self._advancer.offer(run_id, *events.values(), actor=actor, repair=run.version)
            return [] if len(ignored) == len(events) else list(events)

        repaired = await self._committer.transact(attempt, f"repair the run {run_id}")
        await self._withdraw(run_id)
        return repaired

    async def _withdraw(self, run_id: str) -> None:
        """End what a run that will fail still holds: a step may have been requeued while paused, or its worker died."""
        async for task in every_task(self._store, TaskFilter(states=SHOWN_LIVE_STATES, run_id=run_id)):
            waits = task.state == TaskState.PENDING and task.owner_id is None and (task.claim_version == 0 or task.failures > 0)
            if task.step_id is not None and (waits or task.state == TaskState.AWAITING_APPROVAL):
                return await self._advancer.withdraw(run_id)
        return None

    async def _missing(self, run: Run) -> dict[str, Event]:
        """The events that would let the run continue, by row."""
        live = [task async for task in every_task(self._store, TaskFilter(states=SHOWN_LIVE_STATES, run_id=run.id))]
        if any(task.kind == ADVANCE for task in live):
            return {}  # an advance is pending
        program = await self._flows.program(run.flow_id)
        waiting, unexpanded = open_ends(program, RunRef(id=run.id, workflow=run.workflow), await self._all_steps(run.id))
        served = {task.id for task in live}
        missing = {row.task_id: row for row in waiting if row.task_id is not None and row.task_id not in served}
        events: dict[str, Event] = {row.id: Expand(row.id) for row in unexpanded}
        ended = {task.id: task for task in await self._store.tasks.find_many(list(missing), ended=True)}
        for task_id, row in missing.items():
            task = ended.get(task_id)
            events[row.id] = Resend(row.id) if task is None else self._end_of(row, task)
        return events

    def _end_of(self, row: StepRow, task: Task) -> Event:
        if task.state == TaskState.COMPLETED:
            return Finished(row.id, self._value_store.unfold(task.result), task.id)
        return errored(row.id, task.error, task.id)

    async def _all_steps(self, run_id: str) -> list[StepRow]:
        """All rows of the run."""
        return [load_step(step, self._value_store) for step in await all_steps(self._store, run_id) if step.kind != VOID]

    # a waiting step

    async def continue_step(
        self,
        run_id: Ref,
        step_id: str,
        result: Mapping[str, Json] | None = None,
        *,
        actor: str = "agent",
        lenient: bool = False,
    ) -> bool:
        """Complete a waiting event step, regardless of the holder of its task; returns False without changes if it already has
        a result.

        Raises `IllegalTransition` for a step that never waits for a handler, and `InvalidInput` for a result that does not match
        the declaration of its facet, unless `lenient`.
        """
        if result is not None and not isinstance(result, Mapping):
            raise InvalidInput(f"A result is a dict (a JSON object), not {type(result).__name__}.")
        finish = Finish("succeed", TaskState.COMPLETED, result=encode(dict(result or {}), "result", INPUTS_LIMIT), actor=actor)
        return await self._end_step(run_id, step_id, "continue", finish, None if lenient else dict(result or {}))

    async def fail_step(
        self, run_id: Ref, step_id: str, message: str | Problem, *, code: str = "failed", actor: str = "agent"
    ) -> bool:
        """Fail a waiting event step; returns False without changes if it no longer waits."""
        problem = message if isinstance(message, Problem) else Problem(code, message)
        return await self._end_step(run_id, step_id, "fail", msgspec.structs.replace(failure(problem), actor=actor))

    async def update_step(self, run_id: Ref, step_id: str, partial: Mapping[str, Json]) -> bool:
        """Merge partial results into a waiting step; returns False without changes if it no longer waits."""
        if not isinstance(partial, Mapping):
            raise InvalidInput(f"Partial results are a dict (a JSON object), not {type(partial).__name__}.")
        encode(dict(partial), "partial results", INPUTS_LIMIT)
        row = await self.get_step(run_id, step_id)
        if await self._find_waiting(row, "update") is None:
            return False
        return not await self._advancer.offer(row.run_id, Updated(row.id, dict(partial)))

    async def _find_waiting(self, row: StepRow, transition: str) -> tuple[Program, Facet] | None:
        """The program and the facet of an event step that waits for its handler, or None; raises for steps that never do."""
        program = None if row.facet is None else await self._flows.program((await self._get_run(row.run_id)).flow_id)
        facet = None if program is None else program.find_facet(row.facet or "")
        if program is None or facet is None or not facet.is_event or not row.is_step:
            raise IllegalTransition("step", row.path, f"not an event step (it is in {row.state})", transition)
        if row.state in (State.FACET_SCRIPTS_BEGIN, State.MIXIN_BLOCKS_CONTINUE):
            raise IllegalTransition(
                "step", row.path, f"not waiting for its handler yet (it is in {row.state})", transition, ("wait",)
            )
        return (program, facet) if row.state is State.EVENT_TRANSMIT else None

    async def _end_step(
        self, run_id: Ref, step_id: str, transition: str, finish: Finish, checked: Mapping[str, Json] | None = None
    ) -> bool:
        async def attempt() -> bool:
            row = await self.get_step(run_id, step_id)
            waiting = await self._find_waiting(row, transition)
            task = None if row.task_id is None else await self._store.tasks.find(row.task_id)
            if waiting is None or task is None or task.finished:
                return False
            if checked is not None:
                statement = waiting[0].find_node(row.statement_id)
                has_body = isinstance(statement, Step) and statement.body is not None
                check_result(*waiting, checked, known={*row.params, *row.returns}, partial=has_body)
            if task.state == TaskState.AWAITING_APPROVAL:
                raise Refused(f"The step waits for an approval; decide that first: `treadle why {task.id}` names it.")
            if task.state == TaskState.AWAITING_EXTERNAL:
                raise Refused(f"The step waits for an external job; cancel that first: `treadle external cancel {task.id}`.")
            answer = await self._advancer.settle(task, Seen.of(task), finish)
            if answer.verdict is not Verdict.DONE:
                raise Stale
            return True

        return await self._committer.transact(attempt, f"{transition} the step {step_id}")

    # questions to running functions; each call reaches the current run of the lineage

    async def query(self, run_id: Ref, name: str, *, wait: Duration = 0) -> Json:
        """Return the value that the function last published (`ctx.publish(name, value)`); needs no worker.

        Raises `NotFound` (`nothing_published`) if there is none, and none comes while it waits.
        """
        return await self._of_functions.functions.query(run_id, name, wait=wait)

    async def update(
        self,
        run_id: Ref,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
        actor: str | None = None,
    ) -> Json:
        """Send an update, and return the answer of the function (`await ctx.update(name)`); the call may be repeated with its key.

        Raises `UpdateRejected` with the reason of the function, `UpdateUnanswered` if the run ends or continues without an answer,
        and `TimeoutError` after `timeout`: the update stays, and a call with the same key waits for the same answer.
        """
        functions = self._of_functions.functions
        sent = await functions.send_update(run_id, name, payload, idempotency_key=idempotency_key, actor=actor)
        if (answer := await functions.wait_for_answer(sent, timeout)) is not None:
            return answer.value
        waited = 0 if timeout is None else milliseconds(timeout, "timeout") / 1000
        raise TimeoutError(
            f"The run {sent.run_id} has not answered the update {name} after {waited:g} s; the update stays, and a call with the "
            "same idempotency key waits for its answer."
        )
