"""Stores: SQLite (a file, or memory) and PostgreSQL, behind the ports of `treadle.kernel.store.ports`."""

from __future__ import annotations

import re
from urllib.parse import unquote

from treadle.kernel.store.ports import Store
from treadle.model.clock import Clock
from treadle.model.errors import InvalidStoreUrl

_FORMS = "Use sqlite:///path/to/file.db, postgresql://user@host/database or memory://."
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def make_store(url: str, clock: Clock) -> Store:
    """Create the store of the URL, which is not open yet; raises `InvalidStoreUrl`.

    `sqlite:///treadle.db` is a file in the working directory, `sqlite:////var/lib/treadle.db` an absolute path.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise InvalidStoreUrl(f"{_shown(url)} is not a store URL. {_FORMS}")
    match scheme:
        case "memory":
            if rest:
                raise InvalidStoreUrl(f"memory:// takes nothing after it, but got {_shown(rest)}.")
            from treadle.stores.sqlite import SqliteStore

            return SqliteStore(None, clock=clock)
        case "sqlite":
            path = unquote(rest.removeprefix("/"))
            if not rest.startswith("/") or not path or "?" in path or "\x00" in path:
                raise InvalidStoreUrl(f"{_shown(url)} names no SQLite file. {_FORMS}")
            from treadle.stores.sqlite import SqliteStore

            return SqliteStore(path, clock=clock)
        case "mongodb" | "mongodb+srv":
            raise InvalidStoreUrl(
                "There is no MongoDB store (D66): use a PostgreSQL store to share work between machines, or a SQLite file on one. "
                f"Set TREADLE_STORE to it; `treadle import mongodump` reads flows, handlers and finished runs from a dump. {_FORMS}"
            )
        case "postgresql" | "postgres":
            from treadle.stores.postgres import PostgresStore

            return PostgresStore(url, clock=clock)
        case _:
            raise InvalidStoreUrl(f"There is no store for {scheme}://. {_FORMS}")


def _shown(text: str) -> str:
    """Return the text for a message, unless it may contain a password."""
    return "What was given" if "@" in text or "password" in text.lower() else repr(text)
