"""Runs: start, pause, resume, cancel, retry; and what agents do to a waiting step. Every change goes through here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from treadle.evaluator import Errored, Event, Finished, RetryStep, Started, StepRow, Updated, View
from treadle.kernel.advancer import Advancer, Known
from treadle.kernel.committer import Committer
from treadle.kernel.flows import Flows, Source, find_workflow
from treadle.kernel.inputs import check_inputs
from treadle.kernel.ports import (
    Answer,
    CancelRunTasks,
    Finish,
    HoldRun,
    MoveRun,
    PutFlow,
    PutRun,
    Row,
    RunGuard,
    Seen,
    Store,
    Unit,
    Verdict,
)
from treadle.kernel.queue import PATIENCE
from treadle.kernel.settle import failure
from treadle.kernel.stepcodec import load_step
from treadle.kernel.vault import Vault
from treadle.model.errors import IllegalMove, RunNotFound, StepNotFound, StoreUnavailable
from treadle.model.ids import Ids, parse_id
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE, check_key, check_name
from treadle.model.outcomes import Problem
from treadle.model.runs import Flow, Run
from treadle.model.states import RUN, RunState, TaskState
from treadle.model.values import Json, encode

_TRIES = 10
_INPUTS_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The run that now stands for what was asked; `created` is False where the idempotency key had one already."""

    id: str
    created: bool = True


