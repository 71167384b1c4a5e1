"""Watchers on every store, with real files and a real server: each change starts work once, and nothing is forgotten."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.contract.databases import StoreClock
from tests.contract.timing import HOUR, MINUTE, SECOND, InThisThread, Timing
from tests.errors import raises_code

from treadle.kernel.queue.why import why
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.telemetry.events import WatcherBack, WatcherTrouble
from treadle.kernel.watchers.decide import Content, Fetched, Scan
from treadle.kernel.watchers.scan import PAGE, ROTATE
from treadle.model.errors import IllegalTransition, InvalidInput, InvalidWatcher
from treadle.model.names import WATCHER
from treadle.model.values import decode
from treadle.model.watchers import Item, WatchSource
from treadle.workers.scanner import Scanner, scan

EVERY = 30 * SECOND


@pytest.fixture
def timing(store: Store, clock: StoreClock) -> Timing:
    return Timing(store, clock)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    made = tmp_path / "inbox"
    made.mkdir()
    return made


async def again(timing: Timing, times: int = 1) -> None:
    """The next looks, when they are due."""
    for _ in range(times):
        await timing.pass_(EVERY)
        await timing.look()


# --- files ---


async def test_existing_files_count_as_seen_and_a_new_file_is_reported_once(timing: Timing, inbox: Path) -> None:
    (inbox / "old.csv").write_text("old")
    await timing.watchers.create("inbox", directory=str(inbox), pattern="*.csv", task="job", inputs={"n": 1})
    await timing.look()
    (inbox / "new.csv").write_text("new")
    (inbox / "new.txt").write_text("no")
    await again(timing, 2)
    (task,) = await timing.started()
    told = decode(task.payload)
    assert told["n"] == 1
    assert {name: told["change"][name] for name in ("watcher", "change", "path", "name", "size")} == {
        "watcher": "inbox",
        "change": "created",
        "path": str(inbox / "new.csv"),
        "name": "new.csv",
        "size": 3,
    }
    assert told["change"]["hash"].startswith("sha256:")
    await again(timing, 3)
    assert len(await timing.started()) == 1
    watcher = await timing.watchers.get("inbox")
    assert (watcher.fired, watcher.items, watcher.recent[0].id) == (1, 2, task.id)
    assert [item.name for item in (await timing.watchers.seen("inbox")).seen] == ["new.csv", "old.csv"]
    await timing.check()


async def test_existing_files_can_be_reported_as_new(timing: Timing, inbox: Path) -> None:
    (inbox / "old.csv").write_text("old")
    await timing.watchers.create("inbox", directory=str(inbox), existing="new", settle=0, task="job")
    await timing.look()
    assert await timing.changes() == [("created", "old.csv")]


async def test_modified_deleted_and_renamed_files_are_reported_as_configured(timing: Timing, inbox: Path) -> None:
    await timing.watchers.create("inbox", directory=str(inbox), changes=["created", "modified", "deleted"], settle=0, task="job")
    await timing.watchers.create("quiet", directory=str(inbox), settle=0, task="other")
    await timing.look()
    (inbox / "a").write_text("one")
    await again(timing)
    (inbox / "a").write_text("three")
    await again(timing)
    (inbox / "a").rename(inbox / "b")
    await again(timing)
    (inbox / "b").unlink()
    await again(timing)
    (inbox / "b").write_text("three")
    await again(timing)
    assert await timing.changes() == [
        ("created", "a"),
        ("modified", "a"),
        ("deleted", "a"),
        ("created", "b"),
        ("deleted", "b"),
        ("created", "b"),
    ]
    assert await timing.changes("other") == [("created", "a"), ("modified", "a"), ("created", "b"), ("created", "b")]
    await timing.check()


async def test_a_half_written_file_is_reported_once_it_is_stable(timing: Timing, inbox: Path) -> None:
    await timing.watchers.create("inbox", directory=str(inbox), every=10, settle=15, task="job")
    await timing.look()
    with (inbox / "big").open("wb", buffering=0) as file:
        for _ in range(4):
            file.write(b"x" * 1000)
            await timing.pass_(10 * SECOND)
            await timing.look()
            assert await timing.started() == []
    await timing.pass_(10 * SECOND)
    await timing.look()
    await timing.pass_(5 * SECOND)  # the look for it does not wait for the next interval
    await timing.look()
    (task,) = await timing.started()
    assert decode(task.payload)["change"]["size"] == 4000


async def test_a_restart_while_a_file_settles_neither_repeats_nor_forgets(timing: Timing, clock: StoreClock, inbox: Path) -> None:
    await timing.watchers.create("inbox", directory=str(inbox), task="job")
    await timing.look()
    (inbox / "a").write_text("one")
    await again(timing)
    other = Timing(timing.store, clock)
    await again(other, 3)
    assert await other.changes() == [("created", "a")]


async def test_a_touched_file_is_not_modified_unless_content_does_not_count(timing: Timing, inbox: Path) -> None:
    await timing.watchers.create("content", directory=str(inbox), settle=0, task="job")
    await timing.watchers.create("times", directory=str(inbox), settle=0, hashing=False, task="other")
    await timing.look()
    (inbox / "a").write_text("one")
    await again(timing)
    os.utime(inbox / "a", ns=(1, 1))
    await again(timing)
    assert await timing.changes() == [("created", "a")]
    assert await timing.changes("other") == [("created", "a"), ("modified", "a")]


async def test_patterns_and_depth(timing: Timing, inbox: Path) -> None:
    for name in ("a.csv", "b.txt", "sub/c.csv", "sub/deep/d.csv", ".hidden.csv", "sub/.e/f.csv"):
        (inbox / name).parent.mkdir(parents=True, exist_ok=True)
        (inbox / name).write_text(name)
    wanted: dict[str, tuple[dict[str, object], list[str]]] = {
        "flat": ({"pattern": "*.csv"}, ["a.csv"]),
        "deep": ({"pattern": "*.csv", "recursive": True}, ["a.csv", "sub/c.csv", "sub/deep/d.csv"]),
        "stars": ({"pattern": "**/[cd].csv"}, ["sub/c.csv", "sub/deep/d.csv"]),
        "part": ({"pattern": "sub/*.csv"}, ["sub/c.csv"]),
        "dots": ({"pattern": ".*.csv"}, [".hidden.csv"]),
        "all": ({"pattern": "**"}, ["a.csv", "b.txt", "sub/c.csv", "sub/deep/d.csv"]),
    }
    for name, (options, _) in wanted.items():
        await timing.watchers.create(name, directory=str(inbox), existing="new", settle=0, task=name, **options)  # type: ignore[arg-type]
    await timing.look()
    for name, (_, expected) in wanted.items():
        assert sorted(found for _, found in await timing.changes(name)) == expected, name


async def test_links_do_not_lead_out_of_the_directory(timing: Timing, inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("x")
    (inbox / "out").symlink_to(tmp_path / "secret")
    (inbox / "dir").symlink_to(tmp_path / "elsewhere")
    (inbox / "loop").symlink_to(inbox)
    (inbox / "real").write_text("real")
    (inbox / "in").symlink_to(inbox / "real")
    (inbox / "broken").symlink_to(inbox / "nothing")
    await timing.watchers.create("inbox", directory=str(inbox), recursive=True, existing="new", settle=0, task="job")
    await timing.look()
    assert sorted(name for _, name in await timing.changes()) == ["in", "real"]


async def test_unusual_file_names_are_reported(timing: Timing, inbox: Path) -> None:
    names = ["späße.csv", "with space", "new\nline", "q'uote"]
    for name in names:
        (inbox / name).write_text(name)
    (inbox / os.fsdecode(b"no\xff")).write_text("bytes")
    await timing.watchers.create("inbox", directory=str(inbox), existing="new", settle=0, task="job")
    await timing.look()
    await again(timing)
    assert sorted(name for _, name in await timing.changes()) == sorted([*names, "no\\xff"])


async def test_a_file_can_be_watched_before_it_exists(timing: Timing, inbox: Path) -> None:
    place = inbox / "flag"
    await timing.watchers.create("flag", file=str(place), changes=["created", "modified", "deleted"], settle=0, task="job")
    await timing.look()
    watcher = await timing.watchers.get("flag")
    assert watcher.error == {"code": "path_not_found", "message": f"There is no file {place} yet."}
    place.write_text("up")
    await again(timing)
    place.write_text("down")
    await again(timing)
    place.unlink()
    await again(timing)
    assert [change for change, _ in await timing.changes()] == ["created", "modified", "deleted"]
    assert decode((await timing.started())[0].payload)["change"]["path"] == str(place)


# --- many ---


async def test_a_large_directory_is_scanned_in_pages_and_a_crash_repeats_no_change(
    timing: Timing, clock: StoreClock, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.kernel.watchers.scan.PAGE", 50)
    monkeypatch.setattr("treadle.kernel.watchers.scan.STARTS", 20)
    await timing.watchers.create("inbox", directory=str(inbox), settle=0, changes=["created", "deleted"], task="job")
    await timing.look()
    for number in range(180):
        (inbox / f"{number:03}").touch()
    commits = 0
    commit = timing.store.commit

    async def dying(units: Sequence[object]) -> object:
        nonlocal commits
        commits += 1
        if commits == 4:
            raise RuntimeError("dead")
        return await commit(units)  # type: ignore[arg-type]

    await timing.pass_(EVERY)
    with monkeypatch.context() as patch:
        patch.setattr(timing.store, "commit", dying)
        with pytest.raises(RuntimeError, match="dead"):
            await timing.look()
    assert len(await timing.started()) == 3 * 20 - 10  # pages of 50 in commits of 20, 20 and 10
    other = Timing(timing.store, clock)
    await timing.pass_(2 * MINUTE)  # its lease runs out
    await other.look()
    assert sorted(name for _, name in await other.changes()) == [f"{number:03}" for number in range(180)]
    for number in range(0, 180, 2):
        (inbox / f"{number:03}").unlink()
    await again(other, 2)
    changes = await other.changes()
    assert sorted(name for change, name in changes if change == "deleted") == [f"{number:03}" for number in range(0, 180, 2)]
    assert len(changes) == 270
    assert (await other.watchers.get("inbox")).fired == 270
    await other.check()


async def test_the_first_scan_of_a_large_directory_starts_no_work(timing: Timing, inbox: Path) -> None:
    for number in range(PAGE + 200):
        (inbox / str(number)).touch()
    await timing.watchers.create("inbox", directory=str(inbox), settle=0, task="job")
    await timing.look()
    assert await timing.started() == []
    (inbox / "new").touch()
    await again(timing)
    assert await timing.changes() == [("created", "new")]
    assert (await timing.watchers.get("inbox")).items == PAGE + 201


async def test_empty_scans_leave_few_rows(timing: Timing, inbox: Path) -> None:
    (inbox / "a").touch()
    made = await timing.watchers.create("inbox", directory=str(inbox), task="job")
    await again(timing, 2 * ROTATE + 10)
    watcher = await timing.watchers.get("inbox")
    assert watcher.version <= 4
    live = await timing.store.tasks.list_matching(TaskFilter(kind=WATCHER), 100)
    assert [task.id for task in live] == [watcher.task_id]
    assert len(await timing.store.log.list_transitions(live[0].id)) <= ROTATE
    assert await timing.store.log.list_transitions(made.task_id or "") == []
    await timing.check()


# --- trouble ---


async def test_a_missing_path_is_reported_once_and_retried(timing: Timing, inbox: Path) -> None:
    place = inbox / "later"
    await timing.watchers.create("later", directory=str(place), existing="new", settle=0, task="job")
    await timing.look()
    await again(timing, 3)
    watcher = await timing.watchers.get("later")
    assert watcher.error == {"code": "path_not_found", "message": f"There is no {place} on this machine."}
    task = await timing.store.tasks.find(watcher.task_id or "")
    assert task is not None
    reason = why(task, [], timing.clock.now())
    assert (reason.code, str(place) in reason.text) == ("backoff", True)
    place.mkdir()
    (place / "a").touch()
    await again(timing, 20)
    assert await timing.changes() == [("created", "a")]
    assert [type(event) for event in timing.events] == [WatcherTrouble, WatcherBack]
    assert (await timing.watchers.get("later")).error is None
    await timing.check()


class Failing:
    """Looks as a scanner does, but some directories cannot be read, as if by another user."""

    def __init__(self) -> None:
        self.unreadable: tuple[str, ...] = ()
        self.unreadable_files: tuple[str, ...] = ()
        self._scanner = Scanner(InThisThread(), SystemClock())

    async def scan(self, source: WatchSource) -> Scan:
        scan = await self._scanner.scan(source)
        found = [each for each in scan.found if not any(each.name.startswith(f"{place}/") for place in self.unreadable)]
        problem = f"{len(self.unreadable)} cannot be read" if self.unreadable else None
        return Scan(found, self.unreadable, problem)

    async def read(self, source: WatchSource, names: Sequence[str]) -> dict[str, Content]:
        read = await self._scanner.read(source, names)
        return {name: Content(problem=f"{name}: no") if name in self.unreadable_files else each for name, each in read.items()}

    async def fetch(self, source: WatchSource, item: Item | None) -> Fetched:
        raise NotImplementedError


async def test_unreadable_files_are_not_reported_as_deleted(timing: Timing, inbox: Path) -> None:
    looks = timing.looks = Failing()
    (inbox / "sub").mkdir()
    (inbox / "sub" / "a").write_text("a")
    (inbox / "b").write_text("b")
    await timing.watchers.create(
        "inbox", directory=str(inbox), recursive=True, changes=["created", "modified", "deleted"], settle=0, task="job"
    )
    await timing.look()
    looks.unreadable = ("sub",)
    (inbox / "c").write_text("c")
    await again(timing, 3)
    assert await timing.changes() == [("created", "c")]
    error = (await timing.watchers.get("inbox")).error
    assert error is not None
    assert error["code"] == "path_unreadable"
    looks.unreadable = ()
    (inbox / "sub" / "a").write_text("other")
    await again(timing)
    assert await timing.changes() == [("created", "c"), ("modified", "sub/a")]
    assert [type(event) for event in timing.events] == [WatcherTrouble, WatcherBack]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
async def test_an_unreadable_directory_is_reported_and_loses_no_change(timing: Timing, inbox: Path) -> None:
    (inbox / "sub").mkdir()
    (inbox / "sub" / "a").write_text("a")
    await timing.watchers.create("inbox", directory=str(inbox), recursive=True, changes=["deleted"], settle=0, task="job")
    await timing.look()
    (inbox / "sub").chmod(0)
    await again(timing, 2)
    assert (await timing.watchers.get("inbox")).error is not None
    (inbox / "sub").chmod(0o700)
    await again(timing, 2)
    assert await timing.started() == []


async def test_an_unreadable_file_is_reported_once_it_can_be_read(timing: Timing, inbox: Path) -> None:
    looks = timing.looks = Failing()
    looks.unreadable_files = ("a",)
    await timing.watchers.create("inbox", directory=str(inbox), settle=0, task="job")
    await timing.look()
    (inbox / "a").write_text("a")
    (inbox / "b").write_text("b")
    await again(timing, 2)
    assert await timing.changes() == [("created", "b")]
    assert (await timing.watchers.get("inbox")).error == {"code": "path_unreadable", "message": "a: no"}
    looks.unreadable_files = ()
    await again(timing, 10)
    assert await timing.changes() == [("created", "b"), ("created", "a")]


async def test_a_change_is_kept_until_its_task_can_be_started(timing: Timing, inbox: Path) -> None:
    await timing.watchers.create("inbox", directory=str(inbox), settle=0, workflow="w.W", flow="nowhere")
    await timing.look()
    (inbox / "a").touch()
    await again(timing)
    error = (await timing.watchers.get("inbox")).error
    assert error is not None
    assert error["code"] == "flow_not_found"
    await timing.watchers.edit("inbox", task="job")
    await timing.look()
    assert await timing.changes() == [("created", "a")]
    await timing.check()


# --- addresses ---


class Page:
    """The answer of the test's own server at one address."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"one"
        self.headers: dict[str, str] = {}
        self.asked: list[dict[str, str]] = []
        self.conditional = True


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def address(page: Page) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page.asked.append(dict(self.headers))
            etag = page.headers.get("ETag")
            same = page.conditional and etag is not None and self.headers.get("If-None-Match") == etag
            self.send_response(304 if same else page.status)
            for name, value in page.headers.items():
                self.send_header(name, value)
            body = b"" if same else page.body
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/prices.json"
        server.shutdown()
        thread.join()


