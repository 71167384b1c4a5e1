"""Task lists: their depth, age and limits; pause, drain and limit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from treadle.interfaces.web.forms import if_allowed, number, text, whole
from treadle.interfaces.web.site import Visit, act, action, page
from treadle.model.errors import InvalidInput


@page("/lists")
async def lists(visit: Visit) -> Response:
    task_lists = (await visit.api.lists.list()).lists
    fleet = await if_allowed(visit.api.servers.fleet())
    limits = (await visit.api.lists.limits()).limits
    serving = None if fleet is None else {task_list.name: task_list.servers for task_list in fleet.task_lists}
    return await visit.render("lists.html", lists=task_lists, serving=serving, limits=limits)


@page("/lists/{task_list}")
async def one(visit: Visit) -> Response:
    name = visit.path["task_list"]
    task_list = await visit.api.lists.get(name)
    desired = await visit.api.lists.desired(name)
    return await visit.render("list.html", list=task_list, desired=desired)


act("/lists/{task_list}/pause", "lists.pause", "{task_list} is paused: its tasks are not claimed; running ones continue.")
act("/lists/{task_list}/resume", "lists.resume", "{task_list} is resumed and accepts new tasks.")
act("/lists/{task_list}/drain", "lists.drain", "{task_list} is draining: it accepts no new tasks; existing ones continue.")
act(
    "/lists/{task_list}/policy",
    "lists.set_policy",
    "Tasks of {task_list} without a handler: {no_handler}.",
)


def _rate(result: object, limit: Mapping[str, Any]) -> str:
    rate = limit["rate"]
    return f"{limit['name']}: no rate limit." if rate is None else f"{limit['name']}: at most {rate:g} per second."


def _backlog(result: object, limit: Mapping[str, Any]) -> str:
    cap = limit["backlog_limit"]
    return f"{limit['name']}: no backlog limit." if cap is None else f"{limit['name']}: at most {cap} ready tasks."


act("/lists/{task_list}/rate", "lists.limit_rate", _rate)
act("/lists/{task_list}/backlog", "lists.limit_backlog", _backlog)


@action("/limits")
async def limit(visit: Visit) -> Response:
    form = await visit.form()
    most, rate, key = whole(form, "max_running"), number(form, "rate"), text(form, "key")
    if key is None:
        raise InvalidInput("Enter a key or a handler.")
    if "handler" in form:
        await visit.api.lists.limit_handler(key, most)
    elif "remove" in form:
        await visit.api.lists.limit_key(key, None)
        await visit.api.lists.limit_key_rate(key, None)
    elif most is None and rate is None:
        raise InvalidInput("Enter a maximum, a rate, or both.")
    else:
        if most is not None:
            await visit.api.lists.limit_key(key, most)
        if rate is not None:
            await visit.api.lists.limit_key_rate(key, rate, burst=whole(form, "burst"))
    parts = [f"at most {most} running"] if most is not None else []
    parts += [f"at most {rate:g} started per second"] if rate is not None and "handler" not in form else []
    return visit.back(f"{key}: {' and '.join(parts) or 'no limit'}.")
