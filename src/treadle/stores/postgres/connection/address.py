"""Parse a store URL into the part for asyncpg, Treadle's own parameters, and a form without passwords.

    postgresql://user:password@host:port,host:port/database?schema=treadle&target_session_attrs=read-write
    postgresql://user:password@host:port/database?pgbouncer=1&direct_url=...

`schema` contains all tables. Several hosts are the servers of one replicated database; `target_session_attrs` states which
of them may be used: `read-write` (the default for several hosts), `primary` (the default for one: not a standby) or `any`.
`pgbouncer=1` states that a transaction-mode pooler is in front of the server; `direct_url` (percent-encoded) then names the
server itself, for LISTEN.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from treadle.model.errors import InvalidStoreUrl

DEFAULT_SCHEMA = "treadle"

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]*")
_SCHEMA_NAME_LIMIT = 48
_OURS = ("schema", "direct_url", "pgbouncer", "target_session_attrs")
_TARGETS = ("read-write", "primary", "any")
_SECRET = ("password", "sslpassword")
_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?")
_ENCODE = (
    "The store URL cannot be read. If the password has one of / ? # [ ] @ in it, write that as %2F %3F %23 %5B %5D %40; "
    "the URL looks like postgresql://user:password@host/database."
)


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """One server of the database; only `name` may be displayed."""

    name: str
    dsn: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address of the database. Only `shown` has no passwords and may be displayed."""

    shown: str
    schema: str
    pgbouncer: bool
    target: str
    """The servers that may be used: `read-write`, `primary` or `any`."""
    dsn: str = field(repr=False)
    direct_dsn: str = field(repr=False)
    servers: tuple[DatabaseServer, ...] = field(repr=False)
    direct_servers: tuple[DatabaseServer, ...] = field(repr=False)

    @property
    def has_sessions(self) -> bool:
        """Whether a connection can be a session of its own: not behind a pooler without a `direct_url`."""
        return not self.pgbouncer or self.direct_dsn != self.dsn

    @property
    def channel(self) -> str:
        """The NOTIFY channel of the schema; channels belong to the whole database."""
        return f"treadle_{self.schema}"


def parse_address(url: str) -> DatabaseAddress:
    """Parse a store URL; raises `InvalidStoreUrl`, without secrets in its message."""
    dsn, own = _split(url)
    schema = own.get("schema", DEFAULT_SCHEMA)
    if "@" in schema + own.get("pgbouncer", "") + own.get("target_session_attrs", ""):
        raise InvalidStoreUrl(_ENCODE)
    if not _SCHEMA.fullmatch(schema) or len(schema) > _SCHEMA_NAME_LIMIT or schema.startswith("pg_"):
        raise InvalidStoreUrl(
            f"{schema!r} is not a usable schema name: use lower case letters, digits and underscores, "
            f"at most {_SCHEMA_NAME_LIMIT}, not starting with a digit or pg_."
        )
    pgbouncer = own.get("pgbouncer", "0").lower()
    if pgbouncer not in ("0", "1", "true", "false"):
        raise InvalidStoreUrl(f"pgbouncer must be 1 or 0, not {pgbouncer!r}.")
    direct_dsn = _split(own["direct_url"])[0] if "direct_url" in own else dsn
    servers = _list_servers(dsn)
    target = own.get("target_session_attrs", "read-write" if len(servers) > 1 else "primary")
    if target not in _TARGETS:
        raise InvalidStoreUrl(f"target_session_attrs must be read-write, primary or any (to read from a standby), not {target!r}.")
    return DatabaseAddress(
        redacted(url), schema, pgbouncer in ("1", "true"), target, dsn, direct_dsn, servers, _list_servers(direct_dsn)
    )


def redacted(url: str) -> str:
    """Return the URL with every password replaced by `***`, or less of it if a password may have split it."""
    try:
        parts = _parts(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return "postgresql://***"
    if ":" in parts.netloc and "@" in parts.path + parts.query + parts.fragment:
        user, tail = parts.netloc.partition(":")[0], url.rpartition("@")[2]
        return f"{parts.scheme}://{user}:***@{re.split('[?&#]', tail)[0]}"
    account, at, host = parts.netloc.rpartition("@")
    user, colon, password = account.partition(":")
    netloc = f"{user}:***@{host}" if password else f"{user}{colon}{at}{host}"
    query = [(name, "***" if name in _SECRET else redacted(value) if name == "direct_url" else value) for name, value in pairs]
    return _join(parts.scheme, netloc, parts.path, urlencode(query, safe="/:*@", quote_via=quote, errors="replace"))


def _split(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without Treadle's parameters, and those parameters."""
    try:
        parts = _parts(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise InvalidStoreUrl(_ENCODE) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidStoreUrl("A PostgreSQL URL starts with postgresql://, and so does a direct_url.")
    hosts = parts.netloc.rpartition("@")[2].split(",")
    torn = "#" in url or "@" in parts.path or any("@" in name for name, _ in pairs)
    if torn or not all(_PORT.fullmatch(host) for host in hosts):
        raise InvalidStoreUrl(_ENCODE)
    own = {name: value for name, value in pairs if name in _OURS}
    rest = {"application_name": "treadle"} | {name: value for name, value in pairs if name not in _OURS and value}
    return _join(parts.scheme, parts.netloc, parts.path, urlencode(rest, quote_via=quote, safe="/:", errors="replace")), own


def _parts(url: str) -> SplitResult:
    """Split a URL that may have several hosts; `urlsplit` of newer Pythons refuses a list with an IPv6 address."""
    scheme, slashes, rest = url.partition("//")
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    account, at, hosts = netloc.rpartition("@")
    for host in hosts.split(","):
        urlsplit(f"//{host}")
    return urlsplit(f"{scheme}{slashes}{account}{at}{rest.removeprefix(netloc)}")._replace(netloc=netloc)


def _list_servers(dsn: str) -> tuple[DatabaseServer, ...]:
    """Return the hosts of the URL, each with a URL of its own; hosts are in the authority or in `host` and `port`."""
    parts = _parts(dsn)
    account, at, hosts = parts.netloc.rpartition("@")
    if hosts:
        return tuple(
            DatabaseServer(host, _join(parts.scheme, f"{account}{at}{host}", parts.path, parts.query)) for host in hosts.split(",")
        )
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    named, ports = query.get("host", "").split(","), query.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(named)
    if len(ports) != len(named):
        raise InvalidStoreUrl("The store URL has a different number of hosts and ports.")
    servers = []
    for host, port in zip(named, ports, strict=True):
        own = {name: value for name, value in (query | {"host": host, "port": port}).items() if value}
        dsn = _join(parts.scheme, parts.netloc, parts.path, urlencode(own, quote_via=quote, safe="/:", errors="replace"))
        servers.append(DatabaseServer(f"{host}:{port}" if port else host or "localhost", dsn))
    return tuple(servers)


def _join(scheme: str, netloc: str, path: str, query: str) -> str:
    return f"{scheme}://{netloc}{path}{'?' if query else ''}{query}"
