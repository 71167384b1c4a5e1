"""An application below a path of a site.

Pages, redirects and cookies of the server name paths from the root of a site. `Prefixed` serves them below another path: it removes
the path from requests, and adds it to links, forms, scripts, redirects and cookies of answers.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
