"""Signatures of user code: which style each has, which are refused, and what callers and workers exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.errors import raises_code

from treadle import Context, Engine, Retry
from treadle.model.errors import InvalidInput, InvalidPayload, NonRetryable
from treadle.workers.signatures import Kind, signature_of

if TYPE_CHECKING:
    from treadle.nowhere import Missing  # type: ignore[import-not-found]


@dataclass
class Order:
    sku: str
    price: float = 1.0


class Opaque: ...


def by_payload(payload, ctx): ...
def only_parameter(order): ...
def with_fixed_value(order, n=1): ...
def annotated_payload(payload: dict[str, Any]): ...
def wrapper(*args, **kwargs): ...
def typed_payload(payload: Order, ctx: Any) -> Order: ...
def unresolved_payload(payload: Missing) -> Missing: ...
def by_mapping(order: dict[str, Any]): ...
def by_two_mappings(order: dict[str, Any], copies: dict[str, Any]): ...
def by_arguments(order: Order, copies: int = 1) -> dict[str, int]: ...
def context_first(ctx: Context, order: Order, /, *, fast: bool = False) -> Order: ...
def context_last(order: Order, ctx) -> Order | Retry | None: ...
def only_context(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    "fn", [by_payload, only_parameter, with_fixed_value, annotated_payload, wrapper, typed_payload, unresolved_payload]
)
def test_a_payload_is_one_argument(fn: Callable[..., Any]) -> None:
    assert signature_of("work", fn, "handler").names is None


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (by_mapping, ("order",)),
        (by_two_mappings, ("order", "copies")),
        (by_arguments, ("order", "copies")),
        (context_first, ("order", "fast")),
        (context_last, ("order",)),
        (only_context, ()),
    ],
)
def test_annotated_parameters_are_named_in_the_payload(fn: Callable[..., Any], names: tuple[str, ...]) -> None:
    assert signature_of("work", fn, "handler").names == names


def three(payload, ctx, extra): ...
def two(job, context): ...
def payload_and_option(payload: dict[str, Any], copies: int = 1): ...
def context_before(ctx, payload): ...
def starred(order: Order, *rest: int): ...
def keywords(**options): ...
def half(order: Order, copies): ...
def payload_and_more(payload: Order, copies: int): ...
def number(payload: int): ...
def opaque(order: Opaque): ...
def opaque_inside(orders: list[dict[str, Opaque]]): ...
def ambiguous(order: Order | tuple[int, ...] | list[str]): ...
def unresolved(order: Missing): ...
def unresolved_result(order: Order) -> Missing: ...
def returns_int(payload) -> int: ...
def returns_list(order: Order) -> list[Order]: ...
def returns_opaque(order: Order) -> Opaque: ...


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (three, "`payload` takes the whole payload, so that extra would receive nothing"),
        (two, r"must take \(payload\), .*need annotations"),
        (payload_and_option, "so that copies would receive nothing"),
        (context_before, "`ctx` comes after the payload"),
        (starred, r"\*args"),
        (keywords, r"\*\*kwargs have no names"),
        (half, "need annotations, to be bound by name"),
        (payload_and_more, "so that copies would receive nothing"),
        (number, "the payload is a JSON object, so payload cannot be a int"),
        (opaque, "its parameter order .* Opaque"),
        (opaque_inside, "its parameter orders .* Opaque"),
        (ambiguous, "its parameter order .* more than one array-like"),
        (unresolved, "its parameter order cannot be resolved: Missing .* outside `if TYPE_CHECKING`"),
        (unresolved_result, "its return type cannot be resolved: Missing"),
        (returns_int, "it returns int, .* a JSON object"),
        (returns_list, "it returns list"),
        (returns_opaque, "its return type .* Opaque"),
    ],
)
def test_a_signature_that_cannot_work_is_refused_with_reason_and_place(fn: Callable[..., Any], reason: str) -> None:
    line = fn.__code__.co_firstlineno
    with pytest.raises(InvalidInput, match=rf"The handler work cannot be registered: .*{reason}.*test_signatures\.py:{line}"):
        signature_of("work", fn, "handler")


def add(a: int, b: int = 2) -> int: ...
def untyped(a, b=2): ...
def made(order: Order) -> Order: ...
def perhaps(order: Order) -> Order | None: ...


@pytest.mark.parametrize(
    ("fn", "kind", "value", "stored"),
    [
        (add, "task", 3, {"result": 3}),
        (untyped, "task", {"n": 1}, {"result": {"n": 1}}),
        (made, "task", Order("x"), {"sku": "x", "price": 1.0}),
        (perhaps, "task", None, {"result": None}),
        (perhaps, "task", Order("x"), {"result": {"sku": "x", "price": 1.0}}),
        (perhaps, "handler", None, None),
        (made, "handler", Order("x"), {"sku": "x", "price": 1.0}),
        (add, "function", 3, 3),
    ],
)
def test_a_result_is_stored_as_an_object(fn: Callable[..., Any], kind: Kind, value: Any, stored: Any) -> None:
    signature = signature_of("work", fn, kind)
    assert signature.dump_result(value) == stored
    assert signature.load_result({} if stored is None else stored) == value


def test_arguments_arrive_as_their_types_and_defaults_apply() -> None:
    signature = signature_of("work", context_first, "handler")
    payload = signature.dump((Order("x"),), {"fast": True})
    assert payload == {"order": {"sku": "x", "price": 1.0}, "fast": True}
    assert signature.load(payload, "CTX") == (("CTX", Order("x")), {"fast": True})
    assert signature.load({"order": {"sku": "x"}, "tick": "now"}, "CTX") == (("CTX", Order("x")), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {}, "missing a required argument: 'order'"),
        ((Order("x"), 1, 2), {}, "too many positional"),
        ((Order("x"),), {"delay": 3}, r"work\.with_options\(delay=\.\.\.\)"),
        ((Order(5),), {}, r"\$\.order\.sku: expected str, got 5"),  # type: ignore[arg-type]
        (("x",), {}, r'\$\.order: expected object, got "x"'),
        ((Order("x"), "2"), {}, r'\$\.copies: expected int, got "2"'),
    ],
)
def test_a_wrong_call_is_refused_at_the_caller(args: tuple[Any, ...], kwargs: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPayload, match=problem):
        signature_of("work", by_arguments, "handler").dump(args, kwargs)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({}, r"\$\.order: missing"),
        ({"ordr": {}}, r"\$\.ordr: unknown field"),
        ({"order": {"sku": "x", "price": "1"}}, r'\$\.order\.price: expected float, got "1"'),
    ],
)
def test_a_wrong_payload_is_a_permanent_failure_at_the_worker(payload: dict[str, Any], problem: str) -> None:
    with pytest.raises(NonRetryable, match=problem) as raised:
        signature_of("work", by_arguments, "handler").load(payload, None)
    assert raised.value.error_code == "invalid_payload"


def test_a_wrong_result_is_a_permanent_failure() -> None:
    with pytest.raises(NonRetryable, match=r"result of work does not match its annotation: \$\.price") as raised:
        signature_of("work", made, "handler").dump_result(Order("x", None))  # type: ignore[arg-type]
    assert raised.value.error_code == "invalid_result"


def test_types_of_an_enclosing_function_are_found() -> None:
    @dataclass
    class Local:
        n: int

    engine = Engine("memory://")

    @engine.task
    def double(local: Local) -> Local:
        return Local(local.n * 2)

    assert double.payload(Local(2)) == {"local": {"n": 2}}
    assert double(Local(2)) == Local(4), "a reference is still the plain function"
    assert double.name == "double"
    with raises_code("handler_exists"):
        engine.task(double)