class Runs:
    """The runs of one namespace."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        advancer: Advancer,
        flows: Flows,
        vault: Vault,
        ids: Ids,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        patience: float = PATIENCE,
    ) -> None:
        self._store = store
        self._committer = committer
        self._advancer = advancer
        self._flows = flows
        self._vault = vault
        self._ids = ids
        self._namespace = namespace
        self._patience = patience

    async def start(
        self,
        flow: str | Sequence[Source],
        workflow: str | None = None,
        inputs: Mapping[str, Json] | None = None,
        *,
        version: int | None = None,
        lenient: bool = False,
        idempotency_key: str | None = None,
        task_list: str = DEFAULT_LIST,
        priority: int = 0,
        trace_id: str | None = None,
        parent_id: str | None = None,
    ) -> StartedRun:
        """Start a workflow of a published flow (name or digest) or of sources; durable when this returns.

        Inputs are checked against the workflow's parameters unless `lenient` (D59). The first steps are taken in the
        same commit. With an idempotency key, a second start names the first run and changes nothing.
        """
        stored: Flow | None = None
        if isinstance(flow, str):
            found = await self._flows.get_flow(flow, version)
            flow_id, program = found.id, await self._flows.program(found.id)
        else:
            stored, program, _ = self._flows.compile(flow)
            flow_id = stored.id
        entry = find_workflow(program, workflow)
        given = dict(inputs or {})
        check_inputs(program, entry, given, lenient=lenient)
        run_id = self._ids.new_id()
        packed, blobs = self._vault.pack(given, run_id, "inputs", _INPUTS_LIMIT)
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
            trace_id=trace_id or run_id,
            parent_id=parent_id,
        )
        return await self._begin(run, stored, [*blobs], Started(given))

    async def _begin(self, run: Run, flow: Flow | None, rows: list[Row], event: Event) -> StartedRun:
        known = Known(run, View())
        changes = await self._advancer.evaluate(known, [event])
        tasks, made, steps = self._advancer.unit_rows(known, changes)
        new = msgspec.structs.replace(run, steps=len(changes.created))
        first: list[Row] = [] if flow is None else [PutFlow(flow)]
        unit = Unit(tasks=tasks, rows=(*first, PutRun(new), *rows, *made))
        answer = await self._committer.submit(unit, self._patience)
        if run.idempotency_key is not None and run.idempotency_key in answer.existing:
            return StartedRun(answer.existing[run.idempotency_key], created=False)
        known.run = msgspec.structs.replace(run, version=-1)
        self._advancer.committed(known, changes, steps)
        return StartedRun(run.id)

    # reads

    async def get_run(self, run_id: str) -> Run:
        """The run, or `RunNotFound`."""
        run = await self._store.find_run(parse_id(run_id, "run id"))
        if run is None or run.namespace != self._namespace:
            raise RunNotFound(run_id)
        return run

    async def outputs(self, run: Run) -> dict[str, Json]:
        """What a completed run came to."""
        return await self._vault.unpack(run.outputs)

    async def inputs(self, run: Run) -> dict[str, Json]:
        """What the run was given."""
        return await self._vault.unpack(run.inputs)

    async def list_steps(self, run_id: str, limit: int = 10_000) -> list[StepRow]:
        """The run's steps, by place."""
        run = await self.get_run(run_id)
        rows: list[StepRow] = []
        after: str | None = None
        while page := await self._store.list_steps(run.id, after, min(limit - len(rows), 1000)):
            rows += [load_step(step, self._vault) for step in page]
            after = page[-1].id
            if len(rows) >= limit:
                break
        return sorted(rows, key=lambda row: (row.depth, row.place))

    async def get_step(self, run_id: str, step_id: str) -> StepRow:
        """One step of a run, or `StepNotFound`."""
        steps = await self._store.load_steps(run_id, rows=[parse_id(step_id, "step id")])
        if not steps:
            raise StepNotFound(step_id)
        return load_step(steps[0], self._vault)

    # operators

    async def pause(self, run_id: str, *, actor: str = "operator") -> Run:
        """Hold the run: nothing of it is taken from now on; attempts in progress finish, and their results are kept (D20)."""
        return await self._operate(run_id, "pause", actor, lambda run: (HoldRun(run.id, True),))

    async def resume(self, run_id: str, *, actor: str = "operator") -> Run:
        """Let a paused run go on."""
        return await self._operate(run_id, "resume", actor, lambda run: (HoldRun(run.id, False),))

    async def cancel(self, run_id: str, *, actor: str = "operator", reason: str | None = None) -> Run:
        """End the run and all its live tasks now; its steps stay as they are. Canceling twice is a no-op."""
        error = encode({"code": "canceled", "message": reason or f"Canceled by {actor}."})
        return await self._operate(
            run_id, "cancel", actor, lambda run: (CancelRunTasks(run.id, actor, error),), error=error, unless=RunState.CANCELED
        )

    async def retry(self, run_id: str, step_id: str | None = None, *, actor: str = "operator") -> Run:
        """Do a failed step again (by default the one that failed the run), and let the run go on from there."""
        run = await self.get_run(run_id)
        if run.state not in (RunState.FAILED, RunState.RUNNING):
            raise IllegalMove("run", run.id, run.state, "retry", RUN.possible(run.state))
        chosen = step_id or run.failed_step_id
        if chosen is None:
            raise StepNotFound("that failed")
        row = await self.get_step(run.id, chosen)
        await self._take_in(run.id, None, None, RetryStep(row.id))
        return await self.get_run(run_id)

    async def rerun(self, run_id: str, *, inputs: Mapping[str, Json] | None = None) -> StartedRun:
        """Start the same workflow of the same flow again, with the same inputs unless others are given."""
        run = await self.get_run(run_id)
        given = await self.inputs(run) if inputs is None else inputs
        return await self.start(
            run.flow_id, run.workflow, given, task_list=run.task_list, priority=run.priority, parent_id=run.id, lenient=True
        )

    async def _operate(
        self,
        run_id: str,
        move: str,
        actor: str,
        rows: Callable[[Run], tuple[Row, ...]],
        *,
        error: str | None = None,
        unless: str | None = None,
    ) -> Run:
        for _ in range(_TRIES):
            run = await self.get_run(run_id)
            if run.state == unless:
                return run
            target = RUN.target(run.state, move)
            if target is None:
                raise IllegalMove("run", run.id, run.state, move, RUN.possible(run.state))
            moved = MoveRun(run.id, move, run.state, target, actor=actor, outputs=run.outputs, error=error, data=error)
            self._advancer.forget(run.id)
            unit = Unit(run=RunGuard(run.id, run.version), rows=(moved, *rows(run)))
            answer = await self._committer.submit(unit, self._patience)
            self._advancer.forget(run.id)
            if answer.verdict is Verdict.DONE:
                for told in self._advancer.on_finished if target == RunState.CANCELED else ():
                    told(run.id)
                return await self.get_run(run_id)
        raise StoreUnavailable(f"The run {run_id} changes too fast to {move} it; try again.")

    # agents

    async def continue_step(
        self, run_id: str, step_id: str, result: Mapping[str, Json] | None = None, *, actor: str = "agent"
    ) -> bool:
        """Give a waiting event step its result, whoever holds its task; False (and nothing done) if it does not wait any more."""
        finish = Finish("succeed", TaskState.COMPLETED, result=encode(dict(result or {}), "result"), actor=actor)
        return await self._end_step(run_id, step_id, finish, Finished(step_id, dict(result or {})))

    async def fail_step(self, run_id: str, step_id: str, message: str, *, code: str = "failed", actor: str = "agent") -> bool:
        """Fail a waiting event step; False (and nothing done) if it does not wait any more."""
        problem = Problem(code, message)
        return await self._end_step(run_id, step_id, replace(failure(problem), actor=actor), Errored(step_id, problem))

    async def update_step(self, run_id: str, step_id: str, partial: Mapping[str, Json]) -> None:
        """Merge partial results into a step that goes on waiting."""
        await self.get_step(run_id, step_id)
        await self._take_in(run_id, None, None, Updated(step_id, dict(partial)))

    async def _end_step(self, run_id: str, step_id: str, finish: Finish, event: Event) -> bool:
        for _ in range(_TRIES):
            row = await self.get_step(run_id, step_id)
            task = None if row.task_id is None else await self._store.find_task(row.task_id)
            if task is None or task.finished:
                return False
            seen = Seen(task.id, task.version, task.claim_version)
            answer = await self._advancer.take_in(run_id, seen, finish, [event], task=task)
            if answer.verdict is Verdict.DONE:
                return True
        return False

    async def _take_in(self, run_id: str, guard: Seen | None, finish: Finish | None, event: Event) -> Answer:
        self._advancer.forget(run_id)
        return await self._advancer.take_in(run_id, guard, finish, [event])
