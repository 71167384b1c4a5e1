"""Processes that host workers and serve HTTP: start, announcements, signals, several processes together."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.engine import Engine, engine_beside, twin_of
from treadle.interfaces.cli.local_token import entrance
from treadle.interfaces.cli.messages import INTERRUPTED, STORE_TROUBLE, print_error, print_note
from treadle.interfaces.cli.process import on_sigint
from treadle.interfaces.cli.session import CommandSession
from treadle.kernel.store.process import end_with
from treadle.kernel.telemetry.events import StoreTrouble
from treadle.model.errors import Refused, StoreFailed, StoreUnavailable, TreadleError, not_found
from treadle.model.names import DEFAULT_LIST
from treadle.model.retry import Backoff
from treadle.model.text import printable, safe_logger
from treadle.model.values import Json
from treadle.settings import Directory, child_environment, read_directory

if TYPE_CHECKING:
    from treadle.engine.worker_host import WorkerHost
    from treadle.interfaces.http.server import HttpOptions, HttpServer


T = TypeVar("T")

_REFRESH_FOR = 2000
"""Milliseconds between reads of the registered handlers."""
_COLLECTIONS = (10_000, 20, 20)
"""Thresholds of the garbage collector: allocations before a young collection, and collections before each older one."""

_OPENING = Backoff(0.5, 15.0)
"""Seconds between attempts to open a store that cannot be reached."""


@dataclass(frozen=True)
class Serving:
    """Options of a worker process; numbers are per process."""

    task_lists: tuple[str, ...]
    concurrency: int | None
    threads: int
    isolated: int
    grace: float
    lease: float | None = None
    poll_interval: float | None = None
    stop_at_eof: bool = False
    """Stop when stdin closes, so that no child outlives its parent."""
    llm: bool = False
    """Also run prompt blocks, with the model of the settings."""
    name: str | None = None
    """The server's name; leases of an earlier process with that name are taken over immediately."""
    topology: str | None = None
    """The topology file of the goal pipeline, and the roles to play (none: all)."""
    roles: tuple[str, ...] = ()
    http: HttpOptions | None = None
    """Also serve HTTP with these options."""
    also: tuple[str, ...] = ()
    """Further namespaces of the directory to serve."""


def enable_llm(engine: Engine) -> None:
    """Let the engine's workers run prompt blocks."""
    from treadle.llm import use_llm

    use_llm(engine)


async def serve(
    engines: Sequence[Engine], options: Serving, started: Callable[[str, HttpServer | None], Awaitable[None]]
) -> tuple[int, int]:
    """Run the first engine's worker until SIGTERM or SIGINT; all engines are open, so that handlers can use theirs.

    A second SIGINT ends the process immediately; its tasks are taken over when the leases expire. Returns the numbers of handled
    and released tasks.
    """
    stop = stop_signal(options.stop_at_eof)
    if options.llm:
        enable_llm(engines[0])
    if options.topology is not None:
        engines[0].goals.use_topology(options.topology, roles=options.roles or None)
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(opened(engine, stop))
        began = asyncio.Event()

        def state() -> str:
            return "draining" if stop.is_set() else "running" if began.is_set() else "starting"

        await stack.enter_async_context(observed(engines[0], state))
        server = await listening(engines[0], options.http, stop)
        calm_collector()
        others = [asyncio.create_task(_serve_beside(other, options, stop)) for other in _engines_beside(engines[0], options)]
        async with _started_worker(engines[0], options, stop) as host, server or nullcontext():
            began.set()
            await until_reachable(engines[0], stop, "starting", lambda: started(host.owner_id, server))
            await stop.wait()
            safe_logger("treadle").info("stopping: no new tasks; running ones get %g s", options.grace)
        counts = [(host.worker.handled, host.worker.released), *await asyncio.gather(*others)]
    return sum(handled for handled, _ in counts), sum(released for _, released in counts)


