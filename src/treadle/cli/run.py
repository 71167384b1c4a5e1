"""`treadle run`: a workflow from its file to its outputs, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.api.wire import to_builtins
from treadle.cli.command import option
from treadle.cli.crash import arm_crash
from treadle.cli.exits import INTERRUPTED, tell_error
from treadle.cli.load import load_engines
from treadle.cli.session import NotOverHttp, Session
from treadle.cli.sources import Places
from treadle.cli.start_run import (
    InputOption,
    InputsOption,
    LenientOption,
    Wanted,
    WorkflowOption,
    preflight,
    tell_what_is_missing,
)
from treadle.cli.submit import show_outputs
from treadle.cli.watch_run import Watcher
from treadle.cli.worker import Llm
from treadle.cli.worker_process import enable_llm, leave_threads_behind, stop_signal
from treadle.engine import Engine
from treadle.kernel.telemetry.events import Emit, Event, TaskSettled
from treadle.model.errors import IllegalMove
from treadle.model.names import DEFAULT_LIST, check_name

if TYPE_CHECKING:
    from treadle.api.facade import Api
    from treadle.api.runs import RunOutputs

HandlersHere = Annotated[
    list[str] | None,
    option("--handlers", metavar="MODULE", help="Work on it here with these: package.module or path/to/file.py; may be repeated"),
]
_GRACE = 10.0


async def run(
    session: Session,
    places: Places,
    workflow: WorkflowOption = None,
    pairs: InputOption = None,
    whole: InputsOption = None,
    handlers: HandlersHere = None,
    task_list: Annotated[str, option("--list", metavar="LIST", help="The task list of the run, served here")] = DEFAULT_LIST,
    lenient: LenientOption = False,
    llm: Llm = False,
) -> None:
    """Run a workflow to its end and print its outputs; this process is a worker meanwhile.

    Everything is in the store as always: Ctrl-C pauses the run, and `treadle runs resume ID --handlers MODULE` goes on with it.
    With --server, the workers there do it, and this only watches.
    """
    arm_crash(session.settings.crash_at)
    check_name(task_list, "task list")
    if session.chosen.remote:
        if handlers or llm:
            raise NotOverHttp("Handlers work on a store, not on a server: leave --handlers and --llm out, or --server.")
        await _run_there(session, Wanted(places, workflow, pairs or (), whole, lenient), task_list)
        return
    engines = load_engines(session, handlers or [])
    wanted, engine = Wanted(places, workflow, pairs or (), whole, lenient), engines[0]
    checked = None if wanted.is_stored else wanted.plan_files(engine)
    if llm:
        enable_llm(engine)
    stop = stop_signal()
    async with opened(engines):
        plan = checked or await wanted.plan(engine)
        await preflight(session, engine, plan, task_list)
        started = await engine.start_run(plan.flow, plan.workflow.qualified_name, plan.inputs, lenient=lenient, task_list=task_list)
        await work_on(session, engine, started.id, task_list, stop, handlers or [])


@asynccontextmanager
async def opened(engines: Sequence[Engine]) -> AsyncIterator[None]:
    """All engines open, so that handlers can use theirs."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        yield


async def _run_there(session: Session, wanted: Wanted, task_list: str) -> None:
    """Start the run on the server, and watch it to its end."""
    checked = None if wanted.is_stored else wanted.plan_files(Engine("memory://", settings=session.settings))
    stop = stop_signal()
    async with session.api() as api:
        started = await wanted.start(api, checked, task_list=task_list)
        if not session.json:
            tell_what_is_missing(started)
        ended = await Watcher(session, api, started.id).watch(stop)
        if ended is None:
            message = f"Run {started.id} goes on at the server; `treadle runs show {started.id}` shows how far it is."
            tell_error("interrupted", message, as_json=session.json)
            raise Exit(INTERRUPTED)
        show_outputs(session, to_builtins(await api.runs.get(started.id)), ended)


async def work_on(
    session: Session, engine: Engine, run_id: str, task_list: str, stop: asyncio.Event, handlers: Sequence[str]
) -> None:
    """Be a worker until the run has ended, showing its steps, then show its outputs; interrupted, leave it paused."""
    if not session.chosen.verbose:
        engine.kernel.emit = _without_settles(engine)
    api = session.on(engine)
    async with engine.worker(task_lists=(task_list,), grace=_GRACE):
        ended = await Watcher(session, api, run_id, engine.kernel.run_services.advancer.on_line).watch(stop)
        if ended is None:
            ended = await _pause(api, run_id)
    if ended is None:
        _tell_paused(session, engine, run_id, handlers)
        leave_threads_behind(INTERRUPTED)
        raise Exit(INTERRUPTED)
    show_outputs(session, to_builtins(await api.runs.get(run_id)), ended)


def _without_settles(engine: Engine) -> Emit:
    """What attempts come to is seen in the steps; said once is enough. Those who measure are told all the same."""
    emit, telemetry = engine.kernel.emit, engine.telemetry

    def quieter(event: Event) -> None:
        if not isinstance(event, TaskSettled):
            emit(event)
        elif telemetry.observe is not None:
            telemetry.observe(event)

    return quieter


async def _pause(api: Api, run_id: str) -> RunOutputs | None:
    """Hold the run, unless it has ended meanwhile."""
    try:
        await api.runs.pause(run_id)
    except IllegalMove:
        ended = await api.runs.outputs(run_id)
        return ended if ended.finished else None
    return None


def _tell_paused(session: Session, engine: Engine, run_id: str, handlers: Sequence[str]) -> None:
    if engine.store.url.startswith("memory"):
        message = f"Run {run_id} was interrupted, and is gone with the memory it was in."
    else:
        store = f" --store {session.chosen.typed_store}" if session.chosen.typed_store else ""
        names = "".join(f" --handlers {name}" for name in handlers)
        message = f"Run {run_id} is paused. Go on with: treadle runs resume {run_id}{names}{store}"
    tell_error("interrupted", message, as_json=session.json)
