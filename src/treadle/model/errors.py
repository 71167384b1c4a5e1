"""Every error that Treadle raises on purpose, in one tree, each with a stable code.

    TreadleError
    ├── InvalidInput            what the caller gave cannot be used
    │   ├── InvalidName         a handler, list or namespace name with odd characters
    │   ├── InvalidPayload      not JSON, or JSON that the stores cannot keep alike
    │   ├── PayloadTooLarge     over the size limit
    │   ├── InvalidPolicy       a retry policy, limit or duration that makes no sense
    │   ├── InvalidStoreUrl     a store URL that names no store
    │   ├── InvalidApproval     a question to people that cannot be asked so
    │   ├── InvalidFlow         AFL that does not compile; carries the diagnostics
    │   ├── InvalidSchedule     a cron line, time zone, interval or policy of a schedule that makes no sense
    │   ├── InvalidWatcher      a path, address or option of a watcher that makes no sense
    │   ├── InvalidInputs       what a workflow was given does not fit its parameters
    │   ├── InvalidPlan         a declarative plan whose steps make no sense
    │   ├── IdempotencyKeyReused  the same key came with another request
    │   ├── RepeatedKey         an explicit key that a function has given to two steps
    │   └── MisusedContext      an operation of a function's ctx where it cannot be done
    ├── NotFound                no such thing
    │   ├── TaskNotFound
    │   ├── RunNotFound
    │   ├── StepNotFound
    │   ├── ScheduleNotFound
    │   ├── WatcherNotFound
    │   ├── FlowNotFound
    │   ├── WorkflowNotFound    the flow has no such workflow
    │   ├── ApprovalNotFound
    │   ├── ExternalJobNotFound
    │   ├── ListNotFound        a task list that nobody has named
    │   ├── TokenNotFound
    │   ├── ServerNotFound      no such server, or it was stopped long ago
    │   ├── HandlerNotFound     no registration for that facet
    │   ├── FunctionNotFound    no durable function of that name is known
    │   ├── WorkerNotFound      no such outside worker, or it has left
    │   └── NothingMatches      a filter for bulk work that fits nothing
    ├── IllegalMove             the state table has no such move from here
    ├── Refused                 it could be done, but a rule of the operator forbids it now
    │   ├── BacklogFull         the lane's cap on waiting tasks is reached
    │   ├── ListDraining        the task list takes no new work
    │   ├── KeyTaken            a task of another list has the key, and the token is not for that list
    │   ├── RetriesUsedUp       the task's retry policy allows no further attempt
    │   ├── MayNotDecide        somebody who may not decide the approval
    │   ├── AlreadyDecided      the approval is not pending any more
    │   ├── AlreadyVoted        the same person decides a second time
    │   ├── DecidedTooLate      the time to decide has passed
    │   ├── EditsNotAllowed     the approval's context may not be changed by who approves
    │   ├── CallbackRefused     a call-back with a token that no job was given
    │   │   └── CallbackTooEarly  the job of a call-back is not recorded yet; it may be sent again
    │   ├── ExternalAlreadyResolved  the outside job has ended
    │   ├── PollNotSupported    a job is handed off that nobody could poll
    │   ├── RequestInProgress   a request with the same idempotency key is being carried out
    │   ├── HandlerExists       two handlers of one name in one process
    │   ├── ScheduleExists      there is a schedule of that name
    │   ├── TokenExists         there is a token of that name
    │   └── WatcherExists       there is a watcher of that name
    ├── Unauthorized            no valid token or session was shown; the message never says why, `reason` does
    ├── Forbidden               the token has not the scope that this needs
    │   ├── ListForbidden       the token is for other task lists
    │   ├── RestrictedToken     the token is for some task lists, and this is about more than one
    │   └── WatchForbidden      only administrators may have that place watched
    ├── TooManyAttempts         too many failed logins; carries when to try again
    ├── ClaimLost               the claim is no longer held; whatever was to be written was not
    ├── TaskFailed              raised to a caller who waits for the result of a task that failed
    ├── TaskCanceled            raised to a caller who waits for the result of a task that was canceled
    ├── TaskIgnored             raised to a caller who waits for the result of a task that was ignored
    ├── RunFailed               raised to a caller who waits for the outputs of a run that failed
    ├── RunCanceled             raised to a caller who waits for the outputs of a run that was canceled
    ├── StepFailed              raised in a durable function whose step failed for good
    ├── SignalTimeout           raised in a durable function whose signal did not come in time
    ├── ApprovalDenied          raised in a durable function whose question was answered with no
    ├── ApprovalExpired         raised in a durable function whose question nobody answered in time
    ├── TooManySteps            raised in a durable function that has reached its cap on steps


    ├── LookFailed              a watcher cannot look at what it watches
    ├── NonRetryable            raised by handlers: this attempt failed and no retry can help
    ├── EffectFailed            raised to handlers: the effect was not made, as is known from an attempt that was lost
    ├── EffectUnknown           raised by effects: nobody can say whether it was made
    └── StoreError              the database, not the caller
        ├── StoreUnavailable    cannot be reached now; retrying later may help
        │   └── TooManyWaiting  a server has as many who wait as it may; carries when to try again
        ├── StoreReadOnly       it can be read, but not written
        ├── StoreBusy           another process holds the file locked
        ├── StoreFull           no space left for the database
        ├── StoreUnsafe         a place where the database cannot keep its promises
        ├── SchemaTooNew        written by a newer Treadle
        ├── SchemaBehind        needs `treadle store migrate`
        ├── MissingDependency   an optional package is not installed
        └── Unsupported         this store cannot keep that promise

Messages say what happened and what to do. Interfaces map codes; nothing here knows of HTTP.
"""

