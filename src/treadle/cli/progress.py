"""How far long work is, on one line of stderr that is written over; silent unless somebody watches."""

from __future__ import annotations

import sys

from treadle.cli.session import Session


def tell_progress(session: Session, text: str) -> None:
    """Say how far it is."""
    if _watched(session):
        sys.stderr.write(f"\r{text}")
        sys.stderr.flush()


def end_progress(session: Session) -> None:
    """Take the line away: what came of the work is said elsewhere."""
    if _watched(session):
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def _watched(session: Session) -> bool:
    return sys.stderr.isatty() and not session.json
