"""The parts that all pages share: templates, the caller, flash messages and navigation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Match
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from treadle.api.contract import PREFIX
from treadle.engine.operations import Operations
from treadle.interfaces.http.app_state import AppState, state_of
from treadle.interfaces.http.namespaces import list_places
from treadle.interfaces.http.problems import http_problem, status_of
from treadle.interfaces.http.routes import Route, RouteTable
from treadle.interfaces.web import filters
from treadle.interfaces.web.rejected import Rejected
from treadle.kernel.store.queries import DeadLetterFilter
from treadle.kernel.store.records import EffectFilter
from treadle.model.access import Access
from treadle.model.errors import NotFound, StoreError, TreadleError, Unauthorized
from treadle.model.states import ALERT, ALERT_RULE, APPROVAL, EXTERNAL, OBJECTIVE, SCHEDULE, WATCHER

STATIC = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Only files of this server, and no inline scripts or styles."""
FLASH_COOKIE = "treadle_said"
"""Holds the message for the next page."""
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}


Page = Callable[[Request, Operations], Awaitable[Response]]


@dataclass(frozen=True)
class Entry:
    """An entry of the menu."""

    group: str
    path: str
    title: str
    icon: str
    key: str
    """Opens the page when typed after `g`."""


MENU = (
    Entry("Work", "/", "Overview", "overview", "o"),
    Entry("Work", "/runs", "Runs", "run", "r"),
    Entry("Work", "/tasks", "Tasks", "task", "t"),
    Entry("Work", "/approvals", "Approvals", "approval", "a"),
    Entry("Work", "/dead-letters", "Dead letters", "dead", "d"),
    Entry("Work", "/flows", "Flows", "flow", "f"),
    Entry("Work", "/external-jobs", "External jobs", "external", "x"),
    Entry("Work", "/effects", "Unknown effects", "effect", "u"),
    Entry("Work", "/objectives", "Objectives", "objective", "b"),
    Entry("Triggers", "/schedules", "Schedules", "schedule", "s"),
    Entry("Triggers", "/watchers", "Watchers", "watcher", "w"),
    Entry("System", "/alerts", "Alerts", "alert", "n"),
    Entry("System", "/lists", "Task lists", "list", "l"),
    Entry("System", "/handlers", "Handlers", "handler", "h"),
    Entry("System", "/servers", "Servers", "server", "v"),
    Entry("System", "/events", "Events", "event", "e"),
    Entry("System", "/settings", "Settings", "settings", ","),
)


_RECORDS = {
    "/approvals": APPROVAL.entity,
    "/external-jobs": EXTERNAL.entity,
    "/schedules": SCHEDULE.entity,
    "/watchers": WATCHER.entity,
    "/objectives": OBJECTIVE.entity,
    "/alerts": ALERT_RULE.entity,
}
"""Entries that are collapsed while the store has no such records."""
_MENU_FOR = 2.0
"""Seconds for which the counts of the menu are reused."""

PAGES = (
    "alerts",
    "approvals",
    "dead_letters",
    "effects",
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
    "traces",
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
        self._menu: tuple[dict[str, int], list[str]] = ({}, [])
        self._menu_until = -math.inf

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
                    return await do(request, self.state.service_for(request, access))
                except Unauthorized:
                    return RedirectResponse("/login", 303)
                except TreadleError as error:
                    return await self._again(request, Rejected(request.url.path, form, error))

            self.routes.append(Route("POST", path, answer))
            return do

        return register

    async def _again(self, request: Request, rejected: Rejected) -> Response:
        """The page with the rejected form, as it was filled in; a page without the form only shows the error."""
        back = self.back(request, str(rejected.error), bad=True)
        where = urlsplit(_own_path(request.headers.get("referer", ""), request) or "/")
        scope = {
            **{name: value for name, value in request.scope.items() if name not in ("route", "path_params", "_form")},
            "method": "GET",
            "path": unquote(where.path),
            "raw_path": where.path.encode(),
            "query_string": where.query.encode(),
        }
        match, found = RouteTable(self.routes).matches(scope)
        if match is not Match.FULL:
            return back
        page = await found["route"].handler(Request({**scope, **found}))
        text = rejected.put_into(bytes(page.body).decode()) if page.status_code == 200 else None
        return back if text is None else HTMLResponse(text, 422, headers=HEADERS)

    async def render(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template; `service` among the values has the access of the caller."""
        service: Operations | None = values.pop("service", None)
        access: Access | None = None if service is None else service.access
        now = None if service is None else (await service.system.time()).now
        flash = "" if "x-live" in request.headers else request.cookies.get(FLASH_COOKIE, "")
        badges, unused = ({}, []) if access is None or access.task_lists else await self._counts()
        text = self.templates.get_template(template).render(
            badges=badges,
            unused=unused,
            path=request.url.path,
            query=request.query_params,
            url=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
            access=access,
            csrf=await self._csrf(request),
            now=now,
            flash=_flash(flash),
            open_access=self.state.callers.open_access,
            places=await list_places(request),
            **values,
        )
        answer = HTMLResponse(text, status, headers=HEADERS)
        if flash:
            answer.delete_cookie(FLASH_COOKIE, path="/")
        return answer

    async def _counts(self) -> tuple[dict[str, int], list[str]]:
        """The badges of the menu by path, and the paths of features that are not used."""
        kernel = self.state.engine.kernel
        if kernel.clock.monotonic() >= self._menu_until:
            namespace = kernel.settings.namespace
            counts = {path: await kernel.store.records.count(namespace, entity) for path, entity in _RECORDS.items()}
            dead, _, _ = await kernel.store.dead_letters.count(DeadLetterFilter(namespace=namespace))
            badges = {"/dead-letters": dead, "/approvals": counts["/approvals"].get("pending", 0)}
            badges["/objectives"] = counts["/objectives"].get("BLOCKED", 0)
            badges["/alerts"] = (await kernel.store.records.count(namespace, ALERT.entity)).get("firing", 0)
            unused = [path for path, found in counts.items() if not found]
            if not await kernel.store.records.list_unknown(EffectFilter(namespace), 1):
                unused.append("/effects")
            self._menu = badges, unused
            self._menu_until = kernel.clock.monotonic() + _MENU_FOR
        return self._menu

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
        import_module(f"treadle.interfaces.web.{name}").add(site)

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
        loader=PackageLoader("treadle.interfaces.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
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
