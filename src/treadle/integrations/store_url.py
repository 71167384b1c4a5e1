"""Store URLs from the parameters of another library's connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

_PASSED = ("sslmode", "sslrootcert", "sslcert", "sslkey", "application_name")


def store_url(parameters: Mapping[str, Any], schema: str) -> str:
    """Return the URL of a store in the database that a driver connects to with these parameters."""
    user = quote(str(parameters.get("user") or ""), safe="")
    password = quote(str(parameters.get("password") or ""), safe="")
    host, port = str(parameters.get("host") or ""), str(parameters.get("port") or "")
    name = quote(str(parameters.get("dbname") or parameters.get("database") or ""), safe="")
    query = {key: str(parameters[key]) for key in _PASSED if parameters.get(key)} | {"schema": schema}
    if host.startswith("/") or not host:  # a directory with a socket
        query |= {"host": host} if host else {}
        query |= {"port": port} if port else {}
        place = ""
    else:
        place = f"{host}:{port}" if port else host
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    return f"postgresql://{login}{place}/{name}?{urlencode(query)}"