async def test_a_url_is_requested_conditionally_and_its_changes_are_reported(timing: Timing, address: str, page: Page) -> None:
    page.headers = {"ETag": '"1"', "Last-Modified": "Fri, 15 Jan 2027 08:00:00 GMT"}
    await timing.watchers.create("prices", url=address, changes=["created", "modified", "deleted"], task="job")
    await timing.look()
    await again(timing, 2)
    assert (page.asked[-1]["If-None-Match"], page.asked[-1]["If-Modified-Since"]) == ('"1"', "Fri, 15 Jan 2027 08:00:00 GMT")
    page.headers, page.body = {"ETag": '"2"'}, b"two"
    await again(timing, 2)
    page.headers = {"ETag": '"3"'}  # another mark for the same content
    await again(timing, 2)
    page.status, page.headers = 404, {}
    await again(timing, 2)
    page.status, page.headers = 200, {}
    await again(timing, 2)
    page.body = b"three"
    await again(timing, 2)
    assert [change for change, _ in await timing.changes()] == ["modified", "deleted", "created", "modified"]
    told = decode((await timing.started())[0].payload)["change"]
    assert (told["url"], told["etag"], told["size"]) == (address, '"2"', 3)
    await timing.check()


async def test_an_unusable_address_is_reported_and_survived(timing: Timing, address: str, page: Page) -> None:
    await timing.watchers.create("prices", url=address, task="job")
    await timing.look()
    page.status, page.body = 500, b"broken"
    await again(timing, 3)
    assert (await timing.watchers.get("prices")).error == {
        "code": "http_error",
        "message": f"{address} answers 500 Internal Server Error.",
    }
    page.status, page.headers = 302, {"Location": "http://localhost:1/elsewhere"}
    await again(timing, 20)
    error = (await timing.watchers.get("prices")).error
    assert error is not None
    assert (error["code"], "http://localhost:1/elsewhere" in error["message"]) == ("http_redirect", True)
    page.status, page.body, page.headers = 200, b"one", {}
    await again(timing, 20)
    assert (await timing.watchers.get("prices")).error is None
    assert await timing.started() == []
    page.body = b"two"
    await again(timing, 20)
    assert [change for change, _ in await timing.changes()] == ["modified"]


