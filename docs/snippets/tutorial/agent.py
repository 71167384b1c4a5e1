"""A support agent: a model chooses tools until it has an answer. SCRIPT replaces the model."""

import asyncio
import os
from pathlib import Path
from typing import Any

from treadle import Engine, FunctionContext

engine = Engine("sqlite:///treadle.db")
SCRIPT: list[dict[str, Any]] = [
    {"tool": "find_order", "arguments": {"order": 7}},
    {"tool": "refund", "arguments": {"order": 7, "amount": 40}},
    {"answer": "Your teapot is out of stock. You get your money back."},
]


def log(line: str) -> None:
    with Path("agent.log").open("a") as file:
        file.write(f"{line}\n")
    print(f"process {os.getpid()}: {line}", flush=True)


async def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    log(f"model request {len(messages)}")
    await asyncio.sleep(5)
    return SCRIPT[len(messages) - 1]


async def find_order(order: int) -> dict[str, Any]:
    log(f"find order {order}")
    return {"order": order, "item": "teapot", "paid": 40, "in_stock": 0}


async def refund(order: int, amount: int, key: str) -> dict[str, Any]:
    log(f"refund {amount} for order {order}, key {key[:8]}")
    return {"refunded": amount}


@engine.function("support")
async def support(question: str, ctx: FunctionContext) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(10):
        reply = await ctx.step(ask_model, messages, retry=3, timeout=60)
        if "answer" in reply:
            return str(reply["answer"])
        asked = reply["arguments"]
        if reply["tool"] == "refund":
            decision = await ctx.approval(
                f"Refund {asked['amount']}?", context=asked, edits=True
            )
            agreed = decision["context"]
            result = await ctx.effect(
                "refund", lambda call=agreed: refund(**call, key=ctx.idempotency_key), agreed
            )
        else:
            result = await ctx.step(find_order, asked["order"])
        messages.append({"role": "tool", "content": result})
    raise RuntimeError("no answer after ten requests")
