"""Task lists: their depth, age and limits; pause, drain and limit them."""

from __future__ import annotations

from urllib.parse import quote

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


@action("/lists/{task_list}/{rule}")
async def set_rule(visit: Visit) -> Response:
    name, form = visit.path["task_list"], await visit.form()
    match visit.path["rule"]:
        case "policy":
            policy = await visit.api.lists.set_policy(name, text(form, "no_handler") or "")
            message = f"Tasks of {name} without a handler: {policy.no_handler}."
        case "rate":
            handler, rate = _named(text(form, "name")), number(form, "rate")
            await visit.api.lists.limit_rate(name, handler, rate, burst=whole(form, "burst"))
            message = f"{handler}: no rate limit." if rate is None else f"{handler}: at most {rate:g} per second."
        case "backlog":
            handler, cap = _named(text(form, "name")), whole(form, "backlog_limit")
            await visit.api.lists.limit_backlog(name, handler, cap)
            message = f"{handler}: no backlog limit." if cap is None else f"{handler}: at most {cap} ready tasks."
        case other:
            raise InvalidInput(f"Unknown action {other!r}.")
    return visit.back(message, to=f"/lists/{quote(name, safe='')}" if "stay" in form else None)


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


def _named(name: str | None) -> str:
    if name is None:
        raise InvalidInput("Enter a handler.")
    return name
