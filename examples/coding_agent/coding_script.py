"""The scripted model: its first idea does not pass the tests."""

from __future__ import annotations

from treadle.testing.llm import ModelServer, text, uses

WRONG = '''"""Names for addresses of pages."""


def slug(title: str) -> str:
    """Return the title as a part of an address: `Hello World` becomes `hello-world`."""
    return title.strip().lower().replace("  ", " ").replace(" ", "-")
'''
RIGHT = WRONG.replace('title.strip().lower().replace("  ", " ").replace(" ", "-")', '"-".join(title.lower().split())')


def add_script(server: ModelServer) -> None:
    """Answer each request by its turn in the conversation, so that a repeated one gets the same response."""
    server.conversation(text("1. Collapse spaces in slug().\n2. Run the tests."), key="Plan")
    server.conversation(
        uses(("read_file", {"path": "slug.py"}), ("read_file", {"path": "../../../etc/passwd"})),
        uses(("write_file", {"path": "slug.py", "content": WRONG})),
        text("Spaces are collapsed."),
        uses(("write_file", {"path": "slug.py", "content": RIGHT}), ("run", {"command": "git diff"})),
        text("slug() joins the words of the title with single dashes."),
        key="Solve",
    )
