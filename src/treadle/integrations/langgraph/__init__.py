"""LangGraph on Treadle: a checkpointer on the engine's store, and graphs as durable runs (extra `langgraph`)."""

from treadle.integrations import missing

try:
    from treadle.integrations.langgraph.checkpointer import TreadleSaver
    from treadle.integrations.langgraph.graph import durable_graph
except ImportError as error:
    raise missing("langgraph", error) from error


__all__ = ["TreadleSaver", "durable_graph"]
