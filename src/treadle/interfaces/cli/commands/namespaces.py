"""`treadle namespaces ...`: where namespaces live, and moving one to another store."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.output.format import grid, plain, state
from treadle.interfaces.cli.output.messages import end_progress, tell_progress
from treadle.interfaces.cli.process.crash import arm_crash
from treadle.interfaces.cli.session import Session
from treadle.model.errors import InvalidInput, TreadleError
from treadle.settings import read_directory

if TYPE_CHECKING:
    from rich.console import RenderableType

_WITHIN = 10.0
"""Seconds that a store has to answer."""


async def list_namespaces(session: Session) -> None:
    """List the namespaces of the directory and of its stores: where each lives, and whether that store answers."""
    session.need_store()
    directory = read_directory(session.settings.directory) if session.settings.directory else None
    listed = {} if directory is None else directory.namespaces
    default = session.settings.store if directory is None else directory.store or session.default_store
    looks = await asyncio.gather(*(_look(session, url) for url in dict.fromkeys([*listed.values(), default])))
    found = {look["url"]: look for look in looks}
    names = listed | {name: default for name in found[default]["namespaces"] if name not in listed}
    rows = [
        {
            "namespace": name,
            "store": found[url]["shown"],
            "listed": name in listed,
            "reachable": found[url]["error"] is None,
            "error": found[url]["error"],
        }
        for name, url in sorted(names.items())
    ]
    value = {"directory": session.settings.directory or None, "default": found[default]["shown"], "namespaces": rows}
    session.show(value, lambda: _table(rows, value["default"]))


async def _look(session: Session, url: str) -> dict[str, Any]:
    """Return the namespaces of a store, or the reason why it does not answer."""
    from treadle.engine import Engine

    engine = Engine(url, settings=replace(session.settings, store=url))
    look: dict[str, Any] = {"url": url, "shown": engine.kernel.store.url, "namespaces": [], "error": None}
    try:
        async with asyncio.timeout(_WITHIN):
            await engine.open(migrate=False)
            look["namespaces"] = await engine.kernel.store.list_namespaces()
    except TimeoutError:
        look["error"] = f"It did not answer within {_WITHIN:g} s."
    except TreadleError as error:
        look["error"] = str(error)
    finally:
        await engine.close()
    return look


def _table(rows: list[dict[str, Any]], default: str) -> RenderableType:
    from rich.console import Group

    table = grid("namespace", "store", "placed by", "")
    for each in rows:
        by = "the directory" if each["listed"] else "default"
        table.add_row(
            plain(each["namespace"]), plain(each["store"]), by, plain(each["error"] or "") if each["error"] else state("ok")
        )
    return Group(table, plain(f"\nAll others: {default}"))


async def move(
    session: Session,
    name: Annotated[str, argument(metavar="NAME", help="The namespace")],
    to: Annotated[str, option(metavar="URL", help="The store to move it to")],
    keep: Annotated[bool, option("--keep", help="Leave a paused copy in the source")] = False,
    wait: Annotated[float, option(metavar="SECONDS", min=0, max=86_400, help="Wait this long for tasks that workers hold")] = 0,
) -> None:
    """Move a namespace with its history to another store, and switch the directory. Repeat it after an interruption."""
    from treadle.engine import Engine
    from treadle.engine.wiring.namespace_move import NamespaceMove
    from treadle.kernel.store.system import SystemClock

    session.need_store()
    arm_crash(session.settings.crash_at)
    if not session.settings.directory:
        raise InvalidInput("Moving a namespace changes the directory: create the file, and set TREADLE_DIRECTORY to its path.")

    async def verify(url: str, namespace: str) -> list[str]:
        async with Engine(url, settings=replace(session.settings, store=url, namespace=namespace)) as engine:
            return list((await engine.kernel.verify()).problems)

    mover = NamespaceMove(
        session.settings.directory,
        name,
        SystemClock(),
        default=session.default_store,
        verify=verify,
        progress=lambda line: tell_progress(session, line),
    )
    try:
        moved = await mover.move(to, keep=keep, wait=wait)
    finally:
        end_progress(session)
    rows = f"{sum(moved.rows.values())} rows" if moved.rows else "completing an interrupted move"
    said = f"The namespace {name} is now at {moved.target} ({rows}). Restart the workers that serve it."
    session.show(asdict(moved), lambda: plain(said))
