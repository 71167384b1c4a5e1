"""Treadle in applications of web and agent frameworks: FastAPI, Django, Flask, sessions of SQLAlchemy, LangGraph.

Each module needs the extra of its name (`pip install 'treadle[fastapi]'`) and is imported by the application.
"""
