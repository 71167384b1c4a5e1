"""Errors in the request: invalid input, unknown names and ids, moves that the state table lacks."""

from __future__ import annotations

from treadle.model.errors.base import TreadleError


class InvalidInput(TreadleError, ValueError):
    code = "invalid_input"


class InvalidName(InvalidInput):
    code = "invalid_name"


class InvalidPayload(InvalidInput):
    code = "invalid_payload"


class PayloadTooLarge(InvalidInput):
    code = "payload_too_large"


class InvalidPolicy(InvalidInput):
    code = "invalid_policy"


class InvalidStoreUrl(InvalidInput):
    code = "invalid_store_url"


class InvalidApproval(InvalidInput):
    code = "invalid_approval"


class InvalidFlow(InvalidInput):
    """AFL that does not compile; `diagnostics` has the places and the reasons."""

    code = "invalid_flow"

    def __init__(self, message: str, diagnostics: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics


class IdempotencyKeyReused(InvalidInput):
    code = "idempotency_key_reused"

    def __init__(self, key: str, entity: str | None = None, stored_id: str | None = None) -> None:
        """`stored_id` is the id of the task or run (`entity`) that the key identifies."""
        of = "" if stored_id is None else f", which created the {entity} {stored_id}"
        super().__init__(f"The key {key} was already used for a different request{of}; use a new key for a new request.")
        self.key, self.stored_id = key, stored_id


class InvalidSchedule(InvalidInput):
    code = "invalid_schedule"


class InvalidWatcher(InvalidInput):
    code = "invalid_watcher"


class InvalidAlert(InvalidInput):
    code = "invalid_alert"


class InvalidInputs(InvalidInput):
    code = "invalid_inputs"


class InvalidPlan(InvalidInput):
    code = "invalid_plan"


class InvalidTag(InvalidInput):
    code = "invalid_tag"


class InvalidQuery(InvalidInput):
    """A query that cannot be parsed; `position` is the index of the wrong character, `problem` the message without the query."""

    code = "invalid_query"

    def __init__(self, text: str, position: int, problem: str) -> None:
        at = "the end" if position >= len(text) else f"character {position + 1} (`{text[position : position + 20]}`)"
        super().__init__(f"The query is not valid at {at}: {problem}")
        self.position, self.problem = position, problem


class AmbiguousId(InvalidInput):
    code = "ambiguous_id"

    def __init__(self, what: str, prefix: str, candidates: list[str], *, more: bool = False) -> None:
        """`candidates` are ids that begin with the prefix; `more` if there are others."""
        ids = f": {', '.join([*candidates, *(['...'] if more else [])])}" if candidates else ""
        super().__init__(f"The ids of several {what}s begin with {prefix}; give more characters{ids}.")
        self.candidates = candidates


class RepeatedKey(InvalidInput):
    code = "repeated_key"


class MisusedContext(InvalidInput):
    code = "misused_context"


class NotFound(TreadleError, LookupError):
    code = "not_found"


class TaskNotFound(NotFound):
    code = "task_not_found"

    def __init__(self, task_id: str, what: str = "task") -> None:
        super().__init__(f"There is no {what} {task_id}. It may have been pruned; `treadle tasks list` shows the existing ones.")
        self.task_id = task_id


class RunNotFound(NotFound):
    code = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"There is no run {run_id}. It may have been pruned; `treadle runs list` shows the existing ones.")
        self.run_id = run_id


class NothingPublished(NotFound):
    code = "nothing_published"

    def __init__(self, run_id: str, name: str, published: list[str]) -> None:
        known = f"It has published {', '.join(published)}." if published else "It has published nothing."
        super().__init__(f"The function of the run {run_id} has not called `ctx.publish({name!r}, ...)`. {known}")
        self.run_id, self.name = run_id, name


class StreamNotFound(NotFound):
    code = "stream_not_found"

    def __init__(self, work_id: str, name: str, written: list[str]) -> None:
        known = f"It has written {', '.join(written)}." if written else "It has written no streams."
        super().__init__(f"There is no stream {name!r} of {work_id}, which has ended. {known}")
        self.name = name


