"""The handler module: plain functions of a payload; nothing in it knows of Treadle."""

from __future__ import annotations

from typing import Any


def process_payment(payload: dict[str, Any]) -> dict[str, Any]:
    """Handle the ProcessPayment event facet."""
    amount = payload.get("amount", 0)
    currency = payload.get("currency", "USD")
    # Here a real one would call its payment gateway.
    return {"transaction_id": f"txn-{currency}-{amount:.2f}", "status": "approved"}
