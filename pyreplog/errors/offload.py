"""Errors of logs on object storage."""

from __future__ import annotations

from typing import Any

from pyreplog.errors.base import ReplogError
from pyreplog.errors.log import CorruptionError


class StorageError(ReplogError):
    """An object store or shared file system cannot be reached, refuses us, or failed. What was asked may be done or
    not; the same call may be made again."""

    retriable = True
    exit_code = 7


class OffloadConflictError(ReplogError):
    """Two offloads to one URL at a time: the other one has stored its manifest first. Nothing of it was replaced; run
    this one again."""

    retriable = True
    exit_code = 3


class ObjectCorruptionError(CorruptionError):
    """An object is missing, short, damaged, or another one than was stored. `url` says which."""

    def __init__(self, url: str, position: int, expected: str, found: str) -> None:
        super().__init__(url, position, expected, found)
        self.url = url

    def __reduce__(self) -> Any:
        return type(self), (self.url, self.position, self.expected, self.found)
