"""A shop on Flask and SQLAlchemy: an order and the task that charges it are stored in one transaction.

export DATABASE_URL=postgresql://localhost/shop
flask treadle migrate
flask run --port 8000 &
flask treadle worker
curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"total": 4200}'
"""

import os
from typing import Any

from flask import Flask, abort, request
from sqlalchemy import BigInteger, ForeignKey, create_engine
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from treadle import Engine
from treadle.integrations.flask import Treadle
from treadle.integrations.sqlalchemy import attach, work

DATABASE_URL = os.environ["DATABASE_URL"]  # noqa: TID251

database = create_engine(DATABASE_URL.replace("postgresql://", "postgresql+psycopg://"))
treadle = Treadle(Engine(DATABASE_URL))
Session = attach(sessionmaker(database), treadle.engine, notify=True)


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    total: Mapped[int] = mapped_column(BigInteger)


class Charge(Base):
    __tablename__ = "charges"
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), primary_key=True)


@treadle.handler("charge", retry=5)
def charge(payload: dict[str, Any]) -> dict[str, Any]:
    # A worker that dies is replaced, so this may run twice: the key of the table makes the second time a no-op.
    with Session.begin() as session:
        session.execute(insert(Charge).values(order_id=payload["order"]).on_conflict_do_nothing())
    return {"charged": payload["order"]}


app = Flask(__name__)
treadle.init_app(app)


@app.cli.command("create-tables")
def create_tables() -> None:
    """Create the tables of the shop."""
    Base.metadata.create_all(database)


@app.post("/orders")
def create_order() -> tuple[dict[str, Any], int]:
    with Session.begin() as session:
        order = Order(total=int(request.get_json()["total"]))
        session.add(order)
        session.flush()
        work(session).enqueue("charge", {"order": order.id})
        return {"id": order.id}, 201


@app.get("/orders/<int:order_id>")
def show_order(order_id: int) -> dict[str, Any]:
    with Session() as session:
        order = session.get(Order, order_id) or abort(404)
        return {"id": order.id, "total": order.total, "charged": session.get(Charge, order_id) is not None}
