"""How work with a model can fail, each way with a code of its own. None of them is retried by policy.

NonRetryable
└── LLMError
    ├── budget_exhausted      the run may not spend what the next request could cost
    ├── price_unknown         there is a budget, and no price for the model
    ├── llm_not_configured    no key, or no client
    ├── llm_rate_limited      429 for longer than the patience
    ├── llm_overloaded        529 and other errors of the service, for longer than the patience
    ├── llm_timeout           no answer in time, or the connection broke, each time
    ├── llm_malformed         what came back is no message of the Messages API
    ├── llm_rejected          the service refuses the request (400, 401, 403, 404, 413)
    ├── answer_empty          the model said nothing at all
    ├── answer_missing        it answered in text and never called the facet's tool
    ├── answer_cut_off        the answer was longer than max_tokens
    ├── answer_not_json       the tool's input is not JSON
    ├── answer_mismatch       the tool's input does not fit the declared returns
    ├── model_refused         the model declined
    ├── context_exceeded      the conversation no longer fits the model's window
    └── too_many_turns        max_turns exchanges without an answer
"""

from __future__ import annotations

from treadle.model.errors import NonRetryable
from treadle.model.outcomes import Failed, Problem


class LLMError(NonRetryable):
    """Work with a model failed for good; `error_code` says how."""

    code = "llm_error"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code)

    @property
    def outcome(self) -> Failed:
        """What the step comes to: its error has the code as its type, so that a `catch` can tell it from others."""
        return Failed(Problem(self.error_code, str(self)))
