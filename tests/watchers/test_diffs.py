"""Changes that a watcher detects: new, different, touched, half-written, gone, hidden; URLs by content and by headers."""

from __future__ import annotations

from treadle.kernel.watchers.decide import (
    Content,
    Fetched,
    Judged,
    ScannedFile,
    concluded,
    digest_of,
    is_under,
    judge,
    judge_answer,
    key_of,
)
from treadle.model.watchers import Item

SEEN = Item(size=5, mtime=100, hash="sha256:a")


def look(item: Item | None, found: tuple[int, int] | None, now: int = 1000, settle_for: int = 0, **more: bool) -> Judged:
    where = None if found is None else ScannedFile("a.csv", *found, "a.csv")
    options = {"baseline": False, "hidden": False} | more
    return judge("a.csv", item, where, now=now, settle_for=settle_for, **options)


def test_an_unchanged_file_reports_no_change() -> None:
    assert look(SEEN, (5, 100)).same


def test_the_first_scan_records_files_as_baseline_or_as_created() -> None:
    first = look(None, (5, 100), baseline=True)
    assert (first.change, first.item) == (None, Item(size=5, mtime=100))
    assert look(None, (5, 100)).change == "created"


def test_a_file_is_reported_once_it_has_settled() -> None:
    first = look(None, (5, 100), now=1000, settle_for=2000)
    assert (first.change, first.item, first.delay) == (None, Item(pending=(5, 100, 1000)), 2000)
    soon = look(first.item, (5, 100), now=2500, settle_for=2000)
    assert (soon.same, soon.delay) == (True, 500)
    grown = look(first.item, (9, 130), now=2500, settle_for=2000)
    assert (grown.change, grown.item) == (None, Item(pending=(9, 130, 2500)))
    late = look(grown.item, (9, 130), now=4500, settle_for=2000)
    assert (late.change, late.read) == ("created", ScannedFile("a.csv", 9, 130, "a.csv"))


def test_a_clock_that_goes_back_restarts_the_settle_time() -> None:
    waiting = Item(pending=(5, 100, 9000))
    assert look(waiting, (5, 100), now=1000, settle_for=2000).item == Item(pending=(5, 100, 1000))


def test_a_modified_file_keeps_its_last_seen_state_while_it_settles_and_may_revert() -> None:
    changed = look(SEEN, (7, 200), now=1000, settle_for=2000)
    assert changed.item == Item(size=5, mtime=100, hash="sha256:a", pending=(7, 200, 1000))
    assert look(changed.item, (5, 100), now=5000, settle_for=2000).item == SEEN
    assert look(changed.item, (7, 200), now=5000, settle_for=2000).change == "modified"


def test_a_touched_file_with_the_same_content_is_not_modified() -> None:
    judged = look(SEEN, (5, 200))
    touched = concluded(judged, SEEN, Content(5, 200, "sha256:a"), 1000, 0)
    assert (touched.change, touched.item) == (None, Item(size=5, mtime=200, hash="sha256:a"))
    assert concluded(judged, SEEN, Content(5, 200, "sha256:b"), 1000, 0).change == "modified"
    unknown = Item(size=5, mtime=100)  # its content was never read
    assert concluded(look(unknown, (5, 200)), unknown, Content(5, 200, "sha256:a"), 1000, 0).change == "modified"


def test_a_file_that_changes_while_it_is_read_is_waited_for_again() -> None:
    judged = look(SEEN, (7, 200))
    again = concluded(judged, SEEN, Content(8, 210, "sha256:b"), 1000, 2000)
    assert (again.change, again.delay) == (None, 2000)
    assert again.item == Item(size=5, mtime=100, hash="sha256:a", pending=(8, 210, 1000))
    assert concluded(judged, SEEN, Content(gone=True), 1000, 2000).same


def test_a_missing_file_is_reported_deleted_unless_it_was_incomplete_or_hidden() -> None:
    assert look(SEEN, None) == Judged("a.csv", change="deleted")
    assert look(Item(pending=(5, 100, 1)), None) == Judged("a.csv")
    assert look(SEEN, None, hidden=True).same
    assert is_under("sub/a.csv", ("sub",))
    assert not is_under("subway/a.csv", ("sub",))


def test_long_names_have_keys_that_stores_can_sort() -> None:
    long = "é" * 3000
    assert len(key_of(long).encode()) <= 1000
    assert key_of(long) != key_of(long + "x")
    assert key_of("short/name.csv") == "short/name.csv"


def test_the_digest_reflects_any_difference() -> None:
    files = [ScannedFile("a", 1, 2, "a"), ScannedFile("b", 1, 2, "b")]
    others = [files[:1], files[::-1], [ScannedFile("a", 1, 3, "a"), files[1]], [ScannedFile("a", 2, 2, "a"), files[1]]]
    assert digest_of(files) == digest_of(list(files))
    assert len({digest_of(each) for each in [files, *others]}) == 5


def test_urls_are_compared_by_content_or_else_by_headers() -> None:
    seen = Item(size=3, hash="sha256:a", etag='"1"')
    assert judge_answer("u", None, Fetched(hash="sha256:a", size=3), baseline=True).change is None
    assert judge_answer("u", None, Fetched(hash="sha256:a", size=3), baseline=False).change == "created"
    assert judge_answer("u", seen, Fetched(same=True), baseline=False).same
    other = judge_answer("u", seen, Fetched(hash="sha256:a", etag='"2"', size=3), baseline=False)
    assert (other.change, other.item) == (None, Item(size=3, hash="sha256:a", etag='"2"'))
    assert judge_answer("u", seen, Fetched(hash="sha256:b", etag='"2"', size=3), baseline=False).change == "modified"
    assert judge_answer("u", seen, Fetched(etag='"2"'), baseline=False).change == "modified"  # too big to be read
    assert judge_answer("u", seen, Fetched(gone=True), baseline=False).change == "deleted"
    assert judge_answer("u", None, Fetched(gone=True), baseline=False).same