from __future__ import annotations

from typing import ClassVar


class TreadleError(Exception):
    """Base of all errors that Treadle raises on purpose; `code` is stable, the message is for people."""

    code: ClassVar[str] = "error"


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
    """AFL that does not compile; `diagnostics` says where and why."""

    code = "invalid_flow"

    def __init__(self, message: str, diagnostics: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics


class IdempotencyKeyReused(InvalidInput):
    code = "idempotency_key_reused"

    def __init__(self, key: str) -> None:
        super().__init__(f"The key {key} came with another request before; a key stands for one request for a week.")
        self.key = key


class InvalidSchedule(InvalidInput):
    code = "invalid_schedule"


class InvalidWatcher(InvalidInput):
    code = "invalid_watcher"


class InvalidInputs(InvalidInput):
    code = "invalid_inputs"


class InvalidPlan(InvalidInput):
    code = "invalid_plan"


class RepeatedKey(InvalidInput):
    code = "repeated_key"


class MisusedContext(InvalidInput):
    code = "misused_context"


class NotFound(TreadleError, LookupError):
    code = "not_found"


class TaskNotFound(NotFound):
    code = "task_not_found"

    def __init__(self, task_id: str, what: str = "task") -> None:
        super().__init__(f"There is no {what} {task_id}. It may have been pruned; `treadle tasks list` shows what there is.")
        self.task_id = task_id


class RunNotFound(NotFound):
    code = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"There is no run {run_id}. It may have been pruned; `treadle runs list` shows what there is.")
        self.run_id = run_id


class ScheduleNotFound(NotFound):
    code = "schedule_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no schedule {name!r}; `treadle schedules list` shows what there is.")
        self.name = name


class WatcherNotFound(NotFound):
    code = "watcher_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no watcher {name!r}; `treadle watchers list` shows what there is.")
        self.name = name


class StepNotFound(NotFound):
    code = "step_not_found"

    def __init__(self, step_id: str) -> None:
        super().__init__(f"There is no step {step_id}; `treadle runs show` lists the steps of a run.")
        self.step_id = step_id


class FlowNotFound(NotFound):
    code = "flow_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no flow {name}; `treadle flows list` shows what is published.")
        self.name = name


class ApprovalNotFound(NotFound):
    code = "approval_not_found"

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"There is no approval {approval_id}; `treadle approvals list` shows what waits for a decision.")
        self.approval_id = approval_id


class ExternalJobNotFound(NotFound):
    code = "external_job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"There is no outside job {job_id}; `treadle external list --all` shows those that there are.")
        self.job_id = job_id


