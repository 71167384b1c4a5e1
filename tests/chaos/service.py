"""An external HTTP service on the loopback interface that survives every fault and counts its requests.

    python -m tests.chaos.service

POST /plain/KEY is counted. POST /effect/KEY with a `Dedupe-Key` is made once for each of these keys. POST /jobs {"key", "token",
"takes"} makes a job, one for each token; GET /jobs/ID and GET /tokens/TOKEN look at it. GET /ledger has all that was counted.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from treadle.kernel.store.process import SystemClock


class Ledger:
    """All that was asked for. Nothing is ever taken out."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.plain: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        """Requests for each effect."""
        self.made: dict[str, list[str]] = {}
        """For each effect, the dedupe keys under which it was made."""
        self.submits: Counter[str] = Counter()
        """Requests for each job."""
        self.jobs: dict[str, list[str]] = {}
        """For each job that is wanted, those that were made for it."""
        self._by_token: dict[str, str] = {}
        self._ends: dict[str, tuple[str, float]] = {}
        self.looks = 0

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        """The answer to a request; None if the path is unknown."""
        match method, path.split("/", 2)[1:]:
            case "POST", ["plain", key]:
                self.plain[key] += 1
                return {"times": self.plain[key]}
            case "POST", ["effect", key]:
                return self._make(key, headers["dedupe-key"])
            case "POST", ["jobs"]:
                return self._submit(**json.loads(body))
            case "GET", ["jobs", job_id]:
                return self._look(job_id)
            case "GET", ["tokens", token]:
                job_id = self._by_token.get(token)
                return None if job_id is None else self._look(job_id)
            case "GET", ["ledger"]:
                return self.told()
        return None

    def _make(self, key: str, dedupe_key: str) -> Any:
        self.asked[key] += 1
        made = self.made.setdefault(key, [])
        if dedupe_key not in made:
            made.append(dedupe_key)
        return {"receipt": f"receipt {key}"}

    def _submit(self, key: str, token: str, takes: float) -> Any:
        self.submits[key] += 1
        if token not in self._by_token:
            job_id = f"job-{len(self._ends) + 1}"
            self._by_token[token] = job_id
            self._ends[job_id] = (key, self._clock.monotonic() + takes)
            self.jobs.setdefault(key, []).append(job_id)
        return self._look(self._by_token[token])

    def _look(self, job_id: str) -> Any:
        self.looks += 1
        if job_id not in self._ends:
            return None
        key, done_at = self._ends[job_id]
        return {"id": job_id, "key": key, "done": self._clock.monotonic() >= done_at}

    def told(self) -> dict[str, Any]:
        """Everything, for whoever checks."""
        return {
            "plain": self.plain,
            "asked": self.asked,
            "made": self.made,
            "submits": self.submits,
            "jobs": self.jobs,
            "looks": self.looks,
        }


async def talk(ledger: Ledger, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: requests one after another, until the other side is gone."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ", 2)
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            said = ledger.answer(method, path, headers, body)
            text = json.dumps(said).encode()
            status = "404 Not Found" if said is None else "200 OK"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
            )
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve() -> None:
    """Until somebody ends this process."""
    ledger = Ledger()
    server = await asyncio.start_server(lambda reader, writer: talk(ledger, reader, writer), "127.0.0.1", 0)
    print(json.dumps({"event": "ready", "port": server.sockets[0].getsockname()[1]}), flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
