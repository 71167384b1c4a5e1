"""What all pages have in common: templates, who looks, what was just done, and where to go next."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.types import Scope

from treadle.api.contract import PREFIX
from treadle.http.app_state import AppState, front_of
from treadle.http.problems import status_of
from treadle.model.access import Access
from treadle.model.errors import NotFound, TreadleError, Unauthorized
from treadle.service import Service
from treadle.web import filters

STATIC = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing comes from elsewhere, and nothing that is written into a page is ever run or styled."""
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}


Page = Callable[[Request, Service], Awaitable[Response]]


@dataclass(frozen=True)
class Entry:
    """A line of the navigation."""

    path: str
    title: str
    icon: str
    key: str
    """Typed after `g`, it leads there."""


MENU = (
    Entry("/", "Overview", "overview", "o"),
    Entry("/runs", "Runs", "run", "r"),
    Entry("/flows", "Flows", "flow", "f"),
    Entry("/tasks", "Tasks", "task", "t"),
    Entry("/lists", "Lists", "list", "l"),
    Entry("/dead-letters", "Dead letters", "dead", "d"),
    Entry("/approvals", "Approvals", "approval", "a"),
    Entry("/external-jobs", "Outside jobs", "external", "x"),
    Entry("/schedules", "Schedules", "schedule", "s"),
    Entry("/watchers", "Watchers", "watcher", "w"),
    Entry("/objectives", "Objectives", "objective", "b"),
    Entry("/handlers", "Handlers", "handler", "h"),
    Entry("/servers", "Servers", "server", "v"),
    Entry("/events", "Events", "event", "e"),
    Entry("/settings", "Settings", "settings", ","),
)


PAGES = (
    "approvals",
    "dead_letters",
    "events",
    "external_jobs",
    "flows",
    "handlers",
    "lists",
    "objectives",
    "overview",
    "runs",
    "schedules",
    "servers",
    "settings",
    "tasks",
    "watchers",
)
"""The files that have pages, each with a function `add` that registers them."""


class NoSuchPage(NotFound):
    """The dashboard has nothing at that address."""

    code = "no_such_page"

    def __init__(self, path: str) -> None:
        super().__init__(f"There is no page {path}.")


class Site:
    """The pages' surroundings. Pages are registered with `page` and `action`."""

    def __init__(self, front: AppState) -> None:
        self.front = front
        self.router = APIRouter(include_in_schema=False)
        self.templates = _templates()

    def page(self, path: str) -> Callable[[Page], Page]:
        """The decorated function draws the page at that path."""

        def register(draw: Page) -> Page:
            async def answer(request: Request) -> Response:
                try:
                    return await draw(request, await self.front.service(request))
                except Unauthorized:
                    return RedirectResponse(f"/login?{urlencode({'next': request.url.path})}", 303)
                except TreadleError as error:
                    return await self.trouble(request, error)

            self.router.add_route(path, answer, methods=["GET"])
            return draw

        return register

    def action(self, path: str) -> Callable[[Page], Page]:
        """The decorated function does what a form at that path asks for; what it raises is told on the page it came from."""

        def register(do: Page) -> Page:
            async def answer(request: Request) -> Response:
                form = await request.form()
                try:
                    access = await self.front.callers.find(request, csrf=str(form.get("csrf", "")))
                    return await do(request, Service(self.front.engine, access))
                except Unauthorized:
                    return RedirectResponse("/login", 303)
                except TreadleError as error:
                    return self.back(request, f"{error}", bad=True)

            self.router.add_route(path, answer, methods=["POST"])
            return do

        return register

    async def render(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """The page made from the template; `service` (or `access`) among the values says who looks."""
        service: Service | None = values.pop("service", None)
        access: Access | None = None if service is None else service.access
        now = None if service is None else (await service.system.time()).now
        said = request.cookies.get("treadle_said", "")
        text = self.templates.get_template(template).render(
            path=request.url.path,
            query=request.query_params,
            url=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
            access=access,
            csrf=await self._csrf(request),
            now=now,
            said=_said(said),
            **values,
        )
        answer = HTMLResponse(text, status, headers=HEADERS)
        if said:
            answer.delete_cookie("treadle_said", path="/")
        return answer

    async def _csrf(self, request: Request) -> str:
        """What forms of this caller must send as `csrf`; empty where there are no sessions."""
        try:
            session = await self.front.callers.find_session(request)
        except Unauthorized:
            return ""
        return "" if session is None else session.csrf

    async def trouble(self, request: Request, error: TreadleError, status: int | None = None) -> HTMLResponse:
        """The page that says why there is no page."""
        try:
            service: Service | None = await self.front.service(request)
        except TreadleError:
            service = None
        return await self.render(request, "trouble.html", status or status_of(error), service=service, error=error)

    def back(self, request: Request, said: str, *, to: str | None = None, bad: bool = False) -> RedirectResponse:
        """Lead back to the page that the form was on (or to `to`), which says what was done."""
        where = to or _own_path(request.headers.get("referer", ""), request) or request.url.path.rpartition("/")[0] or "/"
        answer = RedirectResponse(where, 303)
        answer.set_cookie(
            "treadle_said",
            f"{'!' if bad else '.'}{said[:500].encode().hex()}",
            max_age=30,
            path="/",
            httponly=True,
            samesite="strict",
        )
        return answer


def make_site(app: FastAPI) -> Site:
    """All pages, on their router."""
    site = Site(front_of(app))
    for name in PAGES:
        import_module(f"treadle.web.{name}").add(site)

    @site.router.get("/login")
    async def login(request: Request) -> Response:
        return await site.render(request, "login.html")

    return site


def add_pages(app: FastAPI) -> None:
    """Put the dashboard's pages and files into the application."""
    site = make_site(app)
    app.router.routes.extend(site.router.routes)
    app.mount("/static", _Files(directory=STATIC), name="static")
    as_problem: Any = app.exception_handlers[HTTPException]

    @app.exception_handler(HTTPException)
    async def no_page(request: Request, error: HTTPException) -> Response:
        """People are told on a page that there is none; programs, and whoever asks for the calls, as ever."""
        if "text/html" not in request.headers.get("accept", "") or request.url.path.startswith(PREFIX):
            found: Response = await as_problem(request, error)
            return found
        return await site.trouble(request, NoSuchPage(request.url.path), error.status_code)


class _Files(StaticFiles):
    """Our files; whoever asks for one by the address that `asset` made may keep it."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        if scope["query_string"].startswith(b"v=") and answer.status_code in (200, 304):
            answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer


@cache
def _templates() -> Environment:
    """The templates, each compiled once for a process."""
    made = Environment(
        loader=PackageLoader("treadle.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(filters.ALL)
    made.globals.update(menu=MENU, asset=_asset, has_asset=lambda name: (STATIC / name).is_file())
    return made


@cache
def _asset(name: str) -> str:
    """The address of a file of ours; it changes with its content, so that browsers may keep it."""
    path = STATIC / name
    version = hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path.is_file() else "0"
    return f"/static/{name}?v={version}"


def _said(cookie: str) -> tuple[bool, str] | None:
    """What was just done, and whether it went wrong."""
    try:
        return (cookie[0] == "!", bytes.fromhex(cookie[1:]).decode()) if cookie else None
    except ValueError:
        return None


def _own_path(referer: str, request: Request) -> str | None:
    """The path and query of the page that a form was on, if it is one of ours."""
    origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    rest = referer.removeprefix(origin)
    return rest if referer.startswith(origin) and rest.startswith("/") and not rest.startswith("//") else None
