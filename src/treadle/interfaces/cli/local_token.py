"""The administrator on the machine of a server: a token in a file that only its user can read, and a sign-in link for a browser.

A server on loopback creates the token when it starts and no other token exists. Users that can read the file could also open the
store, so the token grants nothing more. Stores without a file have a token for 12 hours, which only the link uses.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from treadle.engine import Engine
from treadle.model.access import Scope
from treadle.model.errors import Unauthorized
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.interfaces.http.server import HttpServer

NAME = "local"
CREATED_BY = "server"
_SQLITE = "sqlite:///"


async def entrance(engine: Engine, server: HttpServer, *, pages: bool = True) -> tuple[dict[str, Json], list[str]]:
    """The access rules of a running server, as fields of its `started` event and as lines for people."""
    fields: dict[str, Json] = {"url": server.url, "open": server.open}
    if server.open:
        return fields, [f"HTTP:     {server.url} (OPEN: everyone on this machine has full access, because of --open)"]
    lines = [f"HTTP:     {server.url} (requires a token)"]
    secret = await _local_secret(engine) if server.local else None
    if secret is not None and pages:
        fields["sign_in"] = server.offer_sign_in(secret)
        lines.append(f"Sign in:  {fields['sign_in']} (works once, for 15 minutes)")
    if secret is not None and (path := token_file(engine.kernel.store.url)) is not None:
        fields["token_file"] = str(path)
        lines.append(f"Token:    in {path}, for programs on this machine; commands with --server use it")
    return fields, lines


def token_file(store_url: str) -> Path | None:
    """The file of the local token of a store; None if the store is not a file."""
    return Path(f"{store_url.removeprefix(_SQLITE)}.token").absolute() if store_url.startswith(_SQLITE) else None


def find_local_secret(store_url: str, server_url: str) -> str | None:
    """The local token for a server on this machine, if this user has one."""
    host = urlsplit(server_url).hostname or ""
    path = token_file(store_url)
    return _read(path) if path is not None and host in ("localhost", "127.0.0.1", "::1") else None


async def _local_secret(engine: Engine) -> str | None:
    """The secret in the file if it is valid; a new one if only servers have created tokens; else None."""
    path = token_file(engine.kernel.store.url)
    if path is not None and (secret := _read(path)) is not None:
        try:
            if (await engine.kernel.tokens.find_access(secret)).may(Scope.ADMIN):
                return secret
        except Unauthorized:
            pass
    live = (await engine.kernel.tokens.list()).tokens
    if any(token.created_by != CREATED_BY for token in live):
        return None
    if path is None:
        from treadle.kernel.access.sessions import SESSION_FOR  # workers import this module, and have no sessions

        name = f"{NAME}-{engine.kernel.ids.new_id()[-12:]}"
        return (await engine.kernel.tokens.create(name, [Scope.ADMIN], expires=SESSION_FOR, actor=CREATED_BY)).secret
    for token in live:
        if token.name == NAME:
            await engine.kernel.tokens.revoke(token.id, actor=CREATED_BY)
    created = await engine.kernel.tokens.create(NAME, [Scope.ADMIN], actor=CREATED_BY)
    _write(path, created.secret)
    return created.secret


def _read(path: Path) -> str | None:
    """The content of the file; None unless it is a regular file that only this user can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        file_stat = os.fstat(descriptor)
        if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_uid != os.geteuid() or file_stat.st_mode & 0o077:
            return None
        return file.read(200).strip() or None


def _write(path: Path, secret: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w", encoding="ascii") as file:
        file.write(secret + "\n")
