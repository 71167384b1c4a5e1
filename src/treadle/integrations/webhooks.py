"""For receivers of Treadle's webhooks: verify that a request is signed with your secret, and recent."""

from treadle.model.webhooks import EVENT_HEADER, ID_HEADER, SIGNATURE_HEADER, TOLERANCE, sign, verify

__all__ = ["EVENT_HEADER", "ID_HEADER", "SIGNATURE_HEADER", "TOLERANCE", "sign", "verify"]
