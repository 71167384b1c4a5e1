"""Task lists: how deep and how old each is, what holds its work back, and pausing it."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response

from treadle.model.errors import InvalidInput
from treadle.service import Service
from treadle.web.forms import if_allowed, number, text, whole
from treadle.web.site import Site


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/lists")
    async def lists(request: Request, service: Service) -> Response:
        found = (await service.lists.list()).lists
        fleet = await if_allowed(service.servers.fleet())
        limits = (await service.lists.limits()).limits
        serving = None if fleet is None else {each.name: each.servers for each in fleet.task_lists}
        return await site.render(request, "lists.html", service=service, lists=found, serving=serving, limits=limits)

    @site.page("/lists/{task_list}")
    async def one(request: Request, service: Service) -> Response:
        name = request.path_params["task_list"]
        found = await service.lists.get(name)
        desired = await service.lists.desired(name)
        return await site.render(request, "list.html", service=service, list=found, desired=desired)

    @site.action("/lists/{task_list}/{act}")
    async def act(request: Request, service: Service) -> Response:
        name, form = request.path_params["task_list"], await request.form()
        match request.path_params["act"]:
            case "pause":
                await service.lists.pause(name)
                said = f"{name} is paused: nothing of it is taken; what runs goes on."
            case "resume":
                await service.lists.resume(name)
                said = f"{name} goes on, and takes new work."
            case "drain":
                await service.lists.drain(name)
                said = f"{name} takes no new work; what is there goes on."
            case "policy":
                policy = await service.lists.set_policy(name, text(form, "no_handler") or "")
                said = f"Tasks of {name} that nobody serves: {policy.no_handler}."
            case "rate":
                handler, rate = _named(text(form, "name")), number(form, "rate")
                await service.lists.limit_rate(name, handler, rate, burst=whole(form, "burst"))
                said = f"{handler}: no limit on the rate." if rate is None else f"{handler}: at most {rate:g} a second."
            case "backlog":
                handler, cap = _named(text(form, "name")), whole(form, "backlog_limit")
                await service.lists.limit_backlog(name, handler, cap)
                said = f"{handler}: no cap on the backlog." if cap is None else f"{handler}: at most {cap} ready ones."
            case other:
                return site.back(request, f"There is nothing called {other} to do with a list.", bad=True)
        return site.back(request, said, to=f"/lists/{quote(name, safe='')}" if "stay" in form else None)

    @site.action("/limits")
    async def limit(request: Request, service: Service) -> Response:
        form = await request.form()
        most, key = whole(form, "max_running"), text(form, "key")
        if key is None:
            raise InvalidInput("Say which key, or which handler.")
        if "handler" in form:
            await service.lists.limit_handler(key, most)
        else:
            await service.lists.limit_key(key, most)
        return site.back(request, f"{key}: no limit." if most is None else f"{key}: at most {most} at once.")


def _named(name: str | None) -> str:
    if name is None:
        raise InvalidInput("Say which handler.")
    return name
