"""Forms from the types of handlers and functions, and the check of what is typed before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Any

import pytest
from tests.web.conftest import Visit
from tests.web.test_lists import main_of

from treadle.workers.signatures import signature_of


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Item:
    sku: str
    count: int = 1


@dataclass
class Order:
    customer: str
    items: list[Item] = field(default_factory=list)


async def order(
    order: Order,
    day: date,
    size: Size = Size.SMALL,
    copies: int = 2,
    weight: float | None = None,
    gift: bool = False,
    tags: list[str] = ["new"],  # noqa: B006
) -> None:
    """Take an order."""


TYPED = {
    "in.order.customer": "Ada",
    "in.order.items": '[{"sku": "a"}]',
    "in.day": "2030-01-31",
    "in.size": "large",
    "in.copies": "3",
    "in.weight": "",
    "in.gift": "true",
    "in.tags": "one\ntwo\n",
}
PAYLOAD = {
    "order": {"customer": "Ada", "items": [{"sku": "a"}]},
    "day": "2030-01-31",
    "size": "large",
    "copies": 3,
    "gift": True,
    "tags": ["one", "two"],
}


@pytest.fixture
async def typed(visit: Visit) -> Visit:
    """A site whose engine knows the parameters of a function and a handler, from a worker that has ended."""
    visit.engine.function("order")(order)
    visit.engine.handler("pack")(order)
    async with visit.engine.worker():
        pass
    return visit


async def rejected(visit: Visit, form: str, action: str, fields: dict[str, str]) -> str:
    """The form as it is shown again."""
    answer = await visit.browser.post(action, data=fields, headers={"Referer": f"http://127.0.0.1{form}"})
    assert answer.status_code == 422, answer.text
    return answer.text


async def test_every_type_has_its_field(typed: Visit):
    page = main_of(await typed.page("/functions/order/start"))
    assert '<legend>order <span class="note">required</span></legend>' in page
    assert '<input type="text" name="in.order.customer" value="" required>' in page
    assert '<input type="date" name="in.day" value="" required>' in page
    assert "<option selected>small</option>" in page
    assert 'name="in.copies" value="2" inputmode="numeric"' in page
    assert 'name="in.weight" value="" inputmode="decimal"' in page
    assert '<select name="in.gift"><option value="">default</option>' in page
    assert ">new</textarea>" in page
    assert '<textarea name="in.order.items"' in page


@pytest.mark.parametrize(("path", "name"), [("/functions/order/start", {}), ("/tasks", {"name": "pack"})])
async def test_entered_fields_become_the_payload(typed: Visit, path: str, name: dict[str, str]):
    await typed.do(path, **name, **TYPED)
    task = (await typed.engine.tasks.list(every=True, limit=1)).tasks[0]
    payload: Any = (await typed.engine.tasks.get(task.id)).payload
    assert payload.get("payload", payload) == PAYLOAD


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"in.copies": "many"}, "Must be a whole number."),
        ({"in.day": ""}, "Is missing."),
        ({"in.order.customer": ""}, "Is missing."),
        ({"in.order.items": '[{"count": 1}]'}, "Is missing."),
        ({"in.order.items": "[{"}, "This is not JSON."),
    ],
)
async def test_a_mistake_is_shown_at_its_field_before_any_start(typed: Visit, mistake: dict[str, str], message: str):
    page = await rejected(typed, "/functions/order/start", "/functions/order/start", TYPED | mistake)
    assert message in page
    assert 'value="Ada"' in page or "in.order.customer" in mistake
    assert not (await typed.engine.runs.list()).runs


async def test_a_schedule_has_the_fields_of_its_handler(typed: Visit):
    form = "/schedules/new?kind=task&target=pack&cron=0+2+*+*+*"
    assert 'name="in.order.customer"' in main_of(await typed.page(form))
    times = {"name": "nightly", "kind": "task", "target": "pack", "cron": "0 2 * * *"}
    assert "Must be a whole number." in await rejected(typed, form, "/schedules", {**times, **TYPED, "in.copies": "x"})
    await typed.do("/schedules", **times, **TYPED)
    assert (await typed.engine.schedules.get("nightly")).target.inputs == PAYLOAD


def test_parameters_without_annotations_take_any_object():
    async def free(payload):
        return payload

    assert signature_of("free", free).schema() == {}
