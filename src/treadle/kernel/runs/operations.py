"""Operations on runs and durable functions, as the API declares them.

They are `engine.runs` of Python programs, too. Bulk operations work by filter, page by page, newest first; refusals are reported
and the rest continues. `Runs` changes one run, and knows nothing of callers' scopes.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, Unpack

from msgspec.structs import replace

from treadle.api.conversation import PublishedValue, UpdateResult
from treadle.api.flows import SourceText
from treadle.api.functions import FunctionList, FunctionsApi, RunAdopted
from treadle.api.options import PYTHON, FunctionOptions, RunOptions
from treadle.api.runs import (
    BulkResult,
    ForkPreview,
    Run,
    RunAction,
    RunCounts,
    RunDetail,
    RunFilter,
    RunLogPage,
    RunOutputs,
    RunPage,
    RunRefusal,
    RunsApi,
    RunStarted,
    RunTransitions,
    RunUsage,
    SignalSent,
    Takeover,
    UsageRequest,
)
from treadle.api.tasks import WAIT_LIMIT, Task, TaskPage
from treadle.api.wire import Instant, record_of
from treadle.kernel.core import Core, Service
from treadle.kernel.functions.operations import FunctionRuns
from treadle.kernel.functions.service import Functions
from treadle.kernel.queue.why import shown_server_state
from treadle.kernel.reads.records import transition_record, why_run
from treadle.kernel.runs.flows import Flows, check_inputs, find_workflow, missing_handlers, needed_handlers, pairs
from treadle.kernel.runs.forks import Forks
from treadle.kernel.runs.reads import RunReads
from treadle.kernel.runs.records import StartedRun
from treadle.kernel.runs.service import Runs
from treadle.kernel.runs.steps import run_line
from treadle.kernel.search.query import Query
from treadle.kernel.search.service import Search, SearchPage, created_within, one_of
from treadle.kernel.store.lookups import check_limit
from treadle.kernel.store.value_store import ValueLost
from treadle.kernel.tasks.records import TaskRecords
from treadle.model.access import OPEN, Access
from treadle.model.clock import Duration
from treadle.model.conversion import plain_object
from treadle.model.errors import (
    Contended,
    IllegalTransition,
    InvalidInput,
    NotFound,
    Refused,
    RunCanceled,
    RunFailed,
    UnreadableValue,
)
from treadle.model.ids import Ref
from treadle.model.names import is_function
from treadle.model.runs import ActivityKind
from treadle.model.runs import Run as StoredRun
from treadle.model.states import RUN, RunState
from treadle.model.tags import decode_tags
from treadle.model.tasks import Task as StoredTask
from treadle.model.usage import total
from treadle.model.values import Json, decode_error, unreadable_json

StartRun = Callable[..., Awaitable[StartedRun]]


R = TypeVar("R", bound=Run)


class RunOperations(Service, RunsApi):
    """The runs of one namespace."""

    def __init__(
        self,
        core: Core,
        runs: Runs,
        reads: RunReads,
        functions: Functions,
        flows: Flows,
        search: Callable[[], Search],
        tasks: TaskRecords,
        start: StartRun,
        wait: Callable[[str, float], Awaitable[object]],
    ) -> None:
        """`start` starts a run with its budget; `wait` waits for the end of a run, or raises the error that it ended with."""
        super().__init__(core)
        self._runs = runs
        self._reads = reads
        self._functions = functions
        self._flows = flows
        self._forks = Forks(runs, flows, functions)
        self._search = search
        self._tasks = tasks
        self._start = start
        self._wait = wait

    # runs for display

    async def show_all(self, kind: type[R], runs: Sequence[StoredRun], **more: Any) -> builtins.list[R]:
        """Records of runs with the activity or duration of each, its tags, and `more`; without its values."""
        activities, times = await self._reads.activities(runs), await self._reads.times(runs)
        tags = await self._search().list_tags([run.id for run in runs])
        return [
            record_of(
                kind,
                run,
                error=decode_error(run.error) or None,
                activity=activities.get(run.id),
                took_for=times.get(run.id),
                tags=decode_tags(tags.get(run.id, {})),
                **more,
            )
            for run in runs
        ]

    async def show(self, kind: type[R], run: StoredRun, **more: Any) -> R:
        """A record of the run; see `show_all`."""
        return (await self.show_all(kind, [run], **more))[0]

    async def show_started(self, started: StartedRun, access: Access) -> RunStarted:
        """The run, with the handlers that it needs and that no live worker has."""
        run = await self._reads.get_visible(started.id, access)  # an idempotency key may stand for a run of another list
        servers, now = await self._store.servers.list_all(self._namespace), await self._store.now()
        live = [server for server in servers if shown_server_state(server, now) == "running" and run.task_list in server.task_lists]
        missing = await self._missing_handlers(run)
        return await self.show(RunStarted, run, created=started.created, missing_handlers=missing, workers=len(live))

    async def _missing_handlers(self, run: StoredRun) -> builtins.list[str]:
        """The handlers that the workflow may need and no live worker has; none if it is finished, a function or unreadable."""
        if run.finished or is_function(run.flow_id):
            return []
        try:
            program = await self._flows.program(run.flow_id)
        except UnreadableValue:
            return []
        needed = needed_handlers(program, find_workflow(program, run.workflow))
        servers = await self._store.servers.list_all(self._namespace)
        return missing_handlers(needed, (), servers, run.task_list, await self._store.now())

    # one or many

    async def list(
        self,
        *,
        state: Sequence[str] = (),
        limit: int = 50,
        before: str | None = None,
        access: Access = OPEN,
        **which: Unpack[RunFilter],
    ) -> RunPage:
        where, chosen = await self._filter(which, access)
        page = await self._page(where, chosen, tuple(state), before, limit)
        return RunPage(await self.show_all(Run, page.records), page.searched, page.complete, next_before=page.cursor)

    async def _page(
        self, where: str, chosen: dict[str, Any], states: tuple[str, ...], before_id: str | None, limit: int
    ) -> SearchPage[StoredRun]:
        """The next matching runs."""
        if where:
            more = self._conditions(states, chosen)
            return await self._search().list_runs(where, more=more, before_id=before_id, limit=limit)
        runs = await self._reads.list_runs(states=states, before_id=before_id, limit=limit, **chosen)
        return SearchPage(runs, runs[-1].id if len(runs) == limit else None, None)

    async def counts(self, *, access: Access = OPEN, **which: Unpack[RunFilter]) -> RunCounts:
        where, chosen = await self._filter(which, access)
        if where:
            runs, complete = await self._search().find_runs(where, self._conditions((), chosen))
            by_activity = Counter(str(work.kind) for work in (await self._reads.activities(runs)).values())
            states = Counter(str(run.state) for run in runs)
            return RunCounts(
                {state.value: states[state] for state in RunState},
                len(runs),
                {activity.value: by_activity[activity] for activity in ActivityKind},
                complete,
            )
        counts = await self._reads.count_runs(**chosen)
        return RunCounts(counts, sum(counts.values()), await self._reads.count_activities(**chosen))

    async def bulk(
        self,
        action: RunAction,
        *,
        dry_run: bool = False,
        state: Sequence[str] = (),
        reason: str | None = None,
        signal: str | None = None,
        payload: Json = None,
        limit: int = 100,
        before: str | None = None,
        actor: str = PYTHON,
        access: Access = OPEN,
        **which: Unpack[RunFilter],
    ) -> BulkResult:
        actions: dict[str, Callable[..., Awaitable[object]]] = {
            "pause": self._runs.pause,
            "resume": self._runs.resume,
            "cancel": partial(self._runs.cancel, reason=reason),
            "retry": self._runs.retry,
            "reopen": self._runs.reopen,
            "signal": partial(self._functions.signal, name=signal or "", payload=plain_object(payload)),
        }
        if (action == "signal") != (signal is not None):
            raise InvalidInput("The action `signal` needs the name of the signal; no other action has one.")
        where, chosen = await self._filter({**which, "kind": "function"} if action == "signal" else which, access)
        if action not in actions:
            raise InvalidInput(f"Unknown action {action!r}; there are {', '.join(actions)}.")
        check_limit(limit)
        wanted = self._reads.runs_like(states=state).states
        possible = [
            run_state.value
            for run_state in RunState
            if (run_state not in RUN.final if action == "signal" else (RUN.target(run_state, action) or "") not in ("", run_state))
        ]
        states = tuple(run_state for run_state in possible if not wanted or run_state in wanted)
        result = BulkResult(action, dry_run, 0, [], [], next_before=None)
        if not states:
            return result
        if where:  # at most 10,000
            runs, complete = await self._search().find_runs(where, self._conditions(states, chosen))
            result = replace(result, matched=len(runs), complete=complete)
        else:
            result = replace(
                result, matched=sum((await self._reads.count_runs(states=states, before_id=before, **chosen)).values())
            )
        if dry_run:
            return result
        page = await self._page(where, chosen, states, before, limit)
        for run in page.records:
            try:
                await actions[action](run.id, actor=actor)
                result.done.append(run.id)
            except (Contended, IllegalTransition, NotFound, Refused) as error:
                result.refused.append(RunRefusal(run.id, error.code, str(error)))
        return replace(result, next_before=page.cursor)

    async def _filter(self, which: RunFilter, access: Access) -> tuple[str, dict[str, Any]]:
        """The query, and the other filters as the kernel's reads take them."""
        chosen: dict[str, Any] = dict(which)
        flow, since, until, where = (chosen.pop(name, None) for name in ("flow", "since", "until", "where"))
        return (where or "").strip(), chosen | {
            "flow_ids": () if flow is None else await self._flows.list_ids(flow),
            "task_list": access.one_list(which.get("task_list")),
            "created_after": _ms(since, "since"),
            "created_before": _ms(until, "until"),
        }

    def _conditions(self, states: Sequence[str], chosen: dict[str, Any]) -> builtins.list[Query]:
        """The filters other than the query as conditions of a search."""
        if chosen.get("search"):
            raise InvalidInput("Give either where or search, not both: where finds a name with name = import*.")
        which = self._reads.runs_like(states=states, **chosen)
        return [
            *one_of("state", which.states),
            *one_of("name", [which.workflow]),
            *one_of("kind", [which.kind]),
            *one_of("list", [which.task_list]),
            *one_of("root", [which.root_id]),
            *one_of("flow", which.flow_ids),
            *one_of("activity", [chosen.get("activity")]),
            *created_within(which.created_after, which.created_before),
        ]

    async def start(
        self,
        flow: str,
        workflow: str | None = None,
        inputs: dict[str, Json] | None = None,
        *,
        version: int | None = None,
        actor: str = PYTHON,
        access: Access = OPEN,
        **options: Unpack[RunOptions],
    ) -> RunStarted:
        started = await self._start(flow, workflow, inputs, version=version, actor=actor, **options)
        return await self.show_started(started, access)

    async def start_from_source(
        self,
        sources: Sequence[SourceText],
        workflow: str | None = None,
        inputs: dict[str, Json] | None = None,
        *,
        strict: bool = False,
        actor: str = PYTHON,
        access: Access = OPEN,
        **options: Unpack[RunOptions],
    ) -> RunStarted:
        started = await self._start(pairs(sources), workflow, inputs, strict=strict, actor=actor, **options)
        return await self.show_started(started, access)

    async def get(self, run_id: Ref, *, access: Access = OPEN) -> RunDetail:
        run = await self._reads.get_visible(run_id, access)
        current = await self._reads.get_current(run)
        reason = await self._reads.why(run)
        rows, budget = await self._reads.usage(run)
        return await self.show(
            RunDetail,
            run,
            inputs=await self._unpack(run.inputs),
            outputs=await self._unpack(run.outputs) if run.state == RunState.COMPLETED else None,
            why=why_run(run, reason),
            usage=total(rows),
            budget_micros=None if budget is None else budget.limit_micros,
            awaited_signals=await self._reads.list_awaited_signals(current),
            takeovers=await _takeovers(self._reads, run),
            release=await self._reads.find_release(run),
            missing_handlers=await self._missing_handlers(run),
            continued_as=None if current.id == run.id else current.id,
            lineage_id=run.lineage_id,
            link=run.link,
            published=await self._published(run),
        )

    async def _unpack(self, stored: str | None) -> Json:
        """The values, or an error in their place if they cannot be read."""
        try:
            return await self._value_store.unpack(stored)
        except (UnreadableValue, ValueLost) as error:
            return unreadable_json(error)

    async def outputs(self, run_id: Ref, *, wait_for: float = 0.0, access: Access = OPEN) -> RunOutputs:
        _check_wait(wait_for)
        requested_run = await self._reads.get_visible(run_id, access)
        if wait_for:
            try:
                await self._wait(requested_run.id, wait_for)
            except (TimeoutError, RunFailed, RunCanceled):
                pass  # the outcome is read below
        run = await self._reads.get_current(requested_run if not wait_for else requested_run.id)
        outputs = await self._unpack(run.outputs) if run.state == RunState.COMPLETED else None
        reason = await self._reads.why(run)
        return RunOutputs(
            id=requested_run.id,
            workflow=run.workflow,
            state=str(run.state),
            finished=run.finished,
            ended_as=run.id,
            outputs=outputs,
            error=decode_error(run.error) if run.state in (RunState.FAILED, RunState.CANCELED) else None,
            failed_step_id=run.failed_step_id,
            why=reason.text,
        )

    async def transitions(self, run_id: Ref, *, access: Access = OPEN) -> RunTransitions:
        run = await self._reads.get_visible(run_id, access)
        return RunTransitions(run.id, [transition_record(transition) for transition in await self._reads.list_transitions(run)])

    async def logs(
        self, run_id: Ref, *, limit: int = 200, before: int | None = None, after: int | None = None, access: Access = OPEN
    ) -> RunLogPage:
        if before is not None and after is not None:
            raise InvalidInput("Give either before or after, not both.")
        run = await self._reads.get_visible(run_id, access)
        numbered_lines = await self._reads.page_lines(run, limit, before, after)
        paths = await self._reads.list_paths(run, [line.step_id for _, line in numbered_lines])
        lines = [run_line(number, line, paths) for number, line in numbered_lines]
        earlier = lines[0].number if lines and len(lines) == limit and after is None else None
        return RunLogPage(run.id, lines, earlier, lines[-1].number if lines else after or 0)

    async def tasks(self, run_id: Ref, *, limit: int = 100, access: Access = OPEN) -> TaskPage:
        check_limit(limit)
        run = await self._reads.get_visible(run_id, access)
        tasks = await self._reads.list_live_tasks(run, limit)
        return TaskPage([self._tasks.show(Task, task) for task in tasks], next_before=None)

    async def usage(self, run_id: Ref, *, access: Access = OPEN) -> RunUsage:
        run = await self._reads.get_visible(run_id, access)
        rows, budget = await self._reads.usage(run)
        paths = await self._reads.list_paths(run, [row.step_id for row in rows])
        return RunUsage(
            run_id=run.id,
            budget_micros=None if budget is None else budget.limit_micros,
            total=total(rows),
            requests=[record_of(UsageRequest, row, path=paths.get(row.step_id or "")) for row in rows],
        )

    async def signal(
        self,
        run_id: Ref,
        name: str,
        payload: Json = None,
        *,
        idempotency_key: str | None = None,
        actor: str = PYTHON,
        access: Access = OPEN,
    ) -> SignalSent:
        run = await self._reads.get_visible(run_id, access)
        awaited = await self._reads.list_awaited_signals(run)
        is_new = await self._functions.signal(run.id, name, plain_object(payload), idempotency_key=idempotency_key, actor=actor)
        still_awaited = await self._reads.list_awaited_signals(run.id)
        return SignalSent(run.id, name, is_new, name in awaited, still_awaited)

    async def _published(self, run: StoredRun) -> Json:
        if not is_function(run.flow_id):
            return None
        try:
            published = await self._functions.list_published(run.id)
        except (UnreadableValue, ValueLost) as error:
            return unreadable_json(error)
        return {name: entry.get("value") for name, entry in published.items()} or None

    async def query(self, run_id: Ref, name: str, *, wait_for: float = 0.0, access: Access = OPEN) -> PublishedValue:
        _check_wait(wait_for)
        functions, run = self._functions, await self._reads.get_visible(run_id, access)
        published = await functions.get_published(run.id, name, wait=wait_for)
        current, at = await self._reads.get_current(run), published.get("at")
        return PublishedValue(current.id, name, published.get("value"), Instant.of(at if type(at) is int else 0))

    async def update(
        self,
        run_id: Ref,
        name: str,
        payload: Json = None,
        *,
        wait_for: float = 10.0,
        idempotency_key: str | None = None,
        actor: str = PYTHON,
        access: Access = OPEN,
    ) -> UpdateResult:
        _check_wait(wait_for)
        functions, run = self._functions, await self._reads.get_visible(run_id, access)
        key = idempotency_key or self._ids.new_id()
        sent = await functions.send_update(run.id, name, payload, idempotency_key=key, actor=actor)
        answer = await functions.wait_for_answer(sent, wait_for)
        return UpdateResult(run.id, name, key, answer is not None, None if answer is None else answer.value)

    async def pause(self, run_id: Ref, *, actor: str = PYTHON) -> Run:
        return await self.show(Run, await self._runs.pause(run_id, actor=actor))

    async def resume(self, run_id: Ref, *, actor: str = PYTHON, access: Access = OPEN) -> Run:
        run = await self._reads.get_current(await self._reads.get_visible(run_id, access))
        if run.finished:
            raise IllegalTransition("run", run.id, run.state, "resume", RUN.possible(run.state))
        return await self.show(Run, await self._runs.resume(run.id, actor=actor))

    async def reschedule(
        self, run_id: Ref, *, delay: Duration | None = None, start_at: datetime | None = None, actor: str = PYTHON
    ) -> Run:
        return await self.show(Run, await self._functions.reschedule(run_id, delay, start_at, actor=actor))

    async def cancel(self, run_id: Ref, *, reason: str | None = None, force: bool = False, actor: str = PYTHON) -> Run:
        return await self.show(Run, await self._runs.cancel(run_id, actor=actor, reason=reason, force=force))

    async def retry(self, run_id: Ref, *, step: str | None = None, actor: str = PYTHON, access: Access = OPEN) -> Run:
        run = await self._reads.get_visible(run_id, access)
        run = await self._reads.get_current(run)
        step_id = None if step is None else (await self._reads.get_step(run, step)).id
        return await self.show(Run, await self._runs.retry(run.id, step_id, actor=actor))

    async def reopen(self, run_id: Ref, *, actor: str = PYTHON) -> Run:
        return await self.show(Run, await self._runs.reopen(run_id, actor=actor))

    async def rerun(
        self,
        run_id: Ref,
        *,
        inputs: dict[str, Json] | None = None,
        lenient: bool = False,
        actor: str = PYTHON,
        access: Access = OPEN,
    ) -> RunStarted:
        run = await self._reads.get_visible(run_id, access)
        run_inputs = {**await self._runs.inputs(run), **(inputs or {})}
        if inputs and not is_function(run.flow_id):
            program = await self._flows.program(run.flow_id)
            check_inputs(program, find_workflow(program, run.workflow), run_inputs, lenient=lenient)
        return await self.show_started(await self._runs.rerun(run.id, inputs=run_inputs, actor=actor), access)

    async def preview_fork(
        self, run_id: Ref, step: str, *, with_result: bool = False, limit: int = 100, access: Access = OPEN
    ) -> ForkPreview:
        check_limit(limit)
        run = await self._reads.get_visible(run_id, access)
        row = await self._reads.get_step(run, step)
        calls = await self._forks.list_calls(run, row.id, with_result=with_result)
        return ForkPreview(run.id, row.id, row.path, calls[:limit], len(calls), not run.finished)

    async def fork(
        self,
        run_id: Ref,
        step: str,
        *,
        inputs: dict[str, Json] | None = None,
        result: dict[str, Json] | None = None,
        replace: bool = False,
        actor: str = PYTHON,
        access: Access = OPEN,
    ) -> RunStarted:
        run = await self._reads.get_visible(run_id, access)
        step_id = (await self._reads.get_step(run, step)).id
        started = await self._forks.fork(run, step_id, inputs=inputs or {}, result=result, replace=replace, actor=actor)
        return await self.show_started(started, access)


