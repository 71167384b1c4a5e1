"""All settings from the environment, read in one place. Command-line flags and arguments override them.

The directory: a file that places namespaces on stores, so that one installation can use several databases.

    store = "postgresql://treadle@db1/treadle"       # of namespaces that are not listed; optional

    [namespaces]
    red = "postgresql://treadle@db2/treadle"
    blue = "sqlite:////var/lib/treadle/blue.db"

A change replaces the file atomically. URLs may contain passwords, so only its owner should be able to read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from treadle.model.alerts import VARIABLE
from treadle.model.clock import milliseconds, parse_duration
from treadle.model.errors import InvalidInput
from treadle.model.names import DEFAULT_NAMESPACE, check_name
from treadle.model.records import STREAM_LIMIT
from treadle.model.runs import ADVANCE_BYTES, RUN_DEPTH, RUN_ROWS
from treadle.model.values import PAYLOAD_LIMIT

DEFAULT_STORE = "sqlite:///treadle.db"
DEFAULT_MODEL = "claude-sonnet-4-6"
DEFAULT_SERVICE = "treadle"


T = TypeVar("T")
Read = Callable[[str, str], T]
"""Parses the text of a variable, given its name; raises `InvalidInput`."""


def _setting(default: Any, read: Read[T], *, secret: bool = False, fallback: str = "") -> T:
    """A field of `Settings`; `fallback` is a second variable, `secret` hides the value in `repr`."""
    setting: T = field(default=default, repr=not secret, metadata={"read": read, "fallback": fallback})
    return setting


def _text(name: str, text: str) -> str:
    return text.strip()


def _number(low: float, high: float) -> Read[float]:
    def read(name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise InvalidInput(f"{name} must be a number, not {text!r}.") from None
        if not low <= value <= high:
            raise InvalidInput(f"{name} must be from {low:g} to {high:g}, not {text}.")
        return value

    return read


def _integer(low: int, high: int) -> Read[int]:
    return lambda name, text: int(_number(low, high)(name, text))


def _whole(high: int) -> Read[int]:
    def read(name: str, text: str) -> int:
        if not (text.strip().isascii() and text.strip().isdigit()):
            raise InvalidInput(f"{name} must be a whole number, not {text!r}.")
        return int(_number(1, high)(name, text))

    return read


def _port(name: str, text: str) -> int:
    return 0 if text.strip() == "0" else _whole(65_535)(name, text)


def _choice(*choices: str) -> Read[str]:
    def read(name: str, text: str) -> str:
        choice = text.upper() if choices[0].isupper() else text
        if choice not in choices:
            raise InvalidInput(f"{name} must be one of {', '.join(choices)}, not {choice!r}.")
        return choice

    return read


def _words(separator: str | None = None) -> Read[tuple[str, ...]]:
    return lambda name, text: tuple(word.strip() for word in text.split(separator) if word.strip())


def _deadlines(name: str, text: str) -> tuple[tuple[str, int], ...]:
    """Patterns with their durations in milliseconds."""
    deadlines = []
    for part in _words(",")(name, text):
        pattern, equals, duration = part.partition("=")
        if not equals:
            raise InvalidInput(f"{name} must be like report.*=30m, *=1d, not {text!r}.")
        deadlines.append((pattern.strip(), milliseconds(parse_duration(duration, name), name, positive=True)))
    return tuple(deadlines)


def _keeps(name: str, text: str) -> tuple[float, ...]:
    durations = tuple(parse_duration(part, name) for part in _words(",")(name, text))
    if len(durations) != 3:
        raise InvalidInput(f"{name} must be three durations (by minute, hour and day) like 2d,30d,400d, not {text!r}.")
    return durations


def _flag(name: str, text: str) -> bool:
    flag = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(text.strip().lower())
    if flag is None:
        raise InvalidInput(f"{name} must be yes or no, not {text!r}.")
    return flag


def _endpoint(name: str, text: str) -> str:
    text = text.strip()
    if text in ("", "off"):
        return ""
    if not text.startswith(("http://", "https://")):
        raise InvalidInput(f"{name} must be a URL like http://localhost:4318, or `off`, not {text!r}.")
    return text


def _public_url(name: str, text: str) -> str:
    text = text.strip().rstrip("/")
    if text and (not text.startswith(("http://", "https://")) or "?" in text or "#" in text):
        raise InvalidInput(f"{name} must be a URL like https://work.example.org, not {text!r}.")
    return text


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of a process. The field `store` is read from `TREADLE_STORE`, and so on; variables of SDKs keep their
    names."""

    store: str = _setting(DEFAULT_STORE, _text, secret=True)
    """`sqlite:///path`, `postgresql://...` or `memory://`."""
    strict: bool = _setting(False, _flag)
    """`yes`: `compile`, `run`, `submit` and `flows publish` treat warnings about AFL as errors, and their flows are strict about
    the results of handlers."""
    namespace: str = _setting(DEFAULT_NAMESPACE, lambda _, text: check_name(text, "namespace"))
    """Separates tenants that share a database."""
    directory: str = _setting("", _text)
    """Path of a TOML file that places namespaces on stores; it takes precedence over `TREADLE_STORE`, which remains the store of
    namespaces that the file does not place. None by default."""
    lease: float = _setting(60.0, _number(0.1, 3600))
    """Seconds that a claim is valid without renewal; workers renew it after a third of that."""
    keep_leases: float = _setting(600.0, _number(0, 86_400))
    """Seconds for which the lease sidecar, a small process beside each worker, renews the worker's leases while a handler holds
    the interpreter lock. After that they expire, and other workers take over. 0: no sidecar."""
    fast_takeover: bool = _setting(True, _flag)
    """Whether servers see each other die and take over immediately: by the process on the same machine (outside containers), and
    by the session with the database on PostgreSQL. `no`: work of a dead worker waits until its leases expire, and this process is
    neither judged nor judges others."""
    poll_interval: float = _setting(5.0, _number(0.05, 3600))
    """Seconds after which a worker polls the store even if no signal arrived. Signals normally wake workers immediately; a
    shorter interval only matters when they are lost, and costs queries."""
    max_concurrency: int = _setting(2000, _integer(1, 100_000))
    """Maximum number of tasks in progress in a worker without `--concurrency`, which adapts it to the time that its async handlers
    take: 100 if they take 20 ms or longer, up to this number if they return immediately."""
    payload_limit: int = _setting(PAYLOAD_LIMIT, _integer(1024, 2**30))
    """Maximum size of a payload or a result, in bytes of JSON."""
    stream_limit: int = _setting(STREAM_LIMIT, _integer(1024, 2**30))
    """Maximum size of a stream, in bytes of JSON, without abandoned entries. A full stream drops further entries."""
    run_depth: int = _setting(RUN_DEPTH, _integer(1, 1000))
    """Maximum number of steps within steps in a run of a workflow. A run that nests deeper, such as one of a facet that calls
    itself endlessly, is stopped with the error `too_deep`."""
    run_rows: int = _setting(RUN_ROWS, _integer(1000, 10**9))
    """Maximum number of steps, blocks and items of a run of a workflow. A run that reaches it is stopped with the error
    `too_many_rows`."""
    advance_bytes: int = _setting(ADVANCE_BYTES, _integer(2**20, 2**30))
    """Bytes of values that one advance of a run may compute before it is committed and the next one begins, which limits the
    memory of a worker. A step whose parameters alone exceed it still runs."""
    keep_completed: float = _setting(30 * 86_400, _number(0, 1e10))
    """Seconds for which completed, canceled and ignored tasks and runs are kept, unless their list has its own setting."""
    keep_failed: float = _setting(90 * 86_400, _number(0, 1e10))
    """Seconds for which failed tasks and runs are kept, unless their list has its own setting."""
    keep_metrics: tuple[float, ...] = _setting((172_800, 2_592_000, 34_560_000), _keeps)
    """Durations for which metrics by minute, hour and day are kept: `2d,30d,400d`."""
    log_level: str = _setting("INFO", _choice("DEBUG", "INFO", "WARNING", "ERROR"))
    log_format: str = _setting("text", _choice("text", "json"))
    """`text` or `json`."""
    metrics_address: str = _setting("", _text)
    """Address at which a worker serves `/metrics`, `/health` and `/live`: a port of 127.0.0.1, or HOST:PORT (metrics then need a
    token with the scope `read`). If the port is taken, one of the next 19 is used. Off by default."""
    otlp_endpoint: str = _setting("", _endpoint, secret=True, fallback="OTEL_EXPORTER_OTLP_ENDPOINT")
    """Destination of traces (OTLP over HTTP), such as `http://localhost:4318`; falls back to `OTEL_EXPORTER_OTLP_ENDPOINT`. Off
    by default and with `off`."""
    service_name: str = _setting(DEFAULT_SERVICE, _text, fallback="OTEL_SERVICE_NAME")
    """The name of this service in traces; falls back to `OTEL_SERVICE_NAME`."""
    release: str = _setting("", _text)
    """The release of the application, such as `2026-11-20.3`: workers record it, and metrics are kept by it. By default the first
    12 digits of the commit, if the process starts in a git repository."""
    finish_on_failure: tuple[str, ...] = _setting((), _words(","))
    """Workflows (names or globs, separated by commas) whose runs, once they cannot succeed, still run their other branches to the
    end; by default they start nothing new. `on_failure` of a start takes precedence."""
    run_deadlines: tuple[tuple[str, int], ...] = _setting((), _deadlines)
    """The time that runs may take, by workflow or function (names or globs): `report.*=30m, *=1d`; the first match counts, and
    none by default. Once it has passed, the run is canceled. `deadline` of a start takes precedence."""
    warm_functions: int = _setting(1000, _integer(0, 1_000_000))
    """Suspended durable functions that a process keeps in memory; the others are replayed when they continue."""
    handler_roots: tuple[str, ...] = _setting((), _words(":"))
    """Directories from which handler modules are loaded, separated by `:`. By default, servers load none; `treadle runner`,
    `treadle handlers` and agents load from the directory in which they are started."""
    afl_poll_interval_ms: int = _setting(2000, _whole(86_400_000))
    """Milliseconds between two polls of an agent, unless its configuration sets them."""
    afl_max_concurrent: int = _setting(5, _whole(10_000))
    """Tasks that an agent handles concurrently, unless its configuration sets them."""
    afl_runner_topics: tuple[str, ...] = _setting((), _words(","))
    """Globs, separated by commas, of the facets that runners handle, unless their configuration sets topics; all by default."""
    afl_use_registry: str = _setting("0", _choice("0", "1"))
    """`1`: agents started by `afl.runtime.agent_runner` use a `RegistryRunner` instead of an `AgentPoller`."""
    afl_mongodb_url: str = _setting("", _text, secret=True)
    """The store of agents started by `afl.runtime.agent_runner`, if `TREADLE_STORE` is not set: the URL of a Treadle store."""
    afl_mongodb_database: str = _setting("afl", _text)
    """The namespace of agents started by `afl.runtime.agent_runner`; `afl` stands for `TREADLE_NAMESPACE`."""
    afl_http_host: str = _setting("127.0.0.1", _text)
    """The address on which a `RunnerService` serves `/health` and `/status`, unless its configuration sets it; `0.0.0.0`: all."""
    anthropic_api_key: str = _setting("", _text, secret=True)
    """The API key for models; never shown."""
    anthropic_base_url: str = _setting("", _text)
    """The base URL of the Messages API, if it is not the default."""
    llm_model: str = _setting(DEFAULT_MODEL, _text)
    """The model for prompts that name none."""
    llm_max_tokens: int = _setting(4096, _integer(1, 1_000_000))
    """Maximum number of tokens in one response of a model."""
    llm_timeout: float = _setting(120.0, _number(0.1, 3600))
    """Seconds without data from the model's service before a request times out."""
    llm_budget: float | None = _setting(None, _number(0, 1e9))
    """Dollars that a run may spend on models, unless it was started with its own budget; unlimited by default."""
    llm_prices: str = _setting("", _text, secret=True)
    """Prices of models as JSON, `{"some-model": [3, 15]}`: dollars per million input and output tokens."""
    approval_webhook: str = _setting("", _text, secret=True)
    """The URL to notify of pending approvals; none by default."""
    webhook_secret: str = _setting("", _text, secret=True)
    """The secret that signs webhooks; without it, none is sent. Never shown."""
    webhook_allow: tuple[str, ...] = _setting((), _words())
    """URL prefixes, separated by spaces, that an approval may name as its own webhook, and that alerts may be sent
    to although they are in a private network; none by default."""
    watch_allow: tuple[str, ...] = _setting((), _words())
    """Paths and URLs, separated by spaces, below which callers without the scope `admin` may create watchers; none by default."""
    http_host: str = _setting("127.0.0.1", _text)
    """The address that `treadle up` and `treadle serve` listen on; any other than loopback requires a token."""
    http_port: int | None = _setting(None, _port)
    """The port that they listen on; 0: any. By default 8787, or the next free one of ten if it is taken."""
    http_open: bool = _setting(False, _flag)
    """Whether they accept callers without a token, with full access; only on loopback. The same as `--open`."""
    trusted_proxies: str = _setting("", _text)
    """Addresses of proxies, separated by commas, whose `X-Forwarded-For` and `X-Forwarded-Proto` count; those of others are
    ignored. None by default."""
    http_waiting: int = _setting(1000, _whole(1_000_000))
    """Maximum number of waiting calls in a server: event streams, and calls that wait for something to happen. Each holds a
    connection, so allow the process more file descriptors than that."""
    http_waiting_each: int = _setting(500, _whole(1_000_000))
    """Maximum number of waiting calls per token; without tokens, for all callers together."""
    public_url: str = _setting("", _public_url)
    """The URL under which external services reach the HTTP server, such as `https://work.example.org`; callback URLs of external
    jobs start with it. Without it, jobs have no callback URL."""
    oauth_issuer: str = _setting("", _public_url)
    """The OAuth issuer whose access tokens (JWTs) the HTTP server and `/mcp` accept beside its own tokens, such as
    `https://login.example.org`; needs the extra `oauth`. None by default."""
    oauth_audience: str = _setting("", _public_url)
    """The audience that these tokens must have; by default `/mcp` below `TREADLE_PUBLIC_URL`."""
    github_secret: str = _setting("", _text, secret=True)
    """The secret that GitHub signs its webhooks with; without it, `/v1/ingest/github` accepts none. Never shown."""
    github_labels: tuple[str, ...] = _setting((), _words(","))
    """Labels, separated by commas, of which an issue needs one to become a job; any issue by default."""
    crash_at: str = _setting("", _text)
    """For tests: `point` or `point:n` kills the process when it reaches the named failpoint for the n-th time."""


