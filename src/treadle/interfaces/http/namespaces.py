"""One server in front of all namespaces of a directory: `/ns/NAME/...` is the API and the dashboard of that namespace.

Each namespace has its own engine, which is opened with the first request and follows the directory when the file is replaced. Its
callers need tokens of that namespace. All other paths belong to the server's own namespace.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.engine import Engine, twin_of, use_store
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.problems import problem_of
from treadle.model.access import OPEN
from treadle.model.access import Scope as AccessScope
from treadle.model.errors import TreadleError, not_found
from treadle.settings import Directory, read_directory

PATH = "/ns"
_SWITCHER = "treadle.namespaces"
"""The entry of a request's scope that lists the namespaces for its caller."""


async def list_places(request: Request) -> list[dict[str, Any]]:
    """Return the namespaces that the caller of a page may choose: `namespace`, the `path` of its dashboard, and `is_current`."""
    switcher = request.scope.get(_SWITCHER)
    return [] if switcher is None else await switcher(request)


@dataclass(frozen=True, slots=True)
class _Place:
    """An open namespace: the URL of its store, its engine and its application."""

    url: str
    engine: Engine
    app: Starlette

    async def close(self) -> None:
        await state_of(self.app).close()
        await self.engine.close()


class NamespaceApps:
    """The applications of all namespaces; `make` makes that of an open engine."""

    def __init__(self, own: Starlette, path: str, make: Callable[[Engine], Starlette]) -> None:
        self._own = own
        self._path = Path(path)
        self._make = make
        self._read_at: int | None = None
        self._directory = Directory()
        self._places: dict[str, _Place] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, root = scope.get("path", ""), scope.get("root_path", "")
        scope = {**scope, _SWITCHER: partial(self._list_places, root, path)}
        if scope["type"] != "http" or not (path == PATH or path.startswith(f"{PATH}/")):
            await self._own(scope, receive, send)
            return
        name = path.removeprefix(PATH).strip("/").partition("/")[0]
        try:
            app: ASGIApp = Prefixed((await self._find(name)).app) if name else await self._index(Request(scope, receive))
        except TreadleError as error:
            app = problem_of(error)
        if name:
            scope = {**scope, "root_path": f"{root}{PATH}/{name}"}
        await app(scope, receive, send)

    async def end_waits(self) -> None:
        """End every long poll and stream, because the server stops."""
        for place in self._places.values():
            await state_of(place.app).close()

    async def close(self) -> None:
        """Close the engines of all namespaces."""
        for name in list(self._places):
            await self._places.pop(name).close()

    async def _find(self, name: str) -> _Place:
        url = self._read().namespaces.get(name)
        if url is None:
            raise not_found("namespace", name)
        async with self._opening.setdefault(name, asyncio.Lock()):
            place = self._places.get(name)
            if place is not None and place.url == url:
                return place
            if place is not None:  # it was moved
                await self._places.pop(name).close()
            own = state_of(self._own).engine
            engine = twin_of(own)
            use_store(engine, url, replace(own.kernel.settings, namespace=name, store=url))
            try:
                await engine.open()
            except BaseException:
                await engine.close()
                raise
            place = self._places[name] = _Place(url, engine, self._make(engine))
            return place

    def _read(self) -> Directory:
        """Return the directory, read again if the file was replaced."""
        changed_at = self._path.stat().st_mtime_ns if self._path.exists() else None
        if changed_at is None or changed_at != self._read_at:
            self._directory, self._read_at = read_directory(self._path), changed_at
        return self._directory

    async def _list_places(self, root: str, path: str, request: Request) -> list[dict[str, Any]]:
        """List the namespaces for callers who may read the server's own one; others learn no names."""
        own = state_of(self._own)
        try:
            session = await own.callers.find_session(request)
            if session is None and not own.callers.open_access:
                return []
            (OPEN if session is None else session.access).check(AccessScope.READ)
            names = sorted(self._read().namespaces)
        except TreadleError:
            return []
        home = own.engine.kernel.settings.namespace
        here = path.removeprefix(PATH).strip("/").partition("/")[0] if path.startswith(f"{PATH}/") else None
        links = [(home, f"{root}/", here is None)]
        links += [(name, f"{root}{PATH}/{name}/", name == here) for name in names if name != home or name == here]
        return [{"namespace": name, "path": place, "is_current": is_current} for name, place, is_current in links]

    async def _index(self, request: Request) -> Response:
        """List the namespaces for callers of the server's own namespace."""
        access = await state_of(self._own).callers.find(request)
        access.check(AccessScope.READ)
        rows = [{"namespace": name, "path": f"{PATH}/{name}/"} for name in sorted(self._read().namespaces)]
        return Response(msgspec.json.encode({"namespaces": rows}), media_type="application/json")


