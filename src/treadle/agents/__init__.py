"""The agent SDK: services that handle the tasks of event facets. See docs/reference/agent-sdk.md.

Everything here blocks and is thread-safe; it is the facade of the kernel's worker for programs without an event loop.
"""

from __future__ import annotations

from typing import Any

from treadle.agents.agent import Agent as Agent
from treadle.agents.config import AgentPollerConfig as AgentPollerConfig
from treadle.agents.config import RegistryRunnerConfig as RegistryRunnerConfig
from treadle.agents.config import RunnerConfig as RunnerConfig
from treadle.agents.connection import WrongThread as WrongThread
from treadle.agents.entities import HandledCount as HandledCount
from treadle.agents.entities import HandlerRegistration as HandlerRegistration
from treadle.agents.entities import LockDefinition as LockDefinition
from treadle.agents.entities import LockMetaData as LockMetaData
from treadle.agents.entities import RunnerDefinition as RunnerDefinition
from treadle.agents.entities import ServerDefinition as ServerDefinition
from treadle.agents.entities import ServerState as ServerState
from treadle.agents.entities import StepDefinition as StepDefinition
from treadle.agents.entities import TaskDefinition as TaskDefinition
from treadle.agents.entities import TaskState as TaskState
from treadle.agents.evaluator import Evaluator as Evaluator
from treadle.agents.evaluator import ExecutionResult as ExecutionResult
from treadle.agents.evaluator import ExecutionStatus as ExecutionStatus
from treadle.agents.evaluator import Telemetry as Telemetry
from treadle.agents.evaluator import UnknownStep as UnknownStep
from treadle.agents.invoke import ToolRegistry as ToolRegistry
from treadle.agents.persistence import MemoryStore as MemoryStore
from treadle.agents.persistence import Persistence as Persistence
from treadle.agents.persistence import PersistenceAPI as PersistenceAPI
from treadle.agents.persistence import PostgresStore as PostgresStore
from treadle.agents.persistence import SqliteStore as SqliteStore
from treadle.agents.persistence import open_persistence as open_persistence
from treadle.agents.poller import AgentPoller as AgentPoller
from treadle.agents.poller import RegistryRunner as RegistryRunner
from treadle.agents.service import RunnerService as RunnerService
from treadle.evaluator import State

StepState = State
"""States of a step, as in `StepDefinition.state`."""

_LATER = {"ClaudeAgentRunner": "treadle.llm", "LLMHandler": "treadle.llm"}
"""Names whose modules need packages that most agents do not."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
