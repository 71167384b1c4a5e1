"""All settings from the environment, read in one place. Command-line flags and arguments override them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from treadle.model.errors import InvalidInput
from treadle.model.names import DEFAULT_NAMESPACE, check_name
from treadle.model.values import PAYLOAD_LIMIT

DEFAULT_STORE = "sqlite:///treadle.db"
DEFAULT_MODEL = "claude-sonnet-4-6"
DEFAULT_SERVICE = "treadle"


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of a process. The field `store` is read from `TREADLE_STORE`, and so on; variables of SDKs keep their
    names."""

    store: str = field(default=DEFAULT_STORE, repr=False)
    """`sqlite:///path`, `postgresql://...` or `memory://`."""
    namespace: str = DEFAULT_NAMESPACE
    """Separates tenants that share a database."""
    lease: float = 60.0
    """Seconds that a claim is valid without renewal; workers renew it after a third of that."""
    payload_limit: int = PAYLOAD_LIMIT
    """Maximum size of a payload or a result, in bytes of JSON."""
    keep_completed: float = 30 * 86_400
    """Seconds for which completed, canceled and ignored tasks and runs are kept, unless their list has its own setting."""
    keep_failed: float = 90 * 86_400
    """Seconds for which failed tasks and runs are kept, unless their list has its own setting."""
    log_level: str = "INFO"
    log_format: str = "text"
    """`text` or `json`."""
    metrics_address: str = ""
    """Where a worker serves its metrics: a port of 127.0.0.1, or HOST:PORT (other hosts need a token with the scope `read`). If
    the port is taken, one of the next 19 is used. Off by default."""
    otlp_endpoint: str = field(default="", repr=False)
    """Where to send traces (OTLP over HTTP), such as `http://localhost:4318`; falls back to `OTEL_EXPORTER_OTLP_ENDPOINT`. Off
    by default and with `off`."""
    service_name: str = DEFAULT_SERVICE
    """The name of this service in traces; falls back to `OTEL_SERVICE_NAME`."""
    warm_functions: int = 1000
    """Suspended durable functions that a process keeps in memory; the others are replayed when they continue."""
    handler_roots: tuple[str, ...] = ()
    """Directories from which runners load handler modules, separated by `:`; the working directory by default."""
    afl_poll_interval_ms: int = 2000
    """Milliseconds between two polls of an agent, unless its configuration sets them."""
    afl_max_concurrent: int = 5
    """Tasks that an agent handles concurrently, unless its configuration sets them."""
    anthropic_api_key: str = field(default="", repr=False)
    """The API key for models; never shown."""
    anthropic_base_url: str = ""
    """The base URL of the Messages API, if it is not the default."""
    llm_model: str = DEFAULT_MODEL
    """The model for prompts that name none."""
    llm_max_tokens: int = 4096
    """Maximum number of tokens in one response of a model."""
    llm_timeout: float = 120.0
    """Seconds without data from the model's service before a request times out."""
    llm_budget: float | None = None
    """Dollars that a run may spend on models, unless it was started with its own budget; unlimited by default."""
    llm_prices: str = field(default="", repr=False)
    """Prices of models as JSON, `{"some-model": [3, 15]}`: dollars per million input and output tokens."""
    approval_webhook: str = field(default="", repr=False)
    """The URL to notify of pending approvals; none by default."""
    webhook_secret: str = field(default="", repr=False)
    """The secret that signs webhooks; without it, none is sent. Never shown."""
    webhook_allow: tuple[str, ...] = ()
    """URL prefixes, separated by spaces, that an approval may name as its own webhook; none by default."""
    watch_allow: tuple[str, ...] = ()
    """Paths and URLs, separated by spaces, below which callers without the scope `admin` may create watchers; none by default."""
    http_host: str = "127.0.0.1"
    """The address that `treadle up` and `treadle serve` listen on; any other than loopback requires a token."""
    http_port: int = 8787
    """The port that they listen on; if it is taken, the next free one of ten; 0: any."""
    http_waiting: int = 1000
    """Maximum number of waiting calls in a server: event streams, and calls that wait for something to happen. Each holds a
    connection, so allow the process more file descriptors than that."""
    http_waiting_each: int = 500
    """Maximum number of waiting calls per token; without tokens, for all callers together."""
    public_url: str = ""
    """The URL under which external services reach the HTTP server, such as `https://work.example.org`; callback URLs of external
    jobs start with it. Without it, jobs have no callback URL."""
    github_secret: str = field(default="", repr=False)
    """The secret that GitHub signs its webhooks with; without it, `/v1/ingest/github` accepts none. Never shown."""
    github_labels: tuple[str, ...] = ()
    """Labels, separated by commas, of which an issue needs one to become a job; any issue by default."""
    crash_at: str = ""
    """For tests: `point` or `point:n` kills the process when it reaches the named crash point for the n-th time."""