async def test_large_responses_are_compared_by_their_headers(timing: Timing, address: str, page: Page) -> None:
    page.body, page.headers, page.conditional = b"x" * 5000, {"ETag": '"1"'}, False
    await timing.watchers.create("prices", url=address, hash_limit=1000, task="job")
    await timing.look()
    await again(timing, 2)
    assert await timing.started() == []
    page.headers = {"ETag": '"2"'}
    await again(timing, 2)
    assert len(await timing.started()) == 1
    page.headers = {}
    await again(timing, 20)
    error = (await timing.watchers.get("prices")).error
    assert error is not None
    assert error["code"] == "http_too_large"


async def test_a_response_that_trickles_times_out(timing: Timing) -> None:
    """Each piece comes in time, but the whole does not."""
    stop = threading.Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            while not stop.wait(0.02):
                self.wfile.write(b"x")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        await timing.watchers.create("drip", url=url, fetch_timeout=0.2, task="job")
        await timing.look()
        stop.set()
        server.shutdown()
        thread.join()
    error = (await timing.watchers.get("drip")).error
    assert error is not None
    assert error["code"] == "http_timeout"


async def test_an_unreachable_url_is_reported(timing: Timing) -> None:
    await timing.watchers.create("prices", url="http://127.0.0.1:9/nothing", fetch_timeout=2, task="job")
    await timing.look()
    error = (await timing.watchers.get("prices")).error
    assert error is not None
    assert error["code"] == "http_unreachable"


