"""Requests that nobody would think of, made from the OpenAPI document: no answer is a server error, and none is undocumented."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Flaky, Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.sizes import left_out

from treadle.engine import Engine
from treadle.interfaces.http.app import api_document
from treadle.interfaces.http.server import HttpOptions, HttpServer
from treadle.model.access import Scope

pytestmark = pytest.mark.xdist_group("http schemathesis")

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
SHARES = 4
AT_ONCE = 5
"""Histories that are drawn together."""
MAX_WAIT = 0.01
"""Seconds that calls may wait here that wait for something to happen."""


def make_schema() -> Any:
    document = deepcopy(api_document())
    config = schemathesis.Config.from_dict(
        {
            "generation": {"with-security-parameters": False, "database": "none"},
        }
    )
    return schemathesis.openapi.from_dict(document, config=config)


def some(count: int, *, derandomize: bool | None = None) -> settings:
    phases = (Phase.explicit, Phase.generate)  # report failures unshrunk: shrinking takes too long here
    return settings(
        max_examples=count,
        phases=phases,
        database=None,
        deadline=None,
        derandomize=count < 50 if derandomize is None else derandomize,
        suppress_health_check=list(HealthCheck),
        stateful_step_count=8,
    )


@dataclass
class Served:
    """A server in a thread of its own."""

    url: str
    secret: str

    def call(self, case: Case, *, token: bool = True) -> int:
        """Make the request, and check the answer; its status."""
        before(case)
        headers = {"Authorization": f"Bearer {self.secret}"} if token else {}
        return case.call_and_validate(base_url=self.url, session=SESSION, headers=headers, checks=CHECKS).status_code


SESSION = requests.Session()
SESSION.trust_env = False


def before(case: Case) -> None:
    """Nothing waits for long, and live events, which have no end, are refused."""
    if case.operation.definition.raw.get("operationId") in ("events_stream", "streams_follow"):
        case.headers["Last-Event-ID"] = "none"
    for part in (case.query, case.body):
        if isinstance(part, dict) and isinstance(wait := part.get("wait_for"), int | float) and 0 < wait <= 60:
            part["wait_for"] = MAX_WAIT


@contextlib.contextmanager
def serving(url: str) -> Iterator[Served]:
    """A server with a token for everything, on an engine on that store."""
    loop = asyncio.new_event_loop()
    stop, ready = asyncio.Event(), threading.Event()
    found: list[Served] = []

    async def serve() -> None:
        async with Engine(url) as engine:
            # No request may revoke it: Hypothesis tries constants of the sources as names, and a short id means one of two here.
            names = [f"all-{secrets.token_hex(8)}" for _ in range(2)]
            made = [await engine.kernel.tokens.create(name, [Scope.ADMIN]) for name in names]
            secret = made[0].secret
            async with HttpServer(engine, HttpOptions(port=0)) as server:
                found.append(Served(server.url, secret))
                ready.set()
                await stop.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run, name="served")
    thread.start()
    ready.wait()
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server on an engine in memory."""
    with serving("memory://") as made:
        yield made


SCHEMA = make_schema()


def can_be_wrong(operation: dict[str, Any]) -> bool:
    """Whether a request can break the schema; each text is a value of a path, and Hypothesis would search for others in vain."""
    taken = [each for each in operation.get("parameters", ()) if each.get("in") != "path" or each["schema"].get("type") != "string"]
    return "requestBody" in operation or bool(taken)


def try_all(
    served: Served, count: int, share: int = 0, shares: int = 1, *, derandomize: bool | None = None, ends: float = float("inf")
) -> tuple[Counter[int], Counter[int]]:
    """So many requests of each kind, those that fit and those that do not, to every operation; each with a token and without.

    Answers by status, with and without. Ends early at that time of the monotonic clock.
    """
    answered: Counter[int] = Counter()
    refused: Counter[int] = Counter()
    for found in islice(SCHEMA.get_all_operations(), share, None, shares):
        modes = [mode for mode in GenerationMode if mode is GenerationMode.POSITIVE or can_be_wrong(found.ok().definition.raw)]
        for mode in modes if time.monotonic() < ends else ():  # noqa: TID251

            @some(count, derandomize=derandomize)
            @given(case=found.ok().as_strategy(generation_mode=mode))
            def call(case: Case) -> None:
                refused[served.call(case, token=False)] += 1
                answered[served.call(case)] += 1

            with contextlib.suppress(Unsatisfiable):  # a call without parameters cannot be invalid
                call()
    return answered, refused


def example_of(case: Case) -> Any:
    """The documented body, of operations that make something which others go on with; None of all others."""
    said = case.operation.definition.raw
    if not any("links" in answer for answer in said["responses"].values()) or "requestBody" not in said:
        return None
    name = said["requestBody"]["content"]["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
    return next(iter(SCHEMA.raw_schema["components"]["schemas"].get(name, {}).get("examples", ())), None)


def run_machine(served: Served, count: int) -> Counter[int]:
    """Histories that use the results of earlier requests; returns the responses.

    The server keeps the state of earlier histories, so the same draws may get other responses; Hypothesis then reports that
    generating is flaky, and the next history begins. Findings are kept and reported at the end.
    """
    answered: Counter[int] = Counter()
    found: list[BaseException] = []

    class Machine(SCHEMA.as_state_machine()):  # type: ignore[misc]
        def before_call(self, case: Case) -> None:
            before(case)
            if (example := example_of(case)) is not None:
                case.body = example  # so that there is something to go on with

        def get_call_kwargs(self, case: Case) -> dict[str, Any]:
            return {"base_url": served.url, "session": SESSION, "headers": {"Authorization": f"Bearer {served.secret}"}}

        def validate_response(self, response: Any, case: Case, additional_checks: Any = None, **kwargs: Any) -> None:
            answered[response.status_code] += 1
            try:
                case.validate_response(response, checks=CHECKS)
            except BaseException as error:
                found.append(error)
                raise

    for number in range(3 * count // AT_ONCE):
        if number * AT_ONCE >= count and answered[200] and answered[201]:
            break
        with contextlib.suppress(Flaky):
            Machine.run(settings=some(AT_ONCE, derandomize=False))
        if found:
            raise found[0]
    return answered


@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", [left_out(share) if share % 2 else share for share in range(SHARES)])
def test_every_response_with_or_without_a_token_is_documented(served: Served, share: int):
    answered, refused = try_all(served, 2, share, SHARES)
    assert min(answered[200], answered[422]) > 2  # they get somewhere, and not all to the same place
    assert refused[401] > 10
    assert refused[201] == 0


def test_stateful_request_sequences_use_created_resources_without_errors(served: Served):
    answered = run_machine(served, 20)
    assert answered[200] >= 1
    assert answered[201] >= 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_response_to_many_requests_is_documented(served: Served):
    """No generated request has an undocumented response or a server error."""
    try_all(served, 200)


@pytest.mark.soak
def test_long_histories_keep_every_invariant(served: Served):
    """No sequence of requests leads to an undocumented response or a server error."""
    run_machine(served, 500)
