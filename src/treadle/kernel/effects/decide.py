"""Effects: calls to the outside world, made once as far as that can be known. Pure decisions, and the rows to commit.

The row of an effect is `unknown` before the call and holds its outcome after it. A later attempt reads the rows of the
attempts before: a recorded outcome is used, and the effect is not made again. No row, or `unknown`, means that the outcome is
unknown: the effect is made under the key of the new attempt. Success is never assumed because no failure is known.

The log records `tool_call.unknown` when an outcome becomes unknown: the worker logs it after an error that proves nothing, the
store when the claim ends during the effect (`PutOutcome`).

The rows go into units under the claim of the task, alone or with other checkpoints. An effect that is part of the same
transaction as the end of its step needs no row before; all others do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from treadle.kernel.store.records import PutOutcome
from treadle.kernel.store.units import PutBlob
from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import EffectFailed, EffectUnknown, InvalidInput, NonRetryable, UnreadableValue
from treadle.model.ids import derived_id
from treadle.model.names import check_key
from treadle.model.records import EffectOutcome
from treadle.model.tasks import Transition
from treadle.model.values import Json, decode, encode, error_code, error_text, shown, type_name

UNKNOWN = "tool_call.unknown"
"""The transition of a task that may or may not have made an effect."""

ASK, FAIL, REPEAT = "ask", "fail", "repeat"
"""The reactions to an unknown outcome."""

SUCCEEDED, FAILED, UNRESOLVED = "succeeded", "failed", "unknown"

RESPONSE_LIMIT = 64 * 1024 * 1024
_MESSAGE_LIMIT = 16 * 1024
_COUNTING_TRANSITIONS = ("retry", "requeue")


class EffectKeys(msgspec.Struct, frozen=True):
    """The keys of an effect in progress: `attempt_key` is new for each attempt, `idempotency_key` is not (D78)."""

    action: str
    attempt_key: str
    idempotency_key: str


class Effect(msgspec.Struct, frozen=True):
    """One effect of a task or of its step, across attempts."""

    task_id: str
    step_id: str | None
    root_id: str
    action: str
    request_hash: str
    held_by: str | None = None
    """The task whose claim covers it, if it is not `task_id`."""

    @classmethod
    def of(
        cls,
        task_id: str,
        step_id: str | None,
        root_id: str,
        action: str,
        request: Json = None,
        *,
        key: str | None = None,
        ordinal: int = 1,
        held_by: str | None = None,
    ) -> Effect:
        """The effect of an action with a request (any JSON).

        A `key` is hashed with the request; `ordinal` distinguishes identical requests. `task_id` is the id of the run for an
        effect of a function, whose task is `held_by`.
        """
        check_key(action, "action")
        parts: dict[str, Json] = {"request": request}
        if key is not None:
            parts["key"] = check_key(key, "effect key")
        if ordinal > 1:
            parts["ordinal"] = ordinal
        return cls(task_id, step_id, root_id, action, stable_hash(parts, "request"), held_by)

    def key(self, attempt: int) -> str:
        """The key of that attempt: sha256 of (task id, step id, attempt, action, request hash)."""
        return _digest([self.task_id, self.step_id, attempt, self.action, self.request_hash])

    def keys(self, attempt: int) -> list[str]:
        """The keys of this attempt and of all before, newest first."""
        return [self.key(number) for number in range(attempt, 0, -1)]

    @property
    def dedupe_key(self) -> str:
        """The key that all attempts share, on which an external service can deduplicate."""
        return _digest([self.task_id, self.step_id, self.action, self.request_hash])

    @property
    def tool_call_id(self) -> str:
        """The id of the call in the table, the same for all attempts."""
        return derived_id(self.task_id, f"effect/{self.dedupe_key}")


class Begin(msgspec.Struct, frozen=True):
    """The effect is to be made, under the key of this attempt."""

    effect: Effect
    attempt: int
    in_doubt: str | None = None
    """Why an earlier outcome is unknown: a lost attempt left `unknown` or `none`."""
    unlogged: EffectOutcome | None = None
    """The row of an earlier attempt that is unknown, while the log does not have it yet."""

    @property
    def keys(self) -> EffectKeys:
        """The keys for the callable while it runs."""
        return EffectKeys(self.effect.action, self.effect.key(self.attempt), self.effect.dedupe_key)

    @property
    def rows(self) -> tuple[PutOutcome, ...]:
        """The rows to commit before the effect."""
        begun = PutOutcome(_outcome(self.effect, self.attempt, UNRESOLVED))
        return (begun,) if self.unlogged is None else (PutOutcome(self.unlogged, in_doubt=True), begun)

    @property
    def data(self) -> str | None:
        """The data of the transition `UNKNOWN` to log before the effect: of an earlier attempt, or of this one if none has a
        row."""
        if self.unlogged is not None:
            return self.unlogged.details or _details(self.effect, self.attempt - 1, UNRESOLVED)
        return _details(self.effect, self.attempt, "none") if self.in_doubt == "none" else None

    @property
    def unknown(self) -> tuple[str, PutOutcome]:
        """The data of the transition `UNKNOWN` after the effect, and the row to commit with it."""
        outcome = _outcome(self.effect, self.attempt, UNRESOLVED)
        assert outcome.details is not None
        return outcome.details, PutOutcome(outcome, in_doubt=True)


def _details(effect: Effect, attempt: int, outcome: str) -> str:
    return encode(
        {
            "action": effect.action,
            "tool_call_id": effect.tool_call_id,
            "idempotency_key": effect.key(attempt),
            "dedupe_key": effect.dedupe_key,
            "attempt": attempt,
            "found": outcome,
        }
    )


def decide(
    effect: Effect,
    attempt: int,
    found: Mapping[str, EffectOutcome],
    counted: Callable[[EffectOutcome], bool] = lambda _: True,
    *,
    lost: bool = False,
) -> EffectOutcome | Begin:
    """Decide whether to make the effect, from the rows `found` under its `keys`.

    `counted` reports that a recorded failure was already acted upon: then this is the retry, which makes the effect again.
    `lost` reports that the previous attempt ended without a settlement: its outcome is unknown even without a row.
    """
    last = last_attempt(effect, attempt, found)
    keys = effect.keys(last)
    rows = [found[key] for key in keys if key in found]
    for row in rows:
        if row.status == SUCCEEDED:
            return row
    number = last + 1 if keys[0] in found else last
    if rows and rows[0].status == FAILED:
        return Begin(effect, number) if counted(rows[0]) else rows[0]
    unlogged = rows[0] if rows and rows[0].unknown_at is None else None
    return Begin(effect, number, UNRESOLVED if rows else "none" if lost else None, unlogged)


def last_attempt(effect: Effect, attempt: int, found: Mapping[str, EffectOutcome]) -> int:
    """The last attempt at the effect by the rows found, at least the task's `attempt`.

    An attempt at the task may make several at the effect: after `Waiting`, an approval, or an error that the handler caught.
    The numbers above the task's follow each other without a gap.
    """
    while effect.key(attempt + 1) in found:
        attempt += 1
    return attempt


def succeeded(begin: Begin, response: Json, value_store: ValueStore) -> tuple[PutOutcome | PutBlob, ...]:
    """The rows of a successful effect with its response; raises `InvalidPayload` for a response that is not JSON."""
    text, blobs = value_store.pack({"response": response}, begin.effect.root_id, "response", RESPONSE_LIMIT)
    outcome = _outcome(begin.effect, begin.attempt, SUCCEEDED, text, stable_hash(response, "response"))
    return (PutOutcome(outcome), *blobs)


def succeeded_without_response(begin: Begin) -> PutOutcome:
    """The row of a successful effect with an unstorable response."""
    return PutOutcome(_outcome(begin.effect, begin.attempt, SUCCEEDED))


def failed(begin: Begin, error: BaseException, value_store: ValueStore, version: int = 0) -> PutOutcome:
    """The row of an effect that was not made; `version` is the task's number of transitions when it began."""
    problem: dict[str, Json] = {
        "type": type_name(error),
        "message": error_text(error)[:_MESSAGE_LIMIT],
        "retryable": not isinstance(error, NonRetryable),
        "code": error_code(error, "") or None,
    }
    text, _ = value_store.pack({"error": problem, "version": version}, begin.effect.root_id, "error", RESPONSE_LIMIT)
    return PutOutcome(_outcome(begin.effect, begin.attempt, FAILED, text, stable_hash(problem, "error")))


