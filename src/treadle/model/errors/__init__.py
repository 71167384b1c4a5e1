"""Every error that Treadle raises on purpose, in one tree, each with a stable code.

    TreadleError
    ├── InvalidInput
    │   ├── InvalidName
    │   ├── InvalidPayload
    │   ├── PayloadTooLarge
    │   ├── InvalidPolicy
    │   ├── InvalidStoreUrl
    │   ├── InvalidApproval
    │   ├── InvalidFlow
    │   ├── InvalidSchedule
    │   ├── InvalidWatcher
    │   ├── InvalidAlert
    │   ├── InvalidPlan
    │   ├── InvalidTag
    │   ├── InvalidQuery
    │   ├── AmbiguousId
    │   ├── IdempotencyKeyReused
    │   └── MisusedContext
    ├── NotFound
    │   ├── TaskNotFound
    │   └── RunNotFound
    ├── IllegalTransition
    ├── Refused
    │   ├── BacklogFull
    │   ├── ListDraining
    │   ├── RetriesUsedUp
    │   ├── CallbackRefused
    │   └── RequestInProgress
    ├── Unauthorized
    ├── Forbidden
    │   ├── ListForbidden
    │   ├── RestrictedToken
    │   └── WatchForbidden
    ├── TooManyAttempts
    ├── ClaimLost
    ├── TaskFailed
    ├── TaskCanceled
    ├── TaskIgnored
    ├── RunFailed
    ├── RunCanceled
    ├── StepFailed
    ├── SignalTimeout
    ├── UpdateRejected
    ├── UpdateUnanswered
    ├── ApprovalDenied
    ├── ApprovalExpired
    ├── UnreadableValue
    ├── ScanFailed
    ├── UsedAfterFork
    ├── NonRetryable
    ├── EffectFailed
    ├── EffectUnknown
    └── StoreError
        ├── StoreUnavailable
        │   ├── Contended
        │   ├── StoreTimeout
        │   ├── StoreOverloaded
        │   └── TooManyWaiting
        ├── NotOpen
        ├── StoreReadOnly
        ├── StoreFileInUse
        ├── StoreBusy
        ├── ClocksApart
        ├── StoreFull
        ├── StoreUnsafe
        ├── StoreDamaged
        ├── StoreFailed
        ├── SchemaTooNew
        ├── SchemaBehind
        ├── MissingDependency
        └── Unsupported

Each class states its meaning. A message states what happened and what to do. Interfaces map codes; nothing here depends on HTTP.
An error that callers distinguish only by its code has no class of its own: `CODES` lists the codes of such errors, by class.
"""

from types import ModuleType

from treadle.model.errors.base import *  # noqa: F403
from treadle.model.errors.base import TreadleError
from treadle.model.errors.inputs import *  # noqa: F403
from treadle.model.errors.inputs import InvalidInput, NotFound
from treadle.model.errors.refusals import *  # noqa: F403
from treadle.model.errors.refusals import Forbidden, Refused
from treadle.model.errors.results import *  # noqa: F403

CODES: dict[type[TreadleError], dict[str, str]] = {
    TreadleError: {
        "already_open": "the engine is open, and the operation requires a closed one",
        "cannot_listen": "the server's address is not local or not permitted, or all tried ports are taken",
        "demo_failed": "a claim of the demo does not hold, or a worker process misbehaved",
        "too_many_steps": "raised in a durable function that has reached its limit on steps",
    },
    InvalidInput: {
        "handler_missing": "`run_workflow` has no handler for an event facet that the workflow reached",
        "handlers_broken": "the module of `--handlers` raises when it is imported",
        "handlers_not_found": "the module of `--handlers` cannot be loaded, or contains no engine",
        "invalid_inputs": "inputs that do not fit the parameters of a workflow",
        "never_awaited": "a durable function or a handler ended without awaiting an operation of `ctx` that it created",
        "not_over_http": "a command that needs the store was given a server",
        "project_exists": "a file of the new project is already there",
        "repeated_key": "an explicit key that a function has given to two steps",
    },
    Forbidden: {
        "cross_origin": "a page of another origin tries to change something",
        "csrf_refused": "a request with a session changes something, but has no CSRF token",
        "host_not_allowed": "an open server was called under a name that is not loopback, or through a proxy",
        "signature_refused": "a webhook without a valid signature",
    },
    NotFound: {
        "alert_rule_not_found": "no such alert rule",
        "approval_not_found": "no such approval",
        "external_job_not_found": "no such external job",
        "flow_not_found": "no such flow",
        "function_not_found": "no durable function of that name is known",
        "handler_not_found": "no registration for that facet",
        "list_not_found": "no task, setting or worker uses that task list",
        "namespace_not_found": "the directory lists no such namespace",
        "no_such_page": "the dashboard has no page at this path",
        "nothing_matches": "the filter of a bulk operation matches nothing",
        "nothing_published": "the function has published no value of that name",
        "schedule_not_found": "no such schedule",
        "server_not_found": "no such worker, or it stopped long ago",
        "step_not_found": "no such step",
        "stream_not_found": "the work has ended without writing to a stream of that name",
        "token_not_found": "no such token",
        "tool_not_found": "no such MCP tool",
        "trace_not_found": "no run, task, step, approval or external job has the id",
        "watcher_not_found": "no such watcher",
        "worker_not_found": "no such remote worker, or it has left",
        "workflow_not_found": "the flow has no such workflow",
    },
    Refused: {
        "alert_rule_exists": "an alert rule of that name exists",
        "already_decided": "the approval is no longer pending",
        "already_started": "the start of work that has started cannot be changed",
        "already_voted": "the same person decides a second time",
        "callback_too_early": "the job of a callback is not recorded yet; the callback may be sent again",
        "decided_too_late": "the time to decide has passed",
        "edits_not_allowed": "the approval does not allow edits to its context",
        "external_already_resolved": "the external job has ended",
        "github_not_configured": "webhooks cannot be verified, as no secret is set",
        "handler_exists": "two handlers of one name in one process",
        "key_taken": "a task in a list outside the token's lists has the key",
        "may_not_decide": "the actor is not a decider of the approval",
        "needs_token": "an open server, or one without a token, was about to listen on an address that others reach",
        "no_free_port": "all candidate ports are in use",
        "poll_not_supported": "no live worker could poll the job that was handed off",
        "schedule_exists": "a schedule of that name exists",
        "skill_exists": "a skill that Treadle did not write is already there",
        "step_has_task": "the step of a workflow has a live task already",
        "thread_held": "a thread of checkpoints belongs to another task that has not ended",
        "token_exists": "a token of that name exists",
        "unique_key_taken": "live work has the unique key",
        "watcher_exists": "a watcher of that name exists",
    },
}
"""Codes of errors that have no class of their own, with their meanings, by the class that carries them."""


def classes_by_code(*modules: ModuleType) -> dict[str, type[TreadleError]]:
    """Return the classes of errors in these modules by their codes, and those of `CODES`."""
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    own = {kind.code: kind for kind in kinds if issubclass(kind, TreadleError)}
    return own | {code: kind for kind, codes in CODES.items() for code in codes}
