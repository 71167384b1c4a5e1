"""Signatures of webhooks: an HMAC-SHA256 over the time of sending and the body. Pure; used by senders and receivers.

The header is `t=UNIX SECONDS,v1=HEX`, the signed text `UNIX SECONDS.BODY`. A receiver checks the signature and its age, so
that a recorded webhook cannot be replayed.
"""

from __future__ import annotations

import hashlib
import hmac

SIGNATURE_HEADER = "Treadle-Signature"
EVENT_HEADER = "Treadle-Event"
ID_HEADER = "Idempotency-Key"

TOLERANCE = 300
"""Seconds for which a signature is valid."""


def sign(secret: str, at: int, body: bytes) -> str:
    """Return the header value for a body sent at that time (seconds since 1970)."""
    return f"t={at},v1={_digest(secret, at, body)}"


def verify(secret: str, header: str, body: bytes, now: float, tolerance: float = TOLERANCE) -> bool:
    """Return whether the body was signed with the secret within the last `tolerance` seconds; `now` in seconds since 1970."""
    parts = dict(part.strip().partition("=")[::2] for part in header.split(","))
    try:
        at = int(parts["t"])
    except (KeyError, ValueError):
        return False
    good = hmac.compare_digest(_digest(secret, at, body).encode(), parts.get("v1", "").encode("utf-8", "replace"))
    return good and abs(now - at) <= tolerance


def _digest(secret: str, at: int, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
