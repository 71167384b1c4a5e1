"""Server failures as the command line reports them: an exit code, one line, no traceback, and never the token."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.commands import Ended, Treadle

from treadle.model.access import Scope

pytestmark = pytest.mark.xdist_group("cli server troubles")

WRONG = "tdl_nobody_knows_this_one_0123456789"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Treadle, dict[str, str]]]:
    """A server with tokens for all scopes; the command line asks it."""
    treadle = Treadle(tmp_path_factory.mktemp("troubles"))
    secrets = {scope: treadle.json("token", "create", f"{scope}-token", "--scope", scope)["secret"] for scope in Scope}
    with treadle.started("serve", "--json") as serving:
        treadle.environment |= {"TREADLE_SERVER": json.loads(serving.first)["url"]}
        yield treadle, secrets
        assert serving.stop().code == 0


def check(treadle: Treadle, token: str | None, exit_code: int, code: str, *arguments: str, **environment: str) -> str:
    """Run it both ways; what it says."""
    given = environment | ({} if token is None else {"TREADLE_TOKEN": token})
    as_json = treadle(*arguments, "--json", **given)
    assert (as_json.code, as_json.error["code"]) == (exit_code, code), as_json
    said = treadle(*arguments, "--verbose", **given)
    plain = treadle(*arguments, **given)
    for ended in (as_json, said, plain):
        assert ended.code == exit_code
        assert token is None or token not in ended.out + ended.err
        assert "Traceback" not in ended.err
    (line,) = plain.err.splitlines()
    assert line.startswith(f"treadle: {code}: ")
    return line


def test_a_token_that_is_missing_wrong_or_too_weak_is_refused_with_5(served: tuple[Treadle, dict[str, str]]):
    treadle, secrets = served
    assert "token" in check(treadle, None, 5, "unauthorized", "status").lower()
    check(treadle, WRONG, 5, "unauthorized", "status")
    assert "scope enqueue" in check(treadle, secrets["read"], 5, "forbidden", "enqueue", "greet")


def test_a_token_on_the_command_line_is_not_repeated(served: tuple[Treadle, dict[str, str]]):
    treadle, _ = served
    ended: Ended = treadle("status", "--token", WRONG, "--verbose")
    assert ended.code == 5
    assert WRONG not in ended.out + ended.err
    assert "TREADLE_TOKEN" in treadle("status", "--help").out


def test_errors_of_a_server_have_the_exit_codes_of_a_store(served: tuple[Treadle, dict[str, str]]):
    treadle, secrets = served
    admin = secrets["admin"]
    check(treadle, admin, 3, "task_not_found", "tasks", "show", "01890000-0000-7000-8000-000000000000")
    check(treadle, admin, 2, "invalid_input", "tasks", "list", "--limit", "5000")
    made = treadle.json("enqueue", "greet", TREADLE_TOKEN=admin)["id"]
    check(treadle, admin, 5, "illegal_transition", "tasks", "retry", made)


def test_an_unreachable_server_exits_4(treadle: Treadle):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and never listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        line = check(treadle, WRONG, 4, "server_unreachable", "tasks", "list", TREADLE_SERVER=url)
    assert url in line


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Another program on that address, which has one answer for everything."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>hello</html>"), (502, b"Bad gateway"), (503, b"")])
def test_a_foreign_service_at_the_address_exits_4(treadle: Treadle, status: int, body: bytes):
    with answering(status, body) as url:
        check(treadle, WRONG, 4, "unexpected_answer", "tasks", "list", TREADLE_SERVER=url)


def test_a_server_with_an_unavailable_store_exits_4(treadle: Treadle):
    told = {"type": "about:blank", "status": 503, "code": "store_unavailable", "detail": "The store does not answer.", "title": ""}
    with answering(503, json.dumps(told).encode()) as url:
        check(treadle, WRONG, 4, "store_unavailable", "tasks", "list", TREADLE_SERVER=url)


def test_too_many_wrong_tokens_exit_5(treadle: Treadle):
    treadle.json("token", "create", "ada", "--scope", "admin")
    with treadle.started("serve", "--json") as serving:
        treadle.environment |= {"TREADLE_SERVER": json.loads(serving.first)["url"]}
        codes = ["unauthorized"]
        while codes[-1] == "unauthorized" and len(codes) < 100:
            codes.append(treadle("status", "--json", TREADLE_TOKEN=f"{WRONG}{len(codes)}").error["code"])
        assert codes[-1] == "too_many_attempts"
        check(treadle, WRONG, 5, "too_many_attempts", "status")
