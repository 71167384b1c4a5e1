"""Store an order and enqueue its confirmation in one transaction: both, or neither."""

import asyncio

from treadle import Engine

engine = Engine()  # the store in TREADLE_STORE, else sqlite:///treadle.db
TABLE = """create table if not exists shop_orders (
    id integer primary key, total integer not null check (total > 0)
)"""


@engine.handler("order.Confirm", retry=10)
async def confirm(payload, ctx):
    # the key for a mail service that deduplicates
    print("confirm order", payload["order"], "once per", ctx.task_id)


async def place_order(order, total):
    """SQLite: your table is in the file of the store, and the transaction is Treadle's."""
    async with engine.transaction() as tx:
        await tx.execute("insert into shop_orders (id, total) values (?, ?)", (order, total))
        await tx.enqueue("order.Confirm", {"order": order})


async def place_order_in(connection, order, total):
    """PostgreSQL: your table is in the store's database; the transaction is yours (asyncpg)."""
    async with connection.transaction():
        await connection.execute(
            "insert into shop_orders (id, total) values ($1, $2)", order, total
        )
        await engine.within(connection, notify=True).enqueue("order.Confirm", {"order": order})


async def main():
    async with engine, engine.worker():
        async with engine.transaction() as tx:
            await tx.execute(TABLE)
        await place_order(17, 4_200)
        try:
            await place_order(18, -1)  # refused by the table: no order, and no confirmation
        except Exception as error:
            print("refused:", error)
        (task,) = (await engine.tasks.list(name="order.Confirm")).tasks
        await engine.result(task)


if __name__ == "__main__":
    asyncio.run(main())
