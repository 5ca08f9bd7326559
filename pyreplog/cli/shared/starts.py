"""Positions in a topic on the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

from pyreplog.errors import InvalidArgumentError
from pyreplog.topic.model.positions import Start

METAVAR = "earliest|latest|OFFSET|TIME"


def parse(text: str) -> Start:
    """Parse an offset, a time (ISO 8601; UTC if it has no offset), or an end of the topic.

    Raises InvalidArgumentError.
    """
    if text in ("earliest", "latest"):
        return cast(Start, text)
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(f"expected {METAVAR}, found {text!r}") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
