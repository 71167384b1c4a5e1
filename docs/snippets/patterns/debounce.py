"""Index a document after it has been quiet for a while: many changes, one execution."""

import asyncio

from treadle import Engine

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db
QUIET, MAX_WAIT = 0.3, 30  # seconds without a change; limit on the wait for such a pause


@engine.handler("document.Index", retry=5)
async def index(payload):
    print("index", payload["document"], payload["text"])


async def changed(document, text):
    """Report a change, from any process."""
    return await engine.enqueue(
        "document.Index",
        {"document": document, "text": text},
        unique_key=f"index-{document}",
        on_conflict="debounce",
        delay=QUIET,
        max_wait=MAX_WAIT,
    )


async def main():
    async with engine, engine.worker():
        for text in ("a", "ab", "abc"):
            task = await changed("notes", text)
        await engine.result(task)  # prints: index notes abc


if __name__ == "__main__":
    asyncio.run(main())
