"""Treadle: a durable work engine for agents and long-running jobs."""

from treadle.kernel.queue import Enqueued, TaskSpec
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import (
    ClaimLost,
    EffectFailed,
    EffectUnknown,
    NonRetryable,
    RunCanceled,
    RunFailed,
    TaskCanceled,
    TaskFailed,
    TaskNotFound,
    TreadleError,
)
from treadle.model.outcomes import AwaitingApproval, Failed, Paused, Problem, Retry, Succeeded, Waiting
from treadle.model.retry import RetryPolicy
from treadle.model.tasks import Task
from treadle.wiring.engine import Engine
from treadle.workers.context import Context

__all__ = [
    "ApprovalRequest",
    "AwaitingApproval",
    "ClaimLost",
    "Context",
    "EffectFailed",
    "EffectUnknown",
    "Engine",
    "Enqueued",
    "Failed",
    "NonRetryable",
    "Paused",
    "Problem",
    "Retry",
    "RetryPolicy",
    "RunCanceled",
    "RunFailed",
    "Succeeded",
    "Task",
    "TaskCanceled",
    "TaskFailed",
    "TaskIgnored",
    "TaskNotFound",
    "TaskSpec",
    "TreadleError",
    "Waiting",
]
