"""Dispatch: GitHub issues as jobs for agents, on the engine's queue. See docs/reference/dispatch.md."""

from treadle.dispatch.config import DispatchConfig as DispatchConfig
from treadle.dispatch.coordinator import AgentCoordinator as AgentCoordinator
from treadle.dispatch.coordinator import coordinator_of as coordinator_of
from treadle.dispatch.errors import DispatchError as DispatchError
from treadle.dispatch.errors import JobNotFound as JobNotFound
from treadle.dispatch.errors import MaxRetriesExceeded as MaxRetriesExceeded
from treadle.dispatch.errors import StorageError as StorageError
from treadle.dispatch.errors import WorkerUnavailable as WorkerUnavailable
from treadle.dispatch.records import GitHubIssue as GitHubIssue
from treadle.dispatch.records import Installation as Installation
from treadle.dispatch.records import InvalidIssue as InvalidIssue
from treadle.dispatch.records import Label as Label
from treadle.dispatch.records import Owner as Owner
from treadle.dispatch.records import Repository as Repository
from treadle.dispatch.records import TaskState as TaskState
from treadle.dispatch.records import TaskStatus as TaskStatus
from treadle.dispatch.records import make_issue as make_issue
from treadle.dispatch.sync import BlockingCoordinator as BlockingCoordinator
