"""`treadle run` and `treadle submit`: runs of workflows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.api.flows import DryRunCall, FlowDryRun
from treadle.api.wire import to_builtins
from treadle.engine import Engine
from treadle.interfaces.cli.calls import wait_for_end
from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.commands.worker import Llm
from treadle.interfaces.cli.engines import load_engines
from treadle.interfaces.cli.format import plain, pretty
from treadle.interfaces.cli.host import enable_llm, leave_threads_behind, stop_signal
from treadle.interfaces.cli.messages import FAILED, INTERRUPTED, print_error, print_note
from treadle.interfaces.cli.process import arm_crash
from treadle.interfaces.cli.run_view import RunWatcher
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.sources import (
    LenientOption,
    Places,
    StrictOption,
    Wanted,
    WorkflowOption,
    flow_name,
    print_missing,
    print_missing_handlers,
)
from treadle.interfaces.cli.values import (
    Deadline,
    FairnessKey,
    Params,
    Payload,
    TagPairs,
    deadline_option,
    tags,
    wait_limit,
    workflow_inputs,
)
from treadle.kernel.telemetry.events import Emit, TaskSettled, TelemetryEvent
from treadle.model.errors import IllegalTransition, InvalidInput, RunCanceled, RunFailed
from treadle.model.names import DEFAULT_LIST, check_key, check_name
from treadle.model.runs import STOPPED_AT_LIMIT
from treadle.model.values import Json, encode

if TYPE_CHECKING:
    from treadle.api.facade import Api
    from treadle.api.runs import RunOutputs, RunStarted


HandlersHere = Annotated[
    list[str] | None,
    option(
        "--handlers",
        metavar="MODULE",
        help="Run it in this process with these handlers: package.module or path/to/file.py; repeatable",
    ),
]
_GRACE = 10.0


async def run(
    session: CommandSession,
    places: Places,
    workflow: WorkflowOption = None,
    pairs: Params = None,
    whole: Payload = None,
    handlers: HandlersHere = None,
    task_list: Annotated[str, option("--list", metavar="LIST", help="The task list of the run, served here")] = DEFAULT_LIST,
    tag_pairs: TagPairs = None,
    lenient: LenientOption = False,
    strict: StrictOption = False,
    llm: Llm = False,
    answers: Annotated[
        list[str] | None,
        option(
            "--answer",
            metavar="FACET=JSON",
            help='A dry run: the result of an event facet, a list of results to use in order, or {"@error": "message"}; repeatable',
        ),
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", help="A dry run without handlers: print the calls that need an --answer")] = False,
) -> None:
    """Run a workflow to its end in this process and print its outputs.

    The run is durable: Ctrl-C pauses it, and `treadle runs resume ID --handlers MODULE` continues it.
    With --server, the workers there execute it, and this command only watches.
    With --answer or --dry-run, nothing is stored and no handler is called.
    """
    wanted = Wanted(places, workflow, pairs or (), whole, lenient, strict=strict)
    if answers or dry_run:
        if handlers or llm:
            raise InvalidInput("A dry run calls no handlers: omit --handlers and --llm, or --answer and --dry-run.")
        await try_workflow(session, wanted, answers or ())
        return
    arm_crash(session.settings.crash_at)
    check_name(task_list, "task list")
    if session.chosen.remote:
        if handlers or llm:
            raise InvalidInput("Handlers need a store, not a server: omit --handlers and --llm, or --server.", code="not_over_http")
        await _run_there(session, wanted, task_list, tags(tag_pairs))
        return
    engine, *others = load_engines(session, handlers or [])
    files = wanted.check_files(session)
    if llm:
        enable_llm(engine)
    stop = stop_signal()
    async with opened([engine, *others]):
        started = await wanted.start(session.on(engine), files, task_list=task_list, tags=tags(tag_pairs))
        if not session.json:
            await _print_missing_here(engine, started)
        await work_on(session, engine, started.id, task_list, stop, handlers or [])


async def _print_missing_here(engine: Engine, started: RunStarted) -> None:
    """Warn about event facets without a handler, here or in a live worker."""
    registry, program = engine.kernel.registry, await engine.kernel.flows.program(started.flow_id)
    missing = [name for name in started.missing_handlers if registry.find(name) is None]
    if registry.fallback is not None:
        missing = [name for name in missing if program.facets[name].prompt is None]
    if missing:
        print_missing("here or in a live worker", missing)


@asynccontextmanager
async def opened(engines: Sequence[Engine]) -> AsyncIterator[None]:
    """Open all engines, so that handlers can use theirs."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        yield


