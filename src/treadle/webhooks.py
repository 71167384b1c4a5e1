"""For those who receive webhooks of Treadle: is what came signed with our secret, and fresh?"""

from treadle.model.webhooks import EVENT_HEADER, ID_HEADER, SIGNATURE_HEADER, TOLERANCE, sign, verify

__all__ = ["EVENT_HEADER", "ID_HEADER", "SIGNATURE_HEADER", "TOLERANCE", "sign", "verify"]
