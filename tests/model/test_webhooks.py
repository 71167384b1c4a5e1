"""Signatures of webhooks."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from treadle.model.webhooks import sign, verify

SECRET, BODY, AT = "s3cret", b'{"id":"x"}', 1_700_000_000


def test_a_signature_is_an_hmac_over_time_and_body() -> None:
    expected = hmac.new(b"s3cret", b'1700000000.{"id":"x"}', hashlib.sha256).hexdigest()
    assert sign(SECRET, AT, BODY) == f"t={AT},v1={expected}"
    assert verify(SECRET, sign(SECRET, AT, BODY), BODY, AT + 299)


@pytest.mark.parametrize(
    ("secret", "header", "body", "now"),
    [
        ("other", sign(SECRET, AT, BODY), BODY, AT),
        (SECRET, sign(SECRET, AT, BODY), BODY + b" ", AT),
        (SECRET, sign(SECRET, AT, BODY), BODY, AT + 301),
        (SECRET, sign(SECRET, AT, BODY), BODY, AT - 301),
        (SECRET, sign(SECRET, AT, BODY).replace(str(AT), str(AT + 1)), BODY, AT),
        (SECRET, f"t={AT}", BODY, AT),
        (SECRET, f"t=soon,v1={'0' * 64}", BODY, AT),
        (SECRET, f"t={AT},v1=ü", BODY, AT),
        (SECRET, "", BODY, AT),
    ],
)
def test_other_values_are_refused(secret: str, header: str, body: bytes, now: float) -> None:
    assert not verify(secret, header, body, now)
