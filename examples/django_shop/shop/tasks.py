"""Work of the shop; `treadle_worker` runs it."""

from typing import Any

from shop.models import Charge
from treadle.integrations.django import engine


@engine.handler("charge", retry=5)
def charge(payload: dict[str, Any]) -> dict[str, Any]:
    # A worker that dies is replaced, so this may run twice: the second time finds the charge.
    Charge.objects.get_or_create(order_id=payload["order"])
    return {"charged": payload["order"]}