async def _run_there(session: CommandSession, wanted: Wanted, task_list: str, tagged: dict[str, Json] | None) -> None:
    """Start the run on the server and watch it to its end."""
    files = wanted.check_files(session)
    stop = stop_signal()
    async with session.api() as api:
        started = await wanted.start(api, files, task_list=task_list, tags=tagged)
        if not session.json:
            print_missing_handlers(started)
        await watch_run(session, api, started.id, stop)


async def watch_run(session: CommandSession, api: Api, run_id: str, stop: asyncio.Event | None = None) -> None:
    """Show the run until it ends, then its outputs; the run does not depend on this process."""
    run = await api.runs.get(run_id)
    ended = await RunWatcher(session, api, run.id).watch(stop or stop_signal())
    if ended is None:
        message = f"Run {run.id} continues; `treadle runs watch {run.id}` shows its progress."
        print_error("interrupted", message, as_json=session.json)
        raise Exit(INTERRUPTED)
    show_outputs(session, to_builtins(await api.runs.get(run.id)), ended)


async def work_on(
    session: CommandSession, engine: Engine, run_id: str, task_list: str, stop: asyncio.Event, handlers: Sequence[str]
) -> None:
    """Be a worker until the run ends, showing its steps, then show its outputs; pause the run if interrupted."""
    if not session.chosen.verbose:
        engine.kernel.emit = _without_settles(engine)
    api = session.on(engine)
    async with engine.worker(task_lists=(task_list,), grace=_GRACE):
        ended = await RunWatcher(session, api, run_id, engine.kernel.run_services.advancer.on_line).watch(stop)
        if ended is None:
            ended = await _pause(api, run_id)
    if ended is None:
        _print_paused(session, engine, run_id, handlers)
        leave_threads_behind(INTERRUPTED)
        raise Exit(INTERRUPTED)
    show_outputs(session, to_builtins(await api.runs.get(run_id)), ended)


def _without_settles(engine: Engine) -> Emit:
    """Do not log settled attempts, because the steps show them; observers still receive them."""
    emit, telemetry = engine.kernel.emit, engine.kernel.telemetry

    def quieter(event: TelemetryEvent) -> None:
        if not isinstance(event, TaskSettled):
            emit(event)
        elif telemetry.observe is not None:
            telemetry.observe(event)

    return quieter


async def _pause(api: Api, run_id: str) -> RunOutputs | None:
    """Pause the run, unless it has ended meanwhile."""
    try:
        await api.runs.pause(run_id)
    except IllegalTransition:
        ended = await api.runs.outputs(run_id)
        return ended if ended.finished else None
    return None


def _print_paused(session: CommandSession, engine: Engine, run_id: str, handlers: Sequence[str]) -> None:
    if engine.kernel.store.url.startswith("memory"):
        message = f"Run {run_id} was interrupted and is lost, because its store was in memory."
    else:
        store = f" --store {session.chosen.typed_store}" if session.chosen.typed_store else ""
        names = "".join(f" --handlers {name}" for name in handlers)
        message = f"Run {run_id} is paused. Continue with `treadle runs resume {run_id}{names}{store}`."
    print_error("interrupted", message, as_json=session.json)


async def submit(
    session: CommandSession,
    places: Places,
    workflow: WorkflowOption = None,
    pairs: Params = None,
    whole: Payload = None,
    idempotency_key: Annotated[
        str | None, option(metavar="KEY", help="A repeated start with this key returns the first run")
    ] = None,
    task_list: Annotated[str, option("--list", metavar="LIST", help="The task list that workers select tasks from")] = DEFAULT_LIST,
    priority: Annotated[int, option(help="Smaller numbers run first")] = 0,
    tag_pairs: TagPairs = None,
    on_failure: Annotated[
        str | None,
        option(
            choices=("stop", "finish"),
            help="Once the run cannot succeed: start nothing new (stop, the default), or run the other branches to their end",
        ),
    ] = None,
    deadline: Deadline = None,
    fairness_key: FairnessKey = None,
    version: Annotated[int | None, option("--version", metavar="N", help="Version of the flow; default: the newest")] = None,
    lenient: LenientOption = False,
    strict: StrictOption = False,
    wait: Annotated[bool, option("--wait", help="Wait for the outputs and print them; exit 1 if the run failed")] = False,
    wait_for: Annotated[str | None, option(metavar="DURATION", help="Maximum time to wait; exit 6 after it")] = None,
) -> None:
    """Start a run of a workflow and leave it to the workers; when this returns, it is durable."""
    limit = wait_limit(wait_for)
    check_name(task_list, "task list")
    if idempotency_key is not None:
        check_key(idempotency_key, "idempotency key")
    wanted = Wanted(places, workflow, pairs or (), whole, lenient, version, strict)
    if version is not None and flow_name(places) is None:
        raise InvalidInput("--version applies to flows in the store, not to files.")
    files = wanted.check_files(session)
    async with session.api(migrate=files is not None) as api:
        started = await wanted.start(
            api,
            files,
            idempotency_key=idempotency_key,
            task_list=task_list,
            priority=priority,
            tags=tags(tag_pairs),
            on_failure=on_failure,
            fairness_key=fairness_key,
            **deadline_option(deadline),
        )
        if not session.json:
            print_missing_handlers(started)
        if wait or limit is not None:
            ended = await end_of(api, started.id, limit)
            more = {"created": started.created, "missing_handlers": started.missing_handlers}
            show_outputs(session, to_builtins(await api.runs.get(started.id)) | more, ended)
            return
    message = f"Started {started.workflow} as {started.id}" if started.created else f"A run already has this key: {started.id}"
    session.show(started, lambda: plain(message))


