"""Signatures of webhooks: an HMAC-SHA256 over the time of sending and the body. Pure; for those who send and who receive.

The header is `t=UNIX SECONDS,v1=HEX`, the signed text `UNIX SECONDS.BODY`. Who receives one checks the signature, and that it is
not old, so that nobody can send a recorded one again.
"""

from __future__ import annotations

import hashlib
import hmac

SIGNATURE_HEADER = "Treadle-Signature"
EVENT_HEADER = "Treadle-Event"
ID_HEADER = "Idempotency-Key"

TOLERANCE = 300
"""Seconds that a signature is good for."""


def sign(secret: str, at: int, body: bytes) -> str:
    """The value of the header for a body that is sent at that time (seconds since 1970)."""
    return f"t={at},v1={_digest(secret, at, body)}"


def verify(secret: str, header: str, body: bytes, now: float, tolerance: float = TOLERANCE) -> bool:
    """Whether the body was signed with the secret, not longer ago than `tolerance` seconds; `now` in seconds since 1970."""
    parts = dict(part.strip().partition("=")[::2] for part in header.split(","))
    try:
        at = int(parts["t"])
    except (KeyError, ValueError):
        return False
    good = hmac.compare_digest(_digest(secret, at, body).encode(), parts.get("v1", "").encode("utf-8", "replace"))
    return good and abs(now - at) <= tolerance


def _digest(secret: str, at: int, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
