"""`treadle run`: a workflow from its file to its outputs, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

import typer

from treadle.cli.crash import arm_crash
from treadle.cli.exits import INTERRUPTED, tell_error
from treadle.cli.load import load_engines
from treadle.cli.serving import enable_llm, leave_threads_behind, stop_signal
from treadle.cli.session import Session
from treadle.cli.shapes import run_json
from treadle.cli.sources import Places
from treadle.cli.starting import InputOption, InputsOption, LenientOption, Wanted, WorkflowOption, preflight
from treadle.cli.submit import show_outputs
from treadle.cli.watch_run import Watcher
from treadle.cli.worker import Llm
from treadle.kernel.telemetry import Emit, Event, TaskSettled
from treadle.model.errors import IllegalMove, RunCanceled, RunFailed
from treadle.model.names import DEFAULT_LIST, check_name
from treadle.model.states import RunState
from treadle.wiring.engine import Engine

HandlersHere = Annotated[
    list[str] | None,
    typer.Option(
        "--handlers", metavar="MODULE", help="Work on it here with these: package.module or path/to/file.py; may be repeated"
    ),
]
_GRACE = 10.0


async def run(
    session: Session,
    places: Places,
    workflow: WorkflowOption = None,
    pairs: InputOption = None,
    whole: InputsOption = None,
    handlers: HandlersHere = None,
    task_list: Annotated[str, typer.Option("--list", metavar="LIST", help="The task list of the run, served here")] = DEFAULT_LIST,
    lenient: LenientOption = False,
    llm: Llm = False,
) -> None:
    """Run a workflow to its end and print its outputs; this process is a worker meanwhile.

    Everything is in the store as always: Ctrl-C pauses the run, and `treadle runs resume ID --handlers MODULE` goes on with it.
    """
    arm_crash(session.settings.crash_at)
    check_name(task_list, "task list")
    engines = load_engines(session, handlers or [])
    wanted, engine = Wanted(places, workflow, pairs or (), whole, lenient), engines[0]
    checked = None if wanted.is_stored else wanted.plan_files(engine)
    if llm:
        enable_llm(engine)
    stop = stop_signal()
    async with opened(engines):
        plan = checked or await wanted.plan(engine)
        await preflight(session, engine, plan, task_list, works_here=True)
        started = await engine.start_run(plan.flow, plan.workflow.qualified_name, plan.inputs, lenient=lenient, task_list=task_list)
        await work_on(session, engine, started.id, task_list, stop, handlers or [])


@asynccontextmanager
async def opened(engines: Sequence[Engine]) -> AsyncIterator[None]:
    """All engines open, so that handlers can use theirs."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        yield


async def work_on(
    session: Session, engine: Engine, run_id: str, task_list: str, stop: asyncio.Event, handlers: Sequence[str]
) -> None:
    """Be a worker until the run has ended, showing its steps, then show its outputs; interrupted, leave it paused."""
    if not session.chosen.verbose:
        engine.emit = _without_settles(engine)
    async with engine.worker(task_lists=(task_list,), grace=_GRACE):
        ended = await Watcher(session, engine, run_id).watch(stop)
        if ended is None:
            ended = await _pause(session, engine, run_id)
    run = await engine.run_reads.get_run(run_id)
    if ended is None:
        _tell_paused(session, engine, run_id, handlers)
        leave_threads_behind(INTERRUPTED)
        raise typer.Exit(INTERRUPTED)
    failed = ended if isinstance(ended, RunFailed | RunCanceled) else None
    outputs = ended if isinstance(ended, dict) else None
    show_outputs(session, run_json(run) | {"outputs": outputs}, failed)


def _without_settles(engine: Engine) -> Emit:
    """What attempts come to is seen in the steps; said once is enough. Those who measure are told all the same."""
    emit, telemetry = engine.emit, engine.telemetry

    def quieter(event: Event) -> None:
        if not isinstance(event, TaskSettled):
            emit(event)
        elif telemetry.observe is not None:
            telemetry.observe(event)

    return quieter


async def _pause(session: Session, engine: Engine, run_id: str) -> RunFailed | RunCanceled | dict[str, object] | None:
    """Hold the run, unless it has ended meanwhile."""
    try:
        await engine.runs.pause(run_id, actor=session.actor)
    except IllegalMove:
        run = await engine.run_reads.get_run(run_id)
        if run.state == RunState.PAUSED:
            return None
        try:
            outputs: dict[str, object] = await engine.run_result(run_id)
            return outputs
        except (RunFailed, RunCanceled) as error:
            return error
    return None


def _tell_paused(session: Session, engine: Engine, run_id: str, handlers: Sequence[str]) -> None:
    if engine.store.url.startswith("memory"):
        message = f"Run {run_id} was interrupted, and is gone with the memory it was in."
    else:
        store = f" --store {session.chosen.typed_store}" if session.chosen.typed_store else ""
        names = "".join(f" --handlers {name}" for name in handlers)
        message = f"Run {run_id} is paused. Go on with: treadle runs resume {run_id}{names}{store}"
    tell_error("interrupted", message, as_json=session.json)
