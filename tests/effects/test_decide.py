"""Keys of effects, what is decided from what earlier attempts left, and which exceptions leave it open. Nothing is stored here."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import urllib.error
from email.message import Message
from typing import Any, cast

import msgspec
import pytest

from treadle.kernel.effects.decide import (
    Begin,
    Effect,
    current_keys,
    decide,
    failed,
    is_counted,
    is_definite,
    making,
    read_response,
    succeeded,
    succeeded_without_response,
)
from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import PutOutcome
from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import EffectFailed, EffectUnknown, InvalidInput, InvalidPayload, NonRetryable
from treadle.model.records import EffectOutcome
from treadle.model.tasks import Transition

TASK = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"
STEP = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a78"
VAULT = ValueStore(cast("Store", None))


def effect(action: str = "charge", request: Any = None, step_id: str | None = STEP, **more: Any) -> Effect:
    return Effect.of(TASK, step_id, TASK, action, request, **more)


def rows(*found: tuple[int, str], of: Effect) -> dict[str, EffectOutcome]:
    outcomes = [
        EffectOutcome(idempotency_key=of.key(attempt), tool_call_id=of.tool_call_id, status=status, root_id=TASK)
        for attempt, status in found
    ]
    return {outcome.idempotency_key: outcome for outcome in outcomes}


def transition(version: int, name: str) -> Transition:
    return Transition(
        seq=version, at=0, entity="task", entity_id=TASK, version=version, transition=name, from_state="pending", to_state="pending"
    )


def test_the_key_is_the_digest_of_task_step_attempt_action_and_request_hash() -> None:
    one = effect(request={"b": 1, "a": [2]})
    request_hash = hashlib.sha256(b'{"request":{"a":[2],"b":1}}').hexdigest()
    assert one.request_hash == request_hash
    text = json.dumps([TASK, STEP, 3, "charge", request_hash], separators=(",", ":"))
    assert one.key(3) == hashlib.sha256(text.encode()).hexdigest()
    assert one.keys(2) == [one.key(2), one.key(1)]


def test_the_key_changes_with_the_attempt_and_the_dedupe_key_does_not() -> None:
    one = effect()
    assert one.key(1) != one.key(2)
    assert one.dedupe_key not in (one.key(1), one.key(2))
    assert one.dedupe_key == effect().dedupe_key
    assert one.tool_call_id == effect().tool_call_id


def test_the_order_of_names_in_a_request_does_not_matter() -> None:
    assert effect(request={"a": 1, "b": {"c": 2, "d": 3}}) == effect(request={"b": {"d": 3, "c": 2}, "a": 1})


@pytest.mark.parametrize(
    "other",
    [
        effect("charges"),
        effect(request={"amount": 1}),
        effect(request=[]),
        effect(step_id=None),
        effect(key="k"),
        effect(ordinal=2),
        effect(request={"ordinal": 2}),
        effect(request={"key": "k"}),
    ],
)
def test_effects_that_differ_in_anything_have_keys_of_their_own(other: Effect) -> None:
    assert other.key(1) != effect().key(1)
    assert other.dedupe_key != effect().dedupe_key


def test_parts_cannot_run_into_one_another() -> None:
    assert effect("a", step_id="b").key(11) != effect("a", step_id="b1").key(1)
    assert Effect(TASK, "s", TASK, "ab", "c").key(1) != Effect(TASK, "s", TASK, "a", "bc").key(1)


def test_a_request_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidPayload):
        effect(request={"at": object()})
    with pytest.raises(InvalidInput, match="action"):
        effect("")


def test_an_effect_without_attempts_is_begun() -> None:
    assert decide(effect(), 1, {}) == Begin(effect(), 1, None)


@pytest.mark.parametrize("attempt", [1, 2, 5])
def test_a_recorded_success_is_used(attempt: int) -> None:
    one = effect()
    found = decide(one, attempt, rows((1, "succeeded"), of=one))
    assert isinstance(found, EffectOutcome)
    assert found.status == "succeeded"


def test_a_recorded_success_wins_over_later_attempts() -> None:
    one = effect()
    found = decide(one, 4, rows((1, "succeeded"), (2, "unknown"), (3, "failed"), of=one), lambda _: True, lost=True)
    assert isinstance(found, EffectOutcome)
    assert found.status == "succeeded"


@pytest.mark.parametrize(("found", "lost", "doubt"), [((), True, "none"), (((1, "unknown"),), False, "unknown")])
def test_none_of_a_lost_attempt_and_unknown_mean_unknown(found: Any, lost: bool, doubt: str) -> None:
    one = effect()
    begin = decide(one, 2, rows(*found, of=one), lost=lost)
    assert isinstance(begin, Begin)
    assert (begin.attempt, begin.in_doubt) == (2, doubt)
    said = json.loads(begin.data or "")
    assert said["found"] == doubt
    assert said["action"] == "charge"
    assert begin.keys.attempt_key == one.key(2)
    assert said["idempotency_key"] == one.key(2 if doubt == "none" else 1)
    assert said["dedupe_key"] == one.dedupe_key == begin.keys.idempotency_key
    assert [(row.outcome.idempotency_key, row.outcome.status, row.in_doubt) for row in begin.rows] == [
        *([(one.key(1), "unknown", True)] if found else []),
        (one.key(2), "unknown", False),
    ]


def test_an_unknown_outcome_that_the_log_has_is_not_logged_again() -> None:
    one = effect()
    found = {key: msgspec.structs.replace(row, unknown_at=1) for key, row in rows((1, "unknown"), of=one).items()}
    begin = decide(one, 2, found)
    assert begin == Begin(one, 2, "unknown")
    assert isinstance(begin, Begin)
    assert begin.data is None


def test_a_failure_without_a_later_attempt_stands() -> None:
    one = effect()
    found = decide(one, 2, rows((1, "failed"), of=one), lambda _: False, lost=True)
    assert isinstance(found, EffectOutcome)
    assert found.status == "failed"


def test_the_retry_after_a_failure_makes_the_effect_again_without_doubt() -> None:
    one = effect()
    assert decide(one, 2, rows((1, "failed"), of=one), lambda _: True) == Begin(one, 2, None)


def test_only_the_last_attempt_decides_about_doubt() -> None:
    one = effect()
    assert decide(one, 3, rows((1, "unknown"), (2, "failed"), of=one), lambda _: True) == Begin(one, 3, None)
    last = rows((1, "failed"), (2, "unknown"), of=one)
    assert decide(one, 3, last, lambda _: False) == Begin(one, 3, "unknown", last[one.key(2)])


async def test_a_response_round_trips() -> None:
    (row,) = succeeded(Begin(effect(), 1), {"id": [1, None]}, VAULT)
    assert isinstance(row, PutOutcome)
    assert row.outcome.response_hash is not None
    assert await read_response(row.outcome, VAULT) == {"id": [1, None]}


async def test_a_response_of_none_is_a_response() -> None:
    (row,) = succeeded(Begin(effect(), 1), None, VAULT)
    assert isinstance(row, PutOutcome)
    assert await read_response(row.outcome, VAULT) is None


async def test_a_success_without_a_response_is_never_mistaken_for_no_outcome() -> None:
    row = succeeded_without_response(Begin(effect(), 1))
    with pytest.raises(NonRetryable) as raised:
        await read_response(row.outcome, VAULT)
    assert raised.value.error_code == "invalid_effect_response"


async def test_a_recorded_failure_is_raised_with_its_original_kind() -> None:
    plain = failed(Begin(effect(), 1), ValueError("card\x00 declined"), VAULT)
    with pytest.raises(EffectFailed, match=r"card\\0 declined \(ValueError\)"):
        await read_response(plain.outcome, VAULT)
    final = failed(Begin(effect(), 1), NonRetryable("stolen", "card_stolen"), VAULT)
    with pytest.raises(NonRetryable, match="stolen") as raised:
        await read_response(final.outcome, VAULT)
    assert raised.value.error_code == "card_stolen"


async def test_a_failure_counts_once_the_task_was_retried_after_it() -> None:
    row = failed(Begin(effect(), 1), ValueError(), VAULT, version=2).outcome
    before = [transition(1, "expire"), transition(2, "retry")]
    assert not await is_counted(row, before, VAULT)
    assert not await is_counted(row, [*before, transition(3, "expire"), transition(4, "tool_call.unknown")], VAULT)
    assert await is_counted(row, [*before, transition(3, "retry")], VAULT)
    assert await is_counted(row, [*before, transition(3, "fail"), transition(4, "requeue")], VAULT)


class TransportError(Exception):
    """Named as in a well-known client."""


class StatusError(Exception):
    def __init__(self, status: int) -> None:
        self.response = type("Response", (), {"status_code": status})()


def http_error(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x", status, "said", Message(), None)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        ConnectionRefusedError(),
        OSError("odd"),
        EOFError(),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(),
        http.client.RemoteDisconnected(),
        http.client.IncompleteRead(b""),
        urllib.error.URLError("gone"),
        http_error(500),
        http_error(503),
        StatusError(502),
        EffectUnknown("who knows"),
        type("ReadError", (TransportError,), {})(),
        ZeroDivisionError(),
        ValueError("an answer that cannot be read"),
        KeyError("receipt"),
    ],
)
def test_exceptions_that_leave_the_outcome_unknown(error: BaseException) -> None:
    assert not is_definite(error)


@pytest.mark.parametrize("error", [NonRetryable("no"), EffectFailed("no"), http_error(402)])
def test_errors_that_the_author_declares_ambiguous_are_not_definite(error: BaseException) -> None:
    assert not is_definite(error, (type(error),))


@pytest.mark.parametrize(
    "error",
    [NonRetryable("no"), EffectFailed("no"), http_error(402), StatusError(422), type("Declined", (EffectFailed,), {})("no")],
)
def test_exceptions_that_prove_that_no_effect_was_made(error: BaseException) -> None:
    assert is_definite(error)


async def test_keys_are_available_only_while_the_effect_is_made() -> None:
    keys = Begin(effect(), 1).keys
    with pytest.raises(InvalidInput, match="No effect is in progress"):
        current_keys()
    with making(keys):
        assert current_keys() == keys
        assert await asyncio.to_thread(current_keys) == keys
    with pytest.raises(InvalidInput):
        current_keys()
