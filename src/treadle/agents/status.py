"""The status page of a runner: `/health` and `/status` over HTTP, on loopback, on the first free port."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from treadle.model.errors import Refused

Say = Callable[[], dict[str, Any]]


class NoFreePort(Refused):
    """All candidate ports are in use."""

    code = "no_free_port"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = False


class StatusServer:
    """Serves two pages in a thread until it is closed."""

    def __init__(self, port: int, attempts: int, health: Say, status: Say) -> None:
        self._server = _bind(port, attempts, _handler(health, status))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="treadle-status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _bind(port: int, attempts: int, handler: type[BaseHTTPRequestHandler]) -> _Server:
    for candidate in range(port, port + attempts):
        try:
            return _Server(("127.0.0.1", candidate), handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        except OverflowError:
            break
    raise NoFreePort(f"None of the ports {port} to {port + attempts - 1} is free; set http_port to another one.")


def _handler(health: Say, status: Say) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            say = {"/health": health, "/status": status}.get(self.path.partition("?")[0])
            body = json.dumps(say() if say is not None else {"error": "not found"}).encode()
            self.send_response(200 if say is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            pass

    return Handler
