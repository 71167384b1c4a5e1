"""The configuration of a coordinator; the defaults are those of its specification."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import InvalidPolicy
from treadle.model.lists import check_count, handler_key
from treadle.model.names import check_name
from treadle.model.retry import RetryPolicy
from treadle.model.values import shown


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """Durations are seconds or timedeltas. Invalid values raise `InvalidPolicy` immediately."""

    max_retries: int = 3
    """Retries after the first execution, 1, 2, 4, ... s after the failure."""
    poll_interval: Duration = 5
    """Time between two polls of an idle worker, independent of wake-up signals."""
    task_timeout: Duration = 3600
    """Maximum duration of one execution; then it counts as failed."""
    max_concurrent_tasks: int = 10
    """Maximum number of running jobs, on all machines together (unless an operator sets another limit), and in this process."""
    task_list: str = "dispatch"
    name: str = "dispatch.Issue"
    """The name of the jobs' tasks."""

    def __post_init__(self) -> None:
        if type(self.max_retries) is not int:
            raise InvalidPolicy(f"max_retries must be a whole number, not {shown(self.max_retries)}.")
        _ = self.retry
        milliseconds(self.poll_interval, "poll_interval", positive=True)
        milliseconds(self.task_timeout, "task_timeout", positive=True)
        check_count(self.max_concurrent_tasks, "max_concurrent_tasks")
        check_name(self.task_list, "task list")
        check_name(self.name, "task name")

    @property
    def retry(self) -> RetryPolicy:
        """Return the retry policy of jobs: exactly 1, 2, 4, ... s."""
        return RetryPolicy(retries=self.max_retries)

    @property
    def limit_key(self) -> str:
        """The key that counts running jobs: that of the handler, so that operators can change the limit."""
        return handler_key(self.name)
