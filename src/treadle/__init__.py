"""Treadle: a durable work engine for agents and long-running jobs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.version import VERSION

if TYPE_CHECKING:
    from treadle.api.tasks import TaskSpec
    from treadle.engine import Engine
    from treadle.engine.codecs import Zlib
    from treadle.engine.handles import Handle
    from treadle.engine.worker_host import ExternalPollingLoop
    from treadle.kernel.queue.service import Enqueued
    from treadle.model.approvals import ApprovalRequest
    from treadle.model.errors import (
        ApprovalDenied,
        ApprovalExpired,
        Canceled,
        ClaimLost,
        EffectFailed,
        EffectUnknown,
        InvalidInput,
        NonRetryable,
        NotFound,
        Refused,
        RunCanceled,
        RunFailed,
        SignalTimeout,
        StepFailed,
        StoreError,
        StoreUnavailable,
        TaskCanceled,
        TaskFailed,
        TaskIgnored,
        TaskNotFound,
        TreadleError,
        Unauthorized,
        UpdateRejected,
        UpdateUnanswered,
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
    from treadle.workers.context import Context
    from treadle.workers.functions.context import FunctionContext
    from treadle.workers.functions.group_operations import Winner
    from treadle.workers.functions.registry import DeterminismWarning
    from treadle.workers.functions.sync import BlockingFunctionContext
    from treadle.workers.functions.wait_operations import Update
    from treadle.workers.injection import Depends
    from treadle.workers.interceptors import Interceptor
    from treadle.workers.limits import Limit
    from treadle.workers.references import Function, Handler
    from treadle.workers.specialists import RenderSpecialist, Specialist

__version__ = VERSION
_PLACES = {
    "treadle.api.tasks": ("TaskSpec",),
    "treadle.kernel.queue.service": ("Enqueued",),
    "treadle.model.approvals": ("ApprovalRequest",),
    "treadle.model.errors": (
        "ApprovalDenied",
        "ApprovalExpired",
        "Canceled",
        "ClaimLost",
        "EffectFailed",
        "EffectUnknown",
        "InvalidInput",
        "NonRetryable",
        "NotFound",
        "Refused",
        "RunCanceled",
        "RunFailed",
        "SignalTimeout",
        "StepFailed",
        "StoreError",
        "StoreUnavailable",
        "TaskCanceled",
        "TaskFailed",
        "TaskIgnored",
        "TaskNotFound",
        "TreadleError",
        "Unauthorized",
        "UpdateRejected",
        "UpdateUnanswered",
    ),
    "treadle.model.external": (
        "ExternalJobLost",
        "ExternalProductionFailure",
        "ExternalProductionHandle",
        "ExternalProductionRecord",
        "Production",
        "RenderEvent",
        "UnexpectedSpecialistResultError",
    ),
    "treadle.model.outcomes": ("AwaitingApproval", "Failed", "Paused", "Problem", "Retry", "Succeeded", "Waiting"),
    "treadle.model.retry": ("RetryPolicy",),
    "treadle.model.tasks": ("Task",),
    "treadle.engine": ("Engine",),
    "treadle.engine.handles": ("Handle",),
    "treadle.engine.codecs": ("Zlib",),
    "treadle.engine.worker_host": ("ExternalPollingLoop",),
    "treadle.workers.context": ("Context",),
    "treadle.workers.injection": ("Depends",),
    "treadle.workers.functions.sync": ("BlockingFunctionContext",),
    "treadle.workers.interceptors": ("Interceptor",),
    "treadle.workers.functions.context": ("FunctionContext",),
    "treadle.workers.functions.wait_operations": ("Update",),
    "treadle.workers.functions.registry": ("DeterminismWarning",),
    "treadle.workers.functions.group_operations": ("Winner",),
    "treadle.workers.limits": ("Limit",),
    "treadle.workers.references": ("Function", "Handler"),
    "treadle.workers.specialists": ("RenderSpecialist", "Specialist"),
}
"""The modules that define the public names; each is imported when one of its names is first used, so that programs start fast."""
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PLACE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "ApprovalDenied",
    "ApprovalExpired",
    "ApprovalRequest",
    "AwaitingApproval",
    "BlockingFunctionContext",
    "Canceled",
    "ClaimLost",
    "Context",
    "Depends",
    "DeterminismWarning",
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
    "Function",
    "FunctionContext",
    "Handle",
    "Handler",
    "Interceptor",
    "InvalidInput",
    "Limit",
    "NonRetryable",
    "NotFound",
    "Paused",
    "Problem",
    "Production",
    "Refused",
    "RenderEvent",
    "RenderSpecialist",
    "Retry",
    "RetryPolicy",
    "RunCanceled",
    "RunFailed",
    "SignalTimeout",
    "Specialist",
    "StepFailed",
    "StoreError",
    "StoreUnavailable",
    "Succeeded",
    "Task",
    "TaskCanceled",
    "TaskFailed",
    "TaskIgnored",
    "TaskNotFound",
    "TaskSpec",
    "TreadleError",
    "Unauthorized",
    "UnexpectedSpecialistResultError",
    "Update",
    "UpdateRejected",
    "UpdateUnanswered",
    "Waiting",
    "Winner",
    "Zlib",
]
