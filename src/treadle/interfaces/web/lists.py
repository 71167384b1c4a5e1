"""Task lists: their depth, age and limits; pause, drain and limit them."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import if_allowed, number, text, whole
from treadle.interfaces.web.site import Site
from treadle.model.errors import InvalidInput


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/lists")
    async def lists(request: Request, service: Operations) -> Response:
        found = (await service.lists.list()).lists
        fleet = await if_allowed(service.servers.fleet())
        limits = (await service.lists.limits()).limits
        serving = None if fleet is None else {each.name: each.servers for each in fleet.task_lists}
        return await site.render(request, "lists.html", service=service, lists=found, serving=serving, limits=limits)

    @site.page("/lists/{task_list}")
    async def one(request: Request, service: Operations) -> Response:
        name = request.path_params["task_list"]
        found = await service.lists.get(name)
        desired = await service.lists.desired(name)
        return await site.render(request, "list.html", service=service, list=found, desired=desired)

    @site.action("/lists/{task_list}/{act}")
    async def act(request: Request, service: Operations) -> Response:
        name, form = request.path_params["task_list"], await request.form()
        match request.path_params["act"]:
            case "pause":
                await service.lists.pause(name)
                said = f"{name} is paused: its tasks are not claimed; running ones continue."
            case "resume":
                await service.lists.resume(name)
                said = f"{name} is resumed and accepts new tasks."
            case "drain":
                await service.lists.drain(name)
                said = f"{name} is draining: it accepts no new tasks; existing ones continue."
            case "policy":
                policy = await service.lists.set_policy(name, text(form, "no_handler") or "")
                said = f"Tasks of {name} without a handler: {policy.no_handler}."
            case "rate":
                handler, rate = _named(text(form, "name")), number(form, "rate")
                await service.lists.limit_rate(name, handler, rate, burst=whole(form, "burst"))
                said = f"{handler}: no rate limit." if rate is None else f"{handler}: at most {rate:g} per second."
            case "backlog":
                handler, cap = _named(text(form, "name")), whole(form, "backlog_limit")
                await service.lists.limit_backlog(name, handler, cap)
                said = f"{handler}: no backlog limit." if cap is None else f"{handler}: at most {cap} ready tasks."
            case other:
                raise InvalidInput(f"Unknown action {other!r}.")
        return site.back(request, said, to=f"/lists/{quote(name, safe='')}" if "stay" in form else None)

    @site.action("/limits")
    async def limit(request: Request, service: Operations) -> Response:
        form = await request.form()
        most, rate, key = whole(form, "max_running"), number(form, "rate"), text(form, "key")
        if key is None:
            raise InvalidInput("Enter a key or a handler.")
        if "handler" in form:
            await service.lists.limit_handler(key, most)
        elif "remove" in form:
            await service.lists.limit_key(key, None)
            await service.lists.limit_key_rate(key, None)
        elif most is None and rate is None:
            raise InvalidInput("Enter a maximum, a rate, or both.")
        else:
            if most is not None:
                await service.lists.limit_key(key, most)
            if rate is not None:
                await service.lists.limit_key_rate(key, rate, burst=whole(form, "burst"))
        parts = [f"at most {most} running"] if most is not None else []
        parts += [f"at most {rate:g} started per second"] if rate is not None and "handler" not in form else []
        return site.back(request, f"{key}: {' and '.join(parts) or 'no limit'}.")


def _named(name: str | None) -> str:
    if name is None:
        raise InvalidInput("Enter a handler.")
    return name
