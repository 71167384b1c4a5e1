"""`treadle worker`, `treadle up` and `treadle declare`: processes that run the handlers of a program."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from treadle.engine import Engine
from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.commands.serve import ForwardedAllow, Host, LogRequests, Open, Port, http_options
from treadle.interfaces.cli.engines import load_engines
from treadle.interfaces.cli.format import grid, plain, state
from treadle.interfaces.cli.host import (
    ChildProcesses,
    Serving,
    announce,
    announce_stop,
    leave_threads_behind,
    opened,
    serve,
    stop_signal,
)
from treadle.interfaces.cli.local_token import entrance
from treadle.interfaces.cli.process import arm_crash
from treadle.interfaces.cli.session import CommandSession
from treadle.kernel.declarations.records import check_release, shown_value
from treadle.kernel.declarations.service import Synced
from treadle.model.errors import InvalidInput
from treadle.model.names import DEFAULT_LIST, check_name
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.interfaces.http.server import HttpServer


Handlers = Annotated[
    list[str] | None,
    option(
        "--handlers", metavar="MODULE", help="package.module or path/to/file.py, with :name if it has several engines; repeatable"
    ),
]
Lists = Annotated[list[str] | None, option("--list", metavar="LIST", help="Task lists to serve; repeatable")]
Concurrency = Annotated[
    int | None,
    option(
        metavar="N",
        min=1,
        help="Maximum number of concurrent tasks per process; default: 100 to 2,000, adapted to the handlers",
    ),
]
Threads = Annotated[int, option(min=1, help="Of these, concurrent sync handlers")]
Isolated = Annotated[int, option(min=1, help="Of these, concurrent handlers with isolation='process'")]
Lease = Annotated[float | None, option(metavar="SECONDS", min=0.1, max=3600, help="Lease duration; default: TREADLE_LEASE or 60")]
PollInterval = Annotated[
    float | None,
    option(
        metavar="SECONDS", min=0.05, max=3600, help="Poll the store this often without signals; default: TREADLE_POLL_INTERVAL or 5"
    ),
]
Grace = Annotated[float, option(metavar="SECONDS", min=0, max=86_400, help="Time that running work gets to finish when stopping")]

Llm = Annotated[bool, option("--llm", help="Also run prompt blocks, with the model and key of the settings")]

Topology = Annotated[str | None, option(metavar="FILE", help="Also play the roles of this topology in the goal pipeline")]
Roles = Annotated[list[str] | None, option("--role", metavar="ROLE", help="Only this role of the topology; repeatable")]


Also = Annotated[
    list[str] | None,
    option("--also", metavar="NAMESPACE", help="Also serve this namespace of the directory, in the same process; repeatable"),
]

ServerName = Annotated[
    str | None,
    option(
        "--name",
        metavar="NAME",
        help="Name of this worker; an earlier process with this name on this host counts as stopped, not as lost",
    ),
]


def server_name(name: str | None) -> str | None:
    """Check the name."""
    return None if name is None else check_name(name, "worker name")


async def worker(
    session: CommandSession,
    handlers: Handlers = None,
    task_lists: Lists = None,
    concurrency: Concurrency = None,
    threads: Threads = 16,
    isolated: Isolated = 4,
    processes: Annotated[int, option(min=1, max=256, help="Worker processes")] = 1,
    lease: Lease = None,
    poll_interval: PollInterval = None,
    grace: Grace = 30,
    llm: Llm = False,
    name: ServerName = None,
    topology: Topology = None,
    roles: Roles = None,
    also: Also = None,
    stop_at_eof: Annotated[
        bool, option("--stop-at-eof", help="Stop when stdin is closed, which happens when the parent dies", hidden=True)
    ] = False,
) -> None:
    """Run handlers until SIGTERM or Ctrl-C, then let running work finish. A second Ctrl-C stops immediately."""
    arm_crash(session.settings.crash_at)
    lists = tuple(check_name(task_list, "task list") for task_list in task_lists or [DEFAULT_LIST])
    chosen = check_roles(topology, roles)
    options = Serving(
        lists,
        concurrency,
        threads,
        isolated,
        grace,
        lease,
        poll_interval,
        stop_at_eof,
        llm,
        server_name(name),
        topology=topology,
        roles=chosen,
        also=_also(session, also),
    )
    engines = load_engines(session, handlers or [])
    if topology is not None:
        engines[0].goals.use_topology(topology, roles=options.roles or None)  # check it before starting children
    if processes == 1:
        await run_worker(session, engines, options)
    else:
        await _run_fleet(session, engines, handlers or [], options, processes)


def _also(session: CommandSession, names: list[str] | None) -> tuple[str, ...]:
    """Check the further namespaces; they need a directory."""
    if names and not session.settings.directory:
        raise InvalidInput("--also names a namespace of the directory: set TREADLE_DIRECTORY to its path.")
    return tuple(dict.fromkeys(check_name(name, "namespace") for name in names or ()))


def check_roles(topology: str | None, roles: list[str] | None) -> tuple[str, ...]:
    """Check the chosen roles; they need a topology."""
    if roles and topology is None:
        raise InvalidInput("--role selects roles of a topology; add --topology FILE as well.")
    return tuple(roles or ())


async def run_worker(session: CommandSession, engines: list[Engine], options: Serving) -> None:
    """Serve in this process; announce its start and stop."""
    engine = engines[0]
    names = [*engine.kernel.registry.names(), *engine.kernel.function_registry.names()]

    async def started(server_id: str, http: HttpServer | None) -> None:
        event: dict[str, Json] = {
            "event": "started",
            "store": engine.kernel.store.url,
            "namespace": engine.kernel.settings.namespace,
            "server_id": server_id,
            "pid": os.getpid(),
            "handlers": names,
            "task_lists": list(options.task_lists),
        }
        more, access_lines = ({}, []) if http is None else await entrance(engine, http)
        event |= more
        lines = [
            f"Store:    {engine.kernel.store.url}" + _of_namespace(engine),
            f"Handlers: {', '.join(names) or 'none'}",
            f"Lists:    {', '.join(options.task_lists)}",
            f"Stop:     Ctrl-C or kill {os.getpid()}; running work gets {options.grace:g} s",
        ]
        lines[1:1] = access_lines
        at = 1 + len(access_lines)
        if options.topology is not None:
            played = engine.goals.topology.roles if engine.goals.topology is not None else ()
            lines.insert(at + 1, f"Roles:    {', '.join(played)} ({options.topology})")
        if options.llm:
            lines[at] += f"; prompt blocks with {engine.kernel.settings.llm_model}"
        elif not names and options.topology is None:
            lines[at] += "; tasks wait. Put `engine = Engine()` and `@engine.handler(...)` in a file and add --handlers FILE"
        announce(session, event, lines)

    handled, released = await serve(engines, options, started)
    stopped = {"event": "stopped", "pid": os.getpid(), "handled": handled, "released": released}
    announce(session, stopped, [f"Stopped: {handled} handled, {released} released for others"])
    leave_threads_behind()


async def _run_fleet(session: CommandSession, engines: list[Engine], handlers: list[str], options: Serving, processes: int) -> None:
    """Check everything here once, then run child processes."""
    stop = stop_signal()
    async with opened(engines[0], stop):
        url = engines[0].kernel.store.url
    if stop.is_set():
        return
    fleet = ChildProcesses(session, handlers, options, processes)

    def started(pids: list[int]) -> None:
        kernel = engines[0].kernel
        lines = [
            f"Store:     {url}" + _of_namespace(engines[0]),
            f"Handlers:  {', '.join([*kernel.registry.names(), *kernel.function_registry.names()]) or 'none'}",
            f"Processes: {', '.join(map(str, pids))}",
            f"Stop:      Ctrl-C or kill {os.getpid()}; running work gets {options.grace:g} s",
        ]
        announce(session, {"event": "started", "store": url, "pid": os.getpid(), "processes": pids}, lines)

    await fleet.run(started)
    announce_stop(session)


def _of_namespace(engine: Engine) -> str:
    return "" if engine.kernel.settings.namespace == "default" else f" (namespace {engine.kernel.settings.namespace})"


async def up(
    session: CommandSession,
    handlers: Handlers = None,
    task_lists: Lists = None,
    concurrency: Concurrency = None,
    threads: Threads = 16,
    isolated: Isolated = 4,
    lease: Lease = None,
    poll_interval: PollInterval = None,
    grace: Grace = 30,
    llm: Llm = False,
    name: ServerName = None,
    topology: Topology = None,
    roles: Roles = None,
    also: Also = None,
    host: Host = None,
    port: Port = None,
    no_http: Annotated[bool, option("--no-http", help="Run only the worker")] = False,
    forwarded_allow: ForwardedAllow = "",
    log_requests: LogRequests = False,
    open_access: Open = False,
) -> None:
    """Start the engine: migrate the store, run a worker and serve HTTP until SIGTERM or Ctrl-C."""
    arm_crash(session.settings.crash_at)
    lists = tuple(check_name(task_list, "task list") for task_list in task_lists or [DEFAULT_LIST])
    engines = load_engines(session, handlers or [])
    options = Serving(
        lists,
        concurrency,
        threads,
        isolated,
        grace,
        lease,
        poll_interval,
        llm=llm,
        name=server_name(name),
        topology=topology,
        roles=check_roles(topology, roles),
        also=_also(session, also),
        http=None
        if no_http
        else http_options(session, host, port, forwarded_allow, log_requests, grace, open_access, needed=False),
    )
    await run_worker(session, engines, options)


async def declare(
    session: CommandSession,
    handlers: Handlers = None,
    dry_run: Annotated[bool, option("--dry-run", help="Only show the differences")] = False,
    release: Annotated[str | None, option(metavar="N", help="Release of the program; default: that of its Engine")] = None,
    overwrite: Annotated[bool, option("--overwrite", help="Also replace values that were set by hand")] = False,
) -> None:
    """Show how limits and triggers declared in code differ from the store, and apply them, as a starting worker does.

    Without declarations, those that the program applied earlier are removed.
    """
    if not handlers:
        raise InvalidInput("Name the code with the declarations: `treadle declare --handlers MODULE`.")
    engines = load_engines(session, handlers)
    first = engines[0]
    synced: list[Synced] = []
    await first.open(migrate=not dry_run)
    try:
        for engine in engines:
            if release is not None:
                engine.declare.release = check_release(release)
            service = first.kernel.trigger_services.declarations
            synced.append(await service.sync(engine.declare, dry_run=dry_run, overwrite=overwrite))
    finally:
        await first.close()
    value: Json = {
        "applied": not dry_run,
        "programs": [
            {
                "program": sync.program,
                "release": sync.release,
                "changes": [
                    {
                        "item": change.item,
                        "verdict": change.verdict,
                        "declared": shown_value(change.declared),
                        "found": shown_value(change.found),
                        "text": change.text,
                    }
                    for change in sync.changes
                ],
            }
            for sync in synced
        ],
    }
    session.show(value, lambda: _table(synced))


def _table(synced: list[Synced]) -> RenderableType:
    table = grid("program", "release", "", "item")
    for sync in synced:
        for change in sync.changes:
            table.add_row(plain(sync.program), plain(sync.release), state(change.verdict), plain(change.text))
        if not sync.changes:
            table.add_row(plain(sync.program), plain(sync.release), state("unchanged"), plain("nothing is declared"))
    return table
