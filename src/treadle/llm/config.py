"""How models are asked, and the client that asks them: the official SDK, with the key of the settings and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.llm.errors import LLMError
from treadle.model.errors import InvalidInput, MissingDependency
from treadle.settings import Settings

HIDDEN = "[hidden]"
_SHORTEST_SECRET = 6
"""What is shorter is no key of any service, and would be taken out of ordinary words."""


@dataclass(frozen=True, slots=True)
class LLMConfig:
    """What holds for all requests; a prompt block's `model` wins over `model`."""

    model: str
    system_prompt: str | None = None
    """Stands before a prompt block's own system prompt."""
    max_tokens: int = 4096
    """Of one answer: a longer one is cut off."""
    max_turns: int = 10
    """Exchanges with the model for one step, all of them counted."""
    max_retries: int = 2
    """Further tries after an answer that cannot be used: none, cut off, not JSON, or not of the declared types."""
    timeout: float = 120.0
    """Seconds without a sign of life from the service."""
    max_sends: int = 6
    """How often one request is sent at most while the service is busy or does not answer."""
    patience: float = 120.0
    """Seconds that one request waits at most between sends, in all; a longer `retry-after` ends it."""
    stream_every: float = 0.25
    """Seconds between two updates of the step with what the model has said so far."""

    def __post_init__(self) -> None:
        if not self.model:
            raise InvalidInput("Name a model: TREADLE_LLM_MODEL, or model=...")
        if min(self.max_tokens, self.max_turns, self.max_sends) < 1 or self.max_retries < 0:
            raise InvalidInput("max_tokens, max_turns and max_sends must be 1 or more, and max_retries 0 or more.")
        if not 0 < self.timeout <= 3600 or not 0 <= self.patience <= 3600:
            raise InvalidInput("timeout and patience are seconds, up to an hour.")


def config_of(settings: Settings, **given: Any) -> LLMConfig:
    """The configuration of the settings, and what was given instead of it."""
    base: dict[str, Any] = {"model": settings.llm_model, "max_tokens": settings.llm_max_tokens, "timeout": settings.llm_timeout}
    return LLMConfig(**base | {name: value for name, value in given.items() if value is not None})


def load_sdk() -> Any:
    """The package anthropic, or `MissingDependency`; takes a while the first time."""
    try:
        import anthropic
    except ImportError:
        raise MissingDependency("Models are asked through the package anthropic: pip install 'treadle[llm]'.") from None
    return anthropic


def make_client(settings: Settings, timeout: float) -> Any:
    """An asynchronous client of the official SDK. Its own retries are off: how often is our decision, and is accounted for.

    Raises `MissingDependency` without the package, and `llm_not_configured` without a key.
    """
    anthropic = load_sdk()
    if not settings.anthropic_api_key:
        raise LLMError("llm_not_configured", "There is no key for the model: set ANTHROPIC_API_KEY, or give a client.")
    if not all("!" <= character <= "~" for character in settings.anthropic_api_key):
        # Not sent: the libraries below would write the header that they cannot send into their logs.
        raise LLMError("llm_not_configured", "ANTHROPIC_API_KEY has characters that no key has, such as spaces or line ends.")
    return anthropic.AsyncAnthropic(
        api_key=settings.anthropic_api_key,
        base_url=settings.anthropic_base_url or "https://api.anthropic.com",
        max_retries=0,
        timeout=timeout,
    )


def scrubbed(text: str, secrets: tuple[str, ...]) -> str:
    """The text without any of the secrets, whoever put them there."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, HIDDEN)
    return text


def secrets_of(client: Any, settings: Settings) -> tuple[str, ...]:
    """What must never be told: keys and tokens of the client and of the settings."""
    found = (settings.anthropic_api_key, getattr(client, "api_key", None), getattr(client, "auth_token", None))
    return tuple({each.strip() for each in found if isinstance(each, str) and len(each.strip()) >= _SHORTEST_SECRET})
