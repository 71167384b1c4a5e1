"""Work in the transaction of a SQLAlchemy session.

Session = attach(sessionmaker(database), engine, notify=True)

with Session.begin() as session:
    session.add(order)
    session.flush()
    work(session).enqueue("charge", {"order": order.id})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from treadle.integrations import missing

try:
    from sqlalchemy.ext.asyncio import AsyncSession
except ImportError as error:
    raise missing("sqlalchemy", error) from error

from sqlalchemy.orm import Session, scoped_session

from treadle.engine import Engine
from treadle.model.errors import InvalidInput

if TYPE_CHECKING:
    from treadle.engine.within import BlockingWithin, Within

M = TypeVar("M")

_KEY = "treadle"


def attach(maker: M, engine: Engine, *, notify: bool = False) -> M:
    """Let sessions of a `sessionmaker` or `async_sessionmaker` start work of the engine; with `notify`, commits wake workers."""
    configured: Any = maker
    info = {**(configured.kw.get("info") or {}), _KEY: (engine, notify)}
    configured.configure(info=info)
    return maker


@overload
def work(session: AsyncSession) -> Within: ...
@overload
def work(session: Session | scoped_session[Any]) -> BlockingWithin: ...
def work(session: Any) -> Any:
    """Return the methods that start work in the session's transaction: it exists exactly if that commits."""
    binding = session.info.get(_KEY)
    if binding is None:
        raise InvalidInput("This session belongs to no engine: create it with `attach(sessionmaker(...), engine)`.")
    engine, notify = binding
    if isinstance(session, AsyncSession):
        return engine.within(session, notify=notify)
    return engine.blocking().within(session, notify=notify)
