"""LangGraph on Treadle: a checkpointer on the engine's store, and graphs as durable runs (extra `langgraph`)."""

from treadle.integrations.langgraph.checkpointer import TreadleSaver

__all__ = ["TreadleSaver"]