async def read_response(outcome: EffectOutcome, value_store: ValueStore) -> Json:
    """The response of the effect; a failed one raises `EffectFailed`, or `NonRetryable` if it was that."""
    stored = check_response(outcome, await value_store.unpack(outcome.response))
    if outcome.status == SUCCEEDED:
        if outcome.response is None:
            raise no_response()
        return stored["response"]
    error = stored.get("error") or {}
    message = f"The effect failed: {error.get('message', 'the reason was not recorded')} ({error.get('type', 'error')})"
    if not error.get("retryable", True):
        raise NonRetryable(message, error.get("code"))
    raise EffectFailed(message)


def check_response(outcome: EffectOutcome, stored: dict[str, Json]) -> dict[str, Json]:
    """Return the outcome's stored response; raises `UnreadableValue` unless it has the shape of one."""
    if outcome.status == SUCCEEDED:
        shaped = outcome.response is None or "response" in stored
    else:
        error = stored.get("error") or {}
        shaped = isinstance(error, dict) and isinstance(error.get("code"), str | None) and type(stored.get("version", 0)) is int
    if not shaped:
        raise UnreadableValue("The stored outcome of an effect cannot be read. It is damaged, or a newer version wrote it.")
    return stored


def no_response(cause: InvalidInput | None = None) -> NonRetryable:
    """The error for an effect that was made but whose response was not stored: neither repeating nor continuing would be right."""
    reason = "its response cannot be stored: it is not JSON, or too large."
    if cause is not None:
        reason = f"its response cannot be stored. {cause}"
    return NonRetryable(f"The effect was made, but {reason}", "invalid_effect_response")