@asynccontextmanager
async def _started_worker(engine: Engine, options: Serving, stop: asyncio.Event) -> AsyncIterator[WorkerHost]:
    async with AsyncExitStack() as stack:

        def attempt() -> Awaitable[WorkerHost]:
            worker = engine.worker(
                concurrency=options.concurrency,
                threads=options.threads,
                processes=options.isolated,
                task_lists=options.task_lists,
                lease=options.lease,
                grace=options.grace,
                poll_interval=options.poll_interval,
                name=options.name,
            )
            return stack.enter_async_context(worker)

        yield await until_reachable(engine, stop, "starting the worker", attempt)


def _engines_beside(engine: Engine, options: Serving) -> list[Engine]:
    """Engines with the same handlers for the further namespaces."""
    settings = engine.kernel.settings
    directory = read_directory(settings.directory) if options.also else Directory()
    engines = []
    for name in options.also:
        url = directory.find(name)
        if url is None:
            raise not_found("namespace", name)
        engines.append(engine_beside(engine, url, replace(settings, namespace=name, store=url)))
    return engines


async def _serve_beside(engine: Engine, options: Serving, stop: asyncio.Event) -> tuple[int, int]:
    """Serve a further namespace; a store that cannot be reached does not delay the others."""
    try:
        async with opened(engine, stop), _started_worker(engine, options, stop) as host:
            await stop.wait()
    except TreadleError as error:
        if not stop.is_set():
            safe_logger("treadle").error("the namespace %s is not served: %s", engine.kernel.settings.namespace, error)
        return 0, 0
    return host.worker.handled, host.worker.released


@asynccontextmanager
async def opened(engine: Engine, stop: asyncio.Event) -> AsyncIterator[Engine]:
    """Open the engine, and close it at the end."""

    async def attempt() -> None:
        try:
            await engine.open()
        except StoreUnavailable:
            await engine.close()
            raise

    await until_reachable(engine, stop, "opening the store", attempt)
    try:
        yield engine
    finally:
        await engine.close()


