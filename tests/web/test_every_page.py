"""Every page there is: it answers, it is in the list that all such tests go through, and nothing that users wrote is run by it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path

import pytest
import pytest_asyncio
from starlette.datastructures import QueryParams
from starlette.routing import Match
from tests.web.conftest import Visit, visiting
from tests.web.scene import Scene, set_scene

from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.routes import RouteTable
from treadle.interfaces.web.filters import message
from treadle.interfaces.web.places import PLACES, locate
from treadle.interfaces.web.site import make_site

EVIL = (
    "<script>window.evil=1</script><x-evil onx-evil='1'>"
    "\" x-evil=1 autofocus onfocus=\"window.evil=2\" ' x-evil=2 onload='window.evil=3' "
    "<img src=x onerror=window.evil=4> javascript:window.evil=5 {{7*7}}evil ${7*7}evil </script></textarea></title><x-evil> "
    "\u202eright to left\u202c &lt;x-evil&gt; \u0007 \x1b[31m ]]> --> %3Cx-evil%3E"
)
LONG = " " + "long" * 100


def evil(text: str) -> str:
    """The text with all that might break out of where it is shown."""
    return f"{text}{EVIL}{LONG}"[:490]


class Elements(HTMLParser):
    """The elements of a page: (tag, attributes)."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def broken_out(page: str) -> Iterator[str]:
    """Parts of a page that came from data: elements and attributes that no template has, and URLs that execute code."""
    for tag, attributes in Elements(page).found:
        if tag not in TAGS:
            yield f"<{tag}>"
        for name, value in attributes.items():
            if "evil" in name or name.startswith("on") or name == "style" or not re.fullmatch(r"[a-z][a-z0-9:-]*", name, re.I):
                yield f"<{tag} {name}>"
            if name in ("href", "src", "action", "formaction") and not re.match(r"[/#?]|$", value or ""):
                yield f"<{tag} {name}={value}>"
        if tag == "script" and "src" not in attributes and attributes.get("type") != "application/json":
            yield "<script>"
        if tag == "img":
            yield "<img>"
    if "49evil" in page:
        yield "a template in data was filled in"


def _tags() -> set[str]:
    from treadle.interfaces.web import site

    sources = [each.read_text() for each in (Path(site.__file__).parent / "templates").glob("*.html")]
    sources += [each.read_text() for each in Path(site.__file__).parent.glob("*.py")]
    return {tag.lower() for source in sources for tag in re.findall(r"<([a-zA-Z][a-zA-Z0-9-]*)", source)}


TAGS = _tags()


