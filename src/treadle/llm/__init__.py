"""Work done by language models: prompt blocks, tools, budgets. Needs the extra `llm`: pip install 'treadle[llm]'."""

from treadle.llm.config import LLMConfig, LLMError
from treadle.llm.handler import LLMHandler
from treadle.llm.ledger import Price, Prices
from treadle.llm.runner import ClaudeAgentRunner
from treadle.llm.service import LLMService, use_llm

__all__ = ["ClaudeAgentRunner", "LLMConfig", "LLMError", "LLMHandler", "LLMService", "Price", "Prices", "use_llm"]
