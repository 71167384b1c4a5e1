"""`run_agent`: the main function of an agent that can run with its own callbacks or with registered handlers."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from afl.runtime.mongo_store import MongoStore
from treadle.agents import AgentPoller, AgentPollerConfig, Evaluator, MemoryStore, Persistence, RegistryRunner, RegistryRunnerConfig
from treadle.agents.service import stopped_by_signals
from treadle.settings import agent_default, chosen_store


@dataclass
class AgentConfig(AgentPollerConfig):
    """The configuration of either kind of agent."""


def make_store(mongodb_url: str | None = None, database_name: str | None = None) -> Persistence:
    """Open the store in `TREADLE_STORE`, at the URL, or in `AFL_MONGODB_URL`; in memory without any."""
    url = chosen_store() or mongodb_url or agent_default("mongodb_url")
    return MongoStore(url, database_name or agent_default("mongodb_database")) if url else MemoryStore()


def run_agent(config: AgentConfig, register: Callable[..., None]) -> None:
    """Serve tasks until SIGTERM or SIGINT.

    Calls `register(poller=...)`, or with `AFL_USE_REGISTRY=1` `register(runner=...)`, to add the handlers.
    """
    with make_store() as store:
        agent: AgentPoller | RegistryRunner
        if agent_default("use_registry") == "1":
            agent = RegistryRunner(store, Evaluator(store), RegistryRunnerConfig(**asdict(config)))
            register(runner=agent)
        else:
            agent = AgentPoller(store, Evaluator(store), config)
            register(poller=agent)
        with stopped_by_signals(agent.stop):
            agent.start()