# --- what people do ---


async def test_a_resumed_watcher_reports_changes_made_while_paused(timing: Timing, inbox: Path) -> None:
    await timing.watchers.create("inbox", directory=str(inbox), settle=0, task="job")
    await timing.look()
    assert (await timing.watchers.pause("inbox")).state == "paused"
    (inbox / "a").touch()
    await again(timing, 3)
    assert await timing.started() == []
    with pytest.raises(IllegalTransition):
        await timing.watchers.look("inbox")
    await timing.watchers.resume("inbox")
    await timing.look()
    assert await timing.changes() == [("created", "a")]
    await timing.check()


async def test_scan_now_does_not_wait_for_the_interval(timing: Timing, inbox: Path) -> None:
    await timing.watchers.create("inbox", directory=str(inbox), every=3600, settle=0, task="job")
    await timing.look()
    (inbox / "a").touch()
    assert await timing.look() == []
    await timing.watchers.look("inbox", actor="ada")
    await timing.look()
    assert await timing.changes() == [("created", "a")]
    await timing.check()


async def test_edits_and_removal_take_effect_immediately(timing: Timing, inbox: Path) -> None:
    made = await timing.watchers.create("inbox", directory=str(inbox), every=HOUR / 1000, task="job")
    await timing.look()
    edited = await timing.watchers.edit("inbox", every=10, changes=["deleted"], inputs={"n": 2}, actor="ada")
    assert (edited.every_for, edited.changes, edited.target.inputs) == (10_000, ["deleted"], {"n": 2})
    with pytest.raises(InvalidWatcher, match="remove it, and create another"):
        await timing.watchers.edit("inbox", pattern="*.csv")
    (task,) = await timing.claim(WATCHER)
    await timing.watchers.remove("inbox")
    (inbox / "a").touch()
    assert (await timing.looker.run(task)).verdict == "claim_lost"
    await again(timing, 2)
    assert await timing.started() == []
    assert [transition.transition for transition in await timing.store.log.list_transitions(made.id)] == [
        "create",
        "edit",
        "remove",
    ]
    await timing.check()


