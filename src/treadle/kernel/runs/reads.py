"""Reads of runs for interfaces: pages, steps in program order, and why a run waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from treadle.api.runs import Activity
from treadle.evaluator import RunRef, StepRow
from treadle.kernel.core import Core, Service
from treadle.kernel.functions.decide import read_request
from treadle.kernel.functions.reads import NAMED, is_suspended, why_suspended
from treadle.kernel.functions.steps import ASK, CALL, EFFECT, HIDDEN, UPDATE_PREFIX, WAIT, Recorded, find_readable
from treadle.kernel.queue.engine_tasks import find_pause
from treadle.kernel.queue.why import Reason, WaitContext, releases_of, serves, shown_server_state, why
from treadle.kernel.runs.decide import show_step
from treadle.kernel.runs.display import ENDED, RunWork, ShownStep, activity_of, took_for
from treadle.kernel.store.lookups import CANDIDATES, PAGE_LIMIT, all_steps, check_limit, current_run, find_id, is_short
from treadle.kernel.store.queries import OpenWork, RunFilter, TaskFilter
from treadle.model.access import Access
from treadle.model.clock import as_text
from treadle.model.errors import AmbiguousId, InvalidInput, RunNotFound, not_found
from treadle.model.ids import Ref, parse_id
from treadle.model.names import ADVANCE, FUNCTION, HANDLER, is_function
from treadle.model.runs import RANKS, STOPPED_AT_LIMIT, ActivityKind, Run, Step, depth_first, place_order
from treadle.model.states import SHOWN_LIVE_STATES, BlockReason, RunState, StepState, TaskState
from treadle.model.tasks import LogLine, Server, Task, Transition
from treadle.model.text import suggestion
from treadle.model.usage import Budget, Usage
from treadle.model.values import decode_error

_STATES = tuple(state.value for state in RunState)
_KINDS = ("workflow", "function")
_ACTIVITY_KINDS = tuple(activity.value for activity in ActivityKind)
COUNTED_RUNS = 10_000
"""Limit on the unfinished runs that are counted by activity."""
_NAMED = 3
"""Number of different reasons named in the reason of a run."""
_SHOWN = 50
"""Number of live tasks whose steps can be named."""
_COUNTED = 1000
"""Number of live tasks counted in a reason."""
_NEEDS_HELP = ("paused", "stuck", "not_advanced")
"""Reasons of a run whose remedy comes first, even if it will fail."""
_TAKEOVERS = 20
"""Number of takeovers that a run shows."""
_LAST_TASKS = 10
"""Number of a run's last tasks of which one shows the release."""
_PLAIN_TRANSITIONS = 2
"""Transitions of a run that starts and ends; one with more may have been retried."""


