"""Treadle in applications of web and agent frameworks: FastAPI, Django, Flask, sessions of SQLAlchemy, LangGraph.

Each module needs the extra of its name (`pip install 'treadle[fastapi]'`) and is imported by the application.
"""

from treadle.model.errors import MissingDependency


def missing(extra: str, error: ImportError) -> MissingDependency | ImportError:
    """Return the error to raise if a framework cannot be imported: it names the extra. Errors about our own modules stay."""
    if (error.name or "").startswith("treadle."):
        return error
    return MissingDependency(
        f"treadle.integrations.{extra.replace('-', '_')} needs its framework ({error}): pip install 'treadle[{extra}]'."
    )
