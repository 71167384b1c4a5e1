"""A support agent of Pydantic AI as a durable function: it looks up an order, asks a worker for the stock, and refunds."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pydantic_ai import Agent

from treadle import Engine
from treadle.integrations.pydantic_ai import ToolOptions, TreadleDurability

engine = Engine()

support = Agent(
    "anthropic:claude-haiku-4-5",
    name="support",
    instructions="You help customers of a shop. Look up the order before you decide anything. Refund only what is out of stock.",
    capabilities=[TreadleDurability(model={"retry": 3, "timeout": 120}, approval={"expires": timedelta(days=7)})],
)


def note(line: str) -> None:
    """A placeholder for an effect on the shop."""
    with Path("shop.log").open("a") as log:
        log.write(f"{line}\n")


@support.tool_plain
def find_order(order: int) -> dict[str, object]:
    """Find an order by its number."""
    note(f"find_order {order}")
    return {"order": order, "sku": "teapot", "paid": 40}


@support.tool_plain(metadata={"treadle": ToolOptions(task="shop.Stock")})
def check_stock(sku: str) -> int:
    """Return how many pieces of an article are in stock."""
    raise NotImplementedError("the handler shop.Stock does it")


@support.tool_plain(requires_approval=True, metadata={"treadle": ToolOptions(effect=True, retry=2)})
def refund(order: int, amount: int) -> str:
    """Refund an amount of an order."""
    note(f"refund {order} {amount}")
    return f"refunded {amount}"


@engine.task("shop.Stock")
async def stock(sku: str) -> int:
    """Count the stock, on any worker."""
    note(f"stock {sku}")
    return 0


@engine.function("support.Answer")
async def answer(question: str) -> str:
    """Answer a customer."""
    return (await support.run(question)).output
