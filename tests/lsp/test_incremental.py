"""An edit is checked in little time."""

from __future__ import annotations

from time import process_time

from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.workspace import Workspace

PART = """event facet Fetch{n}(url: String, size: Long = {n}) => (body: String)
workflow Flow{n}(url: String) => (out: String) andThen {{
    first = Fetch{n}(url = $.url)
    second = Fetch{n}(
        url = first.body ++ $.url,
        size = 3 + 4
    )
    yield Flow{n}(out = second.body)
}}
"""


def test_an_edit_of_2000_lines_is_checked_within_100_milliseconds() -> None:
    """CPU time of this process; the best of several counts, and twice the promise is allowed, because others share the machine."""
    text = "".join(PART.format(n=number) for number in range(2000 // PART.count("\n") + 1))
    workspace = Workspace()
    best = 1e9
    for number in range(9):
        changed = text.replace("size = 3 + 4", f"size = 3 + {number}", 1)
        started = process_time()
        workspace.set("/big.afl", Document(changed, number))
        assert workspace.diagnostics("/big.afl") == []
        best = min(best, process_time() - started)
    assert best < 0.2
