"""`treadle namespaces ...`: where namespaces live."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from treadle.interfaces.cli.format import grid, plain, state
from treadle.interfaces.cli.session import Session
from treadle.model.errors import TreadleError
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
            look["namespaces"] = await engine.kernel.store.namespaces.list_names()
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