_FIELDS = {setting.name: setting for setting in fields(Settings)}


def load_settings() -> Settings:
    """Read the settings of this process from the environment; raise `InvalidInput` for an invalid value."""
    return place_store(read_settings())


def read_settings() -> Settings:
    """Read the settings as they are in the environment, whatever the directory says about the store."""
    return Settings(**{name: _read(setting) for name, setting in _FIELDS.items()})


def agent_default(name: str) -> Any:
    """Return the variable `AFL_<name>`, or its default: the default of agent configurations."""
    return _read(_FIELDS[f"afl_{name}"])


def read_alert_target(variable: str) -> str:
    """Return a variable `TREADLE_ALERT_...`, the target of alert rules; empty if it is not set."""
    return find_variable(variable) or "" if variable.startswith(VARIABLE) else ""


def place_store(settings: Settings) -> Settings:
    """Return the settings with the store on which the directory places the namespace, if it does."""
    store = read_directory(settings.directory).find(settings.namespace) if settings.directory else None
    return settings if store is None else replace(settings, store=store)


def chosen_store() -> str | None:
    """Return `TREADLE_STORE`, if it is set."""
    return find_variable("TREADLE_STORE")


def find_variable(name: str) -> str | None:
    """Return a variable, or else the content of the file that `<name>_FILE` names; None if both are unset or empty."""
    if text := os.environ.get(name):  # noqa: TID251
        return text
    path = os.environ.get(f"{name}_FILE")  # noqa: TID251
    if not path:
        return None
    try:
        return Path(path).read_text("utf-8").strip() or None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{name}_FILE names {path!r}, which cannot be read: {getattr(error, 'strerror', error)}.") from None


