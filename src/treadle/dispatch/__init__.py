"""Dispatch: GitHub issues as jobs for agents, on the engine's queue. See docs/reference/dispatch.md."""

from treadle.dispatch.config import DispatchConfig as DispatchConfig
from treadle.dispatch.coordinator import AgentCoordinator as AgentCoordinator
from treadle.dispatch.coordinator import coordinator_of as coordinator_of
from treadle.dispatch.errors import DispatchError as DispatchError
from treadle.dispatch.errors import JobNotFound as JobNotFound
from treadle.dispatch.errors import MaxRetriesExceeded as MaxRetriesExceeded
from treadle.dispatch.errors import StorageError as StorageError
from treadle.dispatch.errors import WorkerUnavailable as WorkerUnavailable
from treadle.dispatch.issues import GitHubIssue as GitHubIssue
from treadle.dispatch.issues import Installation as Installation
from treadle.dispatch.issues import InvalidIssue as InvalidIssue
from treadle.dispatch.issues import Label as Label
from treadle.dispatch.issues import Owner as Owner
from treadle.dispatch.issues import Repository as Repository
from treadle.dispatch.issues import make_issue as make_issue
from treadle.dispatch.records import TaskState as TaskState
from treadle.dispatch.records import TaskStatus as TaskStatus
from treadle.dispatch.sync import BlockingCoordinator as BlockingCoordinator
