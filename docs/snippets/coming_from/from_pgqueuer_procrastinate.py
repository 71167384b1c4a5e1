"""The Treadle side of docs/coming-from/pgqueuer-procrastinate.md."""

# --- define ---
import asyncio

from treadle import Context, Engine, RetryPolicy

engine = Engine("sqlite:///shop.db")  # in production: postgresql://localhost/shop


@engine.task("resize", retry=RetryPolicy.of(5, first=2, factor=2), concurrency=4)
async def resize(ctx: Context, image: str, width: int) -> str:
    ctx.log(f"{image} at {width}, attempt {ctx.attempt}")
    return f"{image}@{width}"


# --- schedule ---
@engine.declare.schedule("clean_up", cron="*/10 * * * *", overlap="skip")
@engine.task("clean_up")
async def clean_up() -> None: ...


# --- test ---
def test_an_image_is_resized(treadle_env):
    task = treadle_env.engine.enqueue(resize, "a.png", 100)
    assert treadle_env.result(task) == "a.png@100"


# --- rest ---
async def main() -> None:
    # --- enqueue ---
    async with engine, engine.worker():
        task = await engine.enqueue(resize, "a.png", 100)
        assert await task.result(timeout=60) == "a.png@100"
        options = {
            "limit_key": "a.png",
            "limit": 1,
            "unique_key": "a.png",
            "priority": -5,
            "delay": 600,
        }
        later = await engine.enqueue(resize.with_options(**options), "a.png", 200)
        again = await engine.enqueue(resize.with_options(**options), "a.png", 300)
        assert (again.id, again.created) == (later.id, False)
        # --- transaction ---
        async with engine.transaction() as tx:  # SQLite: your tables are in Treadle's file
            await tx.execute("create table if not exists images (name text primary key)")
            await tx.execute("insert into images values ('b.png')")
            await tx.enqueue("resize", {"image": "b.png", "width": 100})
        # --- end ---


# --- within ---
async def save(connection) -> None:  # asyncpg, psycopg 3, SQLAlchemy or Django
    async with connection.transaction():
        await connection.execute("insert into images values ('b.png')")
        await engine.within(connection).enqueue("resize", {"image": "b.png", "width": 100})


# --- last ---
if __name__ == "__main__":
    asyncio.run(main())