class ScheduleNotFound(NotFound):
    code = "schedule_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no schedule {name!r}; `treadle schedules list` shows the existing ones.")
        self.name = name


class WatcherNotFound(NotFound):
    code = "watcher_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no watcher {name!r}; `treadle watchers list` shows the existing ones.")
        self.name = name


class AlertRuleNotFound(NotFound):
    code = "alert_rule_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no alert rule {name!r}; `treadle alerts list` shows the existing ones.")
        self.name = name


class TraceNotFound(NotFound):
    code = "trace_not_found"

    def __init__(self, any_id: str) -> None:
        super().__init__(f"Nothing has the id or trace id {any_id!r}; it may have been pruned.")


class StepNotFound(NotFound):
    code = "step_not_found"

    def __init__(self, step_id: str) -> None:
        super().__init__(f"There is no step {step_id}; `treadle runs show` lists the steps of a run.")
        self.step_id = step_id


class FlowNotFound(NotFound):
    code = "flow_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no flow {name}; `treadle flows list` shows the published ones.")
        self.name = name


class ApprovalNotFound(NotFound):
    code = "approval_not_found"

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"There is no approval {approval_id}; `treadle approvals list` shows the pending ones.")
        self.approval_id = approval_id


class ExternalJobNotFound(NotFound):
    code = "external_job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"There is no external job {job_id}; `treadle external list --all` shows the existing ones.")
        self.job_id = job_id


class TokenNotFound(NotFound):
    code = "token_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no token {name!r}; `treadle token list --all` shows the existing ones.")
        self.name = name


class NamespaceNotFound(NotFound):
    code = "namespace_not_found"

    def __init__(self, namespace: str) -> None:
        super().__init__(
            f"The directory does not list a namespace {namespace!r}; `treadle namespaces list` shows the existing ones."
        )
        self.namespace = namespace


class ServerNotFound(NotFound):
    code = "server_not_found"

    def __init__(self, server_id: str) -> None:
        super().__init__(f"There is no server {server_id}; `treadle servers` shows the existing ones.")
        self.server_id = server_id


class HandlerNotFound(NotFound):
    code = "handler_not_found"

    def __init__(self, facet: str) -> None:
        super().__init__(f"There is no registration for {facet}; `treadle handlers list` shows the existing ones.")
        self.facet = facet


class WorkflowNotFound(NotFound):
    code = "workflow_not_found"


class NothingMatches(NotFound):
    code = "nothing_matches"


class ListNotFound(NotFound):
    code = "list_not_found"

    def __init__(self, task_list: str, known: tuple[str, ...]) -> None:
        super().__init__(f"There is no task list {task_list}; the existing ones are: {', '.join(known)}.")
        self.task_list, self.known = task_list, known


class FunctionNotFound(NotFound):
    code = "function_not_found"

    def __init__(self, name: str, version: int | None = None) -> None:
        which = name if version is None else f"{name}@{version}"
        super().__init__(f"No durable function {which} is known; `treadle functions list` shows the known ones.")
        self.name, self.version = name, version


class WorkerNotFound(NotFound):
    code = "worker_not_found"

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"There is no remote worker {worker_id}, or it has left; register again.")
        self.worker_id = worker_id


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
"""Moves that operators make, by their command-line names; the engine makes all others."""


class IllegalMove(TreadleError):
    code = "illegal_move"

    def __init__(self, entity: str, entity_id: str, state: str, move: str, possible: tuple[str, ...] = ()) -> None:
        engines_own = "retry" if entity == "task" else None  # made by a failed attempt; operators requeue
        acts = dict.fromkeys(_ACTS[each] for each in possible if each in _ACTS and each not in (move, engines_own))
        can = f" Possible now: {', '.join(acts)}." if acts else " That state is final."
        super().__init__(f"The {entity} {entity_id} is {state}; {_ACTS.get(move, move)} is not possible.{can}")
        self.entity, self.entity_id, self.state, self.move = entity, entity_id, state, move
