"""Names for addresses of pages."""


def slug(title: str) -> str:
    """Return the title as a part of an address: `Hello World` becomes `hello-world`."""
    return title.lower().replace(" ", "-")
