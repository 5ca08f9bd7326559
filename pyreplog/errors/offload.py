"""Errors of logs on object storage."""

from __future__ import annotations

from typing import Any

from pyreplog.errors.base import ReplogError
from pyreplog.errors.log import CorruptionError


class StorageError(ReplogError):
    """An object store or shared file system cannot be reached, denies access, or failed.

    The request may have been carried out, or not. Making the same call again is safe.
    """

    retriable = True
    exit_code = 7


class OffloadConflictError(ReplogError):
    """Two offloads to one URL ran at a time, and the other one stored its manifest first.

    Nothing of the other one was replaced. Run this one again.
    """

    retriable = True
    exit_code = 3


class ObjectCorruptionError(CorruptionError):
    """An object is missing, too short or damaged, or is not the object that was stored.

    Attributes:
        url: the object.
        position: byte offset in the object.
        expected: what the manifest or the format demands.
        found: what the object holds.
    """

    def __init__(self, url: str, position: int, expected: str, found: str) -> None:
        super().__init__(url, position, expected, found)
        self.url = url

    def __reduce__(self) -> Any:
        return type(self), (self.url, self.position, self.expected, self.found)