def child_environment(**values: str) -> dict[str, str]:
    """Return the environment for a child process: this one's and the given values. Pass URLs this way, because `ps` shows
    arguments."""
    return {**os.environ, **values}  # noqa: TID251


def variable_of(name: str) -> str:
    """Return the environment variable of a field."""
    return name.upper() if name.startswith(("afl_", "anthropic_")) else f"TREADLE_{name.upper()}"


def _read(each: Field[Any]) -> Any:
    variable = variable_of(each.name)
    text = find_variable(variable) or os.environ.get(each.metadata["fallback"])  # noqa: TID251
    return each.metadata["read"](variable, text) if text else each.default


# --- the release of the application ---


def find_release(settings: Settings) -> str:
    """Return the release of the application: the setting, or else the commit of the working directory; empty without either."""
    return settings.release or find_commit(Path.cwd())


def find_commit(folder: Path) -> str:
    """Return the first 12 digits of the commit that is checked out in this folder or above it; empty outside of a repository."""
    git = next((place / ".git" for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if git is None:
        return ""
    with suppress(OSError, ValueError):
        if git.is_file():  # a worktree or a submodule
            git = folder / git.read_text("utf-8").partition("gitdir:")[2].strip()
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head[:12]
        name, common = head.removeprefix("ref: "), git / "commondir"
        shared = git / common.read_text("utf-8").strip() if common.exists() else git
        if (shared / name).exists():
            return (shared / name).read_text("utf-8")[:12]
        packed = (shared / "packed-refs").read_text("utf-8").splitlines()
        return next((line[:12] for line in packed if line.endswith(f" {name}")), "")
    return ""


# --- the directory of namespaces ---

_KEYS = ("store", "namespaces")


@dataclass(frozen=True)
class Directory:
    """The stores of namespaces by name, and the store of all others."""

    namespaces: dict[str, str] = field(default_factory=dict)
    store: str | None = None

    def find(self, namespace: str) -> str | None:
        """Return the URL of the namespace's store; None if neither it nor a store for all others is listed."""
        return self.namespaces.get(namespace, self.store)


def read_directory(path: str | Path) -> Directory:
    """Read the file; raise `InvalidInput` if it is missing or not a directory of namespaces."""
    import tomllib

    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"The directory {path} cannot be read: {reason}. Correct TREADLE_DIRECTORY, or the file.") from None
    if unknown := next((key for key in document if key not in _KEYS), None):
        raise InvalidInput(f"The directory {path} has the unknown key {unknown!r}; its keys are {', '.join(_KEYS)}.")
    places, store = document.get("namespaces", {}), document.get("store")
    if not isinstance(places, dict) or not all(isinstance(url, str) and "://" in url for url in (*places.values(), store or "://")):
        raise InvalidInput(f'In the directory {path}, stores are URLs: `red = "postgresql://..."` in the table [namespaces].')
    return Directory({check_name(name, "namespace"): url for name, url in places.items()}, store)
