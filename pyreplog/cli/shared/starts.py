"""Places in a topic, as they are written on the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.model.positions import Start

METAVAR = "earliest|latest|OFFSET|TIME"


def parse(text: str) -> Start:
    """An offset, a time (ISO 8601; UTC where it names no offset), or an end of the topic. InvalidArgumentError."""
    if text in ("earliest", "latest"):
        return cast(Start, text)
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(f"expected {METAVAR}, found {text!r}") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
