"""Helpers shared by the agent tests: a workflow of two event steps, and agents that run in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.limits import BOUND

from treadle.agents import Agent, Evaluator, Persistence, TaskDefinition

PAY = """
namespace billing {
    event facet Pay(amount: Double) => (id: String, status: String)
    event facet Message(to: String) => (sent: Boolean)
    workflow Checkout(total: Double) => (receipt: String, sent: Boolean) andThen {
        p = Pay(amount = $.total)
        m = Message(to = p.id)
        yield Checkout(receipt = p.id, sent = m.sent)
    }
}
"""

ONE = """
namespace billing {
    event facet Pay(amount: Double) => (id: String, status: String)
    workflow One(total: Double) => (receipt: String) andThen {
        p = Pay(amount = $.total)
        yield One(receipt = p.id)
    }
}
"""

MANY = """
namespace work {
    event facet Item(n: Long) => (n: Long)
    workflow Many(items: [Long]) => (done: [Long]) andThen foreach i in $.items {
        s = Item(n = $.i)
        yield Many(done = [s.n])
    }
}
"""


def one(evaluator: Evaluator, total: float = 2.5) -> tuple[str, str]:
    """Start a run of one event step; the ids of the run and the step."""
    result = evaluator.execute(ONE, {"total": total})
    (step,) = [step for step in evaluator.persistence.get_steps_by_workflow(result.workflow_id) if step.facet_name == "billing.Pay"]
    return result.workflow_id, step.id


def add(store: Persistence, name: str = "billing.Pay", **data: object) -> str:
    """A task without a run."""
    task = TaskDefinition(uuid="", name=name, data=dict(data))
    store.save_task(task)
    return task.uuid


def until(true: Callable[[], object], bound: float = BOUND) -> None:
    """Wait for what another thread or process does."""
    end = time.monotonic() + bound  # noqa: TID251
    while not true():
        assert time.monotonic() < end, "it did not come to that"  # noqa: TID251
        time.sleep(0.01)


@contextmanager
def started(agent: Agent) -> Iterator[Agent]:
    """The agent, running in a thread of its own until the end of the context."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            agent.start()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="agent", daemon=True)
    thread.start()
    until(lambda: agent.is_running or raised)
    try:
        yield agent
    finally:
        agent.stop()
        thread.join(BOUND)
        assert not thread.is_alive()
        assert not raised, raised
