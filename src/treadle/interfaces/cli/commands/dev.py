"""`treadle dev`: the project of this folder with a worker that is reloaded when its files change."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from treadle.engine import Engine
from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.commands.serve import Host, Port, http_options
from treadle.interfaces.cli.commands.worker import Grace, Handlers, Llm
from treadle.interfaces.cli.host import Serving, announce, announce_stop, listening, opened, signal_all, start_worker, stop_signal
from treadle.interfaces.cli.local_token import entrance
from treadle.interfaces.cli.messages import print_error, print_flow_error, print_note
from treadle.interfaces.cli.project import FILE, Project, find_project
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.sources import SourceNotFound, compile_here, read_sources
from treadle.model.errors import InvalidFlow, InvalidInput
from treadle.model.names import DEFAULT_LIST

if TYPE_CHECKING:
    from treadle.interfaces.http.server import HttpServer


async def dev(
    session: CommandSession,
    handlers: Handlers = None,
    flows: Annotated[
        list[str] | None, option("--flows", metavar="PLACE", help="AFL files or folders, published as one flow; repeatable")
    ] = None,
    host: Host = None,
    port: Port = None,
    grace: Grace = 5,
    llm: Llm = False,
) -> None:
    """Run the project in this folder: a worker, the server and the dashboard. Reload it when its files change.

    The project is `[tool.treadle]` in pyproject.toml; --handlers and --flows replace its parts. Changed handlers run in a new
    worker; the one before finishes its work. Changed flows are published as the next version, unless they do not compile.
    """
    project = _project(handlers, flows)
    options = http_options(session, host, port, "", False, grace, False, needed=True)
    stop = stop_signal()
    worker = ReloadedWorker(session, Serving((DEFAULT_LIST,), 100, 16, 4, grace, llm=llm))
    folders = _folders(project)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(worker.stop)
        seen = look(folders)
        await worker.load(list(project.handlers))
        engine = _engine_of(session, worker)
        await stack.enter_async_context(opened(engine, stop))
        server = await listening(engine, options, stop)
        assert server is not None
        await stack.enter_async_context(server)
        await _announce(session, engine, server, worker, grace)
        version = await _publish(session, engine, project, None)
        while not stop.is_set():
            now = await next_change(folders, seen, stop)
            if now is None:
                if worker.ended():
                    await worker.load(list(project.handlers))
                continue
            files, seen = changed(seen, now), now
            if any(Path(file).name == FILE for file in files):
                project = _again(project, handlers, flows)
                folders = _folders(project)
            if not all(file.endswith(".afl") for file in files):
                await _reload(session, engine, worker, project, [file for file in files if not file.endswith(".afl")])
            if not all(file.endswith(".py") for file in files):
                version = await _publish(session, engine, project, version)
    announce_stop(session)


def _project(handlers: Sequence[str] | None, flows: Sequence[str] | None) -> Project:
    project = find_project()
    if project is None and not handlers and not flows:
        raise InvalidInput(
            f"There is no project in {Path.cwd()}: no {FILE} with [tool.treadle]. Write one with `treadle init`, "
            "or give --handlers FILE and --flows FOLDER."
        )
    project = project or Project(Path.cwd().name)
    return replace(project, handlers=tuple(handlers or project.handlers), flows=tuple(flows or project.flows))


def _again(before: Project, handlers: Sequence[str] | None, flows: Sequence[str] | None) -> Project:
    try:
        return _project(handlers, flows)
    except InvalidInput as error:
        print_note(f"{error} The project stays as it was.")
        return before


def _folders(project: Project) -> list[str]:
    """Return the folders to watch: this one, and those of sources outside of it."""
    here = Path.cwd()
    outside = [Path(place).resolve() for place in (*project.flows, *project.handlers) if Path(place).exists()]
    return [".", *(str(path if path.is_dir() else path.parent) for path in outside if not path.is_relative_to(here))]


def _engine_of(session: CommandSession, worker: ReloadedWorker) -> Engine:
    """Return an engine on the store of the worker, which its module may have chosen."""
    store = str(worker.event.get("store") or session.settings.store)
    if store.startswith("memory:"):
        raise InvalidInput("`treadle dev` runs several processes, which cannot share a store in memory; use sqlite:///treadle.db.")
    namespace = str(worker.event.get("namespace") or session.settings.namespace)
    return Engine(store, settings=replace(session.settings, store=store, namespace=namespace))


async def _announce(session: CommandSession, engine: Engine, server: HttpServer, worker: ReloadedWorker, grace: float) -> None:
    access, access_lines = await entrance(engine, server)
    event = {"event": "started", "store": engine.kernel.store.url, **access, "pid": os.getpid(), **_worker(worker)}
    lines = [
        f"Store:    {engine.kernel.store.url}",
        *access_lines,
        f"Handlers: {_handlers(worker)}",
        f"Stop:     Ctrl-C or kill {os.getpid()}; running work gets {grace:g} s",
    ]
    announce(session, event, lines)


def _worker(worker: ReloadedWorker) -> dict[str, object]:
    return {"worker": worker.event.get("pid"), "handlers": worker.event.get("handlers", [])}


def _handlers(worker: ReloadedWorker) -> str:
    if not worker.event:
        return "none yet: see the error above; a worker starts when the files have changed"
    return ", ".join(worker.event["handlers"]) or "none"


async def _reload(session: CommandSession, engine: Engine, worker: ReloadedWorker, project: Project, files: list[str]) -> None:
    """Replace the worker; if the new code does not load, the previous one stays."""
    if not await worker.load(list(project.handlers)):
        outcome = "the worker keeps the previous version" if worker.event else "there is no worker"
        message = f"{', '.join(files)}: not loaded, {outcome} until the files have changed again."
        print_error("not_reloaded", message, as_json=session.json)
        return
    if worker.event["store"] != engine.kernel.store.url:
        print_note(
            f"The handlers use {worker.event['store']} now, but the server {engine.kernel.store.url}: restart `treadle dev`."
        )
    event = {"event": "reloaded", "changed": files, **_worker(worker)}
    announce(session, event, [f"Reloaded: {', '.join(files)} (handlers: {_handlers(worker)})"])


async def _publish(session: CommandSession, engine: Engine, project: Project, before: int | None) -> int | None:
    """Publish the flows and return their version; if they do not compile, print why and return None: the version before stays."""
    from treadle.api.flows import SourceText

    if not project.flows:
        return before
    try:
        sources = read_sources(project.flows)
        program = compile_here(session, engine, sources, strict=project.strict)
        texts = [SourceText(name, text) for name, text in sources]
        published = await session.on(engine).flows.publish(project.name, texts, strict=project.strict)
    except InvalidFlow as error:
        print_flow_error(error, as_json=session.json)
        print_note(f"The flow {project.name} is published again when it compiles; until then its last version stays.")
        return None
    except SourceNotFound as error:
        print_note(str(error))
        return None
    if published.version != before:
        names = [facet.qualified_name for facet in program.workflows]
        event = {"event": "published", "flow": project.name, "version": published.version, "workflows": names}
        announce(session, event, [f"Flow:     {project.name} version {published.version}: {', '.join(names) or 'no workflow'}"])
    return published.version


_ENDS_IN = 5.0
"""Seconds that a process gets to end after its grace, before it is killed."""
_SHORT_LIFE = 5.0
"""A process that ends by itself within these seconds is not started again until the next change."""


@dataclass(slots=True)
class _Child:
    process: Process
    relaying: asyncio.Task[None]
    event: dict[str, Any]
    started: float


class ReloadedWorker:
    """Starts, replaces and stops the process."""

    def __init__(self, session: CommandSession, options: Serving) -> None:
        self._session = session
        self._options = options
        self._child: _Child | None = None

    @property
    def event(self) -> dict[str, Any]:
        """The `started` event of the process; empty if none runs."""
        return {} if self._child is None else self._child.event

    async def load(self, handlers: list[str]) -> bool:
        """Run this code: start a process and, once it works, stop the one before. Returns whether it works."""
        new = await self._start(handlers)
        if new is None:
            return False
        old, self._child = self._child, new
        if old is not None:
            await self._stop(old)
        return True

    async def stop(self) -> None:
        """Stop the process; its running work gets the grace to finish."""
        old, self._child = self._child, None
        if old is not None:
            await self._stop(old)

    def ended(self) -> bool:
        """Whether the process has ended by itself; forget it then. True only if it should be started again."""
        child = self._child
        if child is None or child.process.returncode is None:
            return False
        self._child = None
        again = asyncio.get_running_loop().time() - child.started > _SHORT_LIFE
        then = "it starts again" if again else "it starts again after the next change"
        print_note(f"The worker process {child.process.pid} ended with code {child.process.returncode}; {then}.")
        return again

    async def _start(self, handlers: list[str]) -> _Child | None:
        # without compiled files: Python takes those of two versions in one second for the same
        process = await start_worker(
            self._session, handlers, self._options, stdout=PIPE, stderr=PIPE, environment={"PYTHONDONTWRITEBYTECODE": "1"}
        )
        relaying = asyncio.create_task(self._relay(process))
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
        except BaseException:
            process.kill()
            raise
        if not line:
            await process.wait()
            await relaying
            return None
        return _Child(process, relaying, json.loads(line), asyncio.get_running_loop().time())

    async def _relay(self, process: Process) -> None:
        """Print the messages of the process; its errors, which are JSON, as this process prints its own."""
        assert process.stderr is not None
        async for raw in process.stderr:
            text = raw.decode("utf-8", "replace")
            try:
                error = json.loads(text)["error"]
                print_error(str(error["code"]), str(error["message"]), as_json=self._session.json)
            except (ValueError, TypeError, KeyError):
                sys.stderr.write(text)
                sys.stderr.flush()

    async def _stop(self, child: _Child) -> None:
        process = child.process
        signal_all([process], signal.SIGTERM)
        try:
            async with asyncio.timeout(self._options.grace + _ENDS_IN):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await child.relaying


_WATCHED = (".py", ".afl", ".toml")
_SKIPPED = frozenset(["__pycache__", "node_modules", "venv", "build", "dist"])
_LOOK_EVERY = 0.3
_SETTLES_IN = 0.1  # seconds without a further change: an editor may write a file in several steps

Files = Mapping[str, tuple[int, int]]


def look(folders: Iterable[str]) -> Files:
    """Return the watched files below the folders, with their times of change and sizes; hidden folders are left out."""
    files: dict[str, tuple[int, int]] = {}
    for root in dict.fromkeys(folders):
        for folder, inner, names in os.walk(root):
            inner[:] = [subfolder for subfolder in inner if not subfolder.startswith(".") and subfolder not in _SKIPPED]
            if "pyvenv.cfg" in names:
                inner.clear()
                continue
            for name in names:
                if name.endswith(_WATCHED):
                    path = Path(folder, name)
                    try:
                        state = path.stat()
                    except OSError:
                        continue  # deleted meanwhile
                    files[str(path)] = (state.st_mtime_ns, state.st_size)
    return files


async def next_change(folders: Iterable[str], before: Files, stop: asyncio.Event) -> Files | None:
    """Wait for a change, and until the files stay the same; None if `stop` was set, or after a while without a change."""
    if await _pause(stop, _LOOK_EVERY):
        return None
    now = await asyncio.to_thread(look, folders)
    while now != before:
        if await _pause(stop, _SETTLES_IN):
            return None
        later = await asyncio.to_thread(look, folders)
        if later == now:
            return now
        now = later
    return None


def changed(before: Files, now: Files) -> list[str]:
    """Return the files that were written, created or deleted."""
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


async def _pause(stop: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