class TokenNotFound(NotFound):
    code = "token_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no token {name!r}; `treadle token list --all` shows what there is.")
        self.name = name


class ServerNotFound(NotFound):
    code = "server_not_found"

    def __init__(self, server_id: str) -> None:
        super().__init__(f"There is no server {server_id}; `treadle servers` shows those that there are.")
        self.server_id = server_id


class HandlerNotFound(NotFound):
    code = "handler_not_found"

    def __init__(self, facet: str) -> None:
        super().__init__(f"There is no registration for {facet}; `treadle handlers list` shows what there is.")
        self.facet = facet


class WorkflowNotFound(NotFound):
    code = "workflow_not_found"


class NothingMatches(NotFound):
    code = "nothing_matches"


class ListNotFound(NotFound):
    code = "list_not_found"

    def __init__(self, task_list: str, known: tuple[str, ...]) -> None:
        super().__init__(f"There is no task list {task_list}; there are: {', '.join(known)}.")
        self.task_list, self.known = task_list, known


class FunctionNotFound(NotFound):
    code = "function_not_found"

    def __init__(self, name: str, version: int | None = None) -> None:
        which = name if version is None else f"{name}@{version}"
        super().__init__(f"No durable function {which} is known; `treadle functions list` shows what there is.")
        self.name, self.version = name, version


class WorkerNotFound(NotFound):
    code = "worker_not_found"

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"There is no outside worker {worker_id}, or it has left: register anew.")
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
"""Moves that people make, in the words of the command line; all others are the engine's own."""


class IllegalMove(TreadleError):
    code = "illegal_move"

    def __init__(self, entity: str, entity_id: str, state: str, move: str, possible: tuple[str, ...] = ()) -> None:
        engines_own = "retry" if entity == "task" else None  # what a failed attempt does; people requeue
        acts = dict.fromkeys(_ACTS[each] for each in possible if each in _ACTS and each not in (move, engines_own))
        can = f" What can be done now: {', '.join(acts)}." if acts else " That state is final."
        super().__init__(f"The {entity} {entity_id} is {state}; {_ACTS.get(move, move)} is not possible.{can}")
        self.entity, self.entity_id, self.state, self.move = entity, entity_id, state, move


class Refused(TreadleError):
    code = "refused"


class BacklogFull(Refused):
    code = "backlog_full"

    def __init__(self, task_list: str, name: str, backlog_limit: int) -> None:
        super().__init__(
            f"The backlog of {name} in list {task_list} is full ({backlog_limit} ready tasks): nothing was enqueued. "
            "Try again later, add workers, or raise it with `treadle lists limit`."
        )
        self.task_list, self.name, self.backlog_limit = task_list, name, backlog_limit


class KeyTaken(Refused):
    """A unique or idempotency key stands for a task that the caller may not see: nothing was made, and nothing is told of it."""

    code = "key_taken"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"No task {name} was enqueued: a task of another task list has its unique or idempotency key. Keys are the same for "
            "all lists; choose another one."
        )
        self.name = name


class ListDraining(Refused):
    code = "list_draining"

    def __init__(self, task_list: str) -> None:
        super().__init__(
            f"The task list {task_list} is draining and takes no new work: nothing was enqueued. "
            f"`treadle lists resume {task_list}` opens it again."
        )
        self.task_list = task_list


class RetriesUsedUp(Refused):
    code = "retries_used_up"

    def __init__(self, task_id: str, retries: int) -> None:
        super().__init__(
            f"Task {task_id} has been retried {retries} time(s), which is all that its policy allows; it stays as it is. "
            "`treadle dlq retry` starts the count anew."
        )
        self.task_id, self.retries = task_id, retries


class RequestInProgress(Refused):
    code = "request_in_progress"

    def __init__(self, key: str) -> None:
        super().__init__(f"A request with the key {key} is being carried out; ask again in a moment for its answer.")
        self.key = key


class HandlerExists(Refused):
    code = "handler_exists"


class ScheduleExists(Refused):
    code = "schedule_exists"


class TokenExists(Refused):
    code = "token_exists"


class WatcherExists(Refused):
    code = "watcher_exists"


class CallbackRefused(Refused):
    code = "callback_refused"