class FunctionOperations(FunctionsApi):
    """The durable functions of one namespace."""

    def __init__(self, functions: Functions, runs: FunctionRuns, shown: RunOperations, start: StartRun) -> None:
        self._functions = functions
        self._function_runs = runs
        self._shown = shown
        self._start = start

    async def list(self) -> FunctionList:
        return FunctionList(await self._functions.list_shown())

    async def start(
        self,
        name: str,
        payload: dict[str, Json] | None = None,
        *,
        actor: str = PYTHON,
        access: Access = OPEN,
        **options: Unpack[FunctionOptions],
    ) -> RunStarted:
        return await self._shown.show_started(await self._start(name, payload, actor=actor, **options), access)

    async def adopt(self, run_id: Ref, version: int, *, actor: str = PYTHON) -> RunAdopted:
        run = await self._function_runs.adopt(run_id, version, actor=actor)
        functions = await self._functions.list_shown()
        servers = sum(function.servers for function in functions if (function.name, function.version) == (run.workflow, version))
        return await self._shown.show(RunAdopted, run, servers=servers)


async def _takeovers(reads: RunReads, run: StoredRun) -> list[Takeover]:
    takeovers = [
        (transition, task or StoredTask(id=transition.entity_id, queue_id=0))
        for transition, task in await reads.list_takeovers(run)
    ]
    paths = await reads.list_paths(run, [task.step_id for _, task in takeovers])
    return [
        Takeover(
            Instant.of(transition.at), task.id, task.name or None, task.step_id, paths.get(task.step_id or ""), transition.actor
        )
        for transition, task in takeovers
    ]


def _check_wait(wait_for: float) -> None:
    if not 0 <= wait_for <= WAIT_LIMIT:
        raise InvalidInput(f"wait_for must be from 0 to {WAIT_LIMIT:g} seconds, not {wait_for:g}.")


def _ms(at: datetime | None, what: str) -> int | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise InvalidInput(f"{what} needs a time zone: 2027-01-15T09:00:00Z.")
    return round(at.timestamp() * 1000)