class UnrepeatedEffect(NonRetryable, EffectUnknown, code=EffectUnknown.code):
    """The outcome is unknown, and the effect must not be repeated without a person's decision."""


def unrepeated(action: str, command: str, cause: str) -> UnrepeatedEffect:
    """The error of an effect with `on_unknown="fail"`, or of one that a person decided not to repeat; `command` lists it."""
    return UnrepeatedEffect(
        f"It is unknown whether the effect {action} happened: {cause} It is not repeated. Look it up at its service with the "
        f"dedupe key that `{command}` shows."
    )


def check_reaction(on_unknown: object, *allowed: str) -> str:
    """Return the reaction to an unknown outcome, or raise `InvalidInput`."""
    if isinstance(on_unknown, str) and on_unknown in allowed:
        return on_unknown
    raise InvalidInput(f"on_unknown is one of {', '.join(allowed)}, not {shown(on_unknown)}.")


def is_requeued(transitions: Sequence[Transition]) -> bool:
    """Whether an operator retried the task after an outcome became unknown: that decides to repeat the effect."""
    last = next(
        (transition.transition for transition in reversed(transitions) if transition.transition in (UNKNOWN, "requeue")), UNKNOWN
    )
    return last == "requeue"


async def is_counted(outcome: EffectOutcome, transitions: Sequence[Transition], value_store: ValueStore) -> bool:
    """Whether the recorded failure was acted upon: the task was retried afterwards, by policy or by an operator."""
    version = check_response(outcome, await value_store.unpack(outcome.response)).get("version", 0)
    return any(transition.version > version and transition.transition in _COUNTING_TRANSITIONS for transition in transitions)


def is_definite(error: BaseException, unknown: tuple[type[BaseException], ...] = ()) -> bool:
    """Whether the exception proves that the effect was not made: `EffectFailed`, `NonRetryable`, or an HTTP status below 500.

    Any other exception may come after the effect (timeout, broken connection, unreadable response), as may those of the types
    in `unknown`.
    """
    if isinstance(error, (EffectUnknown, *unknown)):
        return False
    status = _http_status(error)
    return status < 500 if status is not None else isinstance(error, EffectFailed | NonRetryable)


def _http_status(error: BaseException) -> int | None:
    """The HTTP status that the exception carries, as the common HTTP clients store it."""
    try:
        places = (error, "code"), (error, "status"), (getattr(error, "response", None), "status_code")
        statuses = [getattr(place, name, None) for place, name in places]
    except Exception:  # properties of the exception may raise anything
        return None
    return next((status for status in statuses if type(status) is int and 300 <= status < 600), None)


def stable_hash(value: Json, what: str) -> str:
    """sha256 of the value as canonical JSON: sorted keys, no spaces."""
    return _digest(decode(encode(value, what, RESPONSE_LIMIT)))


def _digest(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _outcome(
    effect: Effect, attempt: int, status: str, response: str | None = None, response_hash: str | None = None
) -> EffectOutcome:
    return EffectOutcome(
        idempotency_key=effect.key(attempt),
        tool_call_id=effect.tool_call_id,
        status=status,
        response=response,
        response_hash=response_hash,
        root_id=effect.root_id,
        task_id=effect.held_by or effect.task_id,
        details=_details(effect, attempt, UNRESOLVED),
    )


# --- the keys of the effect in progress ---

_current: ContextVar[EffectKeys | None] = ContextVar("treadle_effect", default=None)


@contextmanager
def making(keys: EffectKeys) -> Iterator[None]:
    """Make these the `current_keys()` of this coroutine or thread, and of code started from it by `asyncio.to_thread`."""
    token = _current.set(keys)
    try:
        yield
    finally:
        _current.reset(token)


def current_keys() -> EffectKeys:
    """The keys of the effect in progress; raises `InvalidInput` outside of one."""
    keys = _current.get()
    if keys is None:
        raise InvalidInput("No effect is in progress: the keys exist only while the function of `ctx.effect(...)` runs.")
    return keys
