"""Intents: what a task says of its outside job before that is submitted, and the call-back tokens made from it.

The token is what the service is told, and asked for after a crash. The key never leaves the store: with it the call-back is signed.
"""

from __future__ import annotations

import hashlib
import hmac

from treadle.model.ids import Ids
from treadle.model.tasks import Task
from treadle.model.values import Json, decode

INTENT = "@external"
"""Where it stands in the task's checkpoint."""


def new_intent(ids: Ids, task: Task) -> dict[str, Json]:
    """An intent to submit the job of the task as it is now."""
    token = ids.new_id()
    key = hashlib.sha256("".join(ids.new_id() for _ in range(4)).encode()).hexdigest()
    return {"token": token, "key": key, "version": task.version}


def intent_of(task: Task) -> dict[str, Json] | None:
    """The intent that the task has, if there is one."""
    if task.checkpoint is None or not task.checkpoint.startswith("{"):
        return None
    found = decode(task.checkpoint).get(INTENT)
    return found if isinstance(found, dict) else None


def without_key(checkpoint: Json) -> Json:
    """A task's checkpoint as it may be shown: who knows the key can sign call-backs."""
    if not isinstance(checkpoint, dict) or not isinstance(intent := checkpoint.get(INTENT), dict):
        return checkpoint
    return checkpoint | {INTENT: {name: value for name, value in intent.items() if name != "key"}}


def callback_token(task_id: str, intent: dict[str, Json]) -> str:
    """With this the service may resolve the job."""
    return f"{task_id}.{_signature(task_id, intent)}"


def is_signed(task_id: str, intent: dict[str, Json], signature: str) -> bool:
    """Whether the signature of a call-back token is that of the intent."""
    return hmac.compare_digest(_signature(task_id, intent).encode(), signature.encode())


def _signature(task_id: str, intent: dict[str, Json]) -> str:
    said = f"{task_id}.{intent['token']}".encode()
    return hmac.new(str(intent["key"]).encode(), said, hashlib.sha256).hexdigest()
