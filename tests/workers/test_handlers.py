"""Valid handlers, their calling conventions, and their lookup."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from tests.errors import raises_code

from treadle.model.errors import InvalidInput, InvalidName, InvalidPolicy
from treadle.model.retry import NO_RETRY, RetryPolicy
from treadle.workers.context import Registry, make_handler


def nothing() -> None: ...
def payload_only(payload): ...
def both(payload, ctx): ...
def optional_ctx(payload, ctx=None): ...
def optional_other(payload, retries=3): ...
def optional_payload(payload=None): ...
def starred(*args): ...
def keywords(payload, **rest): ...


class Machine:
    async def __call__(self, payload, ctx): ...

    def method(self, payload): ...


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (nothing, 0),
        (payload_only, 1),
        (both, 2),
        (optional_ctx, 2),
        (optional_other, 1),
        (optional_payload, 1),
        (starred, 2),
        (keywords, 1),
        (Machine(), 2),
        (Machine().method, 1),
    ],
)
def test_a_handler_receives_the_arguments_that_it_declares(call: Any, arguments: int) -> None:
    assert make_handler("work", call).arguments == arguments


def takes_two(a, b): ...
def takes_three(a, b, c): ...
def needs_keyword(payload, *, session): ...
def ctx_first(ctx): ...


@pytest.mark.parametrize("call", [takes_two, takes_three, needs_keyword, ctx_first, functools.partial(both, {"n": 1}), max])
def test_a_signature_that_cannot_be_called_is_refused(call: Any) -> None:
    with pytest.raises(InvalidInput, match="handler work"):
        make_handler("work", call)


def test_a_handler_that_is_not_a_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be a function, not str"):
        make_handler("work", "print")  # type: ignore[arg-type]


async def coroutine(payload): ...


def test_async_handlers_run_on_the_loop_and_sync_ones_in_threads() -> None:
    assert make_handler("work", coroutine).isolation == "loop"
    assert make_handler("work", Machine()).isolation == "loop"
    assert make_handler("work", functools.partial(coroutine)).isolation == "loop"
    assert make_handler("work", payload_only).isolation == "thread"
    assert make_handler("work", payload_only, isolation="process").isolation == "process"
    assert make_handler("work", coroutine, isolation="process").isolation == "process"


@pytest.mark.parametrize(("call", "isolation"), [(payload_only, "loop"), (coroutine, "thread"), (coroutine, "fiber")])
def test_an_isolation_that_would_block_or_hang_is_refused(call: Any, isolation: Any) -> None:
    with pytest.raises(InvalidPolicy):
        make_handler("work", call, isolation=isolation)


@pytest.mark.parametrize("name", ["", "has space", "a..b", "ünïcode", "x" * 201, "semi;colon", "trailing.", "\x00", 7])
def test_invalid_names_are_refused(name: Any) -> None:
    with pytest.raises(InvalidName) as refused:
        make_handler(name, payload_only)
    assert refused.value.code == "invalid_name"


@pytest.mark.parametrize("name", ["work", "billing.Charge", "a:b/c-d", "_x1"])
def test_valid_names_are_accepted(name: str) -> None:
    assert make_handler(name, payload_only).name == name


@pytest.mark.parametrize(
    "options",
    [
        {"retry": -1},
        {"retry": True},
        {"retry": "often"},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": "1s"},
        {"progress_every": 0},
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
    ],
)
def test_invalid_policies_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicy):
        make_handler("work", payload_only, **options)


def test_without_a_policy_no_failure_is_retried() -> None:
    assert make_handler("work", payload_only).retry == NO_RETRY
    assert make_handler("work", payload_only, retry=3).retry == RetryPolicy(retries=3)


def test_a_name_has_one_handler() -> None:
    registry = Registry()
    registry.add(make_handler("work", payload_only))
    with raises_code("handler_exists", match="work"):
        registry.add(make_handler("work", both))
    assert registry.names() == ["work"]
    assert len(registry) == 1


def test_a_handler_is_found_by_its_name_else_by_the_short_one() -> None:
    registry = Registry()
    for name in ("Charge", "billing.Refund"):
        registry.add(make_handler(name, payload_only))
    found = registry.find("billing.Charge")
    assert found is not None
    assert found.name == "Charge"
    assert registry.find("billing.Refund") is not None
    assert registry.find("Refund") is None
    assert [handler.name for handler in registry] == ["Charge", "billing.Refund"]