class RunReads(Service):
    """Reads of one namespace; changes nothing."""

    def __init__(self, core: Core, *, why_awaiting: Callable[[Task], Awaitable[Reason | None]] | None = None) -> None:
        """`why_awaiting` explains a task that waits for a person or an external job."""
        super().__init__(core)
        self._why_awaiting = why_awaiting

    async def get_run(self, run: Ref) -> Run:
        """The run, or `RunNotFound`. The row of a run, which the caller has just read, is returned as it is."""
        return run if isinstance(run, Run) else await self._get_run(run)

    async def get_visible(self, run_id: Ref, access: Access) -> Run:
        """The run; raises `RunNotFound` if the caller may not see its list."""
        run = await self.get_run(run_id)
        if not access.may_use(run.task_list):
            raise RunNotFound(run.id)
        return run

    async def get_current(self, run_id: Ref) -> Run:
        """The current run of the lineage, which is the run itself unless it was continued; or `RunNotFound`."""
        return await current_run(self._store, await self.get_run(run_id))

    async def usage(self, run_id: Ref) -> tuple[list[Usage], Budget | None]:
        """The run's model usage, oldest request first, and its budget."""
        run = await self.get_run(run_id)
        return await self._store.usage.list_requests(run.id), await self._store.usage.find_budget(run.id)

    async def list_runs(
        self,
        *,
        states: Sequence[str] = (),
        workflow: str | None = None,
        flow_ids: Sequence[str] = (),
        before_id: Ref | None = None,
        limit: int = 50,
        **more: Any,
    ) -> list[Run]:
        """A page of runs, newest first; the last one's id is the `before_id` of the next page. More filters: see `runs_like`."""
        check_limit(limit)
        if more.get("root_id") is not None:
            more["root_id"] = await find_id(self._store, self._namespace, "run", more["root_id"])
        which = self.runs_like(states=states, workflow=workflow, flow_ids=flow_ids, before_id=before_id, **more)
        return await self._store.runs.list_matching(which, limit)

    async def count_runs(self, **which: Any) -> dict[str, int]:
        """Number of matching runs by state, for every state; filters as for `runs_like`."""
        counts = await self._store.runs.count(self.runs_like(**which))
        return {state: counts.get(state, 0) for state in _STATES}

    async def count_activities(self, **which: Any) -> dict[str, int]:
        """Number of unfinished runs by activity, for every activity, among the newest `COUNTED_RUNS` that match."""
        counts = await self._store.runs.count_activities(self.runs_like(**which), COUNTED_RUNS)
        return {activity: counts.get(activity, 0) for activity in _ACTIVITY_KINDS}

    async def activities(self, runs: Sequence[Run]) -> dict[str, Activity]:
        """The activities of the unfinished ones of the runs, by id; one query."""
        live = [run.id for run in runs if not run.finished]
        work: dict[str, list[OpenWork]] = {}
        for group in await self._store.runs.list_open_work(live) if live else ():
            work.setdefault(group.task.run_id or "", []).append(group)
        idle = [run_id for run_id in live if run_id not in work]  # those that have ended since their rows were read are not stuck
        ended = {run.id for run in await self._store.runs.find_many(idle) if run.finished} if idle else ()
        activities = {run.id: activity_of(run, work.get(run.id, ())) for run in runs if run.id not in ended}
        return {run_id: activity for run_id, activity in activities.items() if activity is not None}

    async def list_by_activity(self, runs: Sequence[Run]) -> dict[str, str]:
        """The words for the activities of the unfinished ones of the runs, by id."""
        return {run_id: str(activity.kind) for run_id, activity in (await self.activities(runs)).items()}

    async def times(self, runs: Sequence[Run]) -> dict[str, int]:
        """The durations of the finished ones of the runs, by id, without the time between a failure and its retry."""
        transitions: dict[str, list[Transition]] = {}
        moved = [run.id for run in runs if run.finished and run.transitions > _PLAIN_TRANSITIONS]
        for transition in await self._store.log.list_transitions(*moved) if moved else ():
            transitions.setdefault(transition.entity_id, []).append(transition)
        durations = {run.id: took_for(run, transitions.get(run.id, ())) for run in runs}
        return {run_id: took for run_id, took in durations.items() if took is not None}

    async def list_takeovers(self, run_id: Ref) -> list[tuple[Transition, Task | None]]:
        """The last times that a worker lost a task of the run, oldest first, each with the task while it is kept."""
        transitions = await self._store.log.list_takeovers(await find_id(self._store, self._namespace, "run", run_id), _TAKEOVERS)
        tasks = {
            task.id: task
            for task in (
                await self._store.tasks.find_many([transition.entity_id for transition in transitions]) if transitions else ()
            )
        }
        return [(transition, tasks.get(transition.entity_id)) for transition in transitions]

    def runs_like(
        self,
        *,
        states: Sequence[str] = (),
        workflow: str | None = None,
        flow_ids: Sequence[str] = (),
        before_id: Ref | None = None,
        kind: str | None = None,
        task_list: str | None = None,
        root_id: Ref | None = None,
        created_after: int | None = None,
        created_before: int | None = None,
        search: str | None = None,
        activity: str | None = None,
    ) -> RunFilter:
        """Build a run filter for this namespace; `search` matches text in the name or key, or the beginning of an id."""
        if unknown := [state for state in states if state not in _STATES]:
            raise InvalidInput(f"Unknown state {unknown[0]!r}; states of runs are {', '.join(_STATES)}.")
        if kind is not None and kind not in _KINDS:
            raise InvalidInput(f"Unknown kind {kind!r}; kinds of runs are {', '.join(_KINDS)}.")
        if activity is not None and activity not in _ACTIVITY_KINDS:
            raise InvalidInput(f"Unknown activity {activity!r}; runs are doing one of {', '.join(_ACTIVITY_KINDS)}.")
        return RunFilter(
            states=tuple(states),
            namespace=self._namespace,
            workflow=workflow,
            flow_ids=tuple(flow_ids),
            before_id=None if before_id is None else parse_id(before_id, "cursor"),
            kind=kind,
            task_list=task_list,
            root_id=None if root_id is None else parse_id(root_id, "root id"),
            created_after=created_after,
            created_before=created_before,
            search=None if not search else search.strip().lower().replace("\0", ""),
            activity=None if activity is None else RANKS[ActivityKind(activity)],
        )

    async def list_transitions(self, run_id: Ref) -> list[Transition]:
        """The transitions of the run itself, in order."""
        return await self._store.log.list_transitions((await self.get_run(run_id)).id)

    async def list_paths(self, run_id: Ref, step_ids: Iterable[str | None]) -> dict[str, str]:
        """The paths of these steps of the run, by id."""
        wanted = sorted({step_id for step_id in step_ids if step_id})
        rows = (
            await self._store.runs.load_steps(await find_id(self._store, self._namespace, "run", run_id), rows=wanted)
            if wanted
            else []
        )
        return {step.id: show_step(step, self._value_store).path for step in rows}

    async def list_steps(self, run_id: Ref, limit: int = 10_000) -> list[ShownStep]:
        """Up to `limit` steps and blocks of the run as a tree in program order."""
        run = await self.get_run(run_id)
        work = await self.work_of(run)
        steps: list[ShownStep] = []
        after: str | None = None
        while len(steps) < limit:
            page = await self._store.runs.list_steps(run.id, after, min(limit - len(steps), 1000))
            steps += await self.shown(work, page)
            if not page:
                steps += self.unrecorded(work, steps)
                break
            after = page[-1].id
        return list(in_order(steps))

    async def work_of(self, run: Run) -> RunWork:
        """The function's steps in progress, and the times in which the run had failed; without the tasks of other steps."""
        own = []
        if is_function(run.flow_id) and not run.finished:
            own = await self._store.tasks.list_matching(TaskFilter(kind=FUNCTION, run_id=run.id, held=True), 1)
        transitions = await self._store.log.list_transitions(run.id) if run.transitions > _PLAIN_TRANSITIONS else ()
        return RunWork.of(run, own[0] if own else None, transitions)

    async def work_at(self, work: RunWork, statuses: Mapping[str, StepState]) -> RunWork:
        """The same with the live tasks of these steps, by which those that have not ended are shown."""
        wanted = [] if work.run.finished else [step_id for step_id, status in statuses.items() if status not in ENDED]
        return work.at(await self._store.runs.list_step_tasks(wanted) if wanted else ())

    async def shown(self, work: RunWork, steps: Iterable[Step]) -> list[ShownStep]:
        """These steps for display, without rows that interfaces hide."""
        rows = [(step, show_step(step, self._value_store)) for step in steps if step.kind not in HIDDEN]
        live_work = await self.work_at(work, {row.id: row.status for _, row in rows})
        return [live_work.show(step, row) for step, row in rows]

    def unrecorded(self, work: RunWork, known: Sequence[ShownStep]) -> list[ShownStep]:
        """The steps that the run's function executes and that are not among the known ones."""
        ids = {step.row.id for step in known}
        return [step for step in work.show_unrecorded() if step.row.id not in ids]

    async def get_step(self, run_id: Ref, step: str) -> StepRow:
        """A step by its id or its path (`Checkout.orders[3].pay`), or `NotFound`."""
        if "-" in step and "." not in step and "[" not in step and not is_short(step):
            rows = await self._store.runs.load_steps((await self.get_run(run_id)).id, rows=[parse_id(step, "step id")])
            if rows:
                return show_step(rows[0], self._value_store)
            raise not_found("step", step)
        steps = [candidate.row for candidate in await self.list_steps(run_id) if candidate.row.is_step]
        matches = [row for row in steps if row.path == step] or [row for row in steps if is_short(step) and row.id.startswith(step)]
        if len(matches) > 1 and matches[0].path != step:
            raise AmbiguousId("step", step, [row.id for row in matches[:CANDIDATES]], more=len(matches) > CANDIDATES)
        if not matches:
            raise not_found("step", step)
        return matches[0]

    async def list_live_tasks(self, run_id: Ref, limit: int = 50) -> list[Task]:
        """Unfinished tasks of the run, newest first."""
        which = TaskFilter(
            states=SHOWN_LIVE_STATES, namespace=self._namespace, run_id=await find_id(self._store, self._namespace, "run", run_id)
        )
        return await self._store.tasks.list_matching(which, limit)

    async def find_release(self, run: Run) -> str | None:
        """The release of the application whose worker claimed one of the run's last tasks, if it is known."""
        tasks = await self._store.tasks.list_matching(TaskFilter(run_id=run.id), _LAST_TASKS)
        releases = releases_of(await self._store.servers.list_all(self._namespace))
        return next((releases[task.owner_id] for task in tasks if task.owner_id in releases), None)

    async def page_lines(
        self, run_id: Ref, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """Numbered log lines of the run in order of writing: those after a number, or the last ones before one."""
        check_limit(limit)
        return await self._store.log.page_run_lines((await self.get_run(run_id)).id, limit, before, after)

    async def list_awaited_signals(self, run_id: Ref) -> list[str]:
        """The names of the signals that a function's run waits for and that were not sent yet; none for a workflow."""
        run = await self.get_current(run_id)
        if run.finished or not is_function(run.flow_id):
            return []
        waiting = [step for step in await all_steps(self._store, run.id) if step.kind == WAIT]
        awaited = Counter(step.name for step in waiting if step.state in (StepState.RUNNING, StepState.PENDING))
        after = 0
        while awaited and (page := await self._store.records.list_messages(run.id, PAGE_LIMIT, after)):
            awaited -= Counter(message.name for message in page if message.name is not None)
            after = page[-1].seq
        return list(awaited)

    async def why(self, run_id: Ref) -> Reason:
        """The reason why the run, or the run that continues it, is in its state, and its deadline."""
        requested_run = await self.get_run(run_id)
        run = await current_run(self._store, requested_run)
        tasks = [] if run.finished else await self.list_live_tasks(run.id, _COUNTED)
        if not (run.finished or tasks):
            run = await self._get_run(run.id)  # it may have ended since it was read
        reason = await self._why(run, tasks)
        if (request := next(filter(None, (read_request(task) for task in tasks if task.kind == FUNCTION)), None)) is not None:
            reason = Reason(reason.code, f"{request.text}; now: {reason.text}")
        text = reason.text if run.id == requested_run.id else f"continued as the run {run.id}: {reason.text}"
        if run.deadline_at is not None and not run.finished:
            text += f"; deadline at {as_text(run.deadline_at)}"
        return Reason(reason.code, text)

    async def _why(self, run: Run, tasks: Sequence[Task]) -> Reason:
        own = next((task for task in tasks if is_suspended(task)), None) if run.state == RunState.RUNNING else None
        if own is not None and (reason := await self._why_suspended(own)):
            return reason
        root_id = RunRef(id=run.id, workflow=run.workflow).root_id
        rows = await self._store.runs.load_steps(run.id, rows=[root_id, *(task.step_id for task in tasks[:_SHOWN] if task.step_id)])
        step_rows = [show_step(row, self._value_store) for row in rows]
        paths = {row.id: row.path for row in step_rows}
        doom = next((row.doom for row in step_rows if row.id == root_id), None)
        broken = None if run.finished else await self._find_broken(run, tasks)
        context = await self._limit_context(tasks) | await self._wait_context(tasks[:_NAMED])
        cause = next((row.error for row in step_rows if row.id == root_id), None)
        remedy = "" if cause is None or cause.origin == HANDLER else await self._correct_flow(run)
        servers = await self._store.servers.list_all(self._namespace)
        reason = why_run(run, tasks, paths, servers, await self._store.now(), broken, context, remedy)
        if doom is None or run.finished:
            return reason
        code = reason.code if reason.code in _NEEDS_HELP else "will_fail"
        return Reason(code, f"will fail: {doom.text}; now: {reason.text}")

    async def _correct_flow(self, run: Run) -> str:
        """The remedy for a failure of the flow itself, which a retry would repeat: another version of the flow."""
        for newest in await self._store.runs.list_flow_versions(self._namespace):
            versions = await self._store.runs.list_flow_versions(self._namespace, newest.name)
            own = next((version.version for version in versions if version.flow_id == run.flow_id), None)
            if own is not None:
                correct = f"correct it with `treadle flows publish {newest.name} FILE`"
                fix = correct if own == newest.version else f"version {newest.version} is the newest"
                start = f"start a new run with `treadle submit {newest.name}`"
                return f"version {own} of the flow {newest.name} itself fails, and a retry repeats that: {fix}, and {start}"
        return f"the flow itself fails, and a retry repeats that: correct its source ({run.flow_id[:12]}), and start a new run"

    async def _why_suspended(self, own: Task) -> Reason | None:
        """The reason why the function of this task is suspended; None if no recorded step is waiting."""
        steps = [
            step for step in await all_steps(self._store, own.run_id or "") if step.state in (StepState.RUNNING, StepState.PENDING)
        ]
        recorded = (find_readable(step, self._value_store) for step in steps if step.kind not in HIDDEN)
        # an effect that has begun waits for the decision on its unknown outcome
        waiting = [step for step in recorded if step is not None and (step.kind != EFFECT or step.state == StepState.PENDING)]
        waiting.sort(key=lambda step: step.ordinal)
        if not waiting:
            return None
        servers, now = await self._store.servers.list_all(self._namespace), await self._store.now()
        task_ids = [step.task_id for step in waiting[:NAMED] if step.kind in (CALL, ASK) and step.task_id]
        tasks = sorted(await self._store.tasks.find_many(task_ids) if task_ids else (), key=lambda task: task_ids.index(task.id))
        context = await self._wait_context(tasks)
        reasons = {task.id: why(task, servers, now, context=context.get(task.id)).text for task in tasks}
        live = any(shown_server_state(server, now) == "running" and serves(server, own) for server in servers)
        unserved = None if live else f"no live worker serves {own.name} in list {own.task_list}"
        reason = why_suspended(waiting, reasons, unserved)
        return Reason(reason.code, f"{reason.text}{await self._unconsumed(own.run_id or '', waiting)}")

    async def _unconsumed(self, run_id: str, waiting: Sequence[Recorded]) -> str:
        """The signals that have arrived, and that no step of a suspended function waits for."""
        awaited = [step.name for step in waiting if step.kind == WAIT]
        messages = await self._store.records.list_messages(run_id, PAGE_LIMIT)
        names = dict.fromkeys(message.name for message in messages if message.name is not None and message.name not in awaited)
        return "".join(
            f"; it has received {name if name.startswith(UPDATE_PREFIX) else f'the signal {name}'}, which nothing waits for"
            + suggestion(name, awaited)
            for name in list(names)[:_NAMED]
        )

    async def _wait_context(self, tasks: Sequence[Task]) -> dict[str, WaitContext]:
        """Reasons of the tasks that are paused, or await an approval or external job, by task."""
        contexts = {task.id: WaitContext(pause=pause) for task in tasks if (pause := await find_pause(self._store, task))}
        for task in tasks:
            if (
                self._why_awaiting is not None
                and task.id not in contexts
                and task.state in (TaskState.AWAITING_APPROVAL, TaskState.AWAITING_EXTERNAL)
            ):
                contexts[task.id] = WaitContext(waits_for=await self._why_awaiting(task))
        return contexts

    async def _limit_context(self, tasks: Sequence[Task]) -> dict[str, WaitContext]:
        """The limits that tasks wait for, by task."""
        held = {
            task.id: task.limit_key for task in tasks if task.limit_key is not None and task.blocked_by & BlockReason.OVER_LIMIT
        }
        if not held:
            return {}
        limits = {limit.key: limit for limit in await self._store.operators.list_limits(self._namespace)}
        contexts = {}
        for key in set(held.values()):
            holder_ids = await self._store.operators.list_admitted(self._namespace, key, _NAMED)
            holders = await self._store.tasks.find_many(holder_ids) if holder_ids else ()
            contexts[key] = WaitContext(limit=limits.get(key), holders=holders)
        return {task_id: contexts[key] for task_id, key in held.items()}

    async def _find_broken(self, run: Run, tasks: Sequence[Task]) -> Task | None:
        """The last task that failed to advance the run, if its input is still there and no other advance is pending (D60)."""
        if any(task.kind == ADVANCE for task in tasks) or (
            tasks and not await self._store.runs.list_steps(run.id, None, 1, with_inbox=True)
        ):
            return None
        failed = TaskFilter(states=(TaskState.FAILED,), namespace=self._namespace, kind=ADVANCE, run_id=run.id)
        return next(iter(await self._store.tasks.list_matching(failed, 1)), None)


def why_run(
    run: Run,
    tasks: Sequence[Task],
    paths: dict[str, str],
    servers: Sequence[Server],
    now: int,
    broken: Task | None = None,
    context: Mapping[str, WaitContext] | None = None,
    correction: str = "",
) -> Reason:
    """The reason in one line, from the run's live tasks, the paths of their steps, and a task that failed to advance it. Pure.

    `correction` is the remedy if the flow itself failed.
    """
    contexts = context or {}
    error = decode_error(run.error)
    message = error.get("message", "")
    match run.state:
        case RunState.COMPLETED:
            return Reason("finished_completed", f"completed at {as_text(run.finished_at)}")
        case RunState.FAILED:
            remedy = correction or f"repeat it with `treadle runs retry {run.id}`"
            if error.get("stopped"):
                remedy = STOPPED_AT_LIMIT
            return Reason("finished_failed", f"failed at {as_text(run.finished_at)}: {message}; {remedy}")
        case RunState.CANCELED:
            return Reason("finished_canceled", f"canceled at {as_text(run.finished_at)}: {message}")
        case RunState.PAUSED:
            return Reason("paused", f"paused; resume it with `treadle runs resume {run.id}`")
    if broken is not None:
        problem = decode_error(broken.error).get("message", "")
        again = f"try again with `treadle runs resume {run.id}`"
        return Reason("not_advanced", f"the results of its steps are stored but could not be processed: {problem}; {again}")
    if not tasks:
        return Reason("stuck", f"it has no live task; repair it with `treadle runs resume {run.id}`")
    reasons = [(task, why(task, servers, now, context=contexts.get(task.id))) for task in tasks]
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for task, reason in reasons:
        key = (task.name, reason.text.replace(task.id, ""))
        alike.setdefault(key, []).append((paths.get(task.step_id or "", task.name), reason.text))
    parts = [
        f"{group[0][0]}{f' and {len(group) - 1} other step(s)' if len(group) > 1 else ''} ({name}): {group[0][1]}"
        for (name, _), group in list(alike.items())[:_NAMED]
    ]
    more = sum(len(group) for group in list(alike.values())[_NAMED:])
    code = reasons[0][1].code if len(tasks) == 1 else "steps"
    return Reason(code, "waits for " + "; ".join(parts) + (f"; and {more} more" if more else ""))


def in_order(steps: Sequence[ShownStep]) -> Iterator[ShownStep]:
    """Steps as a tree, depth first, children by ordinal; steps without a listed parent are at the top."""
    return depth_first(
        steps,
        lambda step: step.row.id,
        lambda step: step.row.parent_id,
        lambda step: (*place_order(step.row.place), step.row.ordinal, step.created_at, step.row.place),
    )
