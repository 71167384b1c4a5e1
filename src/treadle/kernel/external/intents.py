"""Intents: the data stored in a task before its external job is submitted, and the callback tokens derived from it.

The service receives the token, and can find the job by it after a crash. The key, which signs callbacks, never leaves the store.
Each call of `start` is an effect with a row of its own (`submission_rows`), whose dedupe key is the token.
"""

from __future__ import annotations

import hashlib
import hmac

from treadle.kernel.store.records import PutOutcome
from treadle.model.errors import UnreadableValue
from treadle.model.ids import Ids
from treadle.model.records import EffectOutcome
from treadle.model.tasks import Task
from treadle.model.values import Json, decode, encode

INTENT = "@external"
"""The key of the intent in the task's checkpoint."""


def new_intent(ids: Ids, task: Task) -> dict[str, Json]:
    """Return an intent to submit the task's job at its current version."""
    token = ids.new_id()
    key = hashlib.sha256("".join(ids.new_id() for _ in range(4)).encode()).hexdigest()
    return {"token": token, "key": key, "version": task.version}


def submission_rows(task: Task, intent: dict[str, Json] | None, status: str) -> tuple[PutOutcome, ...]:
    """Return the row of a call of `start` that begins (`unknown`), or the rows of all calls under the token, which are resolved."""
    if intent is None:
        return ()
    begins, calls, token = status == "unknown", intent.get("calls", 0), intent["token"]
    rows = []
    for call in range(calls if begins else 1, calls + 1):
        key = hashlib.sha256(f"{token}/{call}".encode()).hexdigest()
        details = {"action": "start", "idempotency_key": key, "dedupe_key": token, "attempt": call, "found": status}
        outcome = EffectOutcome(
            idempotency_key=key,
            tool_call_id=token,
            status=status,
            root_id=task.root_id,
            task_id=task.id if begins else None,
            details=encode(details) if begins else None,
        )
        rows.append(PutOutcome(outcome))
    return tuple(rows)


def intent_of(task: Task) -> dict[str, Json] | None:
    """Return the task's intent, if it has one."""
    if task.checkpoint is None or not task.checkpoint.startswith("{"):
        return None
    try:
        found = decode(task.checkpoint).get(INTENT)
    except UnreadableValue:
        return None
    return found if isinstance(found, dict) else None


def without_key(checkpoint: Json) -> Json:
    """Return a task's checkpoint for display, without the key, which could sign callbacks."""
    if not isinstance(checkpoint, dict) or not isinstance(intent := checkpoint.get(INTENT), dict):
        return checkpoint
    return checkpoint | {INTENT: {name: value for name, value in intent.items() if name != "key"}}


def callback_token(task_id: str, intent: dict[str, Json]) -> str:
    """Return the token with which the service may resolve the job."""
    return f"{task_id}.{_signature(task_id, intent)}"


def is_signed(task_id: str, intent: dict[str, Json], signature: str) -> bool:
    """Return whether the signature of a callback token belongs to the intent."""
    return hmac.compare_digest(_signature(task_id, intent).encode(), signature.encode())


def _signature(task_id: str, intent: dict[str, Json]) -> str:
    signed = f"{task_id}.{intent['token']}".encode()
    return hmac.new(str(intent["key"]).encode(), signed, hashlib.sha256).hexdigest()
