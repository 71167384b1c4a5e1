"""The failures of work with a model, each with its own code. No retry policy applies to them.

NonRetryable
└── LLMError
    ├── budget_exhausted      the maximum cost of the next request exceeds the run's budget
    ├── price_unknown         there is a budget, but no price for the model
    ├── llm_not_configured    no key, or no client
    ├── llm_rate_limited      429 for longer than the patience
    ├── llm_overloaded        529 and other errors of the service, for longer than the patience
    ├── llm_timeout           no response in time, or a broken connection, on every attempt
    ├── llm_malformed         the response is not a message of the Messages API
    ├── llm_rejected          the service refuses the request (400, 401, 403, 404, 413)
    ├── answer_empty          the model returned nothing
    ├── answer_missing        the model answered in text and never called the facet's tool
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
    """Work with a model failed permanently; `error_code` is the reason."""

    code = "llm_error"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code)

    @property
    def outcome(self) -> Failed:
        """Return the step's outcome; the error type is the code, so that a `catch` can distinguish it."""
        return Failed(Problem(self.error_code, str(self)))
