"""The example applications: started, killed with SIGKILL while they take orders, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError

import psycopg
import pytest
from tests.limits import BOUND
from tests.ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"


class Shop(NamedTuple):
    """The commands of an application; `{port}` is its port. `first` runs once, the others serve until they are killed."""

    folder: str
    serve: tuple[tuple[str, ...], ...]
    first: tuple[tuple[str, ...], ...] = ()


SHOPS = {
    "fastapi": Shop("fastapi_shop", (("-m", "uvicorn", "app:app", "--port", "{port}", "--log-level", "warning"),)),
    "flask": Shop(
        "flask_shop",
        (("-m", "flask", "treadle", "worker"), ("-m", "flask", "run", "--port", "{port}")),
        (("-m", "flask", "create-tables"), ("-m", "flask", "treadle", "migrate")),
    ),
    "django": Shop(
        "django_shop",
        (("manage.py", "treadle_worker"), ("manage.py", "runserver", "{port}", "--noreload")),
        (("manage.py", "migrate", "-v0"), ("manage.py", "treadle_migrate")),
    ),
}


class Place(NamedTuple):
    shop: Shop
    port: int
    environment: dict[str, str]

    def start(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        command = tuple(part.format(port=self.port) for part in command)
        return subprocess.Popen(
            [sys.executable, *command], cwd=EXAMPLES / self.shop.folder, env=self.environment, start_new_session=True
        )

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=BOUND) as answer:
            return json.load(answer)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the application until the block ends, which kills it."""
        with ExitStack() as stack:
            for command in self.shop.serve:
                process = stack.enter_context(self.start(command))
                stack.callback(lambda process=process: os.killpg(process.pid, signal.SIGKILL))
            until = time.monotonic() + BOUND  # noqa: TID251
            while True:
                try:
                    self.call("/orders/0")
                except HTTPError as error:
                    error.close()
                    break
                except (URLError, ConnectionError):
                    assert process.poll() is None, "the application ended"
                    assert time.monotonic() < until  # noqa: TID251
                    time.sleep(0.05)
            yield


@pytest.fixture(params=sorted(SHOPS))
def place(request: pytest.FixtureRequest, postgres_server: str, postgres_admin: psycopg.Connection[Any]) -> Iterator[Place]:
    name = f"shop_{request.param}_{os.getpid()}"
    postgres_admin.execute(f"drop database if exists {name}")
    postgres_admin.execute(f"create database {name}")
    url = postgres_server.replace("/postgres?", f"/{name}?")
    variables = {key: value for key, value in os.environ.items() if not key.startswith("TREADLE_")}  # noqa: TID251
    yield Place(
        SHOPS[request.param], free_port(), variables | {"DATABASE_URL": url, "TREADLE_LEASE": "20", "PYTHONWARNINGS": "default"}
    )
    postgres_admin.execute(f"drop database {name} with (force)")


def test_every_order_is_charged_once_although_the_application_is_killed(place: Place):
    for command in place.shop.first:
        assert place.start(command).wait() == 0
    with place.running():
        accepted = [place.call("/orders", {"total": 100 + number})["id"] for number in range(7)]
    with place.running():
        accepted += [place.call("/orders", {"total": 200 + number})["id"] for number in range(5)]
        until = time.monotonic() + BOUND  # noqa: TID251
        with psycopg.connect(place.environment["DATABASE_URL"], autocommit=True) as connection:
            while True:
                (waiting,) = connection.execute(
                    "select count(*) from orders where not exists (select from charges where order_id = orders.id)"
                ).fetchone()
                if not waiting:
                    break
                assert time.monotonic() < until  # noqa: TID251
                time.sleep(0.05)
            orders = [row[0] for row in connection.execute("select id from orders order by id")]
            tasks = connection.execute(
                "select count(*) from (select payload from treadle.tasks union all select payload from treadle.finished) as work "
                "where payload like '{\"order\"%'"
            ).fetchone()
        assert orders == accepted
        assert tasks == (len(accepted),)
        assert place.call(f"/orders/{accepted[-1]}")["charged"] is True
