"""Errors in the request: invalid input, unknown names and ids, transitions that the state table lacks."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.model.errors.base import TreadleError
from treadle.model.text import suggestion


class InvalidInput(TreadleError, ValueError, code="invalid_input"):
    """The caller's input cannot be used."""


class InvalidName(InvalidInput, code="invalid_name"):
    """A handler, list or namespace name with unsupported characters."""


class InvalidPayload(InvalidInput, code="invalid_payload"):
    """Not JSON, or JSON that the stores cannot round-trip."""


class PayloadTooLarge(InvalidInput, code="payload_too_large"):
    """Over the size limit."""


class InvalidPolicy(InvalidInput, code="invalid_policy"):
    """A retry policy, limit or duration outside its allowed range."""


class InvalidStoreUrl(InvalidInput, code="invalid_store_url"):
    """A store URL that does not name a store."""


class InvalidApproval(InvalidInput, code="invalid_approval"):
    """An approval request with invalid options."""


class InvalidFlow(InvalidInput, code="invalid_flow"):
    """AFL that does not compile; `diagnostics` has the places and the reasons."""

    def __init__(self, message: str, diagnostics: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics


class IdempotencyKeyReused(InvalidInput, code="idempotency_key_reused"):
    """The key was already used for a different request."""

    def __init__(self, key: str, entity: str | None = None, stored_id: str | None = None) -> None:
        """`stored_id` is the id of the task or run (`entity`) that the key identifies."""
        of = "" if stored_id is None else f", which created the {entity} {stored_id}"
        super().__init__(f"The key {key} was already used for a different request{of}; use a new key for a new request.")
        self.key, self.stored_id = key, stored_id


class InvalidSchedule(InvalidInput, code="invalid_schedule"):
    """An invalid cron line, time zone, interval or policy of a schedule."""


class InvalidWatcher(InvalidInput, code="invalid_watcher"):
    """An invalid path, address or option of a watcher."""


class InvalidAlert(InvalidInput, code="invalid_alert"):
    """An invalid condition, target or option of an alert rule."""


class InvalidPlan(InvalidInput, code="invalid_plan"):
    """A declarative plan with invalid steps."""


class InvalidTag(InvalidInput, code="invalid_tag"):
    """A tag with an invalid key or value, or too many tags."""


class InvalidQuery(InvalidInput, code="invalid_query"):
    """A query that cannot be parsed; `position` is the index of the wrong character, `problem` the message without the query."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        at = "the end" if position >= len(text) else f"character {position + 1} (`{text[position : position + 20]}`)"
        super().__init__(f"The query is not valid at {at}: {problem}")
        self.position, self.problem = position, problem


class AmbiguousId(InvalidInput, code="ambiguous_id"):
    """The beginning of several ids, where one is needed."""

    def __init__(self, what: str, prefix: str, candidates: list[str], *, more: bool = False) -> None:
        """`candidates` are ids that begin with the prefix; `more` if there are others."""
        ids = f": {', '.join([*candidates, *(['...'] if more else [])])}" if candidates else ""
        super().__init__(f"The ids of several {what}s begin with {prefix}; give more characters{ids}.")
        self.candidates = candidates


class MisusedContext(InvalidInput, code="misused_context"):
    """A `ctx` operation called where it is not available."""


class NotFound(TreadleError, LookupError, code="not_found"):
    """The named entity does not exist."""


_NOT_FOUND = {
    "alert_rule": "There is no alert rule {!r}; `treadle alerts list` shows the existing ones.",
    "approval": "There is no approval {}; `treadle approvals list` shows the pending ones.",
    "external_job": "There is no external job {}; `treadle external list --all` shows the existing ones.",
    "flow": "There is no flow {}; `treadle flows list` shows the published ones.",
    "function": "No durable function {} is known; `treadle functions list` shows the known ones.",
    "handler": "There is no registration for {}; `treadle handlers list` shows the existing ones.",
    "namespace": "The directory does not list a namespace {!r}; `treadle namespaces list` shows the existing ones.",
    "parameters": "No worker has registered the parameters of {}.",
    "schedule": "There is no schedule {!r}; `treadle schedules list` shows the existing ones.",
    "server": "There is no worker {}; `treadle workers` shows the existing ones.",
    "step": "There is no step {}; `treadle runs show` lists the steps of a run.",
    "token": "There is no token {!r}; `treadle token list --all` shows the existing ones.",
    "trace": "Nothing has the id or trace id {!r}; it may have been pruned.",
    "watcher": "There is no watcher {!r}; `treadle watchers list` shows the existing ones.",
    "worker": "There is no remote worker {}, or it has left; register again.",
}


def not_found(kind: str, name: str, known: Iterable[str] = ()) -> NotFound:
    """Return the error that nothing of a kind has an id or a name; its code is that of the kind, such as `step_not_found`.

    It suggests one of the `known` names if that is similar.
    """
    text = _NOT_FOUND[kind].format(name)
    near = suggestion(name, known)
    return NotFound(f"{text.removesuffix('.')}{near}" if near else text, code=f"{kind}_not_found")


class TaskNotFound(NotFound, code="task_not_found"):
    def __init__(self, task_id: str, what: str = "task") -> None:
        super().__init__(f"There is no {what} {task_id}. It may have been pruned; `treadle tasks list` shows the existing ones.")
        self.task_id = task_id


class RunNotFound(NotFound, code="run_not_found"):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"There is no run {run_id}. It may have been pruned; `treadle runs list` shows the existing ones.")
        self.run_id = run_id


_ACTS = {
    "cancel": "cancel",
    "pause": "pause",
    "resume": "resume",
    "requeue": "retry",
    "retry": "retry",
    "discard": "discard",
    "approve": "approve",
    "deny": "deny",
}
"""Transitions that operators make, by their command-line names; the engine makes all others."""


class IllegalTransition(TreadleError, code="illegal_transition"):
    """The state table has no such transition from the current state."""

    def __init__(self, entity: str, entity_id: str, state: str, transition: str, possible: tuple[str, ...] = ()) -> None:
        engines_own = "retry" if entity == "task" else None  # made by a failed attempt; operators requeue
        acts = dict.fromkeys(_ACTS[action] for action in possible if action in _ACTS and action not in (transition, engines_own))
        can = f" Possible now: {', '.join(acts)}." if acts else " That state is final."
        super().__init__(f"The {entity} {entity_id} is {state}; {_ACTS.get(transition, transition)} is not possible.{can}")
        self.entity, self.entity_id, self.state, self.transition = entity, entity_id, state, transition