pytestmark = [pytest.mark.xdist_group("web every page"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with set_scene(tmp_path_factory.mktemp("scene")) as scene:
        yield scene


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def evil_scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with set_scene(tmp_path_factory.mktemp("evil"), evil) as scene:
        yield scene


@asynccontextmanager
async def looking(scene: Scene, secret: str) -> AsyncIterator[Visit]:
    async with visiting(scene.engine) as visit:
        visit.browser.headers["Authorization"] = f"Bearer {secret}"
        visit.browser.follow_redirects = True
        yield visit


async def test_every_route_of_the_site_is_in_the_list_of_pages(scene: Scene):
    routes = make_site(make_app(scene.engine, open_access=True)).routes
    pages = {route.path for route in routes if route.method == "GET"}
    assert len(pages) > 30
    table, reached = RouteTable(routes), set()
    for path in scene.paths.values():
        match, child = table.matches({"type": "http", "method": "GET", "path": path.partition("?")[0], "headers": []})
        assert match is Match.FULL
        reached.add(child["route"].path)
    assert pages - reached == set()


async def test_every_page_responds_with_a_heading_and_a_safe_policy(scene: Scene):
    async with looking(scene, scene.secret) as visit:
        for name, path in scene.paths.items():
            answer = await visit.browser.get(path)
            assert answer.status_code == (404 if name == "trouble" else 200), (name, answer.text)
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert re.search(r"<h1[ >]", answer.text), name
            assert list(broken_out(answer.text)) == [], name


async def test_a_read_only_user_sees_no_form_that_changes_anything(scene: Scene):
    offered = []
    async with looking(scene, scene.reader) as visit:
        for name, path in scene.paths.items():
            answer = await visit.browser.get(path)
            assert answer.status_code in (200, 403, 404), (name, answer.text)
            if 'method="post"' in answer.text.partition("<main")[2]:
                offered.append(name)
    assert offered == ["editor", "login"]  # whoever looks may have AFL checked, which changes nothing


async def test_text_of_users_is_escaped_on_every_page(evil_scene: Scene):
    shown = 0
    async with looking(evil_scene, evil_scene.secret) as visit:
        for name, path in evil_scene.paths.items():
            answer = await visit.browser.get(path)
            assert answer.status_code == (404 if name == "trouble" else 200), (name, answer.text)
            assert list(broken_out(answer.text)) == [], name
            shown += "x-evil" in answer.text
    assert shown > 35  # it was there, as text


async def test_url_parameters_inject_no_markup_into_any_page(evil_scene: Scene):
    names = ("search", "workflow", "state", "name", "before", "after", "below", "view", "next", "fingerprint", "entity", "flow")
    async with looking(evil_scene, evil_scene.secret) as visit:
        for name, path in evil_scene.paths.items():
            for given in (dict.fromkeys(names, EVIL), {"search": EVIL, "name": EVIL, "next": EVIL}):
                answer = await visit.browser.get(path.partition("?")[0], params=given)
                assert answer.status_code < 500, name
                assert list(broken_out(answer.text)) == [], name


async def test_the_injection_check_detects_injected_markup():
    for page in (
        f"<p>{EVIL}</p>",
        f'<p title="{EVIL}">x</p>',
        '<a href="javascript:x()">x</a>',
        "<p onclick=x>",
        "<script>x</script>",
        "<p style='x'>",
    ):
        assert list(broken_out(page)), page


class Visible(HTMLParser):
    """The visible text of a page, without values that are shown as such: JSON, sources, log lines, hints, and complete ids."""

    VOID = frozenset({"area", "br", "col", "hr", "img", "input", "link", "meta", "use", "wbr"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self._hidden = 0
        self._open: list[bool] = []
        self.feed(page.partition("<main")[2].partition("</main>")[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        hides = tag in ("script", "pre", "textarea", "option") or "data-id" in given or given.get("class") in ("empty", "lines")
        if tag not in self.VOID:
            self._open.append(hides)
            self._hidden += hides

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID and self._open:
            self._hidden -= self._open.pop()

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text.append(data)


ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{18,}|\b(?=[0-9A-Za-z]*\d)[0-9A-Za-z]{26,}\b")
COMMAND = re.compile(r"treadle (runs|tasks|lists|approvals|schedules|watchers|dlq|objectives|why|flows|token|external list) ")


async def test_pages_show_names_and_links_instead_of_ids_and_buttons_instead_of_commands(scene: Scene):
    async with looking(scene, scene.secret) as visit:
        bare = {}
        for name, path in scene.paths.items():
            said = " ".join(Visible((await visit.browser.get(path)).text).text)
            if found := [each[0] for each in (*ID.finditer(said), *COMMAND.finditer(said))]:
                bare[name] = found
        assert {name: found for name, found in bare.items() if name != "login"} == {}


async def test_messages_link_ids_and_leave_out_commands_that_pages_have_buttons_for():
    run_id = "01935b8e-7c3a-7000-8000-000000000000"
    assert message("paused; resume it with `treadle runs resume`") == "paused"
    assert message("no worker; start one with `treadle worker`") == "no worker; start one with <code>treadle worker</code>"
    assert message(f"There is no <run> {run_id}. It may be pruned; `treadle runs list` shows them.") == (
        f'There is no &lt;run&gt; <a class="id" href="/go/{run_id}" title="{run_id}">…00000000</a>. It may be pruned'
    )
    assert message(f"waits for approval: `treadle objectives approve {run_id}`") == "waits for approval"
    assert message("Use the result: `treadle objectives show 7`.") == "Use the result."
    assert message("at 2026-01-02T03:04:05.678Z") == 'at <time datetime="2026-01-02T03:04:05.678Z">2026-01-02 03:04:05 UTC</time>'


class Forms(HTMLParser):
    """The forms of a page that send something: their actions, and the values of their visible fields by name."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str]]] = []
        self.errors = 0
        self._inside = False
        self._area: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.errors += given.get("class") == "field-error"
        if tag == "form":
            self._inside = given.get("method") == "post"
            if self._inside:
                self.found.append((given["action"], {}))
        elif self._inside and tag in ("input", "textarea") and "name" in given:
            if given.get("type", "text") not in ("hidden", "checkbox", "radio", "file"):
                self.found[-1][1][given["name"]] = given.get("value", "")
            self._area = given["name"] if tag == "textarea" else None

    def handle_data(self, data: str) -> None:
        if self._area:
            self.found[-1][1][self._area] = data

    def handle_endtag(self, tag: str) -> None:
        self._area = None
        self._inside = self._inside and tag != "form"


async def test_every_rejected_form_keeps_its_input_and_shows_the_error_in_it(scene: Scene):
    """Text that no number, date, JSON or name is goes into every field of every form; whatever is rejected comes back."""
    typed, rejected = '[<"not & valid> ', 0
    seen: set[str] = set()
    async with looking(scene, scene.secret) as visit:
        for name, path in scene.paths.items():
            page = (await visit.browser.get(path)).text
            for action, fields in Forms(page.partition("<main")[2]).found:
                kind = re.sub(r"[0-9a-f-]{36}|%\w\w", "", action)
                if not fields or kind in seen or name in ("login", "editor") or action == "/logout":
                    continue
                seen.add(kind)
                referer = f"http://127.0.0.1{path}"
                answer = await visit.browser.post(action, data=dict.fromkeys(fields, typed), headers={"Referer": referer})
                assert answer.status_code < 500, (name, action, answer.text)
                if answer.status_code != 422:
                    continue
                rejected += 1
                again = Forms(answer.text)
                kept = next(values for where, values in again.found if where == action and values)
                assert {each.strip() for each in kept.values()} == {typed.strip()}, (name, action)
                assert again.errors, (name, action)
                assert list(broken_out(answer.text)) == [], (name, action)
    assert rejected >= 10, rejected


async def test_every_error_of_a_form_is_at_its_field(scene: Scene):
    async with looking(scene, scene.secret) as visit:
        referer = {"Referer": "http://127.0.0.1/schedules/new"}
        sent = {"name": "x y", "cron": "0 3 * * *", "target": "t", "inputs": "[", "jitter": "soon", "kind": "function"}
        page = (await visit.browser.post("/schedules", data=sent, headers=referer)).text
        for field in ("inputs", "jitter"):
            assert f'id="error-{field}"' in page
            assert f'aria-describedby="error-{field}"' in page
        assert "<option selected>function</option>" in page
        fixed = sent | {"inputs": "{}", "jitter": "1"}
        page = (await visit.browser.post("/schedules", data=fixed, headers=referer)).text
        assert 'id="error-name"' in page


async def test_the_menu_has_six_places_and_tabs_lead_to_their_pages(scene: Scene):
    async with looking(scene, scene.secret) as visit:
        menu = (await visit.page("/")).partition('id="menu"')[2].partition("</nav>")[0]
        assert re.findall(r'<a href="([^"]+)"', menu) == [place.tabs[0].path for place in PLACES]
        assert len(PLACES) <= 6
        for place in PLACES:
            for tab in place.tabs:
                page = await visit.page(tab.path)
                nav = page.partition(f'<nav class="tabs" aria-label="{place.title}">')[2].partition("</nav>")[0]
                links = dict(re.findall(r'<a\s+href="([^"]+)"( aria-current="page")?>', nav))
                assert links == ({each.path: ' aria-current="page"' * (each == tab) for each in place.tabs} if nav else {}), tab
                assert bool(nav) == (len(place.tabs) > 1), tab
    keys = [tab.key for place in PLACES for tab in place.tabs if tab.key]
    assert len(keys) == len(set(keys))


async def test_every_page_belongs_to_a_place(scene: Scene):
    routes = make_site(make_app(scene.engine, open_access=True)).routes
    for route in routes:
        is_located = locate(route.path.replace("{", "").replace("}", ""), QueryParams()) is not None
        assert is_located == (route.path.partition("/{")[0] not in ("/login", "/go", "/limits", "/find")), route.path
