"""`treadle runner` and `treadle handlers ...`: handlers of event facets, which runners load."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from treadle.api.tasks import WAIT_LIMIT
from treadle.engine import Engine
from treadle.interfaces.cli.calls import show
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.commands.worker import Llm
from treadle.interfaces.cli.format import plain, pretty
from treadle.interfaces.cli.host import announce, announce_stop, enable_llm, leave_threads_behind, observed, opened, stop_signal
from treadle.interfaces.cli.messages import print_warning
from treadle.interfaces.cli.process import arm_crash
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.values import Params, Payload, seconds
from treadle.interfaces.cli.values import payload as parse_payload
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.model.names import DEFAULT_LIST
from treadle.settings import Settings

if TYPE_CHECKING:
    from treadle.agents import Agent, ToolRegistry


Roots = Annotated[
    list[Path] | None,
    option(
        "--root",
        metavar="FOLDER",
        help="Folder from which handler modules may be loaded; default: TREADLE_HANDLER_ROOTS or the current folder",
    ),
]
_DEFAULT_PORT = 8080


def runner(
    session: CommandSession,
    topics: Annotated[
        list[str] | None, option("--topic", metavar="GLOB", help="Only facets that match; repeatable; default: AFL_RUNNER_TOPICS")
    ] = None,
    task_list: Annotated[str, option("--list", metavar="LIST", help="The task list to serve")] = DEFAULT_LIST,
    concurrency: Annotated[
        int | None, option(min=1, help="Maximum number of concurrent tasks; default: AFL_MAX_CONCURRENT or 5")
    ] = None,
    poll_interval: Annotated[
        float | None,
        option(metavar="SECONDS", min=0.01, max=3600, help="Longest time between polls; default: AFL_POLL_INTERVAL_MS or 2"),
    ] = None,
    refresh: Annotated[
        float, option(metavar="SECONDS", min=0.01, max=86_400, help="Time between reads of the registered handlers")
    ] = 30,
    tools: Annotated[
        str | None,
        option(metavar="MODULE:NAME", help="Serve this ToolRegistry instead of registered handlers, with a status page"),
    ] = None,
    port: Annotated[int, option(min=0, max=65535, help="First port to try for the status page of --tools")] = _DEFAULT_PORT,
    host: Annotated[
        str | None, option(help="Address of the status page of --tools; default: AFL_HTTP_HOST or 127.0.0.1; 0.0.0.0: all")
    ] = None,
    lock_duration: Annotated[float, option(metavar="SECONDS", min=0.5, max=3600, help="Lease duration of a claim by --tools")] = 60,
    grace: Annotated[
        float, option(metavar="SECONDS", min=0, max=86_400, help="Time that running work gets to finish when stopping")
    ] = 30,
    name: Annotated[str, option(help="The worker's name; default: the host name")] = "",
    group: Annotated[str, option(help="The worker's group")] = "default",
    roots: Roots = None,
    llm: Llm = False,
) -> None:
    """Handle tasks of event facets until SIGTERM or Ctrl-C, then let running work finish."""
    from treadle.agents import Evaluator, Persistence, RegistryRunner, RegistryRunnerConfig, RunnerConfig, RunnerService

    arm_crash(session.settings.crash_at)
    settings = with_roots(session, roots)
    chosen = None if tools is None else load_tools(tools)
    max_concurrent = settings.afl_max_concurrent if concurrency is None else concurrency
    poll_interval_ms = settings.afl_poll_interval_ms if poll_interval is None else round(poll_interval * 1000)
    if not asyncio.run(_wait_for_store(settings)):
        return
    globs = list(topics or settings.afl_runner_topics)
    with Persistence(settings.store, settings=settings) as store:
        if llm:
            enable_llm(store.engine)
        evaluator = Evaluator(store)
        agent: Agent
        if chosen is None:
            agent = RegistryRunner(
                store,
                evaluator,
                RegistryRunnerConfig(
                    server_group=group,
                    server_name=name,
                    task_list=task_list,
                    poll_interval_ms=poll_interval_ms,
                    max_concurrent=max_concurrent,
                    registry_refresh_interval_ms=round(refresh * 1000),
                    topics=globs,
                ),
            )
            agent.refresh()
        else:
            agent = RunnerService(
                store,
                evaluator,
                RunnerConfig(
                    server_group=group,
                    server_name=name,
                    task_list=task_list,
                    poll_interval_ms=poll_interval_ms,
                    max_concurrent=max_concurrent,
                    lock_duration_ms=round(lock_duration * 1000),
                    lock_extend_interval_ms=round(lock_duration * 1000 / 3),
                    shutdown_timeout_ms=round(grace * 1000),
                    http_port=port,
                    http_host=host or settings.afl_http_host,
                    topics=globs,
                ),
                chosen,
            )
        agent.grace = grace
        around = AsyncExitStack()
        store.run(around.enter_async_context(observed(store.engine, lambda: "running" if agent.is_running else "not_running")))
        try:
            _serve(session, agent, store.url)
        finally:
            store.run(around.aclose())
    leave_threads_behind()


async def _wait_for_store(settings: Settings) -> bool:
    """Return once the store can be opened; False if a signal to stop came first."""
    stop = stop_signal()
    async with opened(Engine(settings.store, settings=settings), stop):
        return not stop.is_set()


def _serve(session: CommandSession, agent: Agent, url: str) -> None:
    """Run the agent; announce its start and stop."""

    from treadle.agents.service import stopped_by_signals

    def started() -> None:
        names = agent.registry().names()
        port = getattr(agent, "http_port", None)
        event = {
            "event": "started",
            "store": url,
            "server_id": agent.server_id,
            "pid": os.getpid(),
            "handlers": names,
            "port": port,
        }
        lines = [f"Store:    {url}", f"Handlers: {', '.join(names) or 'none yet; `treadle handlers register` adds them'}"]
        lines += [f"Status:   http://{getattr(agent, 'http_host', '')}:{port}/status"] if port is not None else []
        announce(session, event, [*lines, f"Stop:     Ctrl-C or kill {os.getpid()}; running work gets {agent.grace:g} s"])

    agent.on_started = started
    with stopped_by_signals(agent.stop):
        agent.start()
    announce_stop(session)


def with_roots(session: CommandSession, roots: list[Path] | None) -> Settings:
    """The session's settings with the given handler roots; by default, those of the settings or the current folder."""
    from treadle.agents.modules import runner_roots

    return replace(session.settings, handler_roots=runner_roots(roots or session.settings.handler_roots))


