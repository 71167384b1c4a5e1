"""`treadle runs ...`: look at runs, and do what operators do with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.inputs import payload as parse_payload
from treadle.cli.inputs import workflow_inputs
from treadle.cli.load import load_engines
from treadle.cli.run import HandlersHere, opened, work_on
from treadle.cli.serving import stop_signal
from treadle.cli.session import Session
from treadle.cli.shapes import line_json, run_json, step_json
from treadle.cli.show_run import is_shown, show_run, steps_table
from treadle.cli.starting import InputOption, InputsOption
from treadle.cli.words import ago, grid, plain, short, state
from treadle.cli.words import line as shown_line
from treadle.kernel.function_rows import is_function
from treadle.model.errors import IllegalMove, InvalidInput
from treadle.model.runs import Run
from treadle.model.states import RUN, RunState, StepState
from treadle.model.tasks import LogLine
from treadle.model.values import Json, decode
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from rich.console import RenderableType

RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id")]
StepName = Annotated[str, typer.Argument(metavar="STEP", help="A step's id, or its path as `runs show` has it: Checkout.pay")]

_SHOWN_STEPS = 1000
_PAGE = 50


async def list_runs(
    session: Session,
    states: Annotated[list[str] | None, typer.Option("--state", metavar="STATE", help="Only these; may be repeated")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only of this workflow (qualified name)")] = None,
    limit: Annotated[int, typer.Option(help="At most that many, up to 1000")] = _PAGE,
    before: Annotated[str | None, typer.Option(metavar="ID", help="The next page: only runs older than this one")] = None,
) -> None:
    """List runs, newest first."""
    async with session.engine() as engine:
        found = await engine.run_reads.list_runs(states=tuple(states or ()), workflow=workflow, before_id=before, limit=limit)
        now = await engine.store.now()
    more = found[-1].id if len(found) == limit else None
    given = {"state": states, "workflow": workflow, "limit": None if limit == _PAGE else limit}
    hint = session.again("runs list", **given, before=more)
    value = {"runs": [run_json(run) for run in found], "next_before": more}
    session.show(value, lambda: _table(found, now, hint if more else None))


def _table(found: list[Run], now: int, more: str | None) -> RenderableType:
    from rich.console import Group

    if not found:
        return plain("No runs. Start one with `treadle run FILE` or `treadle submit FILE`.")
    table = grid("id", "workflow", "state", ">steps", "created", "note")
    for run in found:
        said = (decode(run.error) or {}).get("message")
        note = said or (f"finished {ago(run.finished_at, now)}" if run.finished else "")
        table.add_row(
            run.id, plain(run.workflow), state(run.state), str(run.steps), ago(run.created_at, now), plain(short(note, 80))
        )
    return Group(table, plain(f"More: {more}", "dim")) if more else table


async def show(session: Session, run_id: RunId) -> None:
    """Everything about one run: facts, inputs, outputs, why it is where it is, and its steps."""
    async with session.engine() as engine:
        run = await engine.run_reads.get_run(run_id)
        inputs = await engine.runs.inputs(run)
        outputs = await engine.runs.outputs(run) if run.state == RunState.COMPLETED else None
        steps = await engine.run_reads.list_steps(run.id, _SHOWN_STEPS)
        tasks = {task.step_id or "": task for task in await engine.run_reads.list_live_tasks(run.id, 500)}
        reason = await engine.run_reads.why(run.id)
        now = await engine.store.now()
    value = run_json(run) | {
        "inputs": inputs,
        "outputs": outputs,
        "why": {"code": reason.code, "text": reason.text},
        "step_rows": [step_json(shown) for shown in steps],
    }
    session.show(value, lambda: show_run(run, inputs, outputs, steps, tasks, reason, now))


async def steps(
    session: Session,
    run_id: RunId,
    states: Annotated[list[str] | None, typer.Option("--state", metavar="STATE", help="Only these; may be repeated")] = None,
    blocks: Annotated[bool, typer.Option("--blocks", help="Blocks, items and cases too")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Look at that many steps and blocks at most")] = 10_000,
) -> None:
    """List the steps of a run with their ids, in the order of the program."""
    known = tuple(each.value for each in StepState)
    if unknown := [each for each in states or () if each not in known]:
        raise InvalidInput(f"Unknown state {unknown[0]!r}; states of steps are {', '.join(known)}.")
    async with session.engine() as engine:
        run = await engine.run_reads.get_run(run_id)
        found = [
            shown
            for shown in await engine.run_reads.list_steps(run.id, limit)
            if (blocks or is_shown(shown.row)) and (not states or shown.row.status in states)
        ]
        tasks = {task.step_id or "": task for task in await engine.run_reads.list_live_tasks(run.id, 500)}
    session.show(
        {"run_id": run.id, "steps": [step_json(shown) for shown in found]},
        lambda: steps_table(found, tasks) if found else plain("No steps."),
    )


async def logs(
    session: Session,
    run_id: RunId,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The last so many lines")] = 200,
) -> None:
    """What the flow (`sys.log`), its handlers (`ctx.log`) and the agents that called them wrote about a run, oldest first."""
    async with session.engine() as engine:
        run = await engine.run_reads.get_run(run_id)
        lines = (await engine.run_reads.list_lines(run.id))[-limit:]
        paths = {shown.row.id: shown.row.path for shown in await engine.run_reads.list_steps(run.id)}
    value = [line_json(line) | {"step_id": line.step_id, "path": paths.get(line.step_id or "")} for line in lines]
    session.show({"run_id": run.id, "lines": value}, lambda: _lines(lines, paths))


def _lines(lines: list[LogLine], paths: dict[str, str]) -> RenderableType:
    from rich.console import Group

    if not lines:
        return plain("No lines.")
    return Group(*(shown_line(line, _before(line, paths)) for line in lines))


def _before(line: LogLine, paths: dict[str, str]) -> str:
    """The path of its step; what the flow logs begins with that already."""
    path = paths.get(line.step_id or "", "")
    return "" if not path or line.message.startswith(f"{path}:") else f"{path}: "


async def pause(session: Session, run_id: RunId) -> None:
    """Hold a run: nothing of it is taken from now on; what is being worked on finishes, and counts."""
    async with session.engine() as engine:
        _done(session, await engine.runs.pause(run_id, actor=session.actor))


async def resume(session: Session, run_id: RunId, handlers: HandlersHere = None) -> None:
    """Let a paused run go on, and repair one that cannot; with --handlers, work on it here until it ends."""
    async with _engine(session, handlers) as engine:
        run = await engine.run_reads.get_run(run_id)
        if run.finished:
            raise IllegalMove("run", run.id, run.state, "resume", RUN.possible(run.state))
        await _go_on(session, engine, await engine.runs.resume(run.id, actor=session.actor), handlers)


async def cancel(
    session: Session,
    run_id: RunId,
    reason: Annotated[str | None, typer.Option(help="Why; kept with the run")] = None,
) -> None:
    """End a run and all its live tasks now; canceling twice is no error."""
    async with session.engine() as engine:
        _done(session, await engine.runs.cancel(run_id, actor=session.actor, reason=reason))


async def retry(
    session: Session,
    run_id: RunId,
    step: Annotated[
        str | None, typer.Argument(metavar="[STEP]", help="A failed step's id or path; default: the one that failed the run")
    ] = None,
    handlers: HandlersHere = None,
) -> None:
    """Do a failed step again, and let the run go on from there. What has completed is not done again."""
    async with _engine(session, handlers) as engine:
        run = await engine.run_reads.get_run(run_id)
        step_id = None if step is None else (await engine.run_reads.get_step(run.id, step)).id
        run = await engine.runs.retry(run.id, step_id, actor=session.actor)
        await _go_on(session, engine, run, handlers)


async def rerun(
    session: Session,
    run_id: RunId,
    pairs: InputOption = None,
    whole: InputsOption = None,
    handlers: HandlersHere = None,
) -> None:
    """Start the same workflow of the same flow again as a new run; inputs that are given win over those of the old one."""
    from treadle.kernel.flows import find_workflow
    from treadle.kernel.inputs import check_inputs

    async with _engine(session, handlers) as engine:
        run = await engine.run_reads.get_run(run_id)
        if is_function(run.flow_id):
            given = {**await engine.runs.inputs(run), **_payload(whole, pairs)}
            started = await engine.runs.rerun(run.id, inputs=given)
            await _go_on(session, engine, await engine.run_reads.get_run(started.id), handlers, new=True)
            return
        program = await engine.flows.program(run.flow_id)
        workflow = find_workflow(program, run.workflow)
        given = workflow_inputs(workflow, whole, pairs or ())
        inputs = await engine.runs.inputs(run) | given
        if given:
            check_inputs(program, workflow, inputs)
        started = await engine.runs.rerun(run.id, inputs=inputs)
        await _go_on(session, engine, await engine.run_reads.get_run(started.id), handlers, new=True)


async def fork(
    session: Session,
    run_id: RunId,
    step: StepName,
    pairs: InputOption = None,
    whole: InputsOption = None,
    handlers: HandlersHere = None,
) -> None:
    """Start a new run that keeps what was finished without a step, and does that step and the rest again."""
    from treadle.kernel.flows import find_workflow

    async with _engine(session, handlers) as engine:
        run = await engine.run_reads.get_run(run_id)
        step_id = (await engine.run_reads.get_step(run.id, step)).id
        if is_function(run.flow_id):
            started = await engine.runs.fork(run.id, step_id, inputs=_payload(whole, pairs))
            await _go_on(session, engine, await engine.run_reads.get_run(started.id), handlers, new=True)
            return
        workflow = find_workflow(await engine.flows.program(run.flow_id), run.workflow)
        started = await engine.runs.fork(run.id, step_id, inputs=workflow_inputs(workflow, whole, pairs or ()))
        await _go_on(session, engine, await engine.run_reads.get_run(started.id), handlers, new=True)


def _payload(whole: str | None, pairs: list[str] | None) -> dict[str, Json]:
    """What is given for a function: a JSON object, with `key=value` pairs over it."""
    return {**(parse_payload(whole) or {}), **(parse_payload(None, pairs or ()) or {})}


@asynccontextmanager
async def _engine(session: Session, handlers: list[str] | None) -> AsyncIterator[Engine]:
    """An engine with those handlers, or one that only operates."""
    if not handlers:
        async with session.engine() as engine:
            yield engine
        return
    engines = load_engines(session, handlers)
    async with opened(engines):
        yield engines[0]


async def _go_on(session: Session, engine: Engine, run: Run, handlers: list[str] | None, *, new: bool = False) -> None:
    """Work on the run here if handlers were given; else say where it stands."""
    if handlers:
        await work_on(session, engine, run.id, run.task_list, stop_signal(), handlers)
    elif new:
        session.show(run_json(run), lambda: plain(f"Started {run.workflow} as {run.id}, made from {run.parent_id}"))
    else:
        _done(session, run)


def _done(session: Session, run: Run) -> None:
    session.show(run_json(run), lambda: plain(f"{run.workflow} {run.id} is {run.state} now"))
