"""The version of the installed package."""

from functools import cache


@cache
def package_version() -> str:
    """Return the version of Treadle, or `unknown` if it runs without being installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and not needed to enqueue

    try:
        return version("treadle")
    except PackageNotFoundError:
        return "unknown"
