"""The rules of Kafka for topic names."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Return whether a topic name is valid: 1 to 249 letters, digits, ".", "_" and "-", but not "." or ".."."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")
