"""An agent that may work for days: recorded turns, a short history, and a budget."""

import asyncio

from treadle import Engine, TaskFailed

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db
TURNS_PER_RUN = 50  # then it continues as a new run, with a history of its own
KEPT = 20  # messages that the model gets to see again


async def ask_model(messages):
    """A placeholder for a model: three searches, then the answer."""
    searches = sum(each["role"] == "tool" for each in messages)
    if searches < 3:
        return {
            "tool": "agent.Search",
            "arguments": {"query": f"part {searches + 1}"},
            "tokens": 100,
        }
    return {"answer": f"found in {searches} searches", "tokens": 50}


@engine.handler("agent.Search", retry=2)
async def search(payload, ctx):
    return {"found": f"a page about {payload['query']}"}


@engine.function("agent")
async def agent(state, ctx):
    messages, tokens, turn = state["messages"], state.get("tokens", 0), state.get("turn", 0)
    for _ in range(TURNS_PER_RUN):
        if tokens >= state["budget"]:
            return {"state": "budget spent", "tokens": tokens, "turns": turn}
        reply = await ctx.step(ask_model, messages, retry=5)
        tokens, turn = tokens + reply["tokens"], turn + 1
        if "answer" in reply:
            return {"state": "done", "answer": reply["answer"], "tokens": tokens, "turns": turn}
        try:
            result = await ctx.call(reply["tool"], reply["arguments"])
        except TaskFailed as error:
            result = {"error": error.error}  # the model decides what to do about it
        messages = [
            *messages,
            {"role": "assistant", "content": reply},
            {"role": "tool", "content": result},
        ]
        ctx.publish("progress", {"turn": turn, "tokens": tokens})
    kept = [messages[0], *messages[1:][-KEPT:]]  # the goal, and the newest messages
    return await ctx.continue_as_new(
        {**state, "messages": kept, "tokens": tokens, "turn": turn}
    )


async def main():
    async with engine, engine.worker():
        goal = {
            "messages": [{"role": "user", "content": "Find out about treadles."}],
            "budget": 10_000,
        }
        run = await engine.start(agent, goal)
        print(await run.result())
        print(await run.query("progress"))


if __name__ == "__main__":
    asyncio.run(main())