class CallbackTooEarly(CallbackRefused):
    """The job is not recorded yet: the same call-back may be sent again."""

    code = "callback_too_early"


class ExternalAlreadyResolved(Refused):
    code = "external_already_resolved"

    def __init__(self, task_id: str, state: str) -> None:
        super().__init__(f"The outside job of task {task_id} is resolved already: the task is {state}. Nothing was changed.")
        self.task_id, self.state = task_id, state


class PollNotSupported(Refused):
    code = "poll_not_supported"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"No live server has a specialist for {name}, so that nobody could poll the job: the task was not handed off, and is "
            "still held. Wait for the job in the worker, or register a specialist with a poll."
        )
        self.name = name


class MayNotDecide(Refused):
    code = "may_not_decide"

    def __init__(self, approval_id: str, actor: str, deciders: tuple[str, ...]) -> None:
        super().__init__(
            f"{actor} may not decide approval {approval_id}; those who may: {', '.join(deciders)}. Nothing was changed."
        )
        self.approval_id, self.actor, self.deciders = approval_id, actor, deciders


class AlreadyDecided(Refused):
    code = "already_decided"

    def __init__(self, approval_id: str, state: str, by: str | None) -> None:
        whom = f" by {by}" if by else ""
        super().__init__(f"Approval {approval_id} is {state} already{whom}; a decision is final.")
        self.approval_id, self.state = approval_id, state


class AlreadyVoted(Refused):
    code = "already_voted"

    def __init__(self, approval_id: str, actor: str, votes: int, quorum: int) -> None:
        super().__init__(
            f"{actor} has decided approval {approval_id} already ({votes} of {quorum} votes); each decider has one vote."
        )
        self.approval_id, self.actor = approval_id, actor


class DecidedTooLate(Refused):
    code = "decided_too_late"

    def __init__(self, approval_id: str, expired_at: str) -> None:
        super().__init__(f"The time to decide approval {approval_id} passed at {expired_at}; nothing was changed.")
        self.approval_id, self.expired_at = approval_id, expired_at


class EditsNotAllowed(Refused):
    code = "edits_not_allowed"

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"The context of approval {approval_id} may not be changed; approve it as it is, or deny it.")
        self.approval_id = approval_id


class Unauthorized(TreadleError):
    """No valid token or session was shown. The words are always the same, so that nothing is learned from them.

    `reason` is for logs and tests, never for who called: `missing`, `malformed`, `unknown`, `wrong`, `expired`, `revoked`,
    `closed`, `unreadable`, `ended` (while the caller waited).
    """

    code = "unauthorized"

    def __init__(self, reason: str = "missing") -> None:
        super().__init__(
            "This needs a valid token, and none was shown, or one that is unknown, expired or revoked. Give it as --token, in "
            "TREADLE_TOKEN or as `Authorization: Bearer ...`; `treadle token create` makes one."
        )
        self.reason = reason


class Forbidden(TreadleError):
    """The token is valid, but has not the scope that this needs."""

    code = "forbidden"

    def __init__(self, scope: str) -> None:
        super().__init__(f"This needs a token with the scope {scope}, which the one shown has not. Nothing was changed.")
        self.scope = str(scope)


class ListForbidden(Forbidden):
    """The token is valid, but it is for other task lists."""

    code = "list_forbidden"

    def __init__(self, task_list: str) -> None:
        TreadleError.__init__(self, f"The token shown is not for the task list {task_list}. Nothing was changed.")
        self.task_list = task_list


class RestrictedToken(Forbidden):
    """The token is for some task lists only, and this is not about one list."""

    code = "restricted_token"

    def __init__(self) -> None:
        TreadleError.__init__(self, "The token shown is for some task lists only, and this is about more than one of them.")


class WatchForbidden(Forbidden):
    """A watcher of a place that only administrators may have watched: it makes workers look at files, or ask addresses."""

    code = "watch_forbidden"

    def __init__(self, place: str) -> None:
        TreadleError.__init__(
            self,
            f"To watch {place} needs a token with the scope admin, as TREADLE_WATCH_ALLOW of the server does not list it. "
            "Nothing was changed.",
        )
        self.place = place


