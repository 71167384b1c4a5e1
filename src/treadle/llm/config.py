"""Model options, and the client: the official SDK with the key of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.model.errors import InvalidInput, MissingDependency, NonRetryable
from treadle.model.outcomes import Failed, Problem
from treadle.settings import Settings


class LLMError(NonRetryable, code="llm_error"):
    """Work with a model failed permanently; `error_code` is the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code)

    @property
    def outcome(self) -> Failed:
        """Return the step's outcome; the error type is the code, so that a `catch` can distinguish it."""
        return Failed(Problem(self.error_code, str(self)))


HIDDEN = "[hidden]"
_MIN_SECRET_LENGTH = 6
"""Shorter values are not API keys, and removing them would damage ordinary words."""


@dataclass(frozen=True, slots=True)
class LLMConfig:
    """Options of all requests; a prompt block's `model` overrides `model`."""

    model: str
    system_prompt: str | None = None
    """Comes before a prompt block's own system prompt."""
    max_tokens: int = 4096
    """Maximum length of one response; a longer one is cut off."""
    max_turns: int = 10
    """Maximum number of exchanges with the model for one step."""
    max_retries: int = 2
    """Retries after an unusable answer: none, cut off, not JSON, or not of the declared types."""
    timeout: float = 120.0
    """Seconds without data from the service before a request times out."""
    max_sends: int = 6
    """Maximum number of times that a request is sent while the service is busy or does not answer."""
    patience: float = 120.0
    """Maximum total seconds that a request waits between sends; a longer `retry-after` ends it."""
    stream_every: float = 0.25
    """Seconds between two updates of the step with the model's text so far."""
    stream: str | None = None
    """The stream of the run to which the model's text is written as it arrives, e.g. `tokens`; None: none."""

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidInput("Name a model: TREADLE_LLM_MODEL, or model=...")
        if min(self.max_tokens, self.max_turns, self.max_sends) < 1 or self.max_retries < 0:
            raise InvalidInput("max_tokens, max_turns and max_sends must be 1 or more, and max_retries 0 or more.")
        if not 0 < self.timeout <= 3600 or not 0 <= self.patience <= 3600:
            raise InvalidInput("timeout and patience are seconds, up to an hour.")


def config_of(settings: Settings, **given: Any) -> LLMConfig:
    """Return the configuration of the settings, with the given options replaced."""
    base: dict[str, Any] = {"model": settings.llm_model, "max_tokens": settings.llm_max_tokens, "timeout": settings.llm_timeout}
    return LLMConfig(**base | {name: value for name, value in given.items() if value is not None})


def load_sdk() -> Any:
    """Return the package anthropic, or raise `MissingDependency`; the first import is slow."""
    try:
        import anthropic
    except ImportError:
        raise MissingDependency("Models need the package anthropic: pip install 'treadle[llm]'.") from None
    return anthropic


def make_client(settings: Settings, timeout: float) -> Any:
    """Create an asynchronous client of the official SDK. Its own retries are off, because retries are decided and accounted for
    here.

    Raises `MissingDependency` without the package, and `llm_not_configured` without a key.
    """
    anthropic = load_sdk()
    if not settings.anthropic_api_key:
        raise LLMError("llm_not_configured", "There is no key for the model: set ANTHROPIC_API_KEY, or pass a client.")
    if not all("!" <= character <= "~" for character in settings.anthropic_api_key):
        # Not sent: the libraries below would log the header that they cannot send.
        raise LLMError("llm_not_configured", "ANTHROPIC_API_KEY has invalid characters, such as spaces or line ends.")
    return anthropic.AsyncAnthropic(
        api_key=settings.anthropic_api_key,
        base_url=settings.anthropic_base_url or "https://api.anthropic.com",
        max_retries=0,
        timeout=timeout,
    )


def scrubbed(text: str, secrets: tuple[str, ...]) -> str:
    """Return the text without the secrets."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, HIDDEN)
    return text


def secrets_of(client: Any, settings: Settings) -> tuple[str, ...]:
    """Return the keys and tokens of the client and the settings, which must never be shown."""
    secrets = (settings.anthropic_api_key, getattr(client, "api_key", None), getattr(client, "auth_token", None))
    return tuple({secret.strip() for secret in secrets if isinstance(secret, str) and len(secret.strip()) >= _MIN_SECRET_LENGTH})
