"""`ClaudeAgentRunner` and its `ToolRegistry`."""

from treadle.agents import ToolRegistry as ToolRegistry
from treadle.llm import ClaudeAgentRunner as ClaudeAgentRunner
