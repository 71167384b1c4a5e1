"""Every route with every kind of caller: what is refused changes nothing, and nobody gets more than the contract grants."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import asyncpg
import httpx
from tests.attack.arena import Arena
from tests.http.callers import CALLERS, Rows, headers_of, populate, postgres_rows, request_of, sqlite_rows
from tests.limits import BOUND

from treadle.api.contract import Call
from treadle.api.facade import all_calls
from treadle.model.access import Scope, granted
from treadle.stores.sqlite import connect_for_reading

REFUSED = (401, 403, 429)
"""Statuses of refusals; too many wrong tokens are refused with 429."""


async def routes(arena: Arena) -> None:
    """All callers, or some at the smallest size, each with all calls."""
    ids = await populate(arena.engine, arena.folder)
    await arena.serve()
    few = arena.size.faults < 10
    callers = ["nobody", *arena.rng.sample(CALLERS[1:-1], 2), Scope.ADMIN] if few else CALLERS
    if arena.server is None:
        with closing(connect_for_reading(arena.url.removeprefix("sqlite:///"))) as line:
            await _call(arena, sqlite_rows(line), ids, callers)
        return
    connection = await asyncpg.connect(arena.url)
    try:
        await _call(arena, postgres_rows(connection), ids, callers)
    finally:
        await connection.close()


async def _call(arena: Arena, rows: Rows, ids: dict[str, Any], callers: Sequence[str]) -> None:
    check, counts = arena.tally.check, arena.tally.counts
    for who in callers:
        headers = await headers_of(arena.engine, who)
        async with httpx.AsyncClient(base_url=arena.base, headers=headers, timeout=BOUND, verify=False) as client:
            for call in all_calls():
                before = await rows.dump()
                answer = await client.request(**request_of(call, ids))
                refused = answer.status_code in REFUSED
                counts["calls"] += 1
                counts["of them refused"] += refused
                what = f"{who}: {call.route.method} {call.route.path}"
                check(answer.status_code < 500, f"{what} was answered {answer.status_code}: {answer.text[:300]}")
                check(refused or _may(who, call), f"{what} was answered {answer.status_code} and should have been refused")
                check(not refused or who != Scope.ADMIN, f"{what} was refused")
                check(not refused or await rows.dump() == before, f"{what} was refused, but the store has changed")
        counts["callers"] += 1
    counts["routes"] = len(all_calls())


def _may(who: str, call: Call) -> bool:
    """Whether the call need not be refused."""
    if who.startswith(("a session", "a page")):  # browsers show no page what another server answers
        return call.route.method == "GET"
    scope, _, lists = who.partition(" ")
    return scope in [*Scope] and call.route.scope in granted([Scope(scope)]) and (call.route.lists or not lists)
