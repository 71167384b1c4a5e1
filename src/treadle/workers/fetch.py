"""Conditional HTTP requests that detect changes of a URL, bounded in time and size.

The URL is requested as the operator gave it: without proxies of the environment, and without redirects to another origin.
"""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Callable, Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request

from treadle.kernel.watchers.decide import Fetched
from treadle.model.addresses import is_allowed, normalize
from treadle.model.errors import LookFailed
from treadle.model.watchers import Item, Source

_CHUNK = 64 * 1024
_NOT_FOUND = (404, 410)
_NOT_MODIFIED = 304


def fetch(source: Source, item: Item | None, monotonic: Callable[[], float], allowed: Sequence[str] = ()) -> Fetched:
    """Request the URL with the validators of the last response; takes no more than about twice the timeout.

    A redirect stays on the same origin; from an address that `allowed` lists, it leads to another one that `allowed` lists.
    """
    until = monotonic() + source.timeout_for / 1000
    headers = {"User-Agent": "treadle", "Accept-Encoding": "identity"}
    if item is not None and item.etag:
        headers["If-None-Match"] = item.etag
    if item is not None and item.modified:
        headers["If-Modified-Since"] = item.modified
    request = Request(source.place, headers=headers)  # noqa: S310 - only http and https, which `_opener` alone can do
    try:
        with _opener(allowed).open(request, timeout=source.timeout_for / 1000) as answer:
            return _read(source, answer, lambda: monotonic() > until)
    except HTTPError as error:
        with error:
            if error.code == _NOT_MODIFIED:
                return Fetched(same=True)
            if error.code in _NOT_FOUND:
                return Fetched(gone=True)
            raise LookFailed("http_error", f"{source.place} answers {error.code} {error.reason}.") from None
    except LookFailed:
        raise
    except TimeoutError:
        raise LookFailed("http_timeout", f"{source.place} has not answered within {source.timeout_for / 1000:g} s.") from None
    except URLError as error:
        late = isinstance(error.reason, TimeoutError)
        code = "http_timeout" if late else "http_unreachable"
        raise LookFailed(code, f"{source.place} cannot be reached: {error.reason}.") from None
    except (OSError, http.client.HTTPException) as error:
        raise LookFailed("http_unreachable", f"{source.place} cannot be reached: {error!r}.") from None


def _read(source: Source, answer: Any, is_late: Callable[[], bool]) -> Fetched:
    etag, modified = answer.headers.get("ETag"), answer.headers.get("Last-Modified")
    digest, size = hashlib.sha256(), 0
    while chunk := answer.read1(_CHUNK):
        size += len(chunk)
        if is_late():
            raise TimeoutError
        if size > source.hash_limit:
            if etag or modified:
                return Fetched(etag=etag, modified=modified)
            raise LookFailed(
                "http_too_large",
                f"{source.place} answers more than {source.hash_limit} bytes, and no ETag or Last-Modified to know it by.",
            )
        digest.update(chunk)
    expected = answer.headers.get("Content-Length")
    if expected is not None and expected.isdecimal() and int(expected) != size:
        raise LookFailed("http_incomplete", f"{source.place} broke off after {size} of {expected} bytes.")
    return Fetched(etag=etag, modified=modified, hash=f"sha256:{digest.hexdigest()}", size=size)


class _SameOrigin(HTTPRedirectHandler):
    """Follows redirects within an origin and within the allowed addresses."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = allowed

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """Return the next request; raise `LookFailed` if it leaves them."""
        before, after = normalize(req.full_url), normalize(newurl)
        stays = before is not None and after is not None and before.origin == after.origin
        if not stays or (is_allowed(req.full_url, self._allowed) and not is_allowed(newurl, self._allowed)):
            raise LookFailed("http_redirect", f"{req.full_url} redirects to {newurl}; watch that address if it is right.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(allowed: Sequence[str]) -> OpenerDirector:
    from urllib.request import HTTPDefaultErrorHandler, HTTPErrorProcessor

    opener = OpenerDirector()
    for handler in (HTTPHandler(), HTTPSHandler(), HTTPDefaultErrorHandler(), HTTPErrorProcessor(), _SameOrigin(allowed)):
        opener.add_handler(handler)
    return opener