async def until_reachable(engine: Engine, stop: asyncio.Event, doing: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of an attempt at a step of the start-up, which must be repeatable.

    While the store cannot be reached, try again with backoff; once `stop` is set, raise the reason. A database that rejects
    the user, the database name or the kind of connection raises immediately.
    """
    for failures in count():
        try:
            return await attempt()
        except StoreUnavailable as error:
            if error.rejected:
                raise
            pause = _OPENING.delay(failures)
            engine.kernel.emit(StoreTrouble(doing, str(error), pause))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            if stop.is_set():
                raise
    raise AssertionError


@asynccontextmanager
async def observed(engine: Engine, state: Callable[[], str]) -> AsyncIterator[None]:
    """Share tracing with the handlers' own spans, and serve metrics and probes if the settings say so."""
    engine.kernel.share_tracing()
    if not engine.kernel.settings.metrics_address:
        yield
        return
    from treadle.engine.status_server import probe_routes, serve_metrics

    kernel = engine.kernel
    probes = probe_routes(state, kernel.store.now)
    async with serve_metrics(engine.metrics, kernel.tokens, kernel.emit, kernel.settings.metrics_address, probes):
        yield


@asynccontextmanager
async def worker_starter(
    engine: Engine, grace: float, *, served: Iterable[str] = (), registered: bool = False
) -> AsyncIterator[Callable[[str], Awaitable[bool]]]:
    """Yield a function that starts a worker for a task list in this process, once; all stop with the context.

    With `registered`, it also serves the handlers registered in the store.
    """
    served_lists, starting = set(served), asyncio.Lock()
    async with AsyncExitStack() as stack:

        async def start(task_list: str) -> bool:
            async with starting:
                if task_list in served_lists:
                    return False
                if not (engine.kernel.registry.names() or engine.kernel.function_registry.names() or registered):
                    raise Refused(
                        "This process has no handlers: cancel the task and enqueue it in a list that a worker serves, complete a "
                        "step yourself, or ask a person to start a worker."
                    )
                await stack.enter_async_context(engine.worker(task_lists=[task_list], grace=grace))
                if registered:
                    await stack.enter_async_context(registered_handlers(engine, grace, task_list))
                served_lists.add(task_list)
                return True

        yield start


@asynccontextmanager
async def registered_handlers(engine: Engine, grace: float, task_list: str = DEFAULT_LIST) -> AsyncIterator[None]:
    """Serve the handlers registered in the engine's store, in a thread, as `treadle runner` does."""
    from treadle.agents import Evaluator, Persistence, RegistryRunner, RegistryRunnerConfig

    persistence = await asyncio.to_thread(Persistence, engine=twin_of(engine))
    config = RegistryRunnerConfig(registry_refresh_interval_ms=_REFRESH_FOR, task_list=task_list)
    runner = RegistryRunner(persistence, Evaluator(persistence), config)
    runner.grace = grace
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def claims() -> None:
        loop.call_soon_threadsafe(started.set)

    runner.on_started = claims
    serving = loop.create_task(asyncio.to_thread(runner.start))
    serving.add_done_callback(lambda _: started.set())
    await started.wait()
    try:
        yield
    finally:
        runner.stop()
        await asyncio.gather(serving, return_exceptions=True)
        await asyncio.to_thread(persistence.close)


async def serve_http(
    session: CommandSession, engine: Engine, server: HttpServer, stop: asyncio.Event, *, path: str = "", pages: bool = True
) -> None:
    """Serve until `stop`; announce the start, with the address of `path` if only that is served, and the end."""
    calm_collector()
    async with server:
        reading = partial(entrance, engine, server, pages=pages)
        event, access_lines = await until_reachable(engine, stop, "starting", reading)
        own: dict[str, Json] = {"url": f"{server.url}{path}"} if path else {}
        event = {"event": "started", "store": engine.kernel.store.url, **event, **own, "pid": os.getpid()}
        address = [f"MCP:      {server.url}{path}"] if path else []
        lines = [f"Store:    {engine.kernel.store.url}", *address, *access_lines, f"Stop:     Ctrl-C or kill {os.getpid()}"]
        announce(session, event, lines)
        await stop.wait()


def announce_stop(session: CommandSession) -> None:
    """Announce the end of this process."""
    announce(session, {"event": "stopped", "pid": os.getpid()}, ["Stopped"])


async def listening(engine: Engine, options: HttpOptions | None, stop: asyncio.Event) -> HttpServer | None:
    """Bind a server for the engine, which responds once it is entered; a failure to bind stops everything else."""
    if options is None:
        return None
    from treadle.interfaces.http.server import HttpServer
    from treadle.interfaces.web.site import add_pages

    more = [add_pages]
    if has_mcp():
        from treadle.interfaces.cli.mcp_mount import add_mcp

        more.append(add_mcp)
    server = HttpServer(engine, options, more=more)
    await until_reachable(engine, stop, "starting", server.listen)
    if server.passed_over is not None:
        print_note(f"Port {server.passed_over} is taken, so this server listens on {server.url}; --port chooses another one.")
    return server


def has_mcp() -> bool:
    """Whether the MCP SDK is installed, without importing it."""
    return importlib.util.find_spec("mcp_types") is not None


def calm_collector() -> None:
    """Make garbage collection rarer, and exclude all objects loaded so far."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


def stop_signal(at_eof: bool = False) -> asyncio.Event:
    """An event set by SIGTERM and SIGINT; a second SIGINT, or a store that failed, ends the process, even if the loop is busy."""
    stop = asyncio.Event()
    end_with(_end)
    loop = asyncio.get_running_loop()
    presses = 0

    def end_now() -> None:
        print_note("Stopped immediately; running tasks are taken over when their leases expire.")
        os._exit(INTERRUPTED)

    def pressed() -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            end_now()

    def interrupt() -> None:
        if stop.is_set():
            end_now()
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    on_sigint(pressed)
    if at_eof:

        def watch() -> None:
            while os.read(0, 1024):
                pass
            loop.call_soon_threadsafe(stop.set)

        threading.Thread(target=watch, name="treadle-parent", daemon=True).start()
    return stop


def _end(error: StoreFailed) -> None:
    print_error(error.code, str(error), as_json=False)
    os._exit(STORE_TROUBLE)


def announce(session: CommandSession, event: dict[str, Json], lines: Sequence[str]) -> None:
    """Print immediately: one JSON object per line, or lines for people."""
    if session.json:
        sys.stdout.write(json.dumps(event) + "\n")
    else:
        for line in lines:  # without the console, whose modules a worker would load only for this
            sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()


def leave_threads_behind(code: int = 0) -> None:
    """End the process if a sync handler is stuck in its thread, because waiting could take forever."""
    if any(thread.name.startswith("treadle-handler") for thread in threading.enumerate()):
        safe_logger("treadle").warning("abandoning handlers that did not stop; their tasks were released")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


_RESTARTS = Backoff(1.0, 30.0)

_log = safe_logger("treadle")


async def start_worker(
    session: CommandSession,
    handlers: Sequence[str],
    options: Serving,
    *,
    stdout: int = DEVNULL,
    stderr: Any = None,
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start a worker process on the session's store, for this process to stop; `environment` has further variables."""
    flags = {
        "handlers": handlers,
        "list": options.task_lists,
        "concurrency": options.concurrency,
        "threads": options.threads,
        "isolated": options.isolated,
        "lease": options.lease,
        "poll-interval": options.poll_interval,
        "topology": options.topology,
        "role": options.roles,
        "also": options.also,
        "grace": options.grace,
        "name": options.name,
    }
    command = [sys.executable, "-m", "treadle", "worker", "--json", "--stop-at-eof"]
    for flag, value in flags.items():
        values = value if isinstance(value, list | tuple) else [] if value is None else [value]
        command += [word for argument in values for word in (f"--{flag}", str(argument))]
    command += ["--llm"] * options.llm + ["--verbose"] * session.chosen.verbose
    chosen = {"TREADLE_STORE": session.chosen.store, "TREADLE_NAMESPACE": session.chosen.namespace}
    typed = {"TREADLE_DIRECTORY": ""} if session.chosen.typed_store else {}  # it is the store, whatever a directory says
    own = {name: value for name, value in chosen.items() if value} | typed | dict(environment or {})
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=stdout,
        stderr=stderr,
        env=child_environment(TREADLE_SERVER="", **own),  # workers need the store, not a server
        start_new_session=True,
    )