_PATHS = re.compile(rb'(?<= )((?:href|src|action|formaction|data-base)=")(/(?!/))')
_ROOT = re.compile(r"(?<=; )path=/(?=;|$)", re.IGNORECASE)
_REFRESH = re.compile(r"(?<=url=)/")


class Prefixed:
    """Serves an application that names paths from the root of a site below the path that it is mounted at."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix: str = scope.get("root_path", "").rstrip("/")
        if not prefix:
            await self._app(scope, receive, send)
            return
        html: list[bytes] | None = None
        start: Message = {}

        async def sent(message: Message) -> None:
            nonlocal html, start
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                _add_prefix(headers, prefix)
                if headers.get("content-type", "").startswith("text/html") and "content-encoding" not in headers:
                    html, start = [], message
                    return
            elif html is not None:
                html.append(message.get("body", b""))
                if message.get("more_body"):
                    return
                body = _prefixed_page(b"".join(html), prefix.encode())
                MutableHeaders(scope=start)["content-length"] = str(len(body))
                await send(start)
                message = {**message, "body": b"" if scope["method"] == "HEAD" else body}
            await send(message)

        await self._app(_without_prefix(scope, prefix), receive, sent)


def _without_prefix(scope: Scope, prefix: str) -> Scope:
    path = scope["path"]
    raw: bytes = scope.get("raw_path") or path.encode()
    inside = path == prefix or path.startswith(f"{prefix}/")
    headers = list(scope["headers"])
    for index, (name, value) in enumerate(headers):
        if name == b"referer":
            scheme, _, rest = value.decode("latin-1").partition("://")
            host, _, place = rest.partition("/")
            if f"/{place}".startswith(f"{prefix}/"):
                headers[index] = (name, f"{scheme}://{host}/{place[len(prefix) :]}".encode("latin-1"))
    return {
        **scope,
        "path": (path[len(prefix) :] or "/") if inside else path,
        "raw_path": (raw[len(prefix) :] or b"/") if raw.startswith(prefix.encode()) else raw,
        "root_path": "",
        "headers": headers,
    }


def _add_prefix(headers: MutableHeaders, prefix: str) -> None:
    location = headers.get("location", "")
    if location.startswith("/") and not location.startswith("//"):
        headers["location"] = prefix + location
    if "refresh" in headers:
        headers["refresh"] = _REFRESH.sub(f"{prefix}/", headers["refresh"])
    cookies = Headers(raw=headers.raw).getlist("set-cookie")
    if cookies:
        del headers["set-cookie"]
        for cookie in cookies:
            headers.append("set-cookie", _ROOT.sub(f"path={prefix}", cookie))


def _prefixed_page(page: bytes, prefix: bytes) -> bytes:
    """Return the page with its paths below the prefix; text of users cannot contain an attribute, because it is escaped."""
    return _PATHS.sub(rb"\g<1>" + prefix + rb"\2", page).replace(b"<html ", b'<html data-prefix="' + prefix + b'" ', 1)