async def end_of(api: Api, run_id: str, limit: float | None) -> RunOutputs:
    """Wait for the run to end and return its outputs."""
    return await wait_for_end(lambda part: api.runs.outputs(run_id, wait_for=part), limit, "Run", run_id)


def failure_of(ended: RunOutputs) -> RunFailed | RunCanceled | None:
    """The failure of the run; None if it completed."""
    message = (ended.error or {}).get("message", "")
    match ended.state:
        case "failed":
            return RunFailed(ended.ended_as, ended.failed_step_id, message)
        case "canceled":
            return RunCanceled(f"Run {ended.ended_as} was canceled: {message}")
        case _:
            return None


def show_outputs(session: CommandSession, value: dict[str, Json], ended: RunOutputs) -> None:
    """Print only the outputs on stdout, so that they can be piped; report a failure on stderr and exit 1."""
    outputs = ended.outputs
    if value["kind"] == "function" and outputs is not None:
        outputs = outputs.get("result")
    value = value | {"outputs": outputs}
    failed = failure_of(ended)
    if failed is None:
        session.show(value, lambda: pretty(outputs))
        return
    if session.json:
        session.show(value, lambda: plain(""))
    print_failure(session, str(value["id"]), failed, ended)
    raise Exit(FAILED)


def print_failure(session: CommandSession, run_id: str, failed: RunFailed | RunCanceled, ended: RunOutputs) -> None:
    """Report on stderr that the run failed, with the next steps for people."""
    remedy = f"`treadle runs retry {run_id}` continues at the failed step"
    if (ended.error or {}).get("stopped"):
        remedy = STOPPED_AT_LIMIT
    hint = f" `treadle runs show {run_id}` shows the steps; {remedy}."
    message = str(failed).rstrip()
    stop = "" if message.endswith((".", "!", "?")) else "."
    print_error(
        failed.code, message if session.json or isinstance(failed, RunCanceled) else message + stop + hint, as_json=session.json
    )


async def try_workflow(session: CommandSession, wanted: Wanted, answers: Sequence[str]) -> None:
    """Dry-run the workflow with the answers and print its outputs; exit 1 if it failed or needs more answers."""
    parsed_answers = workflow_inputs({}, None, answers, "answers")
    files = wanted.check_files(session)
    async with session.api(scratch=files is not None) as api:
        if files is not None:
            sources, inputs, _ = files
        else:
            flow, inputs = await wanted.find(api)
            sources = flow.sources
        ended = await api.flows.dry_run(sources, wanted.workflow, inputs, answers=parsed_answers, lenient=wanted.lenient)
    _show(session, ended)


def _show(session: CommandSession, ended: FlowDryRun) -> None:
    if not session.json:
        for call in ended.calls:
            print_note(f"{_words(call)} = {encode(call.result) if call.error is None else f'failed: {call.error}'}")
        if ended.unused:
            print_note(f"Unused answers: {', '.join(ended.unused)}")
    if session.json or ended.state == "completed":
        session.show(ended, lambda: pretty(ended.outputs))
    if ended.state == "completed":
        return
    lines = [f"{_words(call)} returns {', '.join(f'{name}: {kind}' for name, kind in call.expects.items()) or 'nothing'}"
             for call in ended.waiting]  # fmt: skip
    needed = "\n  ".join(["The dry run needs more answers (--answer FACET=JSON):", *lines])
    print_error(f"dry_run_{ended.state}", ended.error or needed, as_json=session.json)
    raise Exit(FAILED)


def _words(call: DryRunCall) -> str:
    return f"{call.path}: {call.facet}({encode(call.params)})"
