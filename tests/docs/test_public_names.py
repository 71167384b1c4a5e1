"""Every name that a document about the system calls public can be imported from one place, and is documented."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PUBLIC = {
    "treadle": [
        # external services: the contract of specialists
        "RenderSpecialist",
        "Specialist",
        "RenderEvent",
        "Production",
        "ExternalProductionHandle",
        "ExternalProductionFailure",
        "ExternalProductionRecord",
        "ExternalPollingLoop",
        "UnexpectedSpecialistResultError",
        # the task engine: outcomes of a step, approvals
        "Succeeded",
        "Retry",
        "Failed",
        "Waiting",
        "Paused",
        "AwaitingApproval",
        "ApprovalRequest",
        "RetryPolicy",
    ],
    "treadle.goals.gates": ["Judgement", "GateContext"],
    "treadle.testing": ["StubExternalRenderSpecialist", "StubExternalSpecialist"],
    "treadle.dispatch": [
        "AgentCoordinator",
        "BlockingCoordinator",
        "DispatchConfig",
        "GitHubIssue",
        "TaskState",
        "TaskStatus",
        "JobNotFound",
        "MaxRetriesExceeded",
        "StorageError",
        "WorkerUnavailable",
    ],
    "treadle.agents": [
        "AgentPoller",
        "AgentPollerConfig",
        "ClaudeAgentRunner",
        "Evaluator",
        "ExecutionResult",
        "HandlerRegistration",
        "MemoryStore",
        "PersistenceAPI",
        "RegistryRunner",
        "RegistryRunnerConfig",
        "RunnerConfig",
        "RunnerService",
        "ServerDefinition",
        "ServerState",
        "StepDefinition",
        "TaskDefinition",
        "TaskState",
        "ToolRegistry",
    ],
}


@pytest.mark.parametrize(("place", "name"), [(place, name) for place, names in PUBLIC.items() for name in names])
def test_a_public_name_is_exported(place: str, name: str) -> None:
    assert getattr(importlib.import_module(place), name) is not None


def test_public_names_are_documented() -> None:
    text = "\n".join(path.read_text("utf-8") for path in DOCS.rglob("*.md"))
    assert [name for names in PUBLIC.values() for name in names if f"`{name}" not in text and f"{name}(" not in text] == []


def test_the_compatibility_policy_lists_every_module_that_users_are_shown() -> None:
    policy = (DOCS / "reference/compatibility.md").read_text("utf-8")
    listed = re.findall(r"^\| `(treadle[\w.]*)` \| (?:stable|experimental) \|", policy, re.M)
    assert len(listed) == len(set(listed))
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md"), *DOCS.glob("snippets/*.py"), *(DOCS.parent / "examples").rglob("*.py")]
    pages = [page for page in pages if page.parent.name != "demo"]  # the program of `treadle demo`, a part of the command line
    shown = {name for page in pages for name in re.findall(r"^\s*from (treadle[\w.]*) import", page.read_text("utf-8"), re.M)}
    assert {*shown, *PUBLIC} - set(listed) == set()
    assert [name for name in listed if find_spec(name) is None] == []
