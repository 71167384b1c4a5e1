"""Redirects of watched addresses stay within the origin and within the addresses that an operator allowed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from treadle.model.errors import ScanFailed
from treadle.model.watchers import WatchSource
from treadle.workers.scanner import fetch


@pytest.fixture
def origin() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, target = self.path.partition("?to=")
            self.send_response(302 if target else 200)
            if target:
                self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def follow(origin: str, target: str, allowed: tuple[str, ...]) -> str:
    source = WatchSource(kind="http", place=f"{origin}/public/a?to={target}")
    try:
        return "followed" if fetch(source, None, time.monotonic, allowed).hash else "nothing"  # noqa: TID251
    except ScanFailed as error:
        return error.reason


@pytest.mark.parametrize(
    ("target", "listed", "unlisted"),
    [
        ("/public/b", "followed", "followed"),
        ("{origin}/public/b", "followed", "followed"),
        ("/private", "http_redirect", "followed"),
        ("/public/%2e%2e/private", "http_redirect", "http_redirect"),
        ("/public/..%2fprivate", "http_redirect", "http_redirect"),
        ("http://127.0.0.2:1/public/b", "http_redirect", "http_redirect"),
        ("http://user@127.0.0.1/public/b", "http_redirect", "http_redirect"),
    ],
)
def test_a_redirect_does_not_leave_the_allowed_addresses(origin: str, target: str, listed: str, unlisted: str) -> None:
    target = target.format(origin=origin)
    assert follow(origin, target, (f"{origin}/public",)) == listed
    assert follow(origin, target, ()) == unlisted
