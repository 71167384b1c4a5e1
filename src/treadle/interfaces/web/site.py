"""The parts that all pages share: templates, the caller, flash messages and navigation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from importlib import import_module
from operator import attrgetter
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
from treadle.api.view import fill, rows_of
from treadle.engine.operations import Operations
from treadle.interfaces.http.app_state import AppState, state_of
from treadle.interfaces.http.namespaces import list_places
from treadle.interfaces.http.problems import http_problem, status_of
from treadle.interfaces.http.routes import HttpRoute, RouteTable
from treadle.interfaces.web import filters
from treadle.interfaces.web.forms import InvalidForm, Rejected, arguments_of, complete, filters_of, parameters_of
from treadle.interfaces.web.places import PLACES, locate
from treadle.interfaces.web.schema_form import with_inputs
from treadle.interfaces.web.tables import link_to, table
from treadle.kernel.store.queries import DeadLetterFilter
from treadle.kernel.store.records import EffectFilter
from treadle.model.access import Access
from treadle.model.errors import InvalidInput, NotFound, StoreError, TreadleError, Unauthorized
from treadle.model.states import ALERT, APPROVAL, OBJECTIVE

STATIC = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Only files of this server, and no inline scripts or styles."""
FLASH_COOKIE = "treadle_said"
"""Holds the message for the next page."""
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}


_BADGES_FOR = 2.0
"""Seconds for which the badges of the menu are reused."""

_EFFECTS_LIMIT = 100
"""Unknown effects that the badge counts."""

_MODULES = (
    "alerts",
    "approvals",
    "audit",
    "dead_letters",
    "external_jobs",
    "find",
    "flows",
    "handlers",
    "lists",
    "metrics",
    "objectives",
    "overview",
    "runs",
    "settings",
    "tasks",
    "traces",
    "triggers",
)
"""The modules with pages."""


def no_page(path: str) -> NotFound:
    """The error for a path at which the dashboard has no page."""
    return NotFound(f"There is no page {path}.", code="no_such_page")


class Visit:
    """A request for a page or with a form: what it asks for, the contract for its caller, and its answers."""

    def __init__(self, site: Site, request: Request, api: Operations) -> None:
        self.site, self.request, self.api = site, request, api
        self.path = request.path_params
        self.query = request.query_params
        self.form = request.form

    async def render(self, template: str, **values: Any) -> Response:
        """A page from a template."""
        return await self.site.render(self.request, template, service=self.api, **values)

    def back(self, message: str, *, to: str | None = None, bad: bool = False) -> Response:
        """Redirect to the page with the form, or to `to`, and show a message there."""
        return self.site.back(self.request, message, to=to, bad=bad)


Handler = Callable[[Visit], Awaitable[Response]]
_PAGES: dict[str, Handler] = {}
_ACTIONS: dict[str, Handler] = {}
"""The handlers of the modules, by path."""


def page(path: str) -> Callable[[Handler], Handler]:
    """Make the decorated function the page at a path."""
    return partial(_register, _PAGES, path)


def action(path: str) -> Callable[[Handler], Handler]:
    """Make the decorated function answer the forms that are sent to a path."""
    return partial(_register, _ACTIONS, path)


def _register(handlers: dict[str, Handler], path: str, handler: Handler) -> Handler:
    handlers[path] = handler
    return handler


def act(
    path: str,
    operation: str,
    message: str | Callable[[Any, Mapping[str, Any]], str] = "{name} is now {state}.",
    *,
    to: str = "",
    **options: Any,
) -> None:
    """Make one operation answer the forms that are sent to a path, which fill in its parameters by their names.

    `message` is filled with the fields of the result, or made from the result and the arguments; so is `to`, the page that
    follows. `options` are fixed arguments.
    """
    parameters = [parameter for parameter in parameters_of(operation) if parameter.name not in options]

    async def perform(visit: Visit) -> Response:
        form = await visit.form()
        arguments = complete(operation, arguments_of(form, parameters) | visit.path | options)
        arguments = await with_inputs(visit.api, operation, form, arguments)
        result = await attrgetter(operation)(visit.api)(**arguments)
        done = message(result, arguments) if callable(message) else fill(message, result)
        return visit.back(done, to=link_to(to, result))

    _register(_ACTIONS, path, perform)


def listing(path: str, operation: str, **values: Any) -> None:
    """Make the page with the records that an operation lists; its filters are read from the query.

    `values` are those of the template `records.html`: `title` and `note`; optionally `hint` (the command that makes a record),
    `new` (the words of the link to its form), `form` (a template below the table), and `row` (the macro of `row_actions.html` for
    the last cell of a row).
    """
    has_ended = any(parameter.name == "every" for parameter in parameters_of(operation))

    async def draw(visit: Visit) -> Response:
        page = await attrgetter(operation)(visit.api)(**filters_of(visit.query, operation))
        absent = {"hint": "", "new": "", "form": "", "row": ""}
        context = {"page": page, "rows": getattr(page, rows_of(type(page))[0]), "has_ended": has_ended}
        return await visit.render("records.html", **absent | context | values)

    _register(_PAGES, path, draw)


def detail(path: str, operation: str, template: str) -> None:
    """Make the page of the record that the path names, from the template, in which it has the template's name."""

    async def draw(visit: Visit) -> Response:
        return await visit.render(f"{template}.html", **{template: await attrgetter(operation)(visit.api)(**visit.path)})

    _register(_PAGES, path, draw)