def load_settings() -> Settings:
    """Read the settings of this process from `TREADLE_*` variables; raise `InvalidInput` for an invalid value."""
    get = os.environ.get  # noqa: TID251
    return Settings(
        store=get("TREADLE_STORE") or DEFAULT_STORE,
        namespace=check_name(get("TREADLE_NAMESPACE") or DEFAULT_NAMESPACE, "namespace"),
        lease=_number("TREADLE_LEASE", get("TREADLE_LEASE"), 60.0, 0.1, 3600),
        payload_limit=int(_number("TREADLE_PAYLOAD_LIMIT", get("TREADLE_PAYLOAD_LIMIT"), PAYLOAD_LIMIT, 1024, 2**30)),
        keep_completed=_number("TREADLE_KEEP_COMPLETED", get("TREADLE_KEEP_COMPLETED"), 30 * 86_400, 0, 1e10),
        keep_failed=_number("TREADLE_KEEP_FAILED", get("TREADLE_KEEP_FAILED"), 90 * 86_400, 0, 1e10),
        log_level=_choice("TREADLE_LOG_LEVEL", (get("TREADLE_LOG_LEVEL") or "INFO").upper(), ("DEBUG", "INFO", "WARNING", "ERROR")),
        log_format=_choice("TREADLE_LOG_FORMAT", get("TREADLE_LOG_FORMAT") or "text", ("text", "json")),
        metrics_address=(get("TREADLE_METRICS_ADDRESS") or "").strip(),
        otlp_endpoint=_endpoint(get("TREADLE_OTLP_ENDPOINT") or get("OTEL_EXPORTER_OTLP_ENDPOINT") or ""),
        service_name=get("TREADLE_SERVICE_NAME") or get("OTEL_SERVICE_NAME") or DEFAULT_SERVICE,
        warm_functions=int(_number("TREADLE_WARM_FUNCTIONS", get("TREADLE_WARM_FUNCTIONS"), 1000, 0, 1_000_000)),
        handler_roots=tuple(root for root in (get("TREADLE_HANDLER_ROOTS") or "").split(":") if root),
        afl_poll_interval_ms=agent_poll_interval_ms(),
        afl_max_concurrent=agent_max_concurrent(),
        anthropic_api_key=(get("ANTHROPIC_API_KEY") or "").strip(),
        anthropic_base_url=get("ANTHROPIC_BASE_URL") or "",
        llm_model=get("TREADLE_LLM_MODEL") or DEFAULT_MODEL,
        llm_max_tokens=int(_number("TREADLE_LLM_MAX_TOKENS", get("TREADLE_LLM_MAX_TOKENS"), 4096, 1, 1_000_000)),
        llm_timeout=_number("TREADLE_LLM_TIMEOUT", get("TREADLE_LLM_TIMEOUT"), 120.0, 0.1, 3600),
        llm_budget=_number("TREADLE_LLM_BUDGET", get("TREADLE_LLM_BUDGET"), 0.0, 0, 1e9) if get("TREADLE_LLM_BUDGET") else None,
        llm_prices=get("TREADLE_LLM_PRICES") or "",
        approval_webhook=(get("TREADLE_APPROVAL_WEBHOOK") or "").strip(),
        webhook_secret=(get("TREADLE_WEBHOOK_SECRET") or "").strip(),
        webhook_allow=tuple((get("TREADLE_WEBHOOK_ALLOW") or "").split()),
        watch_allow=tuple((get("TREADLE_WATCH_ALLOW") or "").split()),
        http_host=(get("TREADLE_HTTP_HOST") or "127.0.0.1").strip(),
        http_port=_port("TREADLE_HTTP_PORT", get("TREADLE_HTTP_PORT")),
        http_waiting=_whole("TREADLE_HTTP_WAITING", get("TREADLE_HTTP_WAITING"), 1000, 1_000_000),
        http_waiting_each=_whole("TREADLE_HTTP_WAITING_EACH", get("TREADLE_HTTP_WAITING_EACH"), 500, 1_000_000),
        public_url=_public_url(get("TREADLE_PUBLIC_URL") or ""),
        github_secret=(get("TREADLE_GITHUB_SECRET") or "").strip(),
        github_labels=tuple(label.strip() for label in (get("TREADLE_GITHUB_LABELS") or "").split(",") if label.strip()),
        crash_at=get("TREADLE_CRASH_AT") or "",
    )


def agent_poll_interval_ms() -> int:
    """Return `AFL_POLL_INTERVAL_MS`, the default of agent configurations; 2000 if it is not set."""
    return _whole("AFL_POLL_INTERVAL_MS", os.environ.get("AFL_POLL_INTERVAL_MS"), 2000, 86_400_000)  # noqa: TID251


def agent_max_concurrent() -> int:
    """Return `AFL_MAX_CONCURRENT`, the default of agent configurations; 5 if it is not set."""
    return _whole("AFL_MAX_CONCURRENT", os.environ.get("AFL_MAX_CONCURRENT"), 5, 10_000)  # noqa: TID251


def child_environment(**values: str) -> dict[str, str]:
    """Return the environment for a child process: this one's and the given values. Pass URLs this way, because `ps` shows
    arguments."""
    return {**os.environ, **values}  # noqa: TID251


def _number(name: str, text: str | None, default: float, low: float, high: float) -> float:
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise InvalidInput(f"{name} must be a number, not {text!r}.") from None
    if not low <= value <= high:
        raise InvalidInput(f"{name} must be from {low:g} to {high:g}, not {text}.")
    return value


def _whole(name: str, text: str | None, default: int, high: int) -> int:
    if text and not (text.strip().isascii() and text.strip().isdigit()):
        raise InvalidInput(f"{name} must be a whole number, not {text!r}.")
    return int(_number(name, text, default, 1, high))


def _endpoint(text: str) -> str:
    text = text.strip()
    if text in ("", "off"):
        return ""
    if not text.startswith(("http://", "https://")):
        raise InvalidInput(f"TREADLE_OTLP_ENDPOINT must be a URL like http://localhost:4318, or `off`, not {text!r}.")
    return text


def _public_url(text: str) -> str:
    text = text.strip().rstrip("/")
    if text and (not text.startswith(("http://", "https://")) or "?" in text or "#" in text):
        raise InvalidInput(f"TREADLE_PUBLIC_URL must be a URL like https://work.example.org, not {text!r}.")
    return text


def _port(name: str, text: str | None) -> int:
    if not text:
        return 8787
    return 0 if text.strip() == "0" else _whole(name, text, 8787, 65_535)


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, not {text!r}.")
    return text
