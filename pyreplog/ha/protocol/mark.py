"""A place in a log."""

from __future__ import annotations

from pyreplog._native.log.mark import Mark

__all__ = ["ORIGIN", "Mark"]

ORIGIN = Mark(0, 0)