class TooManyAttempts(TreadleError):
    """Too many failed logins; `retry_after` says in how many milliseconds another one is looked at."""

    code = "too_many_attempts"

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"Too many failed attempts to log in; try again in {-(-retry_after // 1000)} s.")
        self.retry_after = retry_after


class ClaimLost(TreadleError):
    code = "claim_lost"

    def __init__(self, task_id: str, version: int) -> None:
        super().__init__(
            f"Claim {version} of task {task_id} is no longer held: it expired, was taken over or canceled. Nothing was written."
        )
        self.task_id, self.version = task_id, version


class TaskFailed(TreadleError):
    """The task that a caller waits for has failed; `error` is what its handler came to."""

    code = "task_failed"

    def __init__(self, task_id: str, error_code: str, message: str) -> None:
        super().__init__(f"Task {task_id} failed: {message} ({error_code})")
        self.task_id, self.error_code, self.error = task_id, error_code, message


class TaskCanceled(TreadleError):
    code = "task_canceled"


class TaskIgnored(TreadleError):
    code = "task_ignored"


class RunFailed(TreadleError):
    """The run that a caller waits for has failed; `error` has the path of the step that did."""

    code = "run_failed"

    def __init__(self, run_id: str, step_id: str | None, message: str) -> None:
        super().__init__(f"Run {run_id} failed: {message}")
        self.run_id, self.step_id, self.error = run_id, step_id, message


class RunCanceled(TreadleError):
    code = "run_canceled"


class StepFailed(TreadleError):
    """A step of a durable function failed for good; `error` is what it came to, and `type` the kind of what it raised."""

    code = "step_failed"

    def __init__(self, step: str, error_code: str, message: str, kind: str | None = None) -> None:
        super().__init__(f"Step {step} failed: {message} ({error_code})")
        self.step, self.error_code, self.error, self.type = step, error_code, message, kind


class SignalTimeout(TreadleError, TimeoutError):
    code = "signal_timeout"

    def __init__(self, signal: str) -> None:
        super().__init__(f"The signal {signal} did not come in time.")
        self.signal = signal


class ApprovalDenied(TreadleError):
    code = "approval_denied"


class ApprovalExpired(TreadleError):
    code = "approval_expired"


class TooManySteps(TreadleError):
    code = "too_many_steps"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"This run has {limit} steps, which is the cap of its function, as replay grows with them. Go on with "
            "`ctx.continue_as_new(...)`, or raise max_steps."
        )
        self.limit = limit


class LookFailed(TreadleError):
    """A watcher cannot look; `reason` is the code that its record shows."""

    code = "look_failed"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NonRetryable(TreadleError):
    """Raise it in a handler to fail the task at once, whatever its retry policy says."""

    code = "non_retryable"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.error_code = code or self.code


class EffectFailed(TreadleError):
    """The effect is known not to have been made. Raise it in an effect to say so; it is retried by policy like other errors."""

    code = "effect_failed"


class EffectUnknown(TreadleError):
    """Raise it in an effect to say that nobody knows whether it was made; it is retried by policy like other errors."""

    code = "effect_unknown"


class StoreError(TreadleError):
    code = "store_error"


class StoreUnavailable(StoreError):
    code = "store_unavailable"


class TooManyWaiting(StoreUnavailable):
    """A server keeps so many waiting and no more; `retry_after` says after how many milliseconds to try again."""

    code = "too_many_waiting"

    def __init__(self, who: str, most: int, retry_after: int = 5000) -> None:
        super().__init__(
            f"Too many already follow events or wait for something to happen: {who} may have {most} of them at once. Try again in "
            f"{-(-retry_after // 1000)} s, or do not wait."
        )
        self.retry_after = retry_after


class StoreReadOnly(StoreError):
    code = "store_read_only"


class StoreBusy(StoreError):
    code = "store_busy"


class StoreFull(StoreError):
    code = "store_full"


class StoreUnsafe(StoreError):
    code = "store_unsafe"


class SchemaTooNew(StoreError):
    code = "schema_too_new"


class SchemaBehind(StoreError):
    code = "schema_behind"


class MissingDependency(StoreError):
    code = "missing_dependency"


class Unsupported(StoreError):
    code = "unsupported"
