"""Runs scripts concurrently in separate processes, each with the same limits and a clean state."""

from __future__ import annotations

import asyncio
import sys

from treadle.model.errors import InvalidPolicy
from treadle.model.values import Json, encode
from treadle.workers.scripts.answers import outputs
from treadle.workers.scripts.errors import ScriptKilled, ScriptResultInvalid, ScriptUnavailable
from treadle.workers.scripts.exchange import AnswerTooLarge, exchange
from treadle.workers.scripts.host import Host, HostGone, HostRefused
from treadle.workers.scripts.limits import ScriptLimits

_REQUEST_LIMIT = 64 * 1024 * 1024
_ANSWER_SLACK = 64 * 1024
"""Bytes for an error message, or for the braces around a result."""


class ScriptRunner:
    """An async context manager that runs scripts.

    The first script starts a host process, which loads the modules that scripts may import and forks one child per script; it
    is restarted if it ends. At most `concurrency` scripts run concurrently; others wait. Leaving the context ends all
    processes; so does any end of this process.

    The list of built-ins and modules that a script sees is not a security boundary: Python offers ways around it. The limits on
    the process protect the machine; `describe_limits` reports which of them hold here.
    """

    def __init__(self, *, limits: ScriptLimits | None = None, concurrency: int = 8, python: str | None = None) -> None:
        if not 1 <= concurrency <= 64:
            raise InvalidPolicy(f"concurrency must be from 1 to 64, not {concurrency}.")
        self._limits = limits or ScriptLimits()
        self._python = python or sys.executable
        self._slots = asyncio.Semaphore(concurrency)
        self._starting = asyncio.Lock()
        self._host: Host | None = None
        self._closed = False

    async def __aenter__(self) -> ScriptRunner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all processes; scripts in progress raise `ScriptUnavailable`."""
        self._closed = True
        async with self._starting:
            if self._host is not None:
                await self._host.close()

    async def run(self, code: str, params: dict[str, Json], *, first_line: int = 1, source: str = "<script>") -> dict[str, Json]:
        """Run the script and return its `result`; raises `ScriptError`, with lines counted from `first_line`.

        If the host process is lost, the script runs once more: it cannot have changed anything. A cancellation ends the script.
        Params that are not JSON raise `InvalidPayload`.
        """
        request = {"code": code, "params": params, "source": source, "output": self._limits.output_bytes}
        return await self._outputs(encode(request, "script with its params", _REQUEST_LIMIT), first_line, source)

    async def describe_limits(self) -> dict[str, bool | str]:
        """Return for each limit True if it holds for scripts on this machine, else the reason. Compare with `is True`."""
        notes: dict[str, bool | str] = await self._outputs("{}", 1, "<limits>")
        # These hold by construction, on every platform.
        always = ("wall_clock", "output_size", "environment", "descriptors", "working_directory", "standard_streams")
        return dict(sorted((notes | dict.fromkeys(always, True)).items()))

    async def warm(self) -> int:
        """Start the host process if it is not running, and return its pid."""
        try:
            return (await self._ready_host()).pid
        except (OSError, HostGone) as error:
            raise ScriptUnavailable(f"No process for scripts can be started: {error}.", source="<start>") from None

    async def _outputs(self, request: str, first_line: int, source: str) -> dict[str, Json]:
        limit = self._limits.output_bytes + _ANSWER_SLACK
        async with self._slots:
            for last in (False, True):
                try:
                    host = await self._ready_host()
                except (OSError, HostGone) as error:
                    raise ScriptUnavailable(f"No process for scripts can be started: {error}.", source=source) from None
                try:
                    ended, answer = await exchange(host, request.encode(), self._limits.wall_for, limit)
                    break
                except (OSError, HostRefused) as error:
                    raise ScriptUnavailable(f"No process can be started for the script: {error}.", source=source) from None
                except AnswerTooLarge:
                    raise ScriptResultInvalid(
                        f"The result takes more than {self._limits.output_bytes} bytes.", source=source
                    ) from None
                except HostGone as error:
                    if last and not self._closed:
                        raise ScriptKilled(f"The process that runs scripts was lost twice: {error}.", source=source) from None
        return outputs(ended, answer, self._limits, first_line, source)

    async def _ready_host(self) -> Host:
        async with self._starting:
            if self._closed:
                raise HostGone("the script runner is closed")
            if self._host is None or self._host.gone:
                if self._host is not None:
                    await self._host.close()
                self._host = await Host.start(self._python, self._limits)
            return self._host