class Site:
    """Answers the requests to all pages, and renders them."""

    def __init__(self, state: AppState) -> None:
        self.state = state
        pages = [HttpRoute(method, path, self._page(draw)) for path, draw in _PAGES.items() for method in ("GET", "HEAD")]
        actions = [HttpRoute("POST", path, self._action(do)) for path, do in _ACTIONS.items()]
        self.routes = [*pages, *actions, HttpRoute("GET", "/login", self._login)]
        self.templates = _templates()
        self._badges: dict[str, int] = {}
        self._badges_until = -math.inf

    def _page(self, draw: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Answer a request to a page."""

        async def answer(request: Request) -> Response:
            try:
                return await draw(Visit(self, request, await self.state.service(request)))
            except Unauthorized:
                return RedirectResponse(f"/login?{urlencode({'next': request.url.path})}", 303)
            except (InvalidInput, NotFound) as error:
                return await self._without(request, draw, error) or await self.trouble(request, error)
            except TreadleError as error:
                return await self.trouble(request, error)

        return answer

    async def _without(self, request: Request, draw: Handler, error: TreadleError) -> Response | None:
        """The page without the invalid values of the query, which its form shows with their errors; None without such a form."""
        typed = request.query_params
        invalid = error.fields if isinstance(error, InvalidForm) else typed
        query = urlencode([(name, value) for name, value in typed.multi_items() if name not in invalid])
        reduced = Request({**request.scope, "query_string": query.encode()})
        try:
            page = await draw(Visit(self, reduced, await self.state.service(request))) if typed else None
        except TreadleError:
            return None
        rejected = Rejected(request.url.path, typed, error, "get")
        text = None if page is None else rejected.put_into(bytes(page.body).decode())
        return None if text is None else HTMLResponse(text, 422, headers=HEADERS)

    def _action(self, do: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Answer a request with a form; the page with the form shows its errors."""

        async def answer(request: Request) -> Response:
            form = await request.form()
            try:
                access = await self.state.callers.find(request, csrf=str(form.get("csrf", "")))
                return await do(Visit(self, request, self.state.service_for(request, access)))
            except Unauthorized:
                return RedirectResponse("/login", 303)
            except TreadleError as error:
                return await self._again(request, Rejected(request.url.path, form, error))

        return answer

    async def _login(self, request: Request) -> Response:
        return await self.render(request, "login.html")

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
        match, matched = RouteTable(self.routes).matches(scope)
        if match is not Match.FULL:
            return back
        page = await matched["route"].handler(Request({**scope, **matched}))
        text = rejected.put_into(bytes(page.body).decode()) if page.status_code == 200 else None
        return back if text is None else HTMLResponse(text, 422, headers=HEADERS)

    async def render(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template; `service` among the values has the access of the caller."""
        service: Operations | None = values.pop("service", None)
        access: Access | None = None if service is None else service.access
        now = None if service is None else (await service.system.time()).now
        flash = "" if "x-live" in request.headers else request.cookies.get(FLASH_COOKIE, "")
        badges = {} if access is None or access.task_lists else await self._count_badges()
        text = self.templates.get_template(template).render(
            badges=badges,
            located=locate(request.url.path, request.query_params),
            path=request.url.path,
            query=request.query_params,
            url=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
            access=access,
            csrf=await self._csrf(request),
            now=now,
            flash=_flash(flash),
            open_access=self.state.callers.open_access,
            namespaces=await list_places(request),
            **values,
        )
        answer = HTMLResponse(text, status, headers=HEADERS)
        if flash:
            answer.delete_cookie(FLASH_COOKIE, path="/")
        return answer

    async def _count_badges(self) -> dict[str, int]:
        """The numbers of items that need attention, by path."""
        kernel = self.state.engine.kernel
        if kernel.clock.monotonic() >= self._badges_until:
            namespace, records = kernel.settings.namespace, kernel.store.records
            dead, _, _ = await kernel.store.dead_letters.count(DeadLetterFilter(namespace=namespace))
            self._badges = {
                "/dead-letters": dead,
                "/approvals": (await records.count(namespace, APPROVAL.entity)).get("pending", 0),
                "/objectives": (await records.count(namespace, OBJECTIVE.entity)).get("BLOCKED", 0),
                "/alerts": (await records.count(namespace, ALERT.entity)).get("firing", 0),
                "/effects": len(await records.list_unknown(EffectFilter(namespace), _EFFECTS_LIMIT)),
            }
            self._badges_until = kernel.clock.monotonic() + _BADGES_FOR
        return self._badges

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
    for name in _MODULES:
        import_module(f"treadle.interfaces.web.{name}")
    return Site(state_of(app))


def add_pages(app: Starlette) -> None:
    """Put the dashboard's pages and files into the application."""
    site = make_site(app)
    app.router.routes.append(RouteTable(site.routes))
    app.mount("/static", _Files(directory=STATIC), name="static")

    async def not_found(request: Request, error: HTTPException) -> Response:
        """Show an error page to browsers; other clients, and calls of the API, receive a problem."""
        if "text/html" not in request.headers.get("accept", "") or request.url.path.startswith(PREFIX):
            return await http_problem(request, error)
        return await site.trouble(request, no_page(request.url.path), error.status_code)

    app.exception_handlers[HTTPException] = not_found


class _Files(StaticFiles):
    """Static files; browsers may cache those requested with the version that `asset` adds."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        if path == "shared-stream.js":  # a worker, which has the policy of its file
            answer.headers["Content-Security-Policy"] = "default-src 'none'; connect-src 'self'"
        if scope["query_string"].startswith(b"v=") and answer.status_code in (200, 304):
            answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer


@cache
def _templates() -> Environment:
    """The templates, compiled once per process."""
    environment = Environment(
        loader=PackageLoader("treadle.interfaces.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters.ALL, table=table)
    environment.globals.update(places=PLACES, asset=_asset, has_asset=lambda name: (STATIC / name).is_file())
    return environment


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
