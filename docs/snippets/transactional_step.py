import sqlite3
import tempfile

from treadle import BlockingFunctionContext, Engine

engine = Engine("memory://")
SHOP = tempfile.mkdtemp() + "/shop.db"


def shop() -> sqlite3.Connection:
    return sqlite3.connect(SHOP)


def withdraw(connection: sqlite3.Connection, account: str, amount: int) -> int:
    connection.execute(
        "update accounts set balance = balance - ? where name = ?", (amount, account)
    )
    [balance] = connection.execute(
        "select balance from accounts where name = ?", (account,)
    ).fetchone()
    if balance < 0:
        raise ValueError("not enough")  # nothing is committed
    return balance


@engine.function
def pay(account: str, amount: int, ctx: BlockingFunctionContext) -> int:
    return ctx.transaction(shop, withdraw, account, amount)  # exactly once


connection = shop()
with connection:
    connection.execute("create table accounts (name text, balance int)")
    connection.execute("insert into accounts values ('ada', 100)")
connection.close()

with engine.blocking() as app:
    app.start_worker()
    print(app.start(pay, "ada", 30).result())  # 70
