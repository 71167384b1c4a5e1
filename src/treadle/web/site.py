"""The parts that all pages share: templates, the caller, flash messages and navigation."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from treadle.api.contract import PREFIX
from treadle.http.app_state import AppState, state_of
from treadle.http.problems import http_problem, status_of
from treadle.http.routes import Route, RouteTable
from treadle.model.access import Access
from treadle.model.errors import NotFound, StoreError, TreadleError, Unauthorized
from treadle.service import Service
from treadle.web import filters

STATIC = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Only files of this server, and no inline scripts or styles."""
FLASH_COOKIE = "treadle_said"
"""Holds the message for the next page."""
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}


Page = Callable[[Request, Service], Awaitable[Response]]


@dataclass(frozen=True)
class Entry:
    """An entry of the menu."""

    path: str
    title: str
    icon: str
    key: str
    """Opens the page when typed after `g`."""


MENU = (
    Entry("/", "Overview", "overview", "o"),
    Entry("/runs", "Runs", "run", "r"),
    Entry("/flows", "Flows", "flow", "f"),
    Entry("/tasks", "Tasks", "task", "t"),
    Entry("/lists", "Lists", "list", "l"),
    Entry("/dead-letters", "Dead letters", "dead", "d"),
    Entry("/approvals", "Approvals", "approval", "a"),
    Entry("/external-jobs", "External jobs", "external", "x"),
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
"""The modules with pages, each with a function `add` that registers them."""


class NoSuchPage(NotFound):
    """The dashboard has no page at this path."""

    code = "no_such_page"

    def __init__(self, path: str) -> None:
        super().__init__(f"There is no page {path}.")


class Site:
    """Registers pages and actions, and renders them."""

    def __init__(self, state: AppState) -> None:
        self.state = state
        self.routes: list[Route] = []
        self.templates = _templates()

    def page(self, path: str) -> Callable[[Page], Page]:
        """Register the decorated function as the page at a path."""

        def register(draw: Page) -> Page:
            async def answer(request: Request) -> Response:
                try:
                    return await draw(request, await self.state.service(request))
                except Unauthorized:
                    return RedirectResponse(f"/login?{urlencode({'next': request.url.path})}", 303)
                except TreadleError as error:
                    return await self.trouble(request, error)

            self.routes += [Route(method, path, answer) for method in ("GET", "HEAD")]
            return draw

        return register

    def action(self, path: str) -> Callable[[Page], Page]:
        """Register the decorated function for forms sent to a path; the page with the form shows its errors."""

        def register(do: Page) -> Page:
            async def answer(request: Request) -> Response:
                form = await request.form()
                try:
                    access = await self.state.callers.find(request, csrf=str(form.get("csrf", "")))
                    return await do(request, Service(self.state.engine, access))
                except Unauthorized:
                    return RedirectResponse("/login", 303)
                except TreadleError as error:
                    return self.back(request, f"{error}", bad=True)

            self.routes.append(Route("POST", path, answer))
            return do

        return register

    async def render(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template; `service` among the values has the access of the caller."""
        service: Service | None = values.pop("service", None)
        access: Access | None = None if service is None else service.access
        now = None if service is None else (await service.system.time()).now
        flash = "" if "X-Live" in request.headers else request.cookies.get(FLASH_COOKIE, "")
        text = self.templates.get_template(template).render(
            path=request.url.path,
            query=request.query_params,
            url=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
            access=access,
            csrf=await self._csrf(request),
            now=now,
            flash=_flash(flash),
            open_access=self.state.callers.open_access,
            **values,
        )
        answer = HTMLResponse(text, status, headers=HEADERS)
        if flash:
            answer.delete_cookie(FLASH_COOKIE, path="/")
        return answer

    async def _csrf(self, request: Request) -> str:
        """The CSRF token for forms of this caller; empty without a session."""
        try:
            session = await self.state.callers.find_session(request)
        except (Unauthorized, StoreError):
            return ""
        return "" if session is None else session.csrf

    async def trouble(self, request: Request, error: TreadleError, status: int | None = None) -> HTMLResponse:
        """The error page."""
        values: dict[str, Any] = {"status": status or status_of(error), "error": error}
        try:
            return await self.render(request, "trouble.html", service=await self.state.service(request), **values)
        except TreadleError:  # the caller, or the time of the store, cannot be found either
            return await self.render(request, "trouble.html", **values)

    def back(self, request: Request, message: str, *, to: str | None = None, bad: bool = False) -> RedirectResponse:
        """Redirect to the page with the form, or to `to`, and show a message there."""
        where = to or _own_path(request.headers.get("referer", ""), request) or request.url.path.rpartition("/")[0] or "/"
        answer = RedirectResponse(where, 303)
        answer.set_cookie(
            FLASH_COOKIE,
            f"{'!' if bad else '.'}{message[:500].encode().hex()}",
            max_age=30,
            path="/",
            httponly=True,
            samesite="strict",
        )
        return answer


def make_site(app: Starlette) -> Site:
    """The site with all pages."""
    site = Site(state_of(app))
    for name in PAGES:
        import_module(f"treadle.web.{name}").add(site)

    async def login(request: Request) -> Response:
        return await site.render(request, "login.html")

    site.routes.append(Route("GET", "/login", login))
    return site


def add_pages(app: Starlette) -> None:
    """Put the dashboard's pages and files into the application."""
    site = make_site(app)
    app.router.routes.append(RouteTable(site.routes))
    app.mount("/static", _Files(directory=STATIC), name="static")

    async def no_page(request: Request, error: HTTPException) -> Response:
        """Show an error page to browsers; other clients, and calls of the API, receive a problem."""
        if "text/html" not in request.headers.get("accept", "") or request.url.path.startswith(PREFIX):
            return await http_problem(request, error)
        return await site.trouble(request, NoSuchPage(request.url.path), error.status_code)

    app.exception_handlers[HTTPException] = no_page


class _Files(StaticFiles):
    """Static files; browsers may cache those requested with the version that `asset` adds."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        if scope["query_string"].startswith(b"v=") and answer.status_code in (200, 304):
            answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer


@cache
def _templates() -> Environment:
    """The templates, compiled once per process."""
    made = Environment(
        loader=PackageLoader("treadle.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(filters.ALL)
    made.globals.update(menu=MENU, asset=_asset, has_asset=lambda name: (STATIC / name).is_file())
    return made


@cache
def _asset(name: str) -> str:
    """The path of a static file; it changes with the content, so that browsers may cache it."""
    path = STATIC / name
    version = hashlib.sha256(path.read_bytes()).hexdigest()[:8] if path.is_file() else "0"
    return f"/static/{name}?v={version}"


def _flash(cookie: str) -> tuple[bool, str] | None:
    """Whether the message is an error, and its text."""
    try:
        return (cookie[0] == "!", bytes.fromhex(cookie[1:]).decode()) if cookie else None
    except ValueError:
        return None


def _own_path(referer: str, request: Request) -> str | None:
    """The path and query of the page with the form, if it is on this server."""
    origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    rest = referer.removeprefix(origin)
    return rest if referer.startswith(origin) and rest.startswith("/") and not rest.startswith("//") else None
