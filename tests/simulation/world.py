"""External services that handlers call. They record every request and never miscount."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.simulation.faults import Fault, FaultySimulation

from treadle.testing.simulation.process import current_process


class ServiceError(Exception):
    """The service did not answer: perhaps it did what it was asked for."""


@dataclass(slots=True)
class Job:
    """A job in an external service."""

    id: str
    token: str
    key: str
    done_at: float
    callback_token: str | None = None
    """With which the service says that it is done, if it does."""
    canceled: bool = False
    told: bool = False
    """Whether the engine has heard of its end."""


class World:
    """All services of one history."""

    def __init__(self, simulation: FaultySimulation) -> None:
        self.simulation = simulation
        self.made: Counter[str] = Counter()
        """How often each effect was made, at a service that makes whatever it is asked for."""
        self.deduped: dict[str, list[str]] = {}
        """For each effect, the dedupe keys that it came with; a service that knows a key does nothing."""
        self.raised: Counter[str] = Counter()
        self.jobs: dict[str, Job] = {}
        self.entered: Counter[str] = Counter()
        self.acknowledged: dict[str, Any] = {}
        """By task: the result under which somebody outside was told that it has ended."""

    async def ask(self, what: Any, *arguments: Any) -> Any:
        """A call to a service: it takes a moment each way, and the caller may be gone before it hears the answer."""
        simulation = self.simulation
        faults, process = simulation.faults, current_process()
        assert process is not None
        await asyncio.sleep(faults.latency())
        await process.pass_gate()
        wrong = faults.happens(Fault.OUTSIDE)
        if wrong and simulation.rng.random() < 0.5:
            faults.counts[Fault.OUTSIDE] += 1
            raise ServiceError("It did not answer; it had not begun.")
        answer = what(*arguments)
        process.trace(f"    {what.__name__} {' '.join(str(each) for each in arguments)[:60]}")
        if wrong:
            faults.counts[Fault.OUTSIDE] += 1
            raise ServiceError("It did not answer; it was done.")
        if faults.happens(Fault.CRASH_OUTSIDE):
            faults.counts[Fault.CRASH_OUTSIDE] += 1
            process.crash(f"crashes after {what.__name__}")
            raise asyncio.CancelledError
        await asyncio.sleep(faults.latency())
        await process.pass_gate()
        return answer

    # what services do

    def charge(self, key: str, dedupe_key: str) -> str:
        """One charges whatever it is asked to, the other each key once."""
        self.made[key] += 1
        known = self.deduped.setdefault(key, [])
        if dedupe_key not in known:
            known.append(dedupe_key)
        return f"receipt {key}"

    def submit(self, key: str, token: str, takes: float, callback_token: str | None = None) -> str:
        """Two submits under one token are one job: a worker that stood still before it submitted cannot know that it is late."""
        if (known := self.find(token)) is not None:
            return known
        job = Job(f"job-{len(self.jobs) + 1}", token, key, self.simulation.loop.time() + takes, callback_token)
        self.jobs[job.id] = job
        return job.id

    def look(self, job_id: str) -> bool:
        """Whether it is done."""
        return self.simulation.loop.time() >= self.jobs[job_id].done_at

    def find(self, token: str) -> str | None:
        return next((job.id for job in self.jobs.values() if job.token == token), None)

    def stop(self, job_id: str) -> None:
        self.jobs[job_id].canceled = True
