"""Work done by language models: prompt blocks, tools, budgets. Needs the extra `llm`: pip install 'treadle[llm]'."""

from treadle.agents.llm.config import LLMConfig
from treadle.agents.llm.errors import LLMError
from treadle.agents.llm.handler import LLMHandler
from treadle.agents.llm.prices import Price, Prices
from treadle.agents.llm.runner import ClaudeAgentRunner
from treadle.agents.llm.service import LLMService, use_llm

__all__ = ["ClaudeAgentRunner", "LLMConfig", "LLMError", "LLMHandler", "LLMService", "Price", "Prices", "use_llm"]
