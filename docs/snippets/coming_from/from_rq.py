"""The Treadle side of docs/coming-from/rq.md."""

# --- define ---
from datetime import timedelta

from treadle import Engine, FunctionContext

engine = Engine("sqlite:///site.db")


@engine.task("site.count_words")
def count_words(text: str) -> int:
    return len(text.split())


# --- retries ---
@engine.task("site.notify", retry=3, timeout=60)
def notify(address: str) -> str:
    return f"sent to {address}"


# --- dependencies ---
@engine.function("site.publish")
async def publish(ctx: FunctionContext, text: str, address: str) -> str:
    words = await ctx.call(count_words, text)  # notify starts when this has completed
    return await ctx.call(notify.with_options(priority=-1), f"{address} ({words} words)")


# --- schedule ---
engine.declare.schedule(
    "hourly", every=3600, task="site.count_words", inputs={"text": "again and again"}
)


# --- isolation ---
@engine.handler("site.thumbnail", isolation="process", timeout=120)
# in a process of its own, which the worker can kill, as RQ's work horse
def thumbnail(payload):
    return {"size": payload["size"]}


# --- test ---
def test_a_page_is_published(treadle_env):
    run = treadle_env.engine.start(publish, "one two", "ada")
    assert treadle_env.result(run) == "sent to ada (2 words)"


# --- rest ---
def main() -> None:
    # --- enqueue ---
    with engine.blocking() as site:
        site.start_worker()  # in production: treadle worker --handlers site.py
        task = site.enqueue(count_words, "a short text")
        assert task.result(timeout=60) == 3
        site.enqueue(
            count_words.with_options(delay=timedelta(minutes=10), unique_key="page-7"),
            "a short text",
        )
        # --- inspect ---
        kept = task.status()
        assert (kept.state, kept.attempt) == ("completed", 1)
        # --- end ---
        assert (
            site.start(publish, "one two", "ada").result(timeout=60) == "sent to ada (2 words)"
        )


if __name__ == "__main__":
    main()