def load_tools(place: str) -> ToolRegistry:
    """Load the tool registry named `module:name` or `path/to/file.py:name`."""
    from treadle.agents import ToolRegistry
    from treadle.interfaces.cli.engines import load_place

    module, _, name = place.rpartition(":")
    if not module:
        module, name = place, "tools"
    registry = getattr(load_place(module), name, None)
    if not isinstance(registry, ToolRegistry):
        raise InvalidInput(f"{name} in {module} is not a ToolRegistry; give one as --tools MODULE:NAME.")
    return registry


Facet = Annotated[str, argument(metavar="FACET", help="The event facet's qualified name, e.g. billing.ProcessPayment")]


async def list_handlers(session: CommandSession) -> None:
    """List registered handlers and their missing requirements, on this machine or on the server."""
    async with _rooted(session, None).api() as api:
        handlers = await api.handlers.list()
        now = (await api.system.time()).now
    show(session, handlers, now)


async def register(
    session: CommandSession,
    facet: Facet,
    module: Annotated[str, argument(metavar="MODULE", help="package.module, or file:///path/to/module.py")],
    entrypoint: Annotated[str, option(metavar="NAME", help="Name of the function in it")] = "handle",
    version: Annotated[str, option(help="Version shown to people")] = "1.0.0",
    checksum: Annotated[str, option(help="Runners reload the module when this changes")] = "",
    timeout: Annotated[str, option(metavar="DURATION", help="Longest time for one attempt")] = "30s",
    requirements: Annotated[
        list[str] | None,
        option("--requires", metavar="REQUIREMENT", help="A requirement as pip takes it: 'requests>=2.31'; repeatable"),
    ] = None,
    metadata: Annotated[str | None, option(metavar="JSON", help="An object passed to the function")] = None,
    roots: Roots = None,
) -> None:
    """Register a handler for a facet, replacing any other; running runners load it at their next refresh."""
    limit, parsed_metadata = seconds(timeout, "--timeout") or 0, parse_payload(metadata)
    async with _rooted(session, roots).api(migrate=True) as api:
        registration = await api.handlers.register(
            facet,
            module,
            entrypoint=entrypoint,
            version=version,
            checksum=checksum,
            timeout=limit,
            requirements=requirements or (),
            metadata=parsed_metadata,
        )
    if registration.missing_module is not None:
        print_warning(f"{registration.missing_module} Runners look for it when a task arrives.")
    for missing in registration.missing_requirements:
        print_warning(f"the handler needs {missing}")
    session.show(registration, lambda: plain(f"{facet} is handled by {entrypoint} of {module}"))


async def try_out(
    session: CommandSession,
    facet: Facet,
    payload: Payload = None,
    parameters: Params = None,
    roots: Roots = None,
) -> None:
    """Load a registered handler on this machine, or on the server, and call it with a payload; stores nothing.

    Exits 1 with the code that a task would fail with: import_failed, entrypoint_missing, handler_error, or the handler's own.
    """
    inputs = parse_payload(payload, parameters or ()) or {}
    async with _rooted(session, roots).api() as api:
        test = await api.handlers.test(facet, inputs, wait_for=WAIT_LIMIT)
    for missing in test.missing_requirements:
        print_warning(f"the handler needs {missing}")
    sys.stderr.write(test.output)
    if test.error_code is not None:
        raise NonRetryable(test.error or "", test.error_code)
    result = test.result or {}
    session.show(result, lambda: pretty(result))


def _rooted(session: CommandSession, roots: list[Path] | None) -> CommandSession:
    """The same session with these folders as handler roots."""
    if roots and session.chosen.remote:
        raise InvalidInput("--root applies to this machine; a server has TREADLE_HANDLER_ROOTS.")
    return replace(session, settings=with_roots(session, roots))
