"""The handler module: plain functions of a payload, independent of Treadle."""

from __future__ import annotations

from typing import Any


def process_payment(payload: dict[str, Any]) -> dict[str, Any]:
    """Handle the ProcessPayment event facet."""
    amount = payload.get("amount", 0)
    currency = payload.get("currency", "USD")
    # A real handler would call its payment gateway here.
    return {"transaction_id": f"txn-{currency}-{amount:.2f}", "status": "approved"}
