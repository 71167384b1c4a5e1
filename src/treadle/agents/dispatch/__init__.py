"""Dispatch: GitHub issues as jobs for agents, on the one queue that everything uses. See docs/reference/dispatch.md."""

from treadle.agents.dispatch.blocking import BlockingCoordinator as BlockingCoordinator
from treadle.agents.dispatch.config import DispatchConfig as DispatchConfig
from treadle.agents.dispatch.coordinator import AgentCoordinator as AgentCoordinator
from treadle.agents.dispatch.errors import DispatchError as DispatchError
from treadle.agents.dispatch.errors import JobNotFound as JobNotFound
from treadle.agents.dispatch.errors import MaxRetriesExceeded as MaxRetriesExceeded
from treadle.agents.dispatch.errors import StorageError as StorageError
from treadle.agents.dispatch.errors import WorkerUnavailable as WorkerUnavailable
from treadle.agents.dispatch.issues import GitHubIssue as GitHubIssue
from treadle.agents.dispatch.issues import Installation as Installation
from treadle.agents.dispatch.issues import InvalidIssue as InvalidIssue
from treadle.agents.dispatch.issues import Label as Label
from treadle.agents.dispatch.issues import Owner as Owner
from treadle.agents.dispatch.issues import Repository as Repository
from treadle.agents.dispatch.issues import make_issue as make_issue
from treadle.agents.dispatch.of_engine import coordinator_of as coordinator_of
from treadle.agents.dispatch.records import TaskState as TaskState
from treadle.agents.dispatch.records import TaskStatus as TaskStatus
