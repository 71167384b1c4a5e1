"""Treadle: a durable work engine for agents and long-running jobs."""

from treadle.kernel.queue import Enqueued, TaskSpec
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import (
    ApprovalDenied,
    ApprovalExpired,
    ClaimLost,
    EffectFailed,
    EffectUnknown,
    NonRetryable,
    RunCanceled,
    RunFailed,
    SignalTimeout,
    StepFailed,
    TaskCanceled,
    TaskFailed,
    TaskIgnored,
    TaskNotFound,
    TreadleError,
)
from treadle.model.external import (
    ExternalJobLost,
    ExternalProductionFailure,
    ExternalProductionHandle,
    ExternalProductionRecord,
    Production,
    RenderEvent,
    UnexpectedSpecialistResultError,
)
from treadle.model.outcomes import AwaitingApproval, Failed, Paused, Problem, Retry, Succeeded, Waiting
from treadle.model.retry import RetryPolicy
from treadle.model.tasks import Task
from treadle.wiring.engine import Engine
from treadle.wiring.polling import ExternalPollingLoop
from treadle.workers.context import Context
from treadle.workers.functions.context import FunctionContext
from treadle.workers.specialists import Specialist

__all__ = [
    "ApprovalDenied",
    "ApprovalExpired",
    "ApprovalRequest",
    "AwaitingApproval",
    "ClaimLost",
    "Context",
    "EffectFailed",
    "EffectUnknown",
    "Engine",
    "Enqueued",
    "ExternalJobLost",
    "ExternalPollingLoop",
    "ExternalProductionFailure",
    "ExternalProductionHandle",
    "ExternalProductionRecord",
    "Failed",
    "FunctionContext",
    "NonRetryable",
    "Paused",
    "Problem",
    "Production",
    "RenderEvent",
    "Retry",
    "RetryPolicy",
    "RunCanceled",
    "RunFailed",
    "SignalTimeout",
    "Specialist",
    "StepFailed",
    "Succeeded",
    "Task",
    "TaskCanceled",
    "TaskFailed",
    "TaskIgnored",
    "TaskNotFound",
    "TaskSpec",
    "TreadleError",
    "UnexpectedSpecialistResultError",
    "Waiting",
]