def signal_all(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to those of the processes that still run."""
    for process in processes:
        if process.returncode is None:
            process.send_signal(number)


class ChildProcesses:
    """The child processes."""

    def __init__(self, session: CommandSession, handlers: list[str], options: Serving, count: int) -> None:
        self._session = session
        self._handlers = handlers
        self._options = options
        self._count = count
        self._children: set[Process] = set()
        self._interrupts = 0
        self._stopping = asyncio.Event()

    async def run(self, started: Callable[[list[int]], None]) -> None:
        """Keep the children running until SIGTERM or SIGINT, then wait for them to stop; a second SIGINT kills them."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        first = [await self._start(number) for number in range(1, self._count + 1)]
        started([child.pid for child in first])
        try:
            await asyncio.gather(*(self._keep(child, number) for number, child in enumerate(first, 1)))
        finally:
            signal_all(self._children, signal.SIGKILL)

    async def _start(self, number: int) -> Process:
        name = None if self._options.name is None else f"{self._options.name}-{number}"
        child = await start_worker(self._session, self._handlers, replace(self._options, name=name))
        self._children.add(child)
        return child

    async def _keep(self, child: Process, number: int) -> None:
        """Restart the child at one position whenever it dies, with backoff."""
        pause = _RESTARTS.first
        while True:
            began = asyncio.get_running_loop().time()
            code = await child.wait()
            self._children.discard(child)
            if self._stopping.is_set():
                return
            if asyncio.get_running_loop().time() - began > 2 * _RESTARTS.cap:
                pause = _RESTARTS.first
            _log.warning("worker process %d ended with code %d; a new one starts in %g s", child.pid, code, pause)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                return
            except TimeoutError:
                pause = _RESTARTS.after(pause)
            child = await self._start(number)
            if self._stopping.is_set():
                child.terminate()

    def _stop(self) -> None:
        self._stopping.set()
        signal_all(self._children, signal.SIGTERM)

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            signal_all(self._children, signal.SIGKILL)
            os._exit(INTERRUPTED)
        self._stop()
