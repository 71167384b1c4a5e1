"""The items of a thread: checkpoints, values of channels, and writes of an agent framework, in its own serialization."""

from __future__ import annotations

from base64 import b64decode, b64encode

from treadle.model.errors import UnreadableValue
from treadle.model.stored import Stored

Typed = tuple[str, bytes]
"""A serialized value: the name of its format, and its bytes."""


class ThreadItem(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """One item. `data` and `metadata` are base64 in the formats `type` and `metadata_type`."""

    type: str
    data: str
    metadata_type: str = ""
    metadata: str = ""
    checkpoint_id: str = ""
    parent_id: str | None = None
    """The checkpoint before this one."""
    ns: str = ""
    """The namespace of a subgraph."""
    task_id: str = ""
    channel: str = ""
    path: str = ""
    index: int = 0
    """The position of a write among those of its task; negative for the framework's own."""

    @property
    def value(self) -> Typed:
        """The serialized value."""
        return self.type, _bytes(self.data)

    @property
    def about(self) -> Typed:
        """The serialized metadata of a checkpoint."""
        return self.metadata_type, _bytes(self.metadata)


def text(value: bytes) -> str:
    """Return bytes as they are stored."""
    return b64encode(value).decode()


def _bytes(stored: str) -> bytes:
    try:
        return b64decode(stored, validate=True)
    except ValueError as error:
        raise UnreadableValue(f"A value of a thread is not base64: {error}. It is damaged.") from None
