"""`treadle runs ...`: show and operate runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Unpack, get_args

from treadle.api.runs import USAGE, RunAction, RunFilter, dollars, is_unpriced
from treadle.api.wire import to_builtins
from treadle.engine import Engine
from treadle.interfaces.cli.calls import until_end
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.commands.run import HandlersHere, opened, watch_run, work_on
from treadle.interfaces.cli.engines import load_engines
from treadle.interfaces.cli.format import facts, log_line, plain, table, together
from treadle.interfaces.cli.host import stop_signal
from treadle.interfaces.cli.run_view import is_shown, list_steps, live_tasks, show_run, steps_table
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.sources import texts_of
from treadle.interfaces.cli.values import Params, Payload, any_json, workflow_inputs
from treadle.interfaces.cli.values import payload as parse_payload
from treadle.model.errors import InvalidInput
from treadle.model.states import StepState
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.facade import Api
    from treadle.api.runs import Run, RunLogLine, RunUsage

RunId = Annotated[str, argument(metavar="ID", help="The run's id")]
StepName = Annotated[str, argument(metavar="STEP", help="A step's id, or its path as in `runs show`: Checkout.pay")]

_SHOWN_STEPS = 1000
_PAGE = 50


async def show(session: CommandSession, run_id: RunId) -> None:
    """Show one run: its failed step with the traceback, facts, the reason for its state, its steps; large values with --json."""
    async with session.api() as api:
        run = await api.runs.get(run_id)
        steps = await list_steps(api, run.id, _SHOWN_STEPS)
        tasks = await live_tasks(api, run.id)
        failed = await api.steps.get(run.id, run.failed_step_id) if run.failed_step_id else None
        now = (await api.system.time()).now
    value = to_builtins(run) | {"step_rows": [to_builtins(step) for step in steps]}
    session.show(value, lambda: show_run(run, steps, tasks, now, failed))


async def watch(session: CommandSession, run_id: RunId) -> None:
    """Show the steps of a run until it ends, then its outputs; exit 1 if it failed. Ctrl-C only stops watching."""
    async with session.api() as api:
        await watch_run(session, api, run_id)


async def steps(
    session: CommandSession,
    run_id: RunId,
    states: Annotated[list[str] | None, option("--state", metavar="STATE", help="Only these states; repeatable")] = None,
    blocks: Annotated[bool, option("--blocks", help="Also list blocks, items and cases")] = False,
    limit: Annotated[int, option(min=1, help="Maximum number of steps and blocks to read")] = 10_000,
) -> None:
    """List the steps of a run with their ids, in the order of the program."""
    step_states = tuple(state.value for state in StepState)
    if unknown := [state for state in states or () if state not in step_states]:
        raise InvalidInput(f"Unknown state {unknown[0]!r}; states of steps are {', '.join(step_states)}.")
    async with session.api() as api:
        matches = [
            step
            for step in await list_steps(api, run_id, limit)
            if (blocks or is_shown(step)) and (not states or step.state in states)
        ]
        tasks = await live_tasks(api, run_id)
    session.show(
        {"run_id": run_id, "steps": [to_builtins(step) for step in matches]},
        lambda: steps_table(matches, tasks) if matches else plain("No steps."),
    )


async def logs(
    session: CommandSession,
    run_id: RunId,
    limit: Annotated[int, option(min=1, max=10_000, help="Number of lines, counted from the last")] = 200,
) -> None:
    """Show the log lines of a run: of the flow (`sys.log`), its handlers (`ctx.log`) and its agents, oldest first."""
    lines: list[RunLogLine] = []
    async with session.api() as api:
        before: int | None = None
        while len(lines) < limit:
            page = await api.runs.logs(run_id, limit=min(limit - len(lines), 1000), before=before)
            lines = [*page.lines, *lines]
            before = page.next_before
            if before is None:
                break
    lines.sort(key=lambda line: line.at)  # several processes write them independently
    value = {"run_id": run_id, "lines": to_builtins(lines)}
    session.show(value, lambda: together(*map(log_line, lines)) if lines else plain("No lines."))


async def resume(session: CommandSession, run_id: RunId, handlers: HandlersHere = None) -> None:
    """Resume a paused run, or repair a stuck one; with --handlers, work on it here until it ends."""
    async with _api(session, handlers) as (api, engine):
        await _go_on(session, engine, await api.runs.resume(run_id), handlers)


async def show_canceled(session: CommandSession, _: Api, run: Run) -> None:
    """Report the end of a run, or its cleanup."""
    hint = f"it is canceled when its cleanup ends; `treadle why {run.id}` shows it, and `--force` ends it now"
    state = f"is {run.state} now" if run.finished_at is not None else f"cleans up: {hint}"
    session.show(run, lambda: plain(f"{run.workflow} {run.id} {state}"))


async def show_usage(session: CommandSession, _: Api, usage: RunUsage) -> None:
    """Show the language model usage of a run."""
    session.show(usage, lambda: _usage(usage))


async def retry(
    session: CommandSession,
    run_id: RunId,
    step: Annotated[
        str | None, argument(metavar="[STEP]", help="Only this step or block, and what failed below it: its id or path")
    ] = None,
    handlers: HandlersHere = None,
) -> None:
    """Retry everything that failed in a run, and continue it. Completed steps are not repeated."""
    async with _api(session, handlers) as (api, engine):
        await _go_on(session, engine, await api.runs.retry(run_id, step=step), handlers)


async def rerun(
    session: CommandSession,
    run_id: RunId,
    pairs: Params = None,
    whole: Payload = None,
    handlers: HandlersHere = None,
) -> None:
    """Start the same workflow of the same flow again as a new run; given inputs override the old ones."""
    async with _api(session, handlers) as (api, engine):
        inputs = await _inputs(api, run_id, whole, pairs or ())
        await _go_on(session, engine, await api.runs.rerun(run_id, inputs=inputs), handlers, source=run_id)


async def fork(
    session: CommandSession,
    run_id: RunId,
    step: StepName,
    pairs: Params = None,
    whole: Payload = None,
    result: Annotated[
        str | None,
        option("--result", metavar="JSON", help="The right result of the step: a JSON object, @file or -; default: the handler's"),
    ] = None,
    replace: Annotated[bool, option("--replace", help="Cancel the old run unless it has ended")] = False,
    dry_run: Annotated[bool, option("--dry-run", help="Change nothing; print the calls that would be repeated")] = False,
    handlers: HandlersHere = None,
) -> None:
    """Start a new run that keeps the results independent of a step, and repeats that step and its dependents.

    Use it to repeat a completed step, such as one with a wrong result.
    """
    new_result = None if result is None else parse_payload(result, ())
    if dry_run:
        async with session.api() as api:
            preview = await api.runs.preview_fork(run_id, step, with_result=result is not None, limit=1000)
        calls = [f"  {call.path}: {call.name} ({call.state})" for call in preview.calls]
        lines = ["These calls were made, and would be made again:" if calls else "No call would be made again.", *calls]
        if preview.count > len(calls):
            lines.append(f"  and {preview.count - len(calls)} more")
        if replace and preview.cancels:
            lines.append("The old run would be canceled.")
        session.show(to_builtins(preview), lambda: plain("\n".join(lines)))
        return
    async with _api(session, handlers) as (api, engine):
        inputs = await _inputs(api, run_id, whole, pairs or ())
        forked = await api.runs.fork(run_id, step, inputs=inputs, result=new_result, replace=replace)
        await _go_on(session, engine, forked, handlers, source=run_id)


async def _inputs(api: Api, run_id: str, whole: str | None, pairs: Sequence[str]) -> dict[str, Json]:
    """The inputs for a run like that one: a JSON object, overridden by `key=value` pairs."""
    if whole is None and not pairs:
        return {}
    run = await api.runs.get(run_id)
    if run.kind == "function":
        return parse_payload(whole, pairs) or {}
    return workflow_inputs(texts_of(await api.flows.get(run.flow_id), run.workflow), whole, pairs)


_ACTIONS = ", ".join(get_args(RunAction))


async def bulk(
    session: CommandSession,
    action: Annotated[str, argument(metavar="ACTION", help=f"One of {_ACTIONS}")],
    states: Annotated[
        list[str] | None,
        option("--state", metavar="STATE", help="Only these states, among those from which the action is possible"),
    ] = None,
    every: Annotated[bool, option("--all", help="All runs; otherwise a filter is required")] = False,
    reason: Annotated[str | None, option(help="Reason, stored with canceled runs")] = None,
    signal: Annotated[str | None, option(metavar="NAME", help="With the action signal: its name")] = None,
    payload: Annotated[str | None, option(metavar="JSON", help="With the action signal: its payload")] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Change nothing; print the number of runs")] = False,
    **which: Unpack[RunFilter],
) -> None:
    """Pause, resume, cancel, retry, reopen or signal all matching runs, newest first, page by page."""
    if action not in get_args(RunAction):
        raise InvalidInput(f"Unknown action {action!r}; use one of {_ACTIONS}.")
    if not (every or states or which):
        raise InvalidInput("Select runs by --where, --state, --workflow, --flow, --list, --since, --until or --search, or --all.")
    async with session.api() as api:
        total = await until_end(
            session,
            partial(api.runs.bulk, action),  # type: ignore[arg-type]
            lambda part: f"{action}: {len(part.done)} of {part.matched} runs",
            dry_run=dry_run,
            state=states or (),
            **which,
            reason=reason,
            signal=signal,
            payload=None if payload is None else any_json(payload, "--payload"),
        )
    value = to_builtins(total)
    del value["next_before"]
    text = f"{action} would apply to {total.matched} runs"
    if not dry_run:
        refusals = "".join(f"\n  {refusal.id}: {refusal.message}" for refusal in total.refused)
        text = f"{action}: {len(total.done)} runs done, {len(total.refused)} refused{refusals}"
    session.show(value, lambda: plain(text))


@asynccontextmanager
async def _api(session: CommandSession, handlers: list[str] | None) -> AsyncIterator[tuple[Api, Engine | None]]:
    """The API, and an engine with the handlers if any were given."""
    if not handlers:
        async with session.api() as api:
            yield api, None
        return
    if session.chosen.remote:
        raise InvalidInput("Handlers need a store, not a server: omit --handlers or --server.", code="not_over_http")
    engines = load_engines(session, handlers)
    async with opened(engines):
        yield session.on(engines[0]), engines[0]


async def _go_on(
    session: CommandSession, engine: Engine | None, run: Run, handlers: list[str] | None, *, source: str | None = None
) -> None:
    """Work on the run here if handlers were given; otherwise show its state."""
    if engine is not None:
        await work_on(session, engine, run.id, run.task_list, stop_signal(), handlers or ())
    elif source is not None:
        session.show(run, lambda: plain(f"Started {run.workflow} as {run.id}, made from {source}"))
    else:
        _done(session, run)


def _done(session: CommandSession, run: Run) -> None:
    session.show(run, lambda: plain(f"{run.workflow} {run.id} is {run.state} now"))


def _usage(usage: RunUsage) -> RenderableType:
    if not usage.requests:
        return plain(USAGE.empty)
    spent = usage.total
    cost = dollars(spent.cost_micros)
    if unknown := sum(is_unpriced(request) for request in usage.requests):
        cost = "unknown" if not spent.cost_micros else f"{cost}, and {unknown} requests of unknown cost"
    limit = "none" if usage.budget_micros is None else dollars(usage.budget_micros)
    tokens = f"{spent.input_tokens:,} in, {spent.output_tokens:,} out"
    sums = [("requests", spent.requests), ("tokens", tokens), ("cost", cost), ("budget", limit)]
    return together(table(USAGE, usage.requests, usage.requests[-1].at), facts([*sums]))