async def test_a_scan_with_a_lost_claim_changes_no_state(timing: Timing, clock: StoreClock, inbox: Path) -> None:
    await timing.watchers.create("inbox", directory=str(inbox), settle=0, task="job")
    await timing.look()
    (inbox / "a").touch()
    await timing.pass_(EVERY)
    (late,) = await timing.claim(WATCHER, lease_for=10 * SECOND)
    await timing.pass_(11 * SECOND)
    other = Timing(timing.store, clock)
    await other.look()
    assert (await timing.looker.run(late)).verdict == "claim_lost"
    assert await timing.changes() == [("created", "a")]
    await timing.check()


async def test_recovery_describes_due_scans(timing: Timing, inbox: Path) -> None:
    await timing.watchers.create("inbox", directory=str(inbox), task="job")
    await timing.look()
    await timing.pass_(MINUTE)
    assert await timing.watchers.describe_recovery() == []  # on time, or nearly
    await timing.pass_(HOUR)
    (found,) = await timing.watchers.describe_recovery()
    assert (found.name, found.missed) == ("inbox", 122)
    assert found.text == "122 scan(s) are due; one is made, and reports all changes since the last (0 item(s) seen then)"
    await timing.look()
    assert await timing.watchers.describe_recovery() == []
    await timing.lose_task((await timing.watchers.get("inbox")).task_id)
    assert await timing.watchers.repair() == ["inbox"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "job"}, "Name one source to watch"),
        ({"directory": "/a", "file": "/b", "task": "job"}, "together"),
        ({"directory": "relative/path", "task": "job"}, "absolute path"),
        ({"directory": "/a/../b", "task": "job"}, "absolute path"),
        ({"directory": "/a", "pattern": "../*", "task": "job"}, "not a valid pattern"),
        ({"directory": "/a", "pattern": "", "task": "job"}, "not a valid pattern"),
        ({"file": "/a", "pattern": "*", "task": "job"}, "Only a directory"),
        ({"url": "ftp://example.org/x", "task": "job"}, "only http and https"),
        ({"url": "file:///etc/passwd", "task": "job"}, "only http and https"),
        ({"url": "http://", "task": "job"}, "only http and https"),
        ({"url": "https://me:secret@example.org/", "task": "job"}, "name or password"),
        ({"directory": "/a", "changes": [], "task": "job"}, "created, modified, deleted"),
        ({"directory": "/a", "changes": ["moved"], "task": "job"}, "created, modified, deleted"),
        ({"directory": "/a", "every": 0.1, "task": "job"}, "one second"),
        ({"directory": "/a", "existing": "maybe", "task": "job"}, "seen, new"),
        ({"directory": "/a"}, "Name one target to start"),
        ({"directory": "/a", "task": "job", "nonsense": 1}, "has no option 'nonsense'"),
    ],
)
async def test_invalid_input_is_refused_without_effect(timing: Timing, options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await timing.watchers.create("bad", **options)  # type: ignore[arg-type]
    assert (await timing.watchers.list(every=True)).watchers == []


async def test_names_are_unique_and_a_missing_watcher_is_reported(timing: Timing, inbox: Path) -> None:
    await timing.watchers.create("inbox", directory=str(inbox), task="job")
    with raises_code("watcher_exists"):
        await timing.watchers.create("inbox", directory=str(inbox), task="job")
    for act in (timing.watchers.get, timing.watchers.pause, timing.watchers.look, timing.watchers.remove):
        with raises_code("watcher_not_found", match="nobody"):
            await act("nobody")


# --- files that arrive before the first scan ---


async def _survey(source: WatchSource) -> Scan:
    return scan(source)


@pytest.mark.parametrize("paused", [False, True])
async def test_files_that_arrive_before_the_first_scan_are_new(timing: Timing, inbox: Path, tmp_path: Path, paused: bool) -> None:
    timing.watchers.survey = _survey
    (inbox / "old").write_text("old")
    (inbox / "changed").write_text("a")
    await timing.watchers.create("inbox", directory=str(inbox), settle=0, task="job", paused=paused)
    (inbox / "new").write_text("new")
    (inbox / "changed").write_text("abc")
    (tmp_path / "moved").write_text("m")
    os.utime(tmp_path / "moved", (1, 1))  # older than the watcher, as with `mv` and `cp -p`
    (tmp_path / "moved").rename(inbox / "moved")
    if paused:
        await timing.watchers.resume("inbox")
    await timing.look()
    assert sorted(await timing.changes()) == [("created", "moved"), ("created", "new"), ("modified", "changed")]
    assert [item.name for item in (await timing.watchers.seen("inbox")).seen] == ["changed", "moved", "new", "old"]
    await again(timing, 2)
    assert len(await timing.changes()) == 3
    await timing.check()


async def test_files_that_arrive_before_the_first_scan_on_another_machine_are_new(timing: Timing, inbox: Path) -> None:
    (inbox / "old").write_text("old")
    await timing.watchers.create("inbox", directory=str(inbox), settle=0, task="job", scan_on="files")
    assert timing.watchers.survey is None
    (inbox / "new").write_text("new")
    after = timing.clock.now() / 1000 + 1
    os.utime(inbox / "new", (after, after))
    await timing.look()
    assert await timing.changes() == [("created", "new")]
    assert [item.name for item in (await timing.watchers.seen("inbox")).seen] == ["new", "old"]


def test_a_moved_file_arrives_when_it_is_moved(inbox: Path) -> None:
    (inbox / "moved").write_text("m")
    os.utime(inbox / "moved", (1, 1))
    (found,) = scan(WatchSource(kind="directory", place=str(inbox))).found
    assert (found.mtime, found.arrived_at) == (10**9, (inbox / "moved").stat().st_ctime_ns // 1_000_000)


async def test_existing_new_reports_every_file_and_a_missing_directory_is_reported_immediately(timing: Timing, inbox: Path) -> None:
    timing.watchers.survey = _survey
    (inbox / "old").write_text("old")
    await timing.watchers.create("inbox", directory=str(inbox), settle=0, task="job", existing="new")
    await timing.look()
    assert await timing.changes() == [("created", "old")]
    made = await timing.watchers.create("lost", directory=str(inbox / "nowhere"), settle=0, task="job")
    assert made.error is not None
    assert made.error["code"] == "path_not_found"
    (inbox / "nowhere").mkdir()
    await timing.look()
    assert (await timing.watchers.get("lost")).error is None
