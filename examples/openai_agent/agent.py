"""Two support agents of the OpenAI Agents SDK as a durable function: triage looks things up and hands off to refunds."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from agents import Agent, GuardrailFunctionOutput, RunConfig, RunContextWrapper, function_tool, input_guardrail
from treadle import Engine
from treadle.integrations.openai_agents import ToolOptions, TreadleRunner

engine = Engine()
runner = TreadleRunner(
    model={"retry": 3, "timeout": 120},
    tools={"check_stock": ToolOptions(task="shop.Stock"), "refund": ToolOptions(effect=True, retry=2)},
    approval={"expires": timedelta(days=7)},
)


def note(line: str) -> None:
    """A placeholder for an effect on the shop."""
    with Path("shop.log").open("a") as log:
        log.write(f"{line}\n")


@function_tool
def find_order(order: int) -> dict[str, object]:
    """Find an order by its number."""
    note(f"find_order {order}")
    return {"order": order, "sku": "teapot", "paid": 40}


@function_tool
def check_stock(sku: str) -> int:
    """Return how many pieces of an article are in stock."""
    raise NotImplementedError("the handler shop.Stock does it")


@function_tool(needs_approval=True)
def refund(order: int, amount: int) -> str:
    """Refund an amount of an order."""
    note(f"refund {order} {amount}")
    return f"refunded {amount}"


@input_guardrail
async def about_orders(_: RunContextWrapper[Any], agent: Agent[Any], given: Any) -> GuardrailFunctionOutput:
    """Stop questions that are not about orders."""
    return GuardrailFunctionOutput({"asked": str(given)[:80]}, tripwire_triggered="order" not in str(given))


refunds = Agent(name="refunds", model="gpt-5-mini", instructions="You refund what is out of stock.", tools=[refund])
triage = Agent(
    name="triage",
    model="gpt-5-mini",
    instructions="You help customers of a shop. Look up the order and the stock, then hand off to refunds if something is missing.",
    tools=[find_order, check_stock],
    handoffs=[refunds],
    input_guardrails=[about_orders],
)


@engine.task("shop.Stock")
async def stock(sku: str) -> int:
    """Count the stock, on any worker."""
    note(f"stock {sku}")
    return 0


@engine.function("support.Answer")
async def answer(question: str) -> str:
    """Answer a customer."""
    result = await runner.run(triage, question, run_config=RunConfig(tracing_disabled=True))
    return str(result.final_output)
