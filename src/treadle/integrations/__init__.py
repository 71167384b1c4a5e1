"""Treadle in applications of web frameworks: FastAPI, Django, Flask, and sessions of SQLAlchemy.

Each module needs the extra of its name (`pip install 'treadle[fastapi]'`) and is imported by the application.
"""
